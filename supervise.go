package main

import (
	"fmt"
	"os"
	"runtime"
	"slices"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Theory of operation.
//
//	caller
//	  └─ pyplaypen            supervisor: subreaper, keeps the caller's uid
//	       │  ▲ ▲ ▲
//	       │  │ │ └─ status   close-on-exec pipe: childRecords, EOF = execve worked
//	       │  │ └─── stderr   pipes, read without blocking, counted, cut, forwarded
//	       │  └───── stdout
//	       │ gate ▼           pipe: a goAhead
//	       └─ pyplaypen __child ──execve──▶ target
//	            leads a new session and process group, drops from root to the
//	            call's uid, waits at the gate, sets the rlimits
//
// One thread does all the waiting, in poll(2), on: the leader's end (a pidfd),
// the pipes, and a wake pipe that the signal goroutine and the sinks write to.
// Only this thread waits for children, so a pid that it knows as its child's
// can't be reused under it.
//
// A call goes through the phases running, terminating (SIGTERM is out, grace
// runs) and killing (SIGKILL until the kernel says there is no child left).
// When the leader exits it is left a zombie until its group is gone, which
// keeps the group's number from being reused.

// reason says what ended a call.
type reason string

const (
	reasonExited    reason = "exited"    // by itself, whatever the status
	reasonTimeout   reason = "timeout"   // wall_seconds
	reasonCancelled reason = "cancelled" // a signal to pyplaypen
	reasonFailed    reason = "failed"    // the target never ran
	reasonBusy      reason = "busy"      // nor here: others ran until wall_seconds had passed
)

type phase int

const (
	running phase = iota
	terminating
	killing
	finished
)

// These bound the time spent on what SIGKILL does not end.
const (
	stuckAfter   = 2 * time.Second  // nothing died for so long
	killingLimit = 10 * time.Second // in all
	killingTick  = 20 * time.Millisecond
)

// terminalTick is how often pyplaypen looks whether it has the terminal that its
// target waits for.
const terminalTick = 100 * time.Millisecond

// leftoversLook is how long to look for a process that the leader has left and
// that the kernel knows of.
const leftoversLook = 20 * time.Millisecond

// drainLimit bounds what is read from a pipe after teardown: more than the
// largest pipe holds means that something that could not be killed still writes.
const drainLimit = 4 << 20

// An inlet is the reading end of a pipe that the target writes to.
type inlet struct {
	fd   int // -1 once closed
	take func([]byte)
	sink *sink // where take forwards to, if its reader can slow or stop the target
}

// A job is one command to supervise.
type job struct {
	argv, env []string
	stdin     int       // descriptor for the target's stdin
	terminal  *terminal // if that is one that the target is to have
	spec      childSpec
	attr      syscall.SysProcAttr
	deadline  time.Time
	killAfter time.Duration
	// leaveUserNamespace, of a job that is to have one, changes it to do without
	// after the fork has failed so, or says why not.
	leaveUserNamespace func(error) error
	// prepare makes what the target needs to be there, while the child stage is
	// on its way to it, and returns what to add to the environment.
	prepare func() goAhead
}

// An outcome is how a job ended.
type outcome struct {
	reason    reason
	spawned   bool
	status    unix.WaitStatus
	reaped    bool // status is valid
	leaderCPU time.Duration
	signal    syscall.Signal // that cancelled the call
	records   []childRecord
	err       error     // why nothing was spawned
	leftovers []process // alive when the leader exited by itself
	stuck     []process // alive at the end
	usage     treeUsage
}

// started reports whether the target's execve worked.
func (o *outcome) started() bool {
	_, failed := o.failure()
	return o.spawned && !failed && o.reachedExecve()
}

// reachedExecve reports whether the child stage lived to the execve.
func (o *outcome) reachedExecve() bool {
	return slices.ContainsFunc(o.records, func(r childRecord) bool { return r.step == stepExecve })
}

// failure is the record of the step that kept the target from running.
func (o *outcome) failure() (childRecord, bool) {
	for _, r := range o.records {
		if r.step <= stepExec {
			return r, true
		}
	}
	return childRecord{}, false
}

// killedLeftovers are the leftovers that are gone now.
func (o *outcome) killedLeftovers() []process {
	return slices.DeleteFunc(slices.Clone(o.leftovers), func(p process) bool {
		return slices.ContainsFunc(o.stuck, func(s process) bool { return s.pid == p.pid })
	})
}

type supervisor struct {
	withTerminalStops   func(fork func())
	wakeRead, wakeWrite int
	signals             *signals

	job  *job
	tree *tree
	term *terminal // nil unless the target has it

	wantsTerminal bool // the target is stopped until it has the foreground

	inlets []*inlet
	out    outcome

	phase      phase
	phaseEnd   time.Time
	killStart  time.Time
	leaderFD   int
	leaderDone bool
	buf        []byte
}

// newSupervisor makes ready to spawn.
func newSupervisor(signals *signals) (s *supervisor, err error) {
	s = &supervisor{tree: newTree(), withTerminalStops: ignoreTerminalStops(), signals: signals, leaderFD: -1}
	if s.wakeRead, s.wakeWrite, err = newPipe(); err != nil {
		return nil, err
	}
	unix.SetNonblock(s.wakeRead, true)
	unix.SetNonblock(s.wakeWrite, true)
	signals.wake(s.wake)
	return s, nil
}

// wake makes poll return. It may be called from any goroutine.
func (s *supervisor) wake() { unix.Write(s.wakeWrite, []byte{0}) }

// addInlet makes a pipe, has its reading end watched, and returns the writing
// end, which the caller closes after the job is spawned.
func (s *supervisor) addInlet(take func([]byte), sink *sink) (int, error) {
	r, w, err := newPipe()
	if err != nil {
		return -1, err
	}
	unix.SetNonblock(r, true)
	s.inlets = append(s.inlets, &inlet{r, take, sink})
	return w, nil
}

// run spawns the job and returns when nothing of it is left.
func (s *supervisor) run(j *job, stdout, stderr int) *outcome {
	s.job = j
	if s.calledOff() {
		return &s.out
	}
	if err := s.spawn(stdout, stderr); err != nil {
		s.out.reason, s.out.err = reasonFailed, err
		return &s.out
	}
	if !s.out.spawned {
		return &s.out
	}
	for s.phase != finished {
		s.step()
	}
	if s.term != nil {
		s.term.restore()
	}
	s.drain()
	s.out.usage = s.tree.usage
	if !s.out.started() && s.out.reason == reasonExited {
		s.endedEarly()
	}
	return &s.out
}

// endedEarly says what ended a child stage that did not get to the target.
func (s *supervisor) endedEarly() {
	s.out.reason = reasonFailed
	if !s.out.reaped || !s.out.status.Signaled() {
		return
	}
	switch sig := s.out.status.Signal(); sig {
	case unix.SIGXCPU: // a CPU limit of next to nothing
		s.out.reason = reasonExited
	case unix.SIGINT, unix.SIGQUIT, unix.SIGTERM, unix.SIGHUP:
		if s.term != nil && (sig == unix.SIGINT || sig == unix.SIGQUIT) { // typed there
			s.signals.cancel(sig)
		}
		// Or sent to the group that both were in, a moment ago.
		select {
		case s.out.signal = <-s.signals.cancels:
			s.out.reason, s.out.spawned = reasonCancelled, false
		case <-time.After(signalsAtOnce):
		}
	}
}

// reserveThreads has the runtime start the threads that supervision may need
// while the target runs: it keeps a thread that has nothing to do, but dies if
// it can't start one, which the target can bring about where a pids cap or the
// user's process limit holds for both. Two threads may block in the sinks'
// writes, and as many run goroutines as GOMAXPROCS says. They start beside the
// caller, which calls wait before the target starts.
func reserveThreads() (wait func()) {
	const threads = 2 + 2
	if runtime.GOMAXPROCS(0) > 2 {
		runtime.GOMAXPROCS(2) // or the garbage collector wants one for each CPU
	}
	ready, done := make(chan struct{}, threads), make(chan struct{})
	for range threads {
		go func() {
			runtime.LockOSThread() // so that each has one of its own
			ready <- struct{}{}
			<-done
			runtime.UnlockOSThread()
		}()
	}
	return func() {
		for range threads {
			<-ready
		}
		close(done)
	}
}

func (s *supervisor) spawn(stdout, stderr int) error {
	var records []byte
	statusFD, err := s.addInlet(func(p []byte) {
		records = append(records, p...)
		s.out.records = decodeChildRecords(records)
	}, nil)
	if err != nil {
		return err
	}
	defer unix.Close(statusFD)
	gateRead, gate, err := newPipe()
	if err != nil {
		return err
	}
	defer unix.Close(gateRead)
	defer unix.Close(gate)
	// The child needs it at a number that is not one of those passed, and
	// whatever number the kernel gave is free of the caller's descriptors.
	clearCloseOnExec(statusFD)
	clearCloseOnExec(gateRead)
	s.job.spec.statusFD, s.job.spec.gateFD = statusFD, gateRead
	s.job.spec.parent = os.Getpid()
	s.term = s.job.terminal
	s.job.attr.Setsid = s.term == nil
	if s.term != nil {
		s.tree.sameSession()
		s.job.attr.Setpgid = true
	}
	// The parent-death signal fires when the thread that forked ends, so this
	// one stays with the supervisor.
	runtime.LockOSThread()
	pid, fd, err := s.fork(stdout, stderr)
	if err != nil && s.job.leaveUserNamespace != nil {
		if err = s.job.leaveUserNamespace(err); err == nil {
			pid, fd, err = s.fork(stdout, stderr)
		}
	}
	unix.Close(stdout)
	if stderr != stdout {
		unix.Close(stderr)
	}
	if err != nil {
		if noProc := s.tree.adopt(); noProc != nil { // which is also where the fork finds this program
			return noProc
		}
		return fmt.Errorf("start the child stage: %w", err)
	}
	s.leaderFD = fd
	s.tree.leader = pid
	if err := s.tree.adopt(); err != nil {
		s.abandon()
		return err
	}
	threadsReady := reserveThreads()
	<-s.signals.caught
	word := targetEnv(s.job.env)
	if s.job.prepare != nil {
		word = append(word, s.job.prepare()...)
	}
	threadsReady()
	if s.calledOff() {
		s.abandon()
		return nil
	}
	if s.term != nil && s.term.mine() && s.term.alone() {
		s.term.hand(pid)
	}
	s.out.spawned = true
	open := word.encode()
	for len(open) > 0 {
		n, err := unix.Write(gate, open)
		if err != nil && err != unix.EINTR {
			break // the child stage is gone, and has said why
		}
		open = open[max(n, 0):]
	}
	return nil
}

// fork starts the child stage.
func (s *supervisor) fork(stdout, stderr int) (pid, fd int, err error) {
	argv := append([]string{"pyplaypen", childStage, s.job.spec.encode()}, s.job.argv...)
	s.withTerminalStops(func() {
		pid, fd, err = s.tree.fork(argv, &syscall.ProcAttr{
			Env:   stageEnv(s.job.env),
			Files: []uintptr{uintptr(s.job.stdin), uintptr(stdout), uintptr(stderr)},
			Sys:   &s.job.attr,
		})
	})
	return pid, fd, err
}

// calledOff reports whether the call ended before its target was started, and
// notes what ended it.
func (s *supervisor) calledOff() bool {
	if sig, ok := s.cancelled(); ok {
		s.out.reason, s.out.signal = reasonCancelled, sig
		return true
	}
	if !time.Now().Before(s.job.deadline) {
		s.out.reason = reasonTimeout
		return true
	}
	return false
}

// abandon ends a child stage that waits at the gate.
func (s *supervisor) abandon() {
	unix.Kill(s.tree.leader, unix.SIGKILL)
	s.tree.reapLeader()
	if s.term != nil {
		s.term.restore()
	}
	s.phase = finished
}

// cancelled returns the next signal that asks for an end.
func (s *supervisor) cancelled() (syscall.Signal, bool) {
	select {
	case sig := <-s.signals.cancels:
		return sig, true
	default:
		return 0, false
	}
}

// step waits for the next thing to happen and deals with it.
func (s *supervisor) step() {
	fds := []unix.PollFd{{Fd: int32(s.wakeRead), Events: unix.POLLIN}}
	leader := -1
	if !s.leaderDone {
		leader = len(fds)
		fds = append(fds, unix.PollFd{Fd: int32(s.leaderFD), Events: unix.POLLIN})
	}
	sources := make([]*inlet, len(fds), len(fds)+2*len(s.inlets))
	for _, in := range s.inlets {
		if in.fd < 0 {
			continue
		}
		if in.sink == nil || in.sink.hasRoom() {
			fds = append(fds, unix.PollFd{Fd: int32(in.fd), Events: unix.POLLIN})
			sources = append(sources, in)
		}
		if in.sink != nil { // no events but an error: its reader went away
			fds = append(fds, unix.PollFd{Fd: int32(in.sink.fd)})
			sources = append(sources, in)
		}
	}
	if _, err := unix.Poll(fds, s.timeout()); err != nil && err != unix.EINTR {
		// Not to be expected; without it there is no supervision, so end the call.
		s.kill()
		time.Sleep(killingTick)
	}
	woken := fds[0].Revents != 0
	if woken {
		s.emptyWakePipe()
	}
	for i, in := range sources {
		switch {
		case in == nil || fds[i].Revents == 0 || in.fd < 0:
		case int(fds[i].Fd) == in.fd:
			s.read(in)
		default:
			in.close()
		}
	}
	for _, in := range s.inlets {
		if in.fd >= 0 && in.sink != nil && in.sink.failure() != nil {
			in.close()
		}
	}
	if leader >= 0 && fds[leader].Revents != 0 {
		s.leaderExited()
	}
	s.advance(woken)
}

// advance moves the call to its next phase if it is time.
func (s *supervisor) advance(woken bool) {
	now := time.Now()
	// All that wait: the wake pipe was emptied for all of them. What comes with the
	// end is left to those who still have to know of it.
	for s.phase != finished {
		sig, ok := s.cancelled()
		if !ok {
			break
		}
		switch s.phase {
		case running:
			s.out.reason, s.out.signal = reasonCancelled, sig
			s.terminate(nil)
		case terminating: // asked twice: no more grace
			s.kill()
		}
	}
	switch s.phase {
	case running:
		if !now.Before(s.job.deadline) {
			s.out.reason = reasonTimeout
			s.terminate(nil)
		} else if woken || s.wantsTerminal {
			s.tree.sweep(0) // reaps what the target orphaned and is dead
			s.jobControl()
		}
	case terminating:
		if s.tree.sweep(unix.SIGTERM) == 0 && s.leaderDone {
			s.finish()
		} else if !now.Before(s.phaseEnd) {
			s.kill()
		}
	case killing:
		s.sweepKilled(now)
	}
}

// jobControl suspends pyplaypen and its target together and continues them
// together. The wall clock goes on. Ctrl-Z reaches whoever has the terminal's
// foreground: a target with a terminal, else pyplaypen.
//
// A target that stops since it is in the background and wants the terminal does
// not stop pyplaypen, or nothing would watch the clock where no shell is there to
// continue it. A shell that moves a running job to the foreground tells nobody,
// so while a target waits for that pyplaypen looks again and again.
func (s *supervisor) jobControl() {
	if s.signals.continued.Swap(false) {
		if s.term != nil {
			s.term.giveAgain(s.tree.leader)
		}
		s.tree.signalGroup(unix.SIGCONT)
	}
	select {
	case <-s.signals.stops:
		if !orphanedGroup(os.Getpid()) {
			unix.Kill(-s.tree.leader, unix.SIGSTOP)
		}
		s.signals.stop()
	default:
	}
	if s.term == nil {
		return
	}
	if s.wantsTerminal && s.term.mine() {
		s.wantsTerminal = false
		s.term.giveAgain(s.tree.leader)
		s.tree.signalGroup(unix.SIGCONT)
	}
	switch s.tree.leaderStopped() {
	case unix.SIGTTIN, unix.SIGTTOU:
		s.wantsTerminal = true
	case unix.SIGTSTP, unix.SIGSTOP:
		s.term.takeBack(s.tree.leader)
		if !suspend() {
			s.term.giveAgain(s.tree.leader)
			s.tree.signalGroup(unix.SIGCONT)
		}
	}
}

// leaderExited looks at the leader's status but leaves it a zombie.
func (s *supervisor) leaderExited() {
	s.leaderDone = true
	s.out.leaderCPU = s.tree.leaderCPU()
	if s.phase != running {
		return
	}
	s.out.reason = reasonExited
	if s.tree.sweep(0) == 0 {
		s.finish()
		return
	}
	// Processes that come and go are easily missed.
	for end := time.Now().Add(leftoversLook); s.out.leftovers == nil && time.Now().Before(end); {
		s.out.leftovers = s.tree.descendants(time.Now().Add(s.lookTime()))
	}
	s.terminate(s.out.leftovers)
}

// terminate asks the tree to end. What is known to be alive in it was looked up
// just now, or is nil.
func (s *supervisor) terminate(alive []process) {
	s.phase = terminating
	s.phaseEnd = time.Now().Add(s.job.killAfter)
	if s.job.killAfter <= 0 {
		s.kill()
		return
	}
	if alive == nil {
		alive = s.tree.descendants(time.Now().Add(s.lookTime()))
	}
	s.tree.terminate(alive)
}

// lookTime is how long a walk through the tree may take, during which nothing
// else is done: about as long as the grace, but neither nothing nor for ever,
// since a tree may grow as fast as it is walked.
func (s *supervisor) lookTime() time.Duration {
	return min(max(s.job.killAfter, 100*time.Millisecond), time.Second)
}

func (s *supervisor) kill() {
	s.phase = killing
	s.killStart = time.Now()
	s.phaseEnd = s.killStart.Add(stuckAfter)
	s.tree.signalGroup(unix.SIGKILL)
	s.sweepKilled(s.killStart)
}

func (s *supervisor) sweepKilled(now time.Time) {
	before := s.tree.progress
	alive := s.tree.sweepKilling()
	if s.tree.progress > before {
		s.phaseEnd = now.Add(stuckAfter)
	}
	if alive == 0 && s.leaderDone {
		s.finish()
		return
	}
	leaderStuck := !s.leaderDone && !s.tree.denied[s.tree.leader]
	if alive == s.tree.deniedAlive && !leaderStuck || now.After(s.phaseEnd) || now.Sub(s.killStart) > killingLimit {
		s.out.stuck = s.tree.descendants(now.Add(stuckAfter))
		s.finish()
	}
}

// finish reaps the leader, after which the kernel must know of no child.
func (s *supervisor) finish() {
	if s.leaderDone && !s.out.reaped {
		s.out.status, s.out.reaped = s.tree.reapLeader()
	}
	if len(s.out.stuck) == 0 && s.tree.childrenRemain() {
		if s.phase != killing { // the listing missed one
			s.kill()
			return
		}
		if time.Since(s.killStart) <= killingLimit {
			return
		}
	}
	s.phase = finished
}

// timeout is for poll(2), in milliseconds, rounded up.
func (s *supervisor) timeout() int {
	end := s.phaseEnd
	switch s.phase {
	case running:
		end = s.job.deadline
		if soon := time.Now().Add(terminalTick); s.wantsTerminal && soon.Before(end) {
			end = soon
		}
	case killing:
		return int(killingTick.Milliseconds())
	}
	d := time.Until(end)
	if d <= 0 {
		return 0
	}
	return int(min((d+time.Millisecond-1)/time.Millisecond, 1<<30))
}

func (s *supervisor) emptyWakePipe() {
	var b [64]byte
	for {
		if n, err := unix.Read(s.wakeRead, b[:]); n < len(b) || err != nil {
			return
		}
	}
}

// read takes what is there, once. It reports how much that was, and whether
// there may be more.
func (s *supervisor) read(in *inlet) (int, bool) {
	if s.buf == nil {
		s.buf = make([]byte, 64<<10)
	}
	n, err := unix.Read(in.fd, s.buf)
	switch {
	case n > 0:
		in.take(s.buf[:n])
		return n, true
	case err == unix.EAGAIN || err == unix.EINTR:
		return 0, err == unix.EINTR
	}
	in.close()
	return 0, false
}

// drain reads what the pipes still hold. Their writers are dead, so it does
// not wait for more.
func (s *supervisor) drain() {
	for _, in := range s.inlets {
		for total := 0; in.fd >= 0 && total < drainLimit; {
			n, more := s.read(in)
			if !more {
				break
			}
			total += n
		}
		in.close()
	}
}

func (s *supervisor) closeInlets() {
	for _, in := range s.inlets {
		in.close()
	}
}

// close closes the reading end; the target's next write raises SIGPIPE.
func (in *inlet) close() {
	if in.fd >= 0 {
		unix.Close(in.fd)
		in.fd = -1
	}
}

// newPipe makes a pipe whose ends are close-on-exec.
func newPipe() (r, w int, err error) {
	var p [2]int
	if err := unix.Pipe(p[:]); err != nil {
		return -1, -1, os.NewSyscallError("pipe", err)
	}
	unix.CloseOnExec(p[0])
	unix.CloseOnExec(p[1])
	return p[0], p[1], nil
}

func clearCloseOnExec(fd int) { unix.FcntlInt(uintptr(fd), unix.F_SETFD, 0) }
