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

// holdStop has a SIGTSTP wait for the calling goroutine's thread, from which the
// kernel takes it if SIGCONT comes first, see signal(7). The goroutine has to
// call releaseStop.
func holdStop() {
	runtime.LockOSThread()
	setBlocked(unix.SIG_BLOCK)
	unix.Tgkill(os.Getpid(), unix.Gettid(), unix.SIGTSTP)
}

// releaseStop gives the signal that waits free. With takeDefault it stops this
// process, before the function returns, unless the process group is orphaned; with
// ignore it is gone.
func releaseStop(d disposition) {
	caught := getAction(unix.SIGTSTP)
	setDisposition(unix.SIGTSTP, d)
	setBlocked(unix.SIG_UNBLOCK)
	setAction(unix.SIGTSTP, &caught)
	runtime.UnlockOSThread()
}

// setBlocked does how, of rt_sigprocmask(2), with SIGTSTP.
func setBlocked(how int) {
	var set unix.Sigset_t
	set.Val[0] = 1 << (unix.SIGTSTP - 1)
	unix.PthreadSigmask(how, &set, nil)
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

func getAction(sig syscall.Signal) (action sigaction) {
	syscall.RawSyscall6(syscall.SYS_RT_SIGACTION, uintptr(sig), 0, uintptr(unsafe.Pointer(&action)), unsafe.Sizeof(action.mask), 0, 0)
	return action
}

func setAction(sig syscall.Signal, action *sigaction) {
	syscall.RawSyscall6(syscall.SYS_RT_SIGACTION, uintptr(sig), uintptr(unsafe.Pointer(action)), 0, unsafe.Sizeof(action.mask), 0, 0)
}

// setDisposition sets it behind the runtime's back: signal.Reset does not give
// an ignored signal of job control its default again.
func setDisposition(sig syscall.Signal, d disposition) { setAction(sig, &sigaction{handler: d}) }

// ignored reports whether the signal is ignored. signal.Ignored does not know it
// of the signals of job control, which the runtime leaves alone at its start.
func ignored(sig syscall.Signal) bool { return getAction(sig).handler == ignore }
