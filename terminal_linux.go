package main

import "golang.org/x/sys/unix"

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
