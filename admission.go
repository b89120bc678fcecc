package main

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Calls that share a directory of lock files wait there for each other: for a
// slot, of which --max-concurrency sets the number, or for a uid of a range. A
// lock is an flock(2), which the kernel takes back when its holder dies, however
// that comes about.
//
// The calls that wait form a queue, by a lock of its own: who holds it is the
// only one to look for a free lock, again and again, while the others wait in
// the kernel without a turn of the CPU.

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
	// shun, if there is one, tells of a lock that is better left to the last,
	// free or not. It is asked for anew at each look.
	shun func() func(i int) bool
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
		size: maxSlots, atOnce: int(n), queue: "queue",
		name: func(i int) string { return "slot-" + strconv.Itoa(i) },
	}
	if f.SlotDir != nil {
		p.path = *f.SlotDir
		p.dir, err = openSlotDir(p.path)
	} else {
		p.dir, p.path, err = openLockDir("pyplaypen-slots-"+strconv.Itoa(os.Geteuid()), os.Getenv("XDG_RUNTIME_DIR"), "/run", "/tmp")
	}
	if err != nil {
		return nil, usageError("slot directory: %w", err)
	}
	p.none = fmt.Sprintf("no free slot: calls at once in %s are bounded to %d", p.path, n)
	return p, nil
}

// openSlotDir opens a directory of the user's choice, and makes it if it is missing.
func openSlotDir(path string) (int, error) {
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
	lock, err := openLock(fd, "queue", unix.O_CREAT)
	if err != nil {
		unix.Close(fd)
		return -1, &os.PathError{Op: "open", Path: path + "/queue", Err: err}
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
		shun: func() func(int) bool {
			used := uidsInUse()
			return func(i int) bool { return used[r.first+i] }
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

// openLock opens a lock file of the pool's. Another user who shares the
// directory may have made it, so that to read it must do.
func openLock(dir int, name string, create int) (int, error) {
	const flags = unix.O_CLOEXEC | unix.O_NOFOLLOW | unix.O_NONBLOCK | unix.O_NOCTTY
	fd, err := unix.Openat(dir, name, unix.O_RDWR|create|flags, 0o666)
	if err == unix.EACCES {
		fd, err = unix.Openat(dir, name, unix.O_RDONLY|flags, 0)
	}
	return fd, err
}

// tryLock takes a lock if it is free, and else returns EWOULDBLOCK.
func (p *lockPool) tryLock(name string, create int) (int, error) {
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

// take takes the first free lock that is not shunned, or else the first free
// one, unless atOnce of them are taken; fd is -1 then. Only who holds the queue
// may call it, so that nobody else's look is mistaken for a call.
func (p *lockPool) take() (fd, index int, err error) {
	var shunned func(int) bool
	fd, taken := -1, 0
	spare, spareIndex := -1, 0
	defer func() {
		switch {
		case spare < 0:
		case fd < 0 && err == nil && taken < p.atOnce:
			fd, index = spare, spareIndex
		default:
			unix.Close(spare)
		}
	}()
	for i := range p.size {
		if fd >= 0 && taken+p.size-i < p.atOnce {
			break // whatever the others are
		}
		create := unix.O_CREAT
		if fd >= 0 {
			create = 0
		}
		lock, err := p.tryLock(p.name(i), create)
		switch {
		case err == unix.EWOULDBLOCK:
			taken++
		case err == unix.ENOENT:
		case err != nil:
			if fd >= 0 {
				unix.Close(fd)
			}
			return -1, 0, &os.PathError{Op: "lock", Path: p.path + "/" + p.name(i), Err: err}
		case fd < 0:
			if p.shun != nil && shunned == nil {
				shunned = p.shun()
			}
			switch {
			case shunned == nil || !shunned(i):
				fd, index = lock, i
			case spare < 0:
				spare, spareIndex = lock, i
			default:
				unix.Close(lock)
			}
		default:
			unix.Close(lock)
		}
	}
	if fd >= 0 && taken >= p.atOnce {
		unix.Close(fd)
		fd = -1
	}
	return fd, index, nil
}

// A ticket is what came of the wait for a lock.
type ticket struct {
	fd, index int
	err       error
}

// errNotYet is the ticket's where there is nothing to be had without waiting.
var errNotYet = errors.New("none is free")

// takeAtOnce takes a lock if that needs no waiting. The queue stays locked and
// open if it is the caller's.
func (p *lockPool) takeAtOnce(queue int) (t ticket, head bool) {
	if err := flock(queue, unix.LOCK_EX|unix.LOCK_NB); err != nil {
		if err != unix.EWOULDBLOCK {
			return ticket{-1, 0, &os.PathError{Op: "lock", Path: p.path + "/" + p.queue, Err: err}}, false
		}
		return ticket{-1, 0, errNotYet}, false
	}
	fd, index, err := p.take()
	if fd < 0 && err == nil {
		err = errNotYet
	}
	return ticket{fd, index, err}, true
}

// These are how often the head of the queue looks.
const (
	firstLook = time.Millisecond
	lastLook  = 10 * time.Millisecond
)

// wait stands in the queue until it has a lock, and sends what came of it,
// unless stop is closed.
func (p *lockPool) wait(queue int, head bool, got chan<- ticket, stop <-chan struct{}) {
	defer unix.Close(queue)
	var t ticket
	if !head {
		if err := flock(queue, unix.LOCK_EX); err != nil {
			t = ticket{-1, 0, &os.PathError{Op: "lock", Path: p.path + "/" + p.queue, Err: err}}
		}
	}
	for pause := firstLook; t.err == nil; pause = min(2*pause, lastLook) {
		select {
		case <-stop:
			return
		default:
		}
		if t.fd, t.index, t.err = p.take(); t.fd >= 0 {
			break
		}
		time.Sleep(pause)
	}
	select {
	case got <- t:
	case <-stop:
		if t.fd >= 0 {
			unix.Close(t.fd)
		}
	}
}

// enter takes one of the pool's locks for the call. It waits for one until the
// call's deadline or a signal, and then returns the call's outcome.
func (p *lockPool) enter(deadline time.Time, cancels <-chan syscall.Signal) (lock, index int, _ *outcome) {
	failed := func(why reason, err error) (int, int, *outcome) {
		return -1, 0, &outcome{reason: why, err: err}
	}
	queue, err := openLock(p.dir, p.queue, unix.O_CREAT)
	if err != nil {
		return failed(reasonFailed, &os.PathError{Op: "open", Path: p.path + "/" + p.queue, Err: err})
	}
	t, head := p.takeAtOnce(queue)
	if t.err != errNotYet {
		unix.Close(queue)
	} else {
		got, stop := make(chan ticket), make(chan struct{})
		defer close(stop)
		go p.wait(queue, head, got, stop)
		timer := time.NewTimer(time.Until(deadline))
		defer timer.Stop()
		select {
		case t = <-got:
		case sig := <-cancels:
			return -1, 0, &outcome{reason: reasonCancelled, signal: sig}
		case <-timer.C:
			return failed(reasonBusy, errors.New(p.none))
		}
	}
	if t.err != nil {
		return failed(reasonFailed, t.err)
	}
	return t.fd, t.index, nil
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
		lock, _, o := c.slots.enter(c.deadline, c.sup.cancels)
		if o != nil {
			return o
		}
		c.locks = append(c.locks, lock)
	}
	if c.uids != nil {
		lock, index, o := c.uids.enter(c.deadline, c.sup.cancels)
		if o != nil {
			return o
		}
		c.locks = append(c.locks, lock)
		c.uid += index
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
