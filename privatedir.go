package main

import (
	"encoding/hex"
	"errors"
	"fmt"
	"math"
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// A privateDir is a directory made for one call, 0700 and owned by the uid that
// the call runs as. It lies in a directory that only pyplaypen can change,
// pyplaypen-EUID, and its supervisor holds an flock(2) on it, so that one whose
// supervisor was killed can be told, and is removed by the next call.
//
// Once empty it is kept as a spare for a later call: to make and remove a
// directory takes a file system such as ext4 longer than all the rest of a short
// call takes.
type privateDir struct {
	path   string
	name   string
	uid    int // -1 for the user's own
	parent int // descriptors
	self   int
}

// temporaryDirs are where a private directory may be made, the first that works.
func temporaryDirs() []string {
	dirs := []string{"/tmp", "/var/tmp", "/dev/shm"}
	if dir := os.Getenv("TMPDIR"); dir != "" && dir[0] == '/' {
		dirs = append([]string{dir}, dirs...)
	}
	return dirs
}

// newPrivateDir makes one for uid, or for the user itself if uid is negative.
// It waits for the lock of other calls as long as goOn says.
func newPrivateDir(uid int, goOn func() bool) (*privateDir, error) {
	var first error
	for _, base := range temporaryDirs() {
		d, err := newPrivateDirIn(base, uid, goOn)
		if err == nil {
			return d, nil
		}
		if first == nil {
			first = err
		}
	}
	return nil, first
}

func newPrivateDirIn(base string, uid int, goOn func() bool) (*privateDir, error) {
	if uid >= 0 {
		if b, blocked := blockadeOf(base+"/x", uid); blocked {
			return nil, fmt.Errorf("uid %d cannot pass %s", uid, b)
		}
	}
	mode := uint32(0o700)
	if os.Geteuid() == 0 { // also for a root that can't drop, beside one that can
		mode = 0o711
	}
	path := base + "/" + privateDirsName()
	parent, err := openOwnDir(path, mode)
	if err != nil {
		return nil, err
	}
	d, err := makePrivateDir(parent, path, uid, goOn)
	if err != nil {
		unix.Close(parent)
	}
	return d, err
}

// privateDirsName is the directory that holds a user's private directories.
func privateDirsName() string { return "pyplaypen-" + strconv.Itoa(os.Geteuid()) }

// openOwnDir makes the directory if it is missing and opens it, but only if
// nobody else can have put anything into it.
func openOwnDir(path string, mode uint32) (int, error) {
	if err := unix.Mkdir(path, mode); err != nil && err != unix.EEXIST {
		return -1, &os.PathError{Op: "mkdir", Path: path, Err: err}
	}
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1, &os.PathError{Op: "open", Path: path, Err: err}
	}
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil || int(st.Uid) != os.Geteuid() || st.Mode&0o022 != 0 {
		unix.Close(fd)
		return -1, fmt.Errorf("%s belongs to somebody else or can be written by others", path)
	}
	if uint32(st.Mode)&0o777 != mode {
		unix.Fchmod(fd, mode) // the umask took bits away
	}
	return fd, nil
}

func makePrivateDir(parent int, path string, uid int, goOn func() bool) (*privateDir, error) {
	// The lock keeps others from taking a directory for a stale one between
	// its making and its locking.
	if err := flockWhile(parent, unix.LOCK_EX, goOn); err != nil {
		return nil, &os.PathError{Op: "lock", Path: path, Err: err}
	}
	defer flock(parent, unix.LOCK_UN)
	name := randomHex(8)
	self, err := takeSpare(parent, name, uid), error(nil)
	if self < 0 {
		if err := unix.Mkdirat(parent, name, 0o700); err != nil {
			return nil, &os.PathError{Op: "mkdir", Path: path + "/" + name, Err: err}
		}
		if self, err = openDirAt(parent, name); err == nil {
			err = flock(self, unix.LOCK_EX|unix.LOCK_NB)
		}
	}
	if err == nil && uid >= 0 {
		err = unix.Fchown(self, uid, uid)
	}
	if err == nil {
		unix.Fchmod(self, 0o700)
		return &privateDir{path: path + "/" + name, name: name, uid: uid, parent: parent, self: self}, nil
	}
	unix.Unlinkat(parent, name, unix.AT_REMOVEDIR)
	if self >= 0 {
		unix.Close(self)
	}
	return nil, &os.PathError{Op: "prepare", Path: path + "/" + name, Err: err}
}

// A spare is known by its name, spare-UID-..., and is for the uid that it was
// for: a process of that uid may still have it open.
const (
	sparePrefix = "spare-"
	maxSpares   = 4
)

