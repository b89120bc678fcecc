package main

import (
	"syscall"

	"golang.org/x/sys/unix"
)

const (
	memoryEnforcement = unsupported // RLIMIT_AS does not bind on macOS
	processCountWorks = false
)

var rlimitOrder = []struct {
	id       limitID
	resource int
}{
	{fileBytes, unix.RLIMIT_FSIZE}, {openFiles, unix.RLIMIT_NOFILE}, {cpuSeconds, unix.RLIMIT_CPU},
}

// A pidsCap does not exist on macOS.
type pidsCap struct {
	max        int64
	finite     bool
	file       string
	unreadable []string
}

func readPidsCap(string) pidsCap { return pidsCap{} }

func enterUserNamespace(*syscall.SysProcAttr) {}

func clearUserNamespace(*syscall.SysProcAttr) {}

func userNamespaceExpected() bool { return false }

func userNamespaceWorks() bool { return false }

func userNamespaceLikely() bool { return false }
