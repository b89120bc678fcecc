package main

import (
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

const (
	memoryEnforcement = enforcedBestEffort
	processCountWorks = true
)

// rlimitOrder lists the limits that are rlimits in the order in which the
// child stage sets them: what could hinder the stage itself comes last.
var rlimitOrder = []struct {
	id       limitID
	resource int
}{
	{fileBytes, unix.RLIMIT_FSIZE}, {openFiles, unix.RLIMIT_NOFILE}, {cpuSeconds, unix.RLIMIT_CPU},
	{processCount, unix.RLIMIT_NPROC}, {memoryBytes, unix.RLIMIT_AS},
}

// enterUserNamespace makes the child start in a user namespace of its own, with
// its uid and gid mapped to themselves. The kernel counts RLIMIT_NPROC by
// namespace and uid (since Linux 5.14), so that a limit set inside binds this
// call alone. The parent asks for it at clone(2), since a process with several
// threads can't unshare(2) it.
//
// Asked to map the ids, Go forks a copy of this process, which waits for that before
// it executes the program: a tenth of a call. So tree.fork does it where it can, once
// the program has been executed.
func enterUserNamespace(attr *syscall.SysProcAttr) {
	attr.Cloneflags |= unix.CLONE_NEWUSER
	if mapsLate() {
		attr.Cloneflags |= unix.CLONE_VFORK | unix.CLONE_VM // as without a namespace
		return
	}
	uid, gid := os.Geteuid(), os.Getegid()
	attr.UidMappings = []syscall.SysProcIDMap{{ContainerID: uid, HostID: uid, Size: 1}}
	attr.GidMappings = []syscall.SysProcIDMap{{ContainerID: gid, HostID: gid, Size: 1}}
}

// mapsLate reports whether ids can be mapped after the program was executed. Uid 0
// would lose its capabilities there. And where this user may not read the program
// its files in /proc, the maps among them, are root's (proc_pid(5)).
func mapsLate() bool { return os.Geteuid() != 0 && unix.Access(selfExecutable, unix.R_OK) == nil }

func clearUserNamespace(attr *syscall.SysProcAttr) {
	attr.Cloneflags &^= unix.CLONE_NEWUSER | unix.CLONE_VFORK | unix.CLONE_VM
	attr.UidMappings, attr.GidMappings = nil, nil
}

// idsAreUnmapped reports whether what is forked so needs mapOwnIDs.
func idsAreUnmapped(attr *syscall.SysProcAttr) bool {
	return attr.Cloneflags&unix.CLONE_NEWUSER != 0 && attr.UidMappings == nil
}

// userNamespaceExpected spares a call most of the trial where nothing but a process
// in a namespace is in doubt: the fork of the child stage maps its ids, and the stage
// itself sees the limit bind.
func userNamespaceExpected() bool {
	return countsByNamespace() && mapsLate() && seesAllIDs() && entersUserNamespace() || userNamespaceWorks()
}

// seesAllIDs reports whether ids mean here what they mean to the kernel, which holds
// root alone to no limit of processes, whatever its uid is called in a namespace.
func seesAllIDs() bool {
	text, err := readProc("/proc/self/uid_map")
	return err == nil && slices.Equal(strings.Fields(string(text)), []string{"0", "0", "4294967295"})
}

// entersUserNamespace forks into one what then finds no program to execute.
func entersUserNamespace() bool {
	pid, err := syscall.ForkExec("", nil, &syscall.ProcAttr{
		Sys: &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWUSER | unix.CLONE_VFORK | unix.CLONE_VM},
	})
	if err == nil { // a signal to the whole group was faster
		unix.Wait4(pid, nil, 0, nil)
	}
	return err == syscall.ENOENT
}

// userNamespaceWorks tries it.
func userNamespaceWorks() bool {
	if !countsByNamespace() {
		return false
	}
	for range probeTries {
		if works, known := tryUserNamespace(); known {
			return works
		}
	}
	return false
}

// probeTries is how often to try after a signal to the whole group has hit the
// process that was to tell.
const probeTries = 5

// tryUserNamespace has a process that is to be the only one in a namespace fork,
// which fails where the limit binds. It is a fork of this one that makes nothing
// but raw system calls, since a program of Go's takes a millisecond to start.
func tryUserNamespace() (works, known bool) {
	hold, release, err := newPipe()
	if err != nil {
		return false, true
	}
	defer unix.Close(hold)
	limit := unix.Rlimit{Cur: 1, Max: 1}
	var buf [1]byte
	var pid uintptr
	var errno syscall.Errno
	for end := time.Now().Add(namespacesEnd); ; {
		pid, _, errno = syscall.RawSyscall6(syscall.SYS_CLONE, uintptr(unix.CLONE_NEWUSER|syscall.SIGCHLD), 0, 0, 0, 0, 0)
		if errno != syscall.ENOSPC || !namespacesMayEnd(end) {
			break
		}
	}
	if errno == 0 && pid == 0 {
		syscall.RawSyscall(syscall.SYS_CLOSE, uintptr(release), 0, 0)
		var code uintptr
		if forkWithin(&limit) == syscall.EAGAIN {
			code = probeBinds
		}
		syscall.RawSyscall(syscall.SYS_READ, uintptr(hold), uintptr(unsafe.Pointer(&buf)), 1) // end of file, once the ids are mapped
		syscall.RawSyscall6(syscall.SYS_WAIT4, ^uintptr(0), 0, 0, 0, 0, 0)                    // for what was forked
		syscall.RawSyscall(syscall.SYS_EXIT_GROUP, code, 0, 0)
	}
	if errno == 0 {
		err = mapOwnIDs(int(pid))
	}
	unix.Close(release)
	if errno != 0 {
		return false, true
	}
	var status unix.WaitStatus
	for {
		if _, werr := unix.Wait4(int(pid), &status, 0, nil); werr != unix.EINTR {
			return err == nil && werr == nil && status.Exited() && status.ExitStatus() == probeBinds, !status.Signaled()
		}
	}
}