// takeSpare takes a spare for the uid, under its new name, and its lock. It
// returns -1 if there is none.
func takeSpare(parent int, name string, uid int) int {
	names, _ := readNames(parent)
	for _, spare := range names {
		if !strings.HasPrefix(spare, sparePrefix+strconv.Itoa(uid)+"-") {
			continue
		}
		fd, err := openDirAt(parent, spare)
		if err != nil {
			continue
		}
		if flock(fd, unix.LOCK_EX|unix.LOCK_NB) == nil && unix.Renameat(parent, spare, parent, name) == nil {
			return fd
		}
		unix.Close(fd)
	}
	return -1
}

// becomeSpare empties the directory and keeps it, unless the call has changed
// what the next one would notice. It returns the new name, or none.
func (d *privateDir) becomeSpare() string {
	if makeOwn(d.self) != nil || emptyDir(d.self) != nil {
		return ""
	}
	var st unix.Stat_t
	const grown = 64 << 10 // directories do not shrink
	if unix.Fstat(d.self, &st) != nil || st.Size > grown || hasAttributes(d.self, d.parent) {
		return ""
	}
	spare := sparePrefix + strconv.Itoa(d.uid) + "-" + d.name
	if unix.Renameat(d.parent, d.name, d.parent, spare) != nil {
		return ""
	}
	return spare
}

// sweepStale removes the directories in parent that no supervisor holds, and
// spares beyond a few, of which newest is not one: the next call is most likely
// for the same uid. The lock on parent, under which they are made, is needed only
// to tell them.
func sweepStale(parent int, newest string) {
	if flock(parent, unix.LOCK_EX|unix.LOCK_NB) != nil {
		return // another call is here, and will look too
	}
	stale := map[string]int{}
	names, _ := readNames(parent)
	spares := 1
	for _, name := range names {
		if name == newest {
			continue
		}
		if strings.HasPrefix(name, sparePrefix) {
			if spares++; spares <= maxSpares {
				continue
			}
		}
		fd, err := openDirAt(parent, name)
		if err != nil {
			continue
		}
		if flock(fd, unix.LOCK_EX|unix.LOCK_NB) == nil {
			stale[name] = fd
		} else {
			unix.Close(fd)
		}
	}
	flock(parent, unix.LOCK_UN)
	for name, fd := range stale {
		removeTree(parent, name)
		unix.Close(fd)
	}
}

// remove removes all that is in the directory, and the directories that killed
// calls have left.
func (d *privateDir) remove() error {
	var err error
	spare := d.becomeSpare()
	if spare == "" {
		err = removeTree(d.parent, d.name)
	}
	unix.Close(d.self)
	sweepStale(d.parent, spare)
	unix.Close(d.parent)
	if err != nil {
		return fmt.Errorf("remove %s: %w", d.path, err)
	}
	return nil
}

// removeTree removes the directory name in parent and all below it, following
// no links. What it deletes was made by code that may have nested directories
// deeper than descriptors or paths can follow, so it does not descend: whatever
// directory is found inside a subdirectory moves up to the top first.
func removeTree(parent int, name string) error {
	if unix.Unlinkat(parent, name, unix.AT_REMOVEDIR) == nil {
		return nil // empty, as it mostly is
	}
	top, err := openToEmpty(parent, name)
	if err != nil {
		return err
	}
	defer unix.Close(top)
	if err := emptyDir(top); err != nil {
		return err
	}
	return unix.Unlinkat(parent, name, unix.AT_REMOVEDIR)
}

// emptyDir removes what is in the directory.
func emptyDir(top int) error {
	// Names that the code can't have taken: a directory can't replace a file.
	prefix, moved := "", 0
	free := func() string {
		if prefix == "" {
			prefix = ".moved-" + randomHex(8) + "-"
		}
		moved++
		return prefix + strconv.Itoa(moved)
	}
	for {
		names, err := readNames(top)
		if err != nil {
			return err
		}
		if len(names) == 0 {
			return nil
		}
		for _, entry := range names {
			if err := removeEntry(top, entry, free); err != nil {
				return err
			}
		}
	}
}

