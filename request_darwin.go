package main

import (
	"os"

	"golang.org/x/sys/unix"
)

// unlinkedFile returns a descriptor at the start of a file without a name that
// holds data.
func unlinkedFile(data []byte) (int, error) {
	f, err := os.CreateTemp("", "pyplaypen-request-")
	if err != nil {
		return -1, err
	}
	defer f.Close()
	os.Remove(f.Name())
	if _, err := f.Write(data); err != nil {
		return -1, err
	}
	if _, err := f.Seek(0, 0); err != nil {
		return -1, err
	}
	return unix.FcntlInt(f.Fd(), unix.F_DUPFD_CLOEXEC, 3)
}
