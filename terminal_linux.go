package main

import (
	"os"
	"runtime"
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

// stopSelf stops this process, as SIGTSTP would by default: not in an orphaned
// process group. The signal is the calling thread's, so that nothing more is done
// before it.
func stopSelf() {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if !orphanedGroup(os.Getpid()) {
		unix.Tgkill(os.Getpid(), unix.Gettid(), unix.SIGSTOP)
	}
}

// groupHasOnlyAncestors reports whether the members of pid's group are pid and
// ancestors of it.
func groupHasOnlyAncestors(pid int) bool {
	self, err := readProcess(pid)
	if err != nil {
		return true
	}
	ancestors := map[int]bool{pid: true}
	for p := self; err == nil && p.ppid > 0 && !ancestors[p.ppid]; p, err = readProcess(p.ppid) {
		ancestors[p.ppid] = true
	}
	entries, _ := os.ReadDir("/proc")
	for _, e := range entries {
		if other, ok := parsePID(e.Name()); ok && !ancestors[other] {
			if p, err := readProcess(other); err == nil && p.group == self.group && p.state != 'Z' {
				return false
			}
		}
	}
	return true
}

// A disposition is what a signal does, see sigaction(2).
type disposition uintptr

const (
	takeDefault disposition = 0 // SIG_DFL
	ignore      disposition = 1 // SIG_IGN
)

// A sigaction is the kernel's struct.
type sigaction struct {
	handler         disposition
	flags, restorer uintptr
	mask            uint64
}

// setDisposition sets it behind the runtime's back: signal.Reset does not give
// an ignored signal of job control its default again.
func setDisposition(sig syscall.Signal, d disposition) {
	action := sigaction{handler: d}
	syscall.RawSyscall6(syscall.SYS_RT_SIGACTION, uintptr(sig), uintptr(unsafe.Pointer(&action)), 0, unsafe.Sizeof(action.mask), 0, 0)
}

// ignored reports whether the signal is ignored. signal.Ignored does not know it
// of the signals of job control, which the runtime leaves alone at its start.
func ignored(sig syscall.Signal) bool {
	var action sigaction
	_, _, errno := syscall.RawSyscall6(syscall.SYS_RT_SIGACTION, uintptr(sig), 0, uintptr(unsafe.Pointer(&action)), unsafe.Sizeof(action.mask), 0, 0)
	return errno == 0 && action.handler == ignore
}
