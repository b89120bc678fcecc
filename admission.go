package main

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Calls that share a directory of lock files wait there for each other: for a
// slot, of which --max-concurrency sets the number, or for a uid of a range. A
// lock is an flock(2), which the kernel takes back when its holder dies, however
// that comes about.
//
// The calls that wait for the same form a queue, by a lock of its own: who holds
// it is at the head and looks for a free lock every few milliseconds, while the
// others wait for it in the kernel, which lets them in one after the other. The
// queue is a courtesy that nothing depends on, since its head may be stopped: who
// finds a lock free at several looks in a row takes it from behind. Nor do looks
// exclude each other, see take.

// maxSlots is the largest --max-concurrency.
const maxSlots = 32

// A lockPool is a set of locks of which each call takes one.
type lockPool struct {
	dir    int    // descriptor
	path   string // of dir
	size   int
	atOnce int // how many may be taken, of size
	name   func(i int) string
	queue  string
	none   string // says that none is free
	// inUse, if there is one, says what has what the locks stand for, by their
	// index, although no call has.
	inUse func() map[int]string
}

// openSlots opens the pool of slots, or returns nil if nobody asked for a bound.
// Its errors are usage errors.
func openSlots(f *callFlags) (*lockPool, error) {
	text, source := setting(f.MaxConcurrency, "--max-concurrency", "PYPLAYPEN_MAX_CONCURRENCY")
	if text == "" && f.MaxConcurrency == nil {
		if f.SlotDir != nil {
			return nil, usageError("--slot-dir: has no meaning without --max-concurrency")
		}
		return nil, nil
	}
	n, err := parseLimit(kindCount, text)
	if err != nil || n < 1 || n > maxSlots {
		return nil, usageError("%s %q: want a number from 1 to %d", source, text, maxSlots)
	}
	p := &lockPool{
		size: maxSlots, atOnce: int(n), queue: "queue-" + strconv.FormatInt(n, 10),
		name: func(i int) string { return "slot-" + strconv.Itoa(i) },
	}
	if f.SlotDir != nil {
		p.path = *f.SlotDir
		p.dir, err = openSlotDir(p.path, p.queue)
	} else {
		p.dir, p.path, err = openLockDir("pyplaypen-slots-"+strconv.Itoa(os.Geteuid()), os.Getenv("XDG_RUNTIME_DIR"), "/run", "/tmp")
	}
	if err != nil {
		return nil, usageError("slot directory: %w", err)
	}
	p.none = fmt.Sprintf("no free slot: calls at once in %s are bounded to %d", p.path, n)
	return p, nil
}

// openSlotDir opens a directory of the user's choice, and makes it, for this
// user alone, if it is missing.
func openSlotDir(path, queue string) (int, error) {
	if path == "" {
		return -1, errors.New("--slot-dir is empty")
	}
	if err := unix.Mkdir(path, 0o700); err != nil && err != unix.EEXIST {
		return -1, &os.PathError{Op: "mkdir", Path: path, Err: err}
	}
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1, &os.PathError{Op: "open", Path: path, Err: err}
	}
	lock, err := openLock(fd, queue, true)
	if err != nil {
		unix.Close(fd)
		return -1, &os.PathError{Op: "open", Path: path + "/" + queue, Err: err}
	}
	unix.Close(lock)
	return fd, nil
}

// openLockDir opens the directory of this name in the first base where it can
// be had, for this user alone.
func openLockDir(name string, bases ...string) (fd int, path string, err error) {
	var first error
	for _, base := range bases {
		if !strings.HasPrefix(base, "/") {
			continue
		}
		path := strings.TrimRight(base, "/") + "/" + name
		fd, err := openOwnDir(path, 0o700)
		if err == nil {
			return fd, path, nil
		}
		if first == nil {
			first = err
		}
	}
	return -1, "", first
}

// A uidRange is what --child-uid names: one uid that calls share, or a range of
// which each call takes one for itself.
type uidRange struct {
	first, last int
	own         bool
}

// openUIDs opens the pool of a range's uids. They are the machine's, so that
// where their locks are depends on nothing that a caller may set. Its errors
// are usage errors.
func openUIDs(r uidRange) (*lockPool, error) {
	text := fmt.Sprintf("%d-%d", r.first, r.last)
	dir, path, err := openLockDir("pyplaypen-uids", "/run", "/tmp")
	if err != nil {
		return nil, usageError("--child-uid %s: directory for locks: %w", text, err)
	}
	size := r.last - r.first + 1
	return &lockPool{
		dir: dir, path: path, size: size, atOnce: size, queue: "queue-" + text,
		name: func(i int) string { return "uid-" + strconv.Itoa(r.first+i) },
		none: "no free uid: calls have all of " + text,
		// A call whose pyplaypen was killed leaves its uid, but maybe not all of
		// its processes, and anybody else may use the number as well.
		inUse: func() map[int]string {
			used := map[int]string{}
			for uid, p := range uidsInUse() {
				used[uid-r.first] = fmt.Sprintf("%v runs as uid %d", p, uid)
			}
			return used
		},
	}, nil
}

