package main

import "golang.org/x/sys/unix"

// unlinkedFile returns a descriptor at the start of a file without a name that
// holds data. Unlike a pipe it needs nobody to write while the child reads.
func unlinkedFile(data []byte) (int, error) {
	fd, err := unix.MemfdCreate("request", unix.MFD_CLOEXEC)
	if err != nil {
		return -1, err
	}
	for len(data) > 0 {
		n, err := unix.Write(fd, data)
		if err != nil && err != unix.EINTR {
			unix.Close(fd)
			return -1, err
		}
		data = data[max(n, 0):]
	}
	if _, err := unix.Seek(fd, 0, 0); err != nil {
		unix.Close(fd)
		return -1, err
	}
	return fd, nil
}
