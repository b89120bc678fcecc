package main

import (
	"os"
	"runtime"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// childMain is the child stage. It runs in a fresh process that leads its own
// session and process group and already has the target's directory,
// environment and standard streams, and ends in execve. Its one way to speak
// is the status pipe: stderr is the target's.
//
// Whatever the runtime could trip over comes last, as raw system calls on
// memory allocated before: the Go runtime maps more than a gigabyte of address
// space, so that an allocation under RLIMIT_AS kills it, and a thread that it
// starts under RLIMIT_NPROC does too. Credentials and no_new_privs belong to
// the calling thread, whose are the ones that survive execve(2), so raw calls
// on one locked thread are enough.
func childMain(args []string) int {
	if len(args) < 4 {
		return exitCannotRun
	}
	spec, ok := decodeChildSpec(args[2])
	if !ok {
		return exitCannotRun
	}
	c := &childProcess{spec: spec}
	return c.become(args[3:], os.Environ())
}

// A childProcess is on its way to become the target.
type childProcess struct {
	spec *childSpec
	said []childRecord // what could not go to a status pipe, for want of one
}

// become takes the steps down to execve, and returns only if one of them fails.
// It must stay on one thread, and no garbage collection may begin: see init and
// stageEnv.
func (c *childProcess) become(argv, env []string) int {
	candidates := c.spec.search.candidates(argv[0], env)
	if c.spec.statusFD < 0 {
		c.said = make([]childRecord, 0, 2*len(candidates)+2)
	}
	if !c.closeOnExec() || !c.dropPrivileges() || !c.dieWithParent() || !c.defaultSignals() {
		return exitCannotRun
	}
	env, ok := c.spec.waitAtGate(env)
	if !ok {
		return exitCannotRun
	}
	image, err := newExecImage(candidates, argv, env)
	if err != nil {
		return c.failed(stepDecode, 0, syscall.EINVAL)
	}
	last := peakRecord(ownPeak())
	// No allocation and no new thread from here on.
	if c.spec.userNamespace {
		if errno := seeProcessLimitBind(); errno != 0 {
			return c.failed(stepNamespace, 0, errno)
		}
	}
	for i := range c.spec.rlimits {
		if errno := setRlimit(&c.spec.rlimits[i]); errno != 0 {
			return c.failed(stepRlimit, i, errno)
		}
	}
	c.say(last.step, int(last.index), last.errno)
	return c.exec(image)
}

func (c *childProcess) say(step childStep, index int, errno syscall.Errno) {
	r := childRecord{step, uint16(index), errno}
	if c.spec.statusFD < 0 {
		c.said = append(c.said, r) // within its capacity
		return
	}
	record := r.encode()
	syscall.RawSyscall(syscall.SYS_WRITE, uintptr(c.spec.statusFD), uintptr(unsafe.Pointer(&record)), childRecordSize)
}

func (c *childProcess) failed(step childStep, index int, errno syscall.Errno) int {
	c.say(step, index, errno)
	return exitCannotRun
}

// closeOnExec marks every descriptor from 3 on, except those passed, so that
// the caller's others never reach the target.
func (c *childProcess) closeOnExec() bool {
	keep := func(fd int) bool {
		for _, p := range c.spec.passFDs {
			if p == fd {
				return true
			}
		}
		return false
	}
	first := 3
	for {
		for keep(first) {
			first++
		}
		last, more := ^uint(0)>>1, false
		for _, p := range c.spec.passFDs {
			if p > first && uint(p-1) < last {
				last, more = uint(p-1), true
			}
		}
		if !more {
			last = 1<<32 - 1
		}
		err := unix.CloseRange(uint(first), last, unix.CLOSE_RANGE_CLOEXEC)
		if err == unix.ENOSYS || err == unix.EINVAL { // before Linux 5.11
			return c.closeOnExecByList(keep)
		}
		if err != nil {
			c.failed(stepDescriptors, 0, err.(syscall.Errno))
			return false
		}
		if !more {
			return true
		}
		first = int(last) + 1
	}
}

func (c *childProcess) closeOnExecByList(keep func(int) bool) bool {
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		c.failed(stepDescriptors, 0, syscall.ENOENT)
		return false
	}
	for _, e := range entries {
		if fd, ok := parsePID(e.Name()); ok && fd > 2 && !keep(fd) {
			unix.CloseOnExec(fd)
		}
	}
	return true
}

// dropPrivileges goes from root to the uid and the gid of the same number, for
// good: no supplementary group, no capability, no set-uid program later.
func (c *childProcess) dropPrivileges() bool {
	if c.spec.uid < 0 {
		return true
	}
	uid := uintptr(c.spec.uid)
	for _, call := range []struct {
		step        childStep
		trap        uintptr
		a1, a2, a3  uintptr
		unsupported syscall.Errno // an errno that means there is nothing to do
	}{
		{step: stepGroups, trap: syscall.SYS_SETGROUPS},
		{step: stepGID, trap: syscall.SYS_SETGID, a1: uid},
		{step: stepUID, trap: syscall.SYS_SETUID, a1: uid},
		{step: stepUID, trap: syscall.SYS_PRCTL, a1: unix.PR_CAP_AMBIENT, a2: unix.PR_CAP_AMBIENT_CLEAR_ALL, unsupported: syscall.EINVAL},
		{step: stepNoNewPrivs, trap: syscall.SYS_PRCTL, a1: unix.PR_SET_NO_NEW_PRIVS, a2: 1},
	} {
		if _, _, errno := syscall.RawSyscall6(call.trap, call.a1, call.a2, call.a3, 0, 0, 0); errno != 0 && errno != call.unsupported {
			c.failed(call.step, 0, errno)
			return false
		}
	}
	// A caller may have set up that the change of uid keeps them
	// (SECBIT_NO_SETUID_FIXUP), and inheritable ones outlive it and execve.
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var none [2]unix.CapUserData
	if err := unix.Capset(&header, &none[0]); err != nil {
		c.failed(stepDropCheck, 0, err.(syscall.Errno))
		return false
	}
	ruid, euid, suid := unix.Getresuid()
	rgid, egid, sgid := unix.Getresgid()
	groups, err := unix.Getgroups()
	for _, id := range []int{ruid, euid, suid, rgid, egid, sgid} {
		if uint32(id) != uint32(c.spec.uid) { // x/sys returns those from 1<<31 on as negative
			err = syscall.EPERM
		}
	}
	if err != nil || len(groups) > 0 {
		c.failed(stepDropCheck, 0, syscall.EPERM)
		return false
	}
	return true
}

