package main

import (
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

const (
	ioctlGetModes        = unix.TCGETS
	ioctlSetModesDrained = unix.TCSETSW
)

// orphanedGroup reports whether no process of pid's group, as far as its
// ancestors tell, has a parent in another group of the same session.
func orphanedGroup(pid int) bool {
	p, err := readProcess(pid)
	for err == nil {
		var parent process
		if parent, err = readProcess(p.ppid); err != nil || parent.session != p.session {
			return true
		}
		if parent.group != p.group {
			return false
		}
		p = parent
	}
	return true
}

// ignored reports whether the signal is ignored. signal.Ignored does not know it
// of the signals of job control, which the runtime leaves alone at its start.
func ignored(sig syscall.Signal) bool {
	const sigIgn = 1
	var action struct {
		handler, flags, restorer uintptr
		mask                     uint64
	}
	_, _, errno := syscall.RawSyscall6(syscall.SYS_RT_SIGACTION, uintptr(sig), 0, uintptr(unsafe.Pointer(&action)), unsafe.Sizeof(action.mask), 0, 0)
	return errno == 0 && action.handler == sigIgn
}
