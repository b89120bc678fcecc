package main

import (
	"cmp"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// As root the current directory is handed to the child's uid while calls run
// in it, so that they can create files there. What its owner was stands in a
// record file in a directory that only root can enter, written before the
// owner changes. Each call holds a shared flock(2) on the record: the last one
// out restores the owner, and a record that nobody holds was left by a call
// that was killed, and is put right by the next call in the directory, or by one
// of the next on this machine.
//
// One lock file makes entering, leaving and repairing exclusive.

// stateDirs are where the records may be kept, the first that can be. The
// first of them outlives a reboot.
var stateDirs = []string{"/var/lib/pyplaypen", "/run/pyplaypen"}

// A handoverRecord says how to put a directory right.
type handoverRecord struct {
	path     string
	dev      uint64
	ino      uint64
	owner    int // before the first call
	childUID int // since then, if handed
	handed   bool
	files    bool  // files of childUID below go back to owner too
	since    int64 // those made from this time on, in Unix nanoseconds
}

func (r *handoverRecord) name() string {
	return strconv.FormatUint(r.dev, 10) + "-" + strconv.FormatUint(r.ino, 10)
}

// A handover is one call's part in it.
type handover struct {
	state  int // descriptors
	record int
	name   string
}

// handOver gives the current directory to uid. It returns nil where there is
// nothing to give back; notice says why the directory was not given if the
// user should know.
//
// It waits for the locks of other calls as long as goOn says.
func handOver(uid int, files bool, goOn func() bool) (h *handover, notice string) {
	repairHandovers(goOn)
	path, err := unix.Getwd() // not $PWD, which may be a link
	if err != nil {
		return nil, "the current directory is not handed over: " + err.Error()
	}
	dir, err := unix.Open(".", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Sprintf("%s is not handed over: %v", path, err)
	}
	defer unix.Close(dir)
	var st unix.Stat_t
	if err := unix.Fstat(dir, &st); err != nil {
		return nil, fmt.Sprintf("%s is not handed over: %v", path, err)
	}
	if int(st.Uid) != uid && passable(&st, uid, 3) && !files {
		return nil, ""
	}
	if unix.Faccessat(dir, ".", 2, 0) == unix.EROFS {
		return nil, ""
	}
	if isSystemDirectory(&st) {
		return nil, fmt.Sprintf("%s is a system directory: it is not handed to uid %d, which cannot create files in it", path, uid)
	}
	h, err = enterHandover(dir, path, uid, files, goOn)
	switch {
	case err == nil:
		return h, ""
	case !passable(&st, uid, 3):
		return nil, fmt.Sprintf("%s is not handed to uid %d, which cannot create files in it: %v", path, uid, err)
	case files:
		return nil, fmt.Sprintf("the files that uid %d makes below %s stay its own: %v", uid, path, err)
	}
	return nil, "" // it is the uid's, whether by another call or not
}

func openStateDir() (int, error) {
	var first error
	for _, path := range stateDirs {
		fd, err := openOwnDir(path, 0o700)
		if err == nil {
			return fd, nil
		}
		if first == nil {
			first = err
		}
	}
	return -1, first
}

// lockState takes the lock that makes changes to the records exclusive.
func lockState(state int, goOn func() bool) (unlock func(), err error) {
	fd, err := unix.Openat(state, "lock", unix.O_RDWR|unix.O_CREAT|unix.O_CLOEXEC|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, err
	}
	if err := flockWhile(fd, unix.LOCK_EX, goOn); err != nil {
		unix.Close(fd)
		return nil, err
	}
	return func() { unix.Close(fd) }, nil
}

// enterHandover joins the calls in the directory, as the first or as a later
// one. It returns nil if the directory is the uid's anyway.
func enterHandover(dir int, path string, uid int, files bool, goOn func() bool) (*handover, error) {
	state, err := openStateDir()
	if err != nil {
		return nil, err
	}
	unlock, err := lockState(state, goOn)
	if err != nil {
		unix.Close(state)
		return nil, err
	}
	defer unlock()
	h, err := enterLocked(state, dir, path, uid, files)
	if h == nil {
		unix.Close(state)
	}
	return h, err
}

func enterLocked(state, dir int, path string, uid int, files bool) (*handover, error) {
	var st unix.Stat_t
	if err := unix.Fstat(dir, &st); err != nil {
		return nil, err
	}
	want := handoverRecord{
		path: path, dev: uint64(st.Dev), ino: st.Ino, owner: int(st.Uid), childUID: uid,
		handed: !passable(&st, uid, 3), files: files, since: time.Now().UnixNano(),
	}
	flags := unix.O_RDWR | unix.O_CLOEXEC | unix.O_NOFOLLOW
	if want.handed || files {
		flags |= unix.O_CREAT
	}
	fd, err := unix.Openat(state, want.name(), flags, 0o600)
	if err == unix.ENOENT {
		return nil, nil // nobody handed it over: it belongs to the uid
	}
	if err != nil {
		return nil, err
	}
	if _, unread := readRecord(fd); unread == nil && flock(fd, unix.LOCK_EX|unix.LOCK_NB) == nil {
		// A call was killed since the repair, or the directory was moved since.
		err := restoreHandover(state, fd, dir, want.name())
		unix.Close(fd)
		if err != nil {
			return nil, err
		}
		return enterLocked(state, dir, path, uid, files)
	}
	if err = joinRecord(fd, dir, want); err == nil {
		err = flock(fd, unix.LOCK_SH)
	}
	if err != nil {
		if flock(fd, unix.LOCK_EX|unix.LOCK_NB) == nil { // nobody else is in it
			unix.Unlinkat(state, want.name(), 0)
		}
		unix.Close(fd)
		return nil, err
	}
	return &handover{state: state, record: fd, name: want.name()}, nil
}

// joinRecord brings the record up to date with one more call, and changes the
// directory's owner if this is the first.
func joinRecord(fd, dir int, want handoverRecord) error {
	there, err := readRecord(fd)
	if err != nil { // new and empty
		if err := writeRecord(fd, &want); err != nil || !want.handed {
			return err
		}
		return unix.Fchown(dir, want.childUID, -1)
	}
	if there.childUID != want.childUID {
		return fmt.Errorf("a call that runs as uid %d has it", there.childUID)
	}
	if want.files && !there.files {
		there.files = true
		return writeRecord(fd, there)
	}
	return nil
}

// giveBackWait is how long a call that has ended waits for the lock; after that
// the next call does its part.
const giveBackWait = 10 * time.Second

// giveBack ends this call's part; the last call restores the owner.
func (h *handover) giveBack() error {
	defer unix.Close(h.state)
	defer unix.Close(h.record)
	end := time.Now().Add(giveBackWait)
	unlock, err := lockState(h.state, func() bool { return time.Now().Before(end) })
	if err != nil {
		return fmt.Errorf("restore the current directory's owner: %w", err)
	}
	defer unlock()
	if flock(h.record, unix.LOCK_EX|unix.LOCK_NB) != nil {
		return nil // others are still in it
	}
	// By this name it is found wherever it was moved meanwhile.
	dir, err := unix.Open(".", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("restore the current directory's owner: %w", err)
	}
	defer unix.Close(dir)
	return restoreHandover(h.state, h.record, dir, h.name)
}

// repairHandovers puts right what calls that were killed left behind.
func repairHandovers(goOn func() bool) {
	for _, path := range stateDirs {
		state, err := unix.Open(path, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
		if err != nil {
			continue
		}
		repairHandoversIn(state, goOn)
		unix.Close(state)
	}
}

func repairHandoversIn(state int, goOn func() bool) {
	names, err := readNames(state)
	names = slices.DeleteFunc(names, func(name string) bool { return name == "lock" })
	if err != nil || len(names) == 0 {
		return
	}
	unlock, err := lockState(state, goOn)
	if err != nil {
		return
	}
	defer unlock()
	for _, name := range recordsToSee(names, time.Now().Nanosecond()) {
		fd, err := unix.Openat(state, name, unix.O_RDWR|unix.O_CLOEXEC|unix.O_NOFOLLOW, 0)
		if err != nil {
			continue
		}
		if flock(fd, unix.LOCK_EX|unix.LOCK_NB) == nil {
			repairHandover(state, fd, name)
		}
		unix.Close(fd)
	}
}

// recordsAtOnce is how many records one call looks at, while others wait for the
// lock: those whose directories are gone stay for weeks.
const recordsAtOnce = 8

// recordsToSee returns the current directory's record, if it has one, and
// recordsAtOnce of the others at the most, others for each turn.
func recordsToSee(names []string, turn int) []string {
	if len(names) <= recordsAtOnce {
		return names
	}
	start := turn % len(names)
	names = slices.Concat(names[start:], names[:start])
	var st unix.Stat_t
	if unix.Stat(".", &st) == nil {
		here := slices.Index(names, (&handoverRecord{dev: uint64(st.Dev), ino: st.Ino}).name())
		if here >= recordsAtOnce {
			return append(names[:recordsAtOnce:recordsAtOnce], names[here])
		}
	}
	return names[:recordsAtOnce]
}

// repairHandover undoes what the record of a killed call says. Where the path
// does not lead to the directory, which may have been moved or be out of sight
// from here, the record stays for a later call, one in that directory at best.
func repairHandover(state, record int, name string) {
	r, err := readRecord(record)
	if err != nil { // killed before the record was written, so before the chown
		unix.Unlinkat(state, name, 0)
		return
	}
	dir, err := unix.Open(r.path, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err == nil {
		defer unix.Close(dir)
		err = restoreHandover(state, record, dir, name)
	}
	var st unix.Stat_t
	if err != nil && unix.Fstat(record, &st) == nil && time.Since(time.Unix(st.Mtim.Unix())) > forgetAfter {
		unix.Unlinkat(state, name, 0)
	}
}

// forgetAfter is when a record whose directory is not to be found is given up.
const forgetAfter = 30 * 24 * time.Hour

// restoreHandover undoes what the record says about dir, unless that is another
// directory or somebody else has changed its owner since. The caller holds the
// state lock and the record's.
func restoreHandover(state, record, dir int, name string) error {
	r, err := readRecord(record)
	if err != nil {
		return fmt.Errorf("read the record of the directory's owner: %w", err)
	}
	var st unix.Stat_t
	if err := unix.Fstat(dir, &st); err != nil || uint64(st.Dev) != r.dev || st.Ino != r.ino {
		return fmt.Errorf("restore the owner of %s: it is another directory now", r.path)
	}
	defer unix.Unlinkat(state, name, 0)
	if r.handed && int(st.Uid) == r.childUID {
		if err := unix.Fchown(dir, r.owner, -1); err != nil {
			return fmt.Errorf("restore the owner of %s: %w", r.path, err)
		}
	}
	if r.files {
		if err := giveBackFiles(dir, r, 0); err != nil {
			return fmt.Errorf("give files below %s back: %w", r.path, err)
		}
	}
	return nil
}

// giveBackFiles changes the owner of what the calls made below dir, on the same
// mount, following no links. A file with another name elsewhere is left
// alone. It keeps one descriptor for each level that it is deep, and goes no
// further down than any honest program does. What can't be changed does not
// keep it from the rest; the first error is returned.
func giveBackFiles(dir int, r *handoverRecord, depth int) error {
	if depth > giveBackDepth {
		return fmt.Errorf("more than %d levels of directories", giveBackDepth)
	}
	fd, err := openDirAt(dir, ".")
	if err != nil {
		return err
	}
	list := os.NewFile(uintptr(fd), ".")
	defer list.Close()
	names, err := list.Readdirnames(-1)
	if err != nil {
		return err
	}
	var first error
	for _, name := range names {
		fd, err := openPinned(dir, name)
		if err != nil {
			continue // gone, or on another mount
		}
		err = giveBackPinned(fd, r, depth)
		unix.Close(fd)
		if err != nil && first == nil {
			first = err
			if depth == 0 { // deeper names would make a long line
				first = fmt.Errorf("%s: %w", name, err)
			}
		}
	}
	return first
}

const giveBackDepth = 200

func giveBackPinned(fd int, r *handoverRecord, depth int) error {
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return err
	}
	var below, own error
	isDir := st.Mode&unix.S_IFMT == unix.S_IFDIR
	if isDir {
		below = giveBackFiles(fd, r, depth+1)
	}
	if int(st.Uid) == r.childUID && (isDir || st.Nlink == 1) && madeSince(fd, r.since) {
		own = chownPinned(fd, r.owner, -1)
	}
	return cmp.Or(below, own)
}

// recordFormat begins a record: the numbers in the order of the struct, then the
// path in hexadecimal digits, since it may hold any byte, then an end of line.
const recordFormat = "1"

// writeRecord replaces the text in a way that leaves a readable record at
// every moment: the reader stops at the end of the first line.
func writeRecord(fd int, r *handoverRecord) error {
	text := strings.Join([]string{
		recordFormat, strconv.FormatUint(r.dev, 10), strconv.FormatUint(r.ino, 10), strconv.Itoa(r.owner), strconv.Itoa(r.childUID),
		strconv.FormatBool(r.handed), strconv.FormatBool(r.files), strconv.FormatInt(r.since, 10), hex.EncodeToString([]byte(r.path)),
	}, " ") + "\n"
	if n, err := unix.Pwrite(fd, []byte(text), 0); err != nil || n < len(text) {
		return cmp.Or(err, error(unix.ENOSPC))
	}
	return unix.Ftruncate(fd, int64(len(text)))
}

func readRecord(fd int) (*handoverRecord, error) {
	buf := make([]byte, 16<<10) // a path has 4 KiB at the most
	n, err := unix.Pread(fd, buf, 0)
	if err != nil {
		return nil, err
	}
	line, _, whole := strings.Cut(string(buf[:n]), "\n")
	f := strings.Split(line, " ")
	if !whole || len(f) != 9 || f[0] != recordFormat {
		return nil, errors.New("unknown format")
	}
	var r handoverRecord
	var errs [8]error
	r.dev, errs[0] = strconv.ParseUint(f[1], 10, 64)
	r.ino, errs[1] = strconv.ParseUint(f[2], 10, 64)
	r.owner, errs[2] = strconv.Atoi(f[3])
	r.childUID, errs[3] = strconv.Atoi(f[4])
	r.handed, errs[4] = strconv.ParseBool(f[5])
	r.files, errs[5] = strconv.ParseBool(f[6])
	r.since, errs[6] = strconv.ParseInt(f[7], 10, 64)
	path, err := hex.DecodeString(f[8])
	r.path, errs[7] = string(path), err
	return &r, cmp.Or(errs[:]...)
}
