package main

import (
	"os"
	"os/signal"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// What asks for an end is not lost behind others.
func TestEndIsNotLost(t *testing.T) {
	s := catchSignals()
	<-s.caught
	t.Cleanup(func() {
		signal.Reset(unix.SIGQUIT, unix.SIGINT, unix.SIGTERM, unix.SIGHUP, unix.SIGCHLD, unix.SIGCONT, unix.SIGTSTP)
	})
	for round := range 20 {
		for range 100 {
			unix.Kill(os.Getpid(), unix.SIGCONT)
			unix.Kill(os.Getpid(), unix.SIGCHLD)
		}
		unix.Kill(os.Getpid(), unix.SIGTERM)
		select {
		case sig := <-s.cancels:
			if sig != unix.SIGTERM {
				t.Errorf("%v came", sig)
			}
		case <-time.After(patience):
			t.Fatalf("round %d: SIGTERM did not come", round)
		}
	}
	for range 100 { // more than there is room for
		s.cancel(unix.SIGTERM)
	}
}

// A signal to the whole group ends the child stage too. If the stage's end is seen
// first, or with it, the call is still one that was told to stop.
func TestEndOfChildStageBySignal(t *testing.T) {
	s := &supervisor{signals: newSignals(), phase: finished}
	s.out.reason, s.out.status, s.out.reaped, s.out.spawned = reasonExited, unix.WaitStatus(unix.SIGINT), true, true
	s.signals.cancel(unix.SIGINT)
	s.advance(true)
	s.endedEarly()
	if s.out.reason != reasonCancelled || s.out.signal != unix.SIGINT {
		t.Errorf("%s, by %v", s.out.reason, s.out.signal)
	}
}

func TestStopIsTakenBack(t *testing.T) {
	for _, test := range []struct {
		name    string
		signals []os.Signal
		stops   bool
	}{
		{"stop", []os.Signal{unix.SIGTSTP}, true},
		{"stop, stop", []os.Signal{unix.SIGTSTP, unix.SIGTSTP}, true},
		{"stop, continue", []os.Signal{unix.SIGTSTP, unix.SIGCONT}, false},
		{"stop, stop, continue", []os.Signal{unix.SIGTSTP, unix.SIGTSTP, unix.SIGCONT}, false},
		{"continue, stop", []os.Signal{unix.SIGCONT, unix.SIGTSTP}, false},
	} {
		s, job := newSignals(), make(chan os.Signal)
		go s.heed(nil, job, nil)
		for _, sig := range test.signals {
			job <- sig
		}
		select {
		case <-s.stops:
			if !test.stops {
				t.Errorf("%s: stops", test.name)
			}
		case <-time.After(map[bool]time.Duration{true: patience, false: 3 * signalsAtOnce}[test.stops]):
			if test.stops {
				t.Errorf("%s: does not stop", test.name)
			}
		}
	}
}

// A signal to the group that both stages are in may be noticed first by the
// child stage's end.
func TestEndedEarly(t *testing.T) {
	for _, test := range []struct {
		name   string
		status unix.WaitStatus
		own    bool
		want   reason
	}{
		{"to both", unix.WaitStatus(unix.SIGINT), true, reasonCancelled},
		{"to the child stage", unix.WaitStatus(unix.SIGTERM), false, reasonFailed},
		{"none", unix.WaitStatus(unix.SIGKILL), false, reasonFailed},
	} {
		s := &supervisor{signals: newSignals()}
		s.out.reaped, s.out.status, s.out.spawned = true, test.status, true
		if test.own {
			s.signals.cancel(unix.SIGINT)
		}
		s.endedEarly()
		if s.out.reason != test.want || test.own != (s.out.signal == unix.SIGINT) || s.out.spawned == test.own {
			t.Errorf("%s: %+v", test.name, s.out)
		}
	}
}

// The target does not start before its notices are out, unless nobody reads them.
func TestNoticesComeFirst(t *testing.T) {
	notice := func(read bool) (left int) {
		r, w, err := newPipe()
		if err != nil {
			t.Fatal(err)
		}
		defer unix.Close(r)
		full := make([]byte, 1<<20)
		unix.SetNonblock(w, true)
		n, err := unix.Write(w, full)
		unix.SetNonblock(w, false)
		if err != nil {
			t.Fatal(err)
		}
		c := &call{err: newSink(w, func() {})}
		c.err.put([]byte("notice\n"))
		if read {
			go func() {
				time.Sleep(5 * time.Millisecond)
				unix.Read(r, full[:n])
			}()
		}
		c.prepare()()
		return c.err.pending()
	}
	if left := notice(false); left == 0 {
		t.Error("nobody reads, and nothing is left")
	}
	// A reader that a busy machine does not let run in time is none.
	for tries := 1; notice(true) > 0; tries++ {
		if tries == 20 {
			t.Fatal("the target starts before its notices are out")
		}
	}
}

// What came before anybody could be woken wakes at once.
func TestWakeForWhatWaits(t *testing.T) {
	for _, stop := range []bool{true, false} {
		s, woken := newSignals(), false
		if stop {
			notify(s.stops)
		}
		s.wake(func() { woken = true })
		if woken != stop {
			t.Errorf("stop %v: woken %v", stop, woken)
		}
	}
}
