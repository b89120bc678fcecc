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
	stops     chan struct{}       // SIGTSTP came, and no SIGCONT after it
	continued atomic.Bool         // SIGCONT came
	wakeUp    atomic.Pointer[func()]

	stopping      *time.Timer // for control alone, as is the next
	lastContinued time.Time
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
	s := &signals{caught: make(chan struct{}), cancels: make(chan syscall.Signal, 16), stops: make(chan struct{}, 1)}
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
		for {
			select {
			case sig := <-ends:
				s.cancel(sig.(syscall.Signal))
			case sig := <-job:
				s.control(sig)
			case <-children:
			}
			s.arrived()
		}
	}()
	return s
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

// signalsAtOnce is how long after each other two signals may arrive that were sent
// one after the other.
const signalsAtOnce = 20 * time.Millisecond

// control heeds the two signals of job control.
func (s *signals) control(sig os.Signal) {
	if s.stopping != nil {
		s.stopping.Stop()
	}
	if sig == unix.SIGCONT {
		s.lastContinued = time.Now()
		select {
		case <-s.stops:
		default:
		}
		s.continued.Store(true)
		return
	}
	// The kernel takes back a stop that SIGCONT follows, but not one that was
	// caught; so it is held back for as long as the two may be under way. Of
	// those that wait the runtime delivers the lower number first, SIGCONT.
	if time.Since(s.lastContinued) > signalsAtOnce {
		s.stopping = time.AfterFunc(signalsAtOnce, func() {
			notify(s.stops)
			s.arrived()
		})
	}
}
