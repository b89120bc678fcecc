package main

import (
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// sinkRoom is how much a sink holds for a slow reader before whoever fills it
// should wait.
const sinkRoom = 64 << 10

// A sink writes to one of pyplaypen's own descriptors without its caller ever
// waiting for the reader at the other end: writes happen on a goroutine of its
// own, started by the first byte. The descriptor is shared with other
// processes, so it can't be made non-blocking, and poll(2) before write(2) does
// not help where another writer fills the pipe in between.
type sink struct {
	fd   int
	wake func() // called when a stall ends, and when err is set

	mu      sync.Mutex
	queue   []byte
	writing int  // bytes taken from queue and not yet written
	wanted  bool // somebody waits for room
	running bool
	err     error
	filled  chan struct{}
	drained chan struct{}
	last    *byte // the last byte put; shared by the sinks of one stream
}

func newSink(fd int, wake func()) *sink {
	last := byte('\n')
	return &sink{fd: fd, wake: wake, last: &last}
}

// isStream reports whether both write to the same file, terminal or pipe.
func (s *sink) isStream(other *sink) bool {
	var a, b unix.Stat_t
	return unix.Fstat(s.fd, &a) == nil && unix.Fstat(other.fd, &b) == nil && a.Dev == b.Dev && a.Ino == b.Ino
}

// put queues a copy of p.
func (s *sink) put(p []byte) {
	if len(p) == 0 {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	*s.last = p[len(p)-1]
	if s.err != nil {
		return
	}
	s.queue = append(s.queue, p...)
	if !s.running {
		s.running = true
		s.filled, s.drained = make(chan struct{}, 1), make(chan struct{}, 1)
		go s.run()
	}
	notify(s.filled)
}

// hasRoom reports whether the queue is short; if it is not, wake will be called
// once it is.
func (s *sink) hasRoom() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.wanted = len(s.queue)+s.writing >= sinkRoom
	return !s.wanted
}

// failure is the error that ended writing, if one did.
func (s *sink) failure() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.err
}

func (s *sink) pending() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.queue) + s.writing
}

// flush waits until everything is written or has failed. It gives up when the
// deadline is past and the reader took nothing for grace, or took long in all,
// and soon after a signal says so. It returns the number of bytes left behind, and
// that signal if there are any. It stops this process when that is asked for.
func (s *sink) flush(deadline time.Time, grace time.Duration, from *signals) (left int, sig syscall.Signal) {
	const graces = 10 // as many for a reader that takes a little now and then
	last := time.Now().Add(max(0, time.Until(deadline)) + graces*grace)
	cancels := from.cancels
	for {
		left = s.pending()
		if left == 0 {
			return 0, 0
		}
		timer := time.NewTimer(min(max(grace, time.Until(deadline)), time.Until(last)))
		select {
		case <-s.drained:
			timer.Stop()
		case <-from.stops:
			timer.Stop()
			from.stop()
		case sig = <-cancels:
			timer.Stop()
			cancels, last = nil, time.Now().Add(signalGrace)
		case <-timer.C:
			if s.pending() == left || !time.Now().Before(last) {
				return s.pending(), sig
			}
		}
	}
}

// signalGrace is how long what was said already may take after a signal that ends
// the call, for a reader who is there: the signal may be the second of two, and
// the first one's consequences under way.
const signalGrace = 100 * time.Millisecond

func (s *sink) run() {
	for range s.filled {
		s.mu.Lock()
		batch := s.queue
		s.queue, s.writing = nil, len(batch)
		s.mu.Unlock()
		for len(batch) > 0 {
			n, err := unix.Write(s.fd, batch[:min(len(batch), 4<<10)])
			switch err {
			case nil:
				batch = batch[n:]
			case unix.EINTR:
			case unix.EAGAIN: // the caller gave us a non-blocking descriptor
				unix.Poll([]unix.PollFd{{Fd: int32(s.fd), Events: unix.POLLOUT}}, -1)
			default:
				batch = nil
			}
			s.wrote(len(batch), err)
		}
	}
}

// wrote records progress: left bytes of the batch remain.
func (s *sink) wrote(left int, err error) {
	s.mu.Lock()
	s.writing = left
	failed := err != nil && err != unix.EINTR && err != unix.EAGAIN
	if failed {
		s.err, s.queue = err, nil
	}
	stallEnded := s.wanted && len(s.queue)+left < sinkRoom
	if stallEnded {
		s.wanted = false
	}
	s.mu.Unlock()
	notify(s.drained)
	if failed || stallEnded {
		s.wake()
	}
}

// notify leaves a note in a channel of capacity one.
func notify(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}
