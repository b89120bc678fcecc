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
	say := func(step childStep, index int, errno syscall.Errno) {
		record := childRecord{step, uint16(index), errno}.encode()
		unix.Write(spec.statusFD, record[:])
	}
	failed := func(step childStep, index int, err error) int {
		errno, _ := err.(syscall.Errno)
		say(step, index, errno)
		return exitCannotRun
	}
	if err := closeOnExec(spec.passFDs); err != nil {
		return failed(stepDescriptors, 0, err)
	}
	if step, err := dropPrivileges(spec.uid); err != nil {
		return failed(step, 0, err)
	}
	signal.Reset(unix.SIGXCPU, unix.SIGXFSZ, unix.SIGPIPE)
	argv := args[3:]
	path, pathSet := os.LookupEnv("PATH")
	candidates := execCandidates(argv[0], path, pathSet)
	for i, r := range spec.rlimits {
		limit := syscall.Rlimit{Cur: r.soft, Max: r.hard}
		if err := syscall.Setrlimit(r.resource, &limit); err != nil {
			return failed(stepRlimit, i, err)
		}
	}
	last := peakRecord(ownPeak())
	say(last.step, int(last.index), last.errno)
	final, at, skipped := error(syscall.ENOENT), 0, false
	for i, candidate := range candidates {
		if skipped {
			say(stepTry, i, 0)
		}
		err := syscall.Exec(candidate, argv, os.Environ())
		if err == syscall.ENOEXEC {
			return failed(stepExec, i, syscall.Exec("/bin/sh", append([]string{"/bin/sh", candidate}, argv[1:]...), os.Environ()))
		}
		switch err {
		case syscall.EACCES:
			say(stepSkip, i, syscall.EACCES)
			final, at, skipped = err, i, true
		case syscall.ENOENT, syscall.ENOTDIR:
		default:
			return failed(stepExec, i, err)
		}
	}
	return failed(stepExec, at, final)
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