// removeEntry removes one entry of top. Directories two levels down move to a
// free name in it.
func removeEntry(top int, entry string, free func() string) error {
	if err := unlinkFileOrEmptyDir(top, entry); err != unix.ENOTEMPTY && err != unix.EEXIST && err != unix.EACCES {
		return err
	}
	sub, err := openToEmpty(top, entry)
	if err != nil {
		return err
	}
	defer unix.Close(sub)
	for {
		names, err := readNames(sub)
		if err != nil {
			return err
		}
		if len(names) == 0 {
			return unix.Unlinkat(top, entry, unix.AT_REMOVEDIR)
		}
		for _, child := range names {
			err := unlinkFileOrEmptyDir(sub, child)
			for err == unix.ENOTEMPTY || err == unix.EEXIST || err == unix.EACCES {
				err = unix.Renameat(sub, child, top, free())
				if err == unix.EACCES && makeAccessible(sub, child) != nil {
					return err
				}
			}
			if err != nil && err != unix.ENOENT {
				return err
			}
		}
	}
}

// unlinkFileOrEmptyDir returns ENOTEMPTY, EEXIST or EACCES for a directory that
// is not to be had so easily.
func unlinkFileOrEmptyDir(dir int, name string) error {
	err := unix.Unlinkat(dir, name, 0)
	if err == unix.EISDIR || err == unix.EPERM { // the latter is POSIX's answer
		err = unix.Unlinkat(dir, name, unix.AT_REMOVEDIR)
	}
	if err == unix.ENOENT {
		return nil
	}
	return err
}

// openToEmpty opens a directory for the removal of its entries. It becomes the
// caller's own, so that no process that outlived a killed supervisor adds any.
func openToEmpty(parent int, name string) (int, error) {
	fd, err := openDirAt(parent, name)
	if err == unix.EACCES && makeAccessible(parent, name) == nil {
		fd, err = openDirAt(parent, name)
	}
	if err == nil {
		makeOwn(fd)
	}
	return fd, err
}

// makeOwn takes an open directory from whoever of the call's uid still has it
// open too.
func makeOwn(fd int) error {
	if os.Geteuid() == 0 {
		if err := unix.Fchown(fd, 0, 0); err != nil {
			return err
		}
	}
	return unix.Fchmod(fd, 0o700)
}

// makeAccessible makes a directory the caller's own and gives back what the
// code may have taken from its mode: root may lack CAP_DAC_OVERRIDE, and a user
// has none. In parent, the caller's by now, nobody puts another file in its
// place.
func makeAccessible(parent int, name string) error {
	var st unix.Stat_t
	if err := unix.Fstatat(parent, name, &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return err
	}
	if st.Mode&unix.S_IFMT != unix.S_IFDIR {
		return unix.EACCES
	}
	if err := unix.Fchownat(parent, name, os.Geteuid(), -1, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return err
	}
	return unix.Fchmodat(parent, name, 0o700, 0)
}

func openDirAt(parent int, name string) (int, error) {
	return unix.Openat(parent, name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
}

// readNames lists a directory from its beginning, in part if it is long.
func readNames(dir int) ([]string, error) { return listNames(dir, 4096) }

// readAllNames lists all of a directory.
func readAllNames(dir int) ([]string, error) { return listNames(dir, math.MaxInt) }

// listNames lists a directory up to about the given number of entries.
func listNames(dir, enough int) ([]string, error) {
	fd, err := openDirAt(dir, ".")
	if err != nil {
		return nil, err
	}
	defer unix.Close(fd)
	var names []string
	buf := make([]byte, 8<<10)
	for len(names) < enough {
		n, err := unix.ReadDirent(fd, buf)
		switch {
		case err == unix.EINTR:
			continue
		case err == unix.ENOENT: // it was removed
			return names, nil
		case err != nil:
			return names, err
		case n == 0:
			return names, nil
		}
		_, _, names = unix.ParseDirent(buf[:n], -1, names)
	}
	return names, nil
}

// flock is flock(2), begun again after a signal.
func flock(fd, how int) error {
	for {
		if err := unix.Flock(fd, how); err != unix.EINTR {
			return err
		}
	}
}

// errLocked says that a lock was not to be had in time.
var errLocked = errors.New("another call holds the lock")

// flockWhile waits for a lock as long as goOn says. It asks again and again,
// since a lock that is waited for in flock(2) can't be given up.
func flockWhile(fd, how int, goOn func() bool) error {
	for pause := 100 * time.Microsecond; ; pause = min(2*pause, 5*time.Millisecond) {
		err := flock(fd, how|unix.LOCK_NB)
		if err != unix.EWOULDBLOCK {
			return err
		}
		if !goOn() {
			return errLocked
		}
		time.Sleep(pause)
	}
}

// randomHex returns 2n hexadecimal digits.
func randomHex(n int) string {
	b := make([]byte, n)
	fillRandom(b)
	return hex.EncodeToString(b)
}
