package main

import (
	"os"
	"os/signal"
	"syscall"

	"golang.org/x/sys/unix"
)

const (
	ioctlGetModes        = unix.TIOCGETA
	ioctlSetModesDrained = unix.TIOCSETAW
)

// orphanedGroup looks at the parent only.
func orphanedGroup(int) bool {
	sid, err1 := unix.Getsid(0)
	parent, err2 := unix.Getsid(os.Getppid())
	return err1 != nil || err2 != nil || sid != parent
}

// holdStop and releaseStop: the kernel holds nothing for us here, so a SIGCONT
// that comes just before the stop is lost.
func holdStop() {}

// releaseStop with takeDefault stops this process, as SIGTSTP would by default.
func releaseStop(d disposition) {
	if d == takeDefault && !orphanedGroup(os.Getpid()) {
		unix.Kill(os.Getpid(), unix.SIGSTOP)
	}
}

// ignored reports whether the signal is ignored.
func ignored(sig syscall.Signal) bool { return signal.Ignored(sig) }

// groupHasOnlyAncestors is not looked into here.
func groupHasOnlyAncestors(int) bool { return true }

// A disposition is what a signal does.
type disposition int

const (
	takeDefault disposition = iota
	ignore
)

func setDisposition(sig syscall.Signal, d disposition) {
	if d == ignore {
		signal.Ignore(sig)
	} else {
		signal.Reset(sig)
	}
}
