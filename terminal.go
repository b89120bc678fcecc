package main

import (
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// A terminal is the controlling terminal that pyplaypen passes on to its target
// as stdin. Such a target stays in pyplaypen's session, since no process of
// another one may own the terminal, and gets a process group of its own, which
// has the foreground while it runs (tcsetpgrp(3)): what is typed, Ctrl-C and
// Ctrl-Z included, is for the target.
type terminal struct {
	fd     int
	group  int           // pyplaypen's own process group
	modes  *unix.Termios // as they were before the call
	target *unix.Termios // as the target had them when it was suspended
	given  bool          // the target has had the foreground
}

// controllingTerminal returns nil if fd is not the terminal of this session.
func controllingTerminal(fd int) *terminal {
	modes, err := unix.IoctlGetTermios(fd, ioctlGetModes)
	if err != nil {
		return nil
	}
	t := &terminal{fd: fd, group: unix.Getpgrp(), modes: modes}
	if t.foreground() <= 0 {
		return nil
	}
	return t
}

// foreground is the process group that the terminal belongs to now, or -1.
func (t *terminal) foreground() int {
	group, err := unix.IoctlGetInt(t.fd, unix.TIOCGPGRP)
	if err != nil {
		return -1
	}
	return group
}

// mine reports whether pyplaypen is in the foreground.
func (t *terminal) mine() bool { return t.foreground() == t.group }

// hand gives the target's group the foreground for the first time.
func (t *terminal) hand(group int) {
	t.given = true
	t.give(group)
}

func (t *terminal) give(group int) { unix.IoctlSetPointerInt(t.fd, unix.TIOCSPGRP, group) }

// takeBack takes the foreground and the modes back from the target's group. If
// somebody else has the foreground, a shell that went on to another job, the
// terminal is left alone.
func (t *terminal) takeBack(group int) {
	if t.foreground() != group {
		return
	}
	t.target, _ = unix.IoctlGetTermios(t.fd, ioctlGetModes)
	t.reclaim()
}

// restore does it for good, when everything of the target's is dead: the
// foreground may be that of any group that it made, and so has no member left.
func (t *terminal) restore() {
	group := t.foreground()
	if t.given && (group == t.group || unix.Kill(-group, 0) == unix.ESRCH) {
		t.reclaim()
	}
}

func (t *terminal) reclaim() {
	t.give(t.group)
	unix.IoctlSetTermios(t.fd, ioctlSetModesDrained, t.modes)
}

// giveAgain undoes takeBack, if pyplaypen is in the foreground.
func (t *terminal) giveAgain(group int) {
	if !t.mine() {
		return
	}
	if t.target != nil {
		unix.IoctlSetTermios(t.fd, ioctlSetModesDrained, t.target)
	}
	t.hand(group)
}

// alone reports whether no process but pyplaypen and those that wait for it is
// in its process group: another member of a pipeline may want the terminal.
func (t *terminal) alone() bool { return groupHasOnlyAncestors(os.Getpid()) }

// stopsByTerminal are what the terminal sends to a group in the background that
// writes or reads, all of whose members it stops.
var stopsByTerminal = []syscall.Signal{unix.SIGTTOU, unix.SIGTTIN}

// ignoreTerminalStops lets pyplaypen write to the terminal, and take its
// foreground back, although another group has it: what stopped there would no
// longer watch the clock. It returns how to have a child not inherit that.
func ignoreTerminalStops() (during func(fork func())) {
	var ours []syscall.Signal
	for _, sig := range stopsByTerminal {
		if !ignored(sig) {
			ours = append(ours, sig)
		}
	}
	if ours == nil {
		return func(fork func()) { fork() }
	}
	set := func(d disposition) {
		for _, sig := range ours {
			setDisposition(sig, d)
		}
	}
	set(ignore)
	return func(fork func()) {
		set(takeDefault)
		fork()
		set(ignore)
	}
}

// interrupted reports whether the call was ended from the terminal by Ctrl-C,
// which its target got, or pyplaypen where the target does not have the terminal.
func (c *call) interrupted(o *outcome) bool {
	switch {
	case o.reason == reasonExited:
		return c.sup.term != nil && o.reaped && o.status.Signaled() && o.status.Signal() == unix.SIGINT
	case o.reason == reasonCancelled && o.signal == unix.SIGINT:
		tty, err := unix.Open("/dev/tty", unix.O_RDONLY|unix.O_NOCTTY|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
		if err != nil {
			return false
		}
		defer unix.Close(tty)
		group, err := unix.IoctlGetInt(tty, unix.TIOCGPGRP)
		return err == nil && group == unix.Getpgrp()
	}
	return false
}

// interrupt ends pyplaypen by SIGINT, so that a shell's loop around it ends too.
func interrupt() {
	setDisposition(unix.SIGINT, takeDefault)
	unix.Kill(os.Getpid(), unix.SIGINT)
}

// suspend stops pyplaypen and its process group along with the target, so that
// the shell sees a stopped job. It returns false where no shell could ever
// continue it: the kernel drops the signal for an orphaned process group, or it is ignored.
func suspend() bool {
	if orphanedGroup(os.Getpid()) || ignored(unix.SIGTSTP) {
		return false
	}
	unix.Kill(0, unix.SIGTSTP)
	return true
}