// dieWithParent has the kernel kill this process, and the target that it
// becomes, when the supervisor dies. A change of uid clears the setting, so it
// comes after (PR_SET_PDEATHSIG(2const)).
func (c *childProcess) dieWithParent() bool {
	if c.spec.parent == 0 {
		return true
	}
	if _, _, errno := syscall.RawSyscall6(syscall.SYS_PRCTL, unix.PR_SET_PDEATHSIG, uintptr(syscall.SIGKILL), 0, 0, 0, 0); errno != 0 {
		c.failed(stepDeathSignal, 0, errno)
		return false
	}
	if os.Getppid() != c.spec.parent { // it died before the signal was armed
		c.failed(stepDeathSignal, 0, syscall.ESRCH)
		return false
	}
	return true
}

// defaultSignals takes the runtime's handlers off the signals by which the
// kernel tells of a limit: one that came between here and execve would be
// swallowed. SIGPIPE and SIGXFSZ are the two that callers like to ignore, and
// an ignored signal stays ignored through execve. The same holds of the signals
// that ask for an end, but these stay ignored if the caller ignores them.
func (c *childProcess) defaultSignals() bool {
	var action struct {
		handler, flags, restorer uintptr
		mask                     uint64
	}
	signals := []syscall.Signal{syscall.SIGXCPU, syscall.SIGXFSZ, syscall.SIGPIPE}
	for _, sig := range []syscall.Signal{syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT} {
		if !ignored(sig) {
			signals = append(signals, sig)
		}
	}
	for _, sig := range signals {
		_, _, errno := syscall.RawSyscall6(syscall.SYS_RT_SIGACTION, uintptr(sig), uintptr(unsafe.Pointer(&action)), 0, unsafe.Sizeof(action.mask), 0, 0)
		if errno != 0 {
			c.failed(stepSignals, int(sig), errno)
			return false
		}
	}
	runtime.KeepAlive(&action)
	return true
}

func setRlimit(r *rlim) syscall.Errno {
	limit := syscall.Rlimit{Cur: r.soft, Max: r.hard}
	_, _, errno := syscall.RawSyscall6(syscall.SYS_PRLIMIT64, 0, uintptr(r.resource), uintptr(unsafe.Pointer(&limit)), 0, 0, 0)
	return errno
}

// An execImage is the arguments of every execve that may be tried.
type execImage struct {
	paths       []*byte
	argv, envp  []*byte
	shell       *byte
	shellScript []*byte // argv for /bin/sh; the candidate's path goes into [1]
}

func newExecImage(candidates, argv, env []string) (*execImage, error) {
	var e execImage
	var err error
	if e.paths, err = syscall.SlicePtrFromStrings(candidates); err != nil {
		return nil, err
	}
	if e.argv, err = syscall.SlicePtrFromStrings(argv); err != nil {
		return nil, err
	}
	if e.envp, err = syscall.SlicePtrFromStrings(env); err != nil {
		return nil, err
	}
	if e.shell, err = syscall.BytePtrFromString("/bin/sh"); err != nil {
		return nil, err
	}
	e.paths = e.paths[:len(candidates)]
	e.shellScript = append([]*byte{e.shell, nil}, e.argv[1:]...)
	return &e, nil
}

// exec tries the candidates as execvp(3) does: a permission error does not end
// the search but is what is reported if nothing else is found, and a file of
// unknown format is a script for /bin/sh.
func (c *childProcess) exec(e *execImage) int {
	final, at, skipped := syscall.ENOENT, 0, false
	for i, path := range e.paths {
		if skipped {
			c.say(stepTry, i, 0)
		}
		errno := execve(path, &e.argv[0], &e.envp[0])
		if errno == syscall.ENOEXEC {
			e.shellScript[1] = path
			errno = execve(e.shell, &e.shellScript[0], &e.envp[0])
			return c.failed(stepExec, i, errno)
		}
		switch errno {
		case syscall.EACCES:
			c.say(stepSkip, i, errno)
			final, at, skipped = errno, i, true
		case syscall.ENOENT, syscall.ENOTDIR, syscall.ESTALE, syscall.ENODEV, syscall.ETIMEDOUT:
			if len(e.paths) == 1 {
				final = errno
			}
		default:
			return c.failed(stepExec, i, errno)
		}
	}
	return c.failed(stepExec, at, final)
}

func execve(path *byte, argv, envp **byte) syscall.Errno {
	_, _, errno := syscall.RawSyscall(syscall.SYS_EXECVE, uintptr(unsafe.Pointer(path)), uintptr(unsafe.Pointer(argv)), uintptr(unsafe.Pointer(envp)))
	return errno
}
