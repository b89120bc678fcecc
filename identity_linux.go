package main

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// canDrop reports whether this process can run its target as uid: effective
// uid 0, the capabilities to change to it, to signal it afterwards and to give
// it its files, and a user namespace that has the ids. For a uid 0 that can't,
// why says so.
func canDrop(uid int) (ok bool, why string) {
	if os.Geteuid() != 0 {
		return false, ""
	}
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData
	if err := unix.Capget(&header, &data[0]); err != nil {
		return false, "capget: " + err.Error()
	}
	for _, need := range []struct {
		bit  uint
		name string
	}{
		{unix.CAP_SETUID, "CAP_SETUID"}, {unix.CAP_SETGID, "CAP_SETGID"},
		{unix.CAP_KILL, "CAP_KILL"}, {unix.CAP_CHOWN, "CAP_CHOWN"},
	} {
		if data[0].Effective&(1<<need.bit) == 0 {
			return false, "without " + need.name
		}
	}
	// The first user namespace, which has all ids, is known by a fixed number
	// (USER_NS_INIT_INO in linux/nsfs.h).
	const initialNamespace = 0xEFFFFFFD
	var st unix.Stat_t
	if unix.Stat("/proc/self/ns/user", &st) == nil && st.Ino == initialNamespace {
		return true, ""
	}
	for _, file := range []string{"uid_map", "gid_map"} {
		if text, err := readProc("/proc/self/" + file); err == nil && !idMapped(string(text), uid) {
			return false, fmt.Sprintf("in a user namespace without id %d", uid)
		}
	}
	if text, err := readProc("/proc/self/setgroups"); err == nil && strings.HasPrefix(string(text), "deny") {
		return false, "in a user namespace that denies setgroups"
	}
	return true, ""
}

// idMapped looks an id up in the text of /proc/PID/uid_map or gid_map, whose
// lines are "first-inside first-outside count" (user_namespaces(7)).
func idMapped(text string, id int) bool {
	for line := range strings.Lines(text) {
		f := strings.Fields(line)
		if len(f) != 3 {
			continue
		}
		first, err1 := strconv.Atoi(f[0])
		count, err2 := strconv.Atoi(f[2])
		if err1 == nil && err2 == nil && id >= first && id-first < count {
			return true
		}
	}
	return false
}

// openPinned opens a file of any kind for fstat and chownPinned only. It does
// not follow a link and does not cross into another mount.
func openPinned(dir int, name string) (int, error) {
	how := unix.OpenHow{Flags: unix.O_PATH | unix.O_NOFOLLOW | unix.O_CLOEXEC, Resolve: unix.RESOLVE_NO_XDEV}
	return unix.Openat2(dir, name, &how)
}

// madeSince reports whether the file was made at that time or later, in Unix
// nanoseconds, as far as the file system knows; where it does not, all are.
func madeSince(fd int, since int64) bool {
	const clockStep = 20_000_000 // the kernel stamps files with the time of a tick
	var st unix.Statx_t
	err := unix.Statx(fd, "", unix.AT_EMPTY_PATH|unix.AT_SYMLINK_NOFOLLOW, unix.STATX_BTIME, &st)
	if err != nil || st.Mask&unix.STATX_BTIME == 0 {
		return true
	}
	return st.Btime.Sec*1e9+int64(st.Btime.Nsec) >= since-clockStep
}

func chownPinned(fd, uid, gid int) error {
	return unix.Fchownat(fd, "", uid, gid, unix.AT_EMPTY_PATH)
}

// allowReopen lets another uid open a pipe that it holds once more, as
// /dev/stderr or /dev/fd/63, for which Linux asks for the rights to the pipe's
// own inode: its maker's, 0600. The way there, /proc/PID/fd, is open to the
// holder alone. What is no pipe, or has a name, is left as it is.
func allowReopen(fd int) {
	var st unix.Statfs_t
	if unix.Fstatfs(fd, &st) == nil && st.Type == unix.PIPEFS_MAGIC {
		unix.Fchmod(fd, 0o666)
	}
}

// uidsInUse are those that processes run as, with one of the processes each. The
// owner of /proc/PID would be cheaper to ask for, but is root for whatever the
// kernel would not dump the core of. Zombies count against RLIMIT_NPROC, but do
// nothing, and where PID 1 reaps none a uid would never be free again.
func uidsInUse() map[int]process {
	used := map[int]process{}
	entries, _ := os.ReadDir("/proc")
	for _, e := range entries {
		pid, ok := parsePID(e.Name())
		if !ok {
			continue
		}
		text, err := readProc("/proc/" + e.Name() + "/status")
		if err != nil {
			continue
		}
		p := process{pid: pid}
		for line := range strings.Lines(string(text)) {
			if name, ok := strings.CutPrefix(line, "Name:"); ok {
				p.name = strings.TrimSpace(name)
			}
			if state, ok := strings.CutPrefix(line, "State:"); ok && strings.HasPrefix(strings.TrimSpace(state), "Z") {
				break
			}
			if uids, ok := strings.CutPrefix(line, "Uid:"); ok {
				for _, field := range strings.Fields(uids) { // real, effective, saved, file system
					if uid, err := strconv.Atoi(field); err == nil {
						used[uid] = p
					}
				}
				break
			}
		}
	}
	return used
}

// hasAttributes reports whether a directory has extended attributes, access
// control lists among them, or other inode flags than its parent has.
func hasAttributes(dir, parent int) bool {
	if n, err := unix.Flistxattr(dir, nil); n > 0 || err != nil && err != unix.ENOTSUP {
		return true
	}
	const byTheKernel = 0x1000 // FS_INDEX_FL: hashed, since it has many entries
	flags, _ := unix.IoctlGetInt(dir, unix.FS_IOC_GETFLAGS)
	usual, _ := unix.IoctlGetInt(parent, unix.FS_IOC_GETFLAGS)
	return (flags^usual)&^byTheKernel != 0
}

// fillRandom fills p with random bytes, without what crypto/rand builds at its
// first use, or unix.Getrandom for the vDSO.
func fillRandom(p []byte) {
	n, _, errno := syscall.Syscall(unix.SYS_GETRANDOM, uintptr(unsafe.Pointer(&p[0])), uintptr(len(p)), 0)
	if n < uintptr(len(p)) || errno != 0 { // not for up to 256 bytes: getrandom(2)
		panic(fmt.Sprintf("getrandom: %d, %v", n, errno))
	}
}