// parseUIDs accepts what --child-uid may name.
func parseUIDs(text string) (uidRange, error) {
	a, b, own := strings.Cut(text, "-")
	first, err := parseUID(a)
	if err != nil || !own {
		return uidRange{first, first, false}, err
	}
	last, err := parseUID(b)
	if err == nil && last < first {
		err = fmt.Errorf("the range ends before it begins")
	}
	return uidRange{first, last, true}, err
}

// lockMode is that of a lock file, whatever the umask. Others who may use the
// directory must read the file to lock it, and nobody has to write to it.
const lockMode = 0o644

// openLock opens a lock file of the pool's, which another user who shares the
// directory may have made. In a directory where anybody may have put anything,
// it follows no link and opens nothing but a plain file of one name: a lock on
// any other would be one that somebody else may wait for.
func openLock(dir int, name string, create bool) (int, error) {
	for tries := 0; ; tries++ {
		fd, err := openLockOnce(dir, name, create)
		// Somebody else made it, right now; its mode comes a moment later.
		if tries == 20 || err != unix.EEXIST && err != unix.EACCES {
			return fd, err
		}
		if err == unix.EACCES {
			time.Sleep(time.Millisecond)
		}
	}
}

// errNoLock says that what has a lock's name is something else.
var errNoLock = errors.New("not a plain file")

func openLockOnce(dir int, name string, create bool) (int, error) {
	const flags = unix.O_CLOEXEC | unix.O_NOFOLLOW | unix.O_NONBLOCK | unix.O_NOCTTY
	// To write, although nothing is written: NFS wants that for an exclusive lock.
	// O_CREAT is refused for somebody else's file in a directory that all may
	// write to (fs.protected_regular, proc_sys_fs(5)), so it comes last.
	fd, err := unix.Openat(dir, name, unix.O_RDWR|flags, 0)
	if err == unix.EACCES {
		fd, err = unix.Openat(dir, name, unix.O_RDONLY|flags, 0)
	}
	if err == unix.ENOENT && create {
		fd, err = unix.Openat(dir, name, unix.O_RDWR|unix.O_CREAT|unix.O_EXCL|flags, 0o600)
		if err == nil {
			unix.Fchmod(fd, lockMode)
		}
		return fd, err
	}
	if err != nil {
		return -1, err
	}
	var st unix.Stat_t
	if err = unix.Fstat(fd, &st); err == nil && (st.Mode&unix.S_IFMT != unix.S_IFREG || st.Nlink > 1) {
		err = errNoLock
	}
	if err != nil {
		unix.Close(fd)
		return -1, err
	}
	return fd, nil
}

// tryLock takes a lock if it is free, and else returns EWOULDBLOCK.
func (p *lockPool) tryLock(name string, create bool) (int, error) {
	fd, err := openLock(p.dir, name, create)
	if err != nil {
		return -1, err
	}
	if err := flock(fd, unix.LOCK_EX|unix.LOCK_NB); err != nil {
		unix.Close(fd)
		return -1, err
	}
	return fd, nil
}

// A find is what a look for a free lock came to.
type find struct {
	fd, index int      // fd is -1 if none was to be had
	inUse     []string // what of the pool's was free but in use all the same
}

// take takes the first free lock, unless atOnce of them are taken. Those that
// something else than a call uses are passed over.
//
// It needs no other look to wait. A lock of another call's is counted in any
// case: one before the lock that is taken was found locked, or it would have
// been taken, and one behind it is looked at afterwards. So of two calls that
// get in the later one has seen the earlier. All that looks at the same time can
// bring about is that each takes the other for a call, and looks again.
func (p *lockPool) take() (f find, err error) {
	f.fd = -1
	var inUse map[int]string
	taken := 0
	for i := range p.size {
		if f.fd >= 0 && taken+p.size-i < p.atOnce {
			break // whatever the others are
		}
		lock, err := p.tryLock(p.name(i), f.fd < 0)
		switch {
		case err == unix.EWOULDBLOCK:
			taken++
		case err == unix.ENOENT:
		case err != nil:
			f.drop()
			return f, &os.PathError{Op: "lock", Path: p.path + "/" + p.name(i), Err: err}
		case f.fd >= 0:
			unix.Close(lock)
		default:
			if p.inUse != nil && inUse == nil {
				inUse = p.inUse()
			}
			if text, used := inUse[i]; used {
				f.inUse = append(f.inUse, text)
				unix.Close(lock)
			} else {
				f.fd, f.index = lock, i
			}
		}
		if taken >= p.atOnce {
			f.drop()
			break
		}
	}
	return f, nil
}

func (f *find) drop() {
	if f.fd >= 0 {
		unix.Close(f.fd)
		f.fd = -1
	}
}