// forkWithin sets this soft limit of processes and forks one more, which ends at
// once. The errno is EAGAIN where the limit binds. Like all that goes on in a fork
// of a program of Go's it makes nothing but raw system calls.
//
//go:nosplit
func forkWithin(limit *unix.Rlimit) syscall.Errno {
	_, _, errno := syscall.RawSyscall6(syscall.SYS_PRLIMIT64, 0, unix.RLIMIT_NPROC, uintptr(unsafe.Pointer(limit)), 0, 0, 0)
	if errno != 0 {
		return errno
	}
	pid, _, errno := syscall.RawSyscall6(syscall.SYS_CLONE, uintptr(syscall.SIGCHLD), 0, 0, 0, 0, 0)
	if errno == 0 && pid == 0 {
		syscall.RawSyscall(syscall.SYS_EXIT_GROUP, 0, 0, 0)
	}
	return errno
}

// seeProcessLimitBind returns why a limit of processes does not bind here, if it does
// not. It leaves the lowest soft limit behind, and is for the child stage, which sets
// the call's own next.
func seeProcessLimitBind() syscall.Errno {
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NPROC, &limit); err != nil {
		return err.(syscall.Errno)
	}
	limit.Cur = min(limit.Max, 1)
	switch errno := forkWithin(&limit); errno {
	case syscall.EAGAIN:
		return 0
	case 0:
		return syscall.ENOTSUP
	default:
		return errno
	}
}

// namespacesEnd is how long to try again while there are too many user namespaces
// (ENOSPC, clone(2)): the kernel frees one some time after its last process has
// ended.
const namespacesEnd = 200 * time.Millisecond

// namespacesMayEnd waits a little, and reports whether it is worth another try.
func namespacesMayEnd(end time.Time) bool {
	if most, err := readProc("/proc/sys/user/max_user_namespaces"); err == nil && strings.TrimSpace(string(most)) == "0" {
		return false
	}
	time.Sleep(time.Millisecond)
	return time.Now().Before(end)
}

// probeBinds is how userNamespaceWorks's process says that the limit binds.
const probeBinds = 42

// mapOwnIDs maps the uid and gid of a process in a new user namespace to
// themselves. A user who is not privileged may map a gid only once setgroups is
// denied (user_namespaces(7)).
func mapOwnIDs(pid int) error {
	own := func(id int) string { return strconv.Itoa(id) + " " + strconv.Itoa(id) + " 1\n" }
	for _, file := range [][2]string{{"setgroups", "deny"}, {"uid_map", own(os.Geteuid())}, {"gid_map", own(os.Getegid())}} {
		fd, err := unix.Open("/proc/"+strconv.Itoa(pid)+"/"+file[0], unix.O_WRONLY|unix.O_CLOEXEC, 0)
		if err != nil {
			return err
		}
		_, err = unix.Write(fd, []byte(file[1]))
		unix.Close(fd)
		if err != nil {
			return err
		}
	}
	return nil
}

// countsByNamespace reports whether the kernel is one that counts processes by
// user namespace. One before it would hold the user's other processes against
// the call, which the probe can't tell.
func countsByNamespace() bool {
	var name unix.Utsname
	return unix.Uname(&name) == nil && releaseAtLeast(unix.ByteSliceToString(name.Release[:]), 5, 14)
}

// releaseAtLeast compares a kernel's release, "6.1.0-13-amd64", with a version.
func releaseAtLeast(release string, major, minor int) bool {
	var a, b int
	if n, _ := fmt.Sscanf(release, "%d.%d", &a, &b); n < 2 {
		return false
	}
	return a > major || a == major && b >= minor
}

// userNamespaceLikely guesses, without making a process, whether
// userNamespaceWorks: good enough for the wording of a notice, and cheap enough
// for every call.
func userNamespaceLikely() bool {
	if !countsByNamespace() {
		return false
	}
	// This pair of flags is always refused with EINVAL, unless a seccomp filter
	// answers first (clone(2)).
	_, _, errno := syscall.RawSyscall6(syscall.SYS_CLONE, unix.CLONE_NEWUSER|unix.CLONE_FS, 0, 0, 0, 0, 0)
	if errno != syscall.EINVAL {
		return false
	}
	// Nor can the machine's root be mapped to itself without CAP_SETFCAP, and
	// RLIMIT_NPROC does not bind it anyway.
	if text, err := readProc("/proc/self/uid_map"); err == nil && isRootOutside(string(text), os.Geteuid()) {
		return false
	}
	if os.Geteuid() != 0 && !mapsLate() {
		return false
	}
	for file, works := range map[string]func(int) bool{
		"user/max_user_namespaces":                     func(n int) bool { return n > 0 },
		"kernel/unprivileged_userns_clone":             func(n int) bool { return n != 0 },
		"kernel/apparmor_restrict_unprivileged_userns": func(n int) bool { return n == 0 },
	} {
		text, err := readProc("/proc/sys/" + file)
		if n, bad := strconv.Atoi(strings.TrimSpace(string(text))); err == nil && bad == nil && !works(n) {
			return false
		}
	}
	return true
}

// isRootOutside reports whether the uid stands for uid 0 of the parent user namespace.
func isRootOutside(uidMap string, uid int) bool {
	for line := range strings.Lines(uidMap) {
		var inside, outside, count int
		if n, _ := fmt.Sscan(line, &inside, &outside, &count); n == 3 && outside == 0 && inside == uid {
			return true
		}
	}
	return false
}
