package main

import (
	"os"
	"os/signal"

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

func (t *terminal) give(group int) { unix.IoctlSetPointerInt(t.fd, unix.TIOCSPGRP, group) }

// takeBack takes the foreground and the modes back from the target's group. If
// somebody else has the foreground, a shell that went on to another job, the
// terminal is left alone.
func (t *terminal) takeBack(group int) {
	if t.foreground() != group {
		return
	}
	t.target, _ = unix.IoctlGetTermios(t.fd, ioctlGetModes)
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
	t.give(group)
}

// ignoreOutputStops lets pyplaypen write to the terminal, and take its
// foreground back, although another group has it: what stopped there would no
// longer watch the clock. It comes after the fork, so that the target does not
// inherit it.
func ignoreOutputStops() { signal.Ignore(unix.SIGTTOU) }

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
