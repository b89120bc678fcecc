package main

import (
	"os"
	"os/signal"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// signals are those that pyplaypen catches, and what they ask for.
type signals struct {
	caught    chan struct{}       // closed once all are caught
	cancels   chan syscall.Signal // they ask for an end
	stops     chan struct{}       // SIGTSTP came, and no SIGCONT after it: time for stop
	continued atomic.Bool         // SIGCONT came
	wakeUp    atomic.Pointer[func()]
	requests  chan chan struct{} // of stop

	// For heed and what it calls alone.
	holding       bool             // holdStop was called last, not releaseStop
	due           <-chan time.Time // when stops is to be told of it
	lastContinued time.Time
}

func newSignals() *signals {
	return &signals{
		caught:   make(chan struct{}),
		cancels:  make(chan syscall.Signal, 16),
		stops:    make(chan struct{}, 1),
		requests: make(chan chan struct{}),
	}
}

// catchSignals starts to catch the signals that ask for an end, or for a stop,
// and those that supervision needs. INT, HUP and the like that the caller had
// ignored stay ignored, for pyplaypen and for the target.
//
// The runtime takes two switches between threads for each, so this goes on
// beside the caller, who waits for it before there is anything to undo. What asks
// for an end has a channel of its own, since os/signal drops a signal for which
// there is no room.
func catchSignals() *signals {
	s := newSignals()
	ends, job, children := make(chan os.Signal, 16), make(chan os.Signal, 16), make(chan os.Signal, 1)
	go func() {
		// SIGQUIT first: until then the runtime answers it with a dump of its stacks.
		for _, sig := range []syscall.Signal{unix.SIGQUIT, unix.SIGINT, unix.SIGTERM, unix.SIGHUP} {
			if !ignored(sig) {
				signal.Notify(ends, sig)
			}
		}
		signal.Notify(children, unix.SIGCHLD)
		signal.Notify(job, unix.SIGCONT)
		if !ignored(unix.SIGTSTP) { // after SIGCONT, which takes it back
			signal.Notify(job, unix.SIGTSTP)
		}
		close(s.caught)
		s.heed(ends, job, children)
	}()
	return s
}

func (s *signals) heed(ends, job, children <-chan os.Signal) {
	for {
		select {
		case sig := <-ends:
			s.cancel(sig.(syscall.Signal))
		case sig := <-job:
			s.control(sig)
		case <-children:
		case <-s.due:
			s.due = nil
			for len(job) > 0 {
				s.control(<-job)
			}
			if s.holding {
				notify(s.stops)
			}
		case done := <-s.requests:
			s.release(takeDefault)
			close(done)
			continue
		}
		s.arrived()
	}
}

// wake has f called after each signal, those that wait included.
func (s *signals) wake(f func()) {
	s.wakeUp.Store(&f)
	if len(s.stops) > 0 || s.continued.Load() {
		f()
	}
}

func (s *signals) arrived() {
	if f := s.wakeUp.Load(); f != nil {
		(*f)()
	}
}

// cancel notes a signal that asks for an end. More of them than there is room for
// ask for nothing new.
func (s *signals) cancel(sig syscall.Signal) {
	select {
	case s.cancels <- sig:
	default:
	}
}

const (
	// signalsAtOnce is how long after each other two signals may arrive that were
	// sent one after the other.
	signalsAtOnce = 50 * time.Millisecond

	// stopsAgain is how long after a SIGCONT a SIGTSTP is taken for a new one. It
	// is longer for a busy machine, and short for who types it.
	stopsAgain = 100 * time.Millisecond
)

// control heeds the two signals of job control. The kernel takes back a stop that
// SIGCONT follows, but not one that was caught; so it is given one to hold in its
// place. A SIGCONT that came before that is waited for. Of signals that wait the
// runtime delivers the lower number first, SIGCONT.
func (s *signals) control(sig os.Signal) {
	switch {
	case sig == unix.SIGCONT:
		s.lastContinued = time.Now()
		s.release(ignore)
		select {
		case <-s.stops:
		default:
		}
		s.continued.Store(true)
	case !s.holding && time.Since(s.lastContinued) > stopsAgain:
		s.holding = true
		holdStop()
		s.due = time.After(signalsAtOnce)
	}
}

func (s *signals) release(d disposition) {
	if s.holding {
		s.holding, s.due = false, nil
		releaseStop(d)
	}
}

// stop stops this process, for whoever was told by stops, as SIGTSTP would by
// default: not in an orphaned process group. It returns once SIGCONT has come, at
// once if that was before.
func (s *signals) stop() {
	done := make(chan struct{})
	s.requests <- done
	<-done
}
