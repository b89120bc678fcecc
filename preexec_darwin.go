package main

import (
	"os"
	"os/signal"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"
)

// childMain is the child stage; see the Linux one for what it is. macOS has no
// parent-death signal, no no_new_privs and no address space limit that binds.
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

func (c *childProcess) say(step childStep, index int, errno syscall.Errno) {
	r := childRecord{step, uint16(index), errno}
	if c.spec.statusFD < 0 {
		c.said = append(c.said, r)
		return
	}
	record := r.encode()
	unix.Write(c.spec.statusFD, record[:])
}

func (c *childProcess) failed(step childStep, index int, err error) int {
	errno, _ := err.(syscall.Errno)
	c.say(step, index, errno)
	return exitCannotRun
}

// become takes the steps down to execve, and returns only if one of them fails.
func (c *childProcess) become(argv, env []string) int {
	if err := closeOnExec(c.spec.passFDs); err != nil {
		return c.failed(stepDescriptors, 0, err)
	}
	if step, err := dropPrivileges(c.spec.uid); err != nil {
		return c.failed(step, 0, err)
	}
	signal.Reset(unix.SIGXCPU, unix.SIGXFSZ, unix.SIGPIPE)
	env, ok := c.spec.waitAtGate(env)
	if !ok {
		return exitCannotRun
	}
	candidates := c.spec.search.candidates(argv[0], env)
	for i, r := range c.spec.rlimits {
		limit := syscall.Rlimit{Cur: r.soft, Max: r.hard}
		if err := syscall.Setrlimit(r.resource, &limit); err != nil {
			return c.failed(stepRlimit, i, err)
		}
	}
	last := peakRecord(ownPeak())
	c.say(last.step, int(last.index), last.errno)
	final, at, skipped := error(syscall.ENOENT), 0, false
	for i, candidate := range candidates {
		if skipped {
			c.say(stepTry, i, 0)
		}
		err := syscall.Exec(candidate, argv, env)
		if err == syscall.ENOEXEC {
			return c.failed(stepExec, i, syscall.Exec("/bin/sh", append([]string{"/bin/sh", candidate}, argv[1:]...), env))
		}
		switch err {
		case syscall.EACCES:
			c.say(stepSkip, i, syscall.EACCES)
			final, at, skipped = err, i, true
		case syscall.ENOENT, syscall.ENOTDIR:
		default:
			return c.failed(stepExec, i, err)
		}
	}
	return c.failed(stepExec, at, final)
}

func closeOnExec(keep []int) error {
	entries, err := os.ReadDir("/dev/fd")
	if err != nil {
		return err
	}
next:
	for _, e := range entries {
		fd, err := strconv.Atoi(e.Name())
		if err != nil || fd < 3 {
			continue
		}
		for _, k := range keep {
			if k == fd {
				continue next
			}
		}
		unix.CloseOnExec(fd)
	}
	return nil
}

func dropPrivileges(uid int) (childStep, error) {
	if uid < 0 {
		return 0, nil
	}
	if err := syscall.Setgroups([]int{uid}); err != nil {
		return stepGroups, err
	}
	if err := syscall.Setgid(uid); err != nil {
		return stepGID, err
	}
	if err := syscall.Setuid(uid); err != nil {
		return stepUID, err
	}
	if os.Getuid() != uid || os.Geteuid() != uid || os.Getgid() != uid || os.Getegid() != uid {
		return stepDropCheck, syscall.EPERM
	}
	return 0, nil
}