// These are how often a call that waits looks for a free lock: at the head of
// the queue, and behind it. The latter also where only what is in use otherwise
// is in the way, since that takes a look at all processes.
const (
	firstLook  = time.Millisecond
	lastLook   = 10 * time.Millisecond
	behindLook = 100 * time.Millisecond
)

// enoughLooks is how often in a row a call behind the head must have found a
// lock free before it takes it: the head, which looks ten times as often, is
// stopped then.
const enoughLooks = 3

// A place is a call's in the queue.
type place struct {
	queue int // descriptor
	head  bool
	turn  chan error // what came of the wait for the head
	gone  chan struct{}
}

// wait waits for the head without waiting here. A lock that is waited for in
// flock(2) can't be given up, so that until it comes the descriptor is this
// goroutine's.
func (p *place) wait() {
	go func() {
		err := flock(p.queue, unix.LOCK_EX)
		select {
		case p.turn <- err:
		case <-p.gone:
			unix.Close(p.queue)
		}
	}()
}

// stop lets others be the head while this process is stopped. One that
// waits in flock(2) leaves the kernel's list by itself when it is stopped.
func (p *place) stop(from *signals) {
	if p.head {
		flock(p.queue, unix.LOCK_UN)
	}
	from.stop()
	if p.head {
		p.head = false
		p.wait()
	}
}

func (p *place) leave() {
	close(p.gone)
	if p.head {
		unix.Close(p.queue)
	}
}

// enter takes one of the pool's locks for the call. It waits for one until the
// call's deadline or a signal, and then returns the call's outcome.
func (p *lockPool) enter(deadline time.Time, from *signals) (find, *outcome) {
	failed := func(why reason, err error) (find, *outcome) {
		return find{fd: -1}, &outcome{reason: why, err: err}
	}
	queuePath := p.path + "/" + p.queue
	queue, err := openLock(p.dir, p.queue, true)
	if err != nil {
		return failed(reasonFailed, &os.PathError{Op: "open", Path: queuePath, Err: err})
	}
	at := &place{queue: queue, head: true, turn: make(chan error), gone: make(chan struct{})}
	defer at.leave()
	var f find
	switch err := flock(queue, unix.LOCK_EX|unix.LOCK_NB); err {
	case nil:
		if f, err = p.take(); err != nil {
			return failed(reasonFailed, err)
		}
		if f.fd >= 0 {
			return f, nil
		}
	case unix.EWOULDBLOCK:
		at.head = false
		at.wait()
	default:
		return failed(reasonFailed, &os.PathError{Op: "lock", Path: queuePath, Err: err})
	}
	late, next := time.NewTimer(time.Until(deadline)), time.NewTimer(behindLook)
	defer late.Stop()
	defer next.Stop()
	for pause, found := firstLook, 0; ; {
		switch {
		case !at.head || len(f.inUse) > 0:
			next.Reset(behindLook)
		default:
			next.Reset(pause)
			pause = min(2*pause, lastLook)
		}
		select {
		case err := <-at.turn:
			at.head = true
			if err != nil {
				return failed(reasonFailed, &os.PathError{Op: "lock", Path: queuePath, Err: err})
			}
		case <-next.C:
		case <-from.stops:
			at.stop(from)
			found = 0
			continue
		case sig := <-from.cancels:
			return find{fd: -1}, &outcome{reason: reasonCancelled, signal: sig}
		case <-late.C:
			return failed(reasonBusy, errors.New(p.busy(f.inUse)))
		}
		if f, err = p.take(); err != nil {
			return failed(reasonFailed, err)
		}
		if f.fd < 0 {
			found = 0
			continue
		}
		if found++; at.head || found == enoughLooks {
			return f, nil
		}
		f.drop()
	}
}

// busy says why there is none. InUse is what the last look found.
func (p *lockPool) busy(inUse []string) string {
	if len(inUse) == 0 {
		return p.none
	}
	return p.none + " but those in use by others: " + few(inUse)
}

// admit waits for the call's slot and its uid, whichever it needs. If it does
// not get in, its outcome is returned. The order, slot before uid, is the same
// for all, so that no two calls wait for each other.
func (c *call) admit() *outcome {
	begin := time.Now()
	defer func() {
		if c.slots != nil || c.uids != nil {
			c.queued = time.Since(begin)
		}
	}()
	if c.slots != nil || c.uids != nil {
		<-c.signals.caught
	}
	if c.slots != nil {
		f, o := c.slots.enter(c.deadline, c.signals)
		if o != nil {
			return o
		}
		c.locks = append(c.locks, f.fd)
	}
	if c.uids != nil {
		f, o := c.uids.enter(c.deadline, c.signals)
		if o != nil {
			return o
		}
		c.locks = append(c.locks, f.fd)
		c.uid += f.index
		if len(f.inUse) > 0 {
			c.notices = append(c.notices, "uids in use by others passed over: "+few(f.inUse))
		}
	}
	return nil
}

// leave lets the next call in.
func (c *call) leave() {
	for _, fd := range c.locks {
		unix.Close(fd)
	}
	c.locks = nil
}
