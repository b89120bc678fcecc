package main

import (
	"fmt"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// A tree is the leader of a call and its process group. macOS has no
// subreaper, so a descendant that left the group is out of reach.
type tree struct {
	leader       int
	reapedLeader bool
	usage        treeUsage
	progress     int
	denied       map[int]bool
	deniedAlive  int
}

type process struct{ pid int }

func (p process) String() string { return fmt.Sprintf("process group (leader pid %d)", p.pid) }

// roomForOwn is for systems where a call bounds processes.
func roomForOwn() error { return nil }

func newTree() *tree { return &tree{denied: map[int]bool{}} }

func (t *tree) adopt() error { return nil }

// groupAlive asks whether the group has a member that is not the leader's zombie.
func (t *tree) groupAlive() bool {
	return t.leader != 0 && unix.Kill(-t.leader, 0) == nil
}

func (t *tree) childrenRemain() bool { return false }

func (t *tree) sweep(syscall.Signal) (alive int) {
	if !t.groupAlive() {
		return 0
	}
	return 1
}

func (t *tree) sweepKilling() (alive int) {
	if !t.groupAlive() {
		return 0
	}
	unix.Kill(-t.leader, unix.SIGKILL)
	return 1
}

func (t *tree) terminate([]process) { t.signalGroup(unix.SIGTERM) }

func (t *tree) signalGroup(sig syscall.Signal) {
	unix.Kill(-t.leader, sig)
	unix.Kill(-t.leader, unix.SIGCONT)
}

func (t *tree) descendants(time.Time) []process {
	if t.groupAlive() {
		return []process{{pid: t.leader}}
	}
	return nil
}

func (t *tree) leaderCPU() time.Duration { return 0 }

func (t *tree) sameSession() {}

// leaderStopped always says no here: wait4(2) could take the leader's end for it.
func (t *tree) leaderStopped() syscall.Signal { return 0 }

func (t *tree) reapLeader() (unix.WaitStatus, bool) {
	var status unix.WaitStatus
	for {
		var usage unix.Rusage
		pid, err := unix.Wait4(t.leader, &status, 0, &usage)
		if err != unix.EINTR {
			t.usage.add(&usage)
			t.reapedLeader = true
			return status, pid == t.leader
		}
	}
}

// selfExecutable is this very program; empty if the system does not say.
var selfExecutable, _ = os.Executable()

// fork starts the child stage, from this very executable, and returns its
// pid and a kqueue, which poll(2) shows as readable once the leader has exited.
func (t *tree) fork(argv []string, attr *syscall.ProcAttr) (pid, fd int, err error) {
	queue, err := unix.Kqueue()
	if err != nil {
		return 0, -1, os.NewSyscallError("kqueue", err)
	}
	unix.CloseOnExec(queue)
	if pid, err = syscall.ForkExec(selfExecutable, argv, attr); err != nil {
		return 0, -1, err
	}
	change := []unix.Kevent_t{{Ident: uint64(pid), Filter: unix.EVFILT_PROC, Flags: unix.EV_ADD, Fflags: unix.NOTE_EXIT}}
	if _, err := unix.Kevent(queue, change, nil, nil); err == unix.ESRCH {
		// Already a zombie: a user event that is triggered stands in for its end.
		change = []unix.Kevent_t{{Filter: unix.EVFILT_USER, Flags: unix.EV_ADD, Fflags: unix.NOTE_TRIGGER}}
		_, err = unix.Kevent(queue, change, nil, nil)
		return pid, queue, err
	} else if err != nil {
		return 0, -1, os.NewSyscallError("kevent", err)
	}
	return pid, queue, nil
}

// maxRSS is the peak of a resident set in bytes.
func maxRSS(u *unix.Rusage) int64 { return u.Maxrss }
