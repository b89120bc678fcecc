package main

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"syscall"

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
// threads can't unshare(2) it, and setgroups must be denied before a user who
// is not privileged may map a gid (user_namespaces(7)).
func enterUserNamespace(attr *syscall.SysProcAttr) {
	uid, gid := os.Geteuid(), os.Getegid()
	attr.Cloneflags |= unix.CLONE_NEWUSER
	attr.UidMappings = []syscall.SysProcIDMap{{ContainerID: uid, HostID: uid, Size: 1}}
	attr.GidMappings = []syscall.SysProcIDMap{{ContainerID: gid, HostID: gid, Size: 1}}
}

// probeStage is the first argument of the process that tries process_count in
// a user namespace: it exits 0 if the limit binds.
const probeStage = "__probe"

// userNamespaceWorks tries it.
func userNamespaceWorks() bool {
	if !countsByNamespace() {
		return false
	}
	attr := &syscall.SysProcAttr{}
	enterUserNamespace(attr)
	pid, err := syscall.ForkExec(selfExecutable, []string{"pyplaypen", probeStage}, &syscall.ProcAttr{Sys: attr})
	if err != nil {
		return false
	}
	var status unix.WaitStatus
	for {
		if _, err = unix.Wait4(pid, &status, 0, nil); err != unix.EINTR {
			return err == nil && status.Exited() && status.ExitStatus() == 0
		}
	}
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

// probeMain forks under a process count of one. The threads of the Go runtime
// alone are more than that, so where the limit binds fork fails.
func probeMain() int {
	limit := rlim{unix.RLIMIT_NPROC, 1, 1}
	if setRlimit(&limit) != 0 {
		return 1
	}
	pid, _, errno := syscall.RawSyscall6(syscall.SYS_CLONE, uintptr(syscall.SIGCHLD), 0, 0, 0, 0, 0)
	switch {
	case errno == syscall.EAGAIN:
		return 0
	case errno == 0 && pid == 0:
		syscall.RawSyscall(syscall.SYS_EXIT_GROUP, 1, 0, 0)
	}
	return 1
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
	// Nor can a uid 0 that is the machine's be mapped without CAP_SETFCAP, and
	// RLIMIT_NPROC does not bind it anyway.
	if text, err := readProc("/proc/self/uid_map"); os.Geteuid() == 0 && err == nil && mapsRoot(string(text)) {
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

// mapsRoot reports whether uid 0 stands for uid 0 of the parent user namespace.
func mapsRoot(uidMap string) bool {
	for line := range strings.Lines(uidMap) {
		if f := strings.Fields(line); len(f) == 3 && f[0] == "0" {
			return f[1] == "0"
		}
	}
	return false
}
