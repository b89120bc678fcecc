package main

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// defaultChildUID is nobody on most systems.
const defaultChildUID = 65534

// canDrop reports whether root can drop to every uid of the range here.
func (r uidRange) canDrop() (ok bool, why string) {
	if ok, why = canDrop(r.first); ok && r.own {
		ok, why = canDrop(r.last)
	}
	return ok, why
}

// passable reports whether uid, with the gid of the same number and no other
// group, may do to a file of this owner and mode what bits (of 7: rwx) ask for.
// Access control lists are not looked at.
func passable(st *unix.Stat_t, uid int, bits uint32) bool {
	mode := uint32(st.Mode)
	switch uint32(uid) {
	case st.Uid:
		mode >>= 6
	case st.Gid:
		mode >>= 3
	}
	return mode&bits == bits
}

// A blockade is the first directory on the way to a path that a uid can't pass.
type blockade struct {
	dir  string
	mode uint32
}

func (b blockade) String() string { return fmt.Sprintf("%s (mode %04o)", b.dir, b.mode) }

// blockadeOf looks for a blockade among the directories above path, links resolved.
func blockadeOf(path string, uid int) (blockade, bool) {
	if !filepath.IsAbs(path) {
		// The current directory was entered before the drop.
		cwd, err := os.Getwd()
		if err != nil {
			return blockade{}, false
		}
		return blockadeBelow(cwd, path, uid)
	}
	return blockadeBelow("/", path[1:], uid)
}

// blockadeBelow walks from a directory that needs no passing, except that it
// must itself be searchable, along the components of rest.
func blockadeBelow(dir, rest string, uid int) (blockade, bool) {
	links := 0
	for {
		var st unix.Stat_t
		if unix.Stat(dir, &st) != nil || st.Mode&unix.S_IFMT != unix.S_IFDIR {
			return blockade{}, false
		}
		if !passable(&st, uid, 1) {
			return blockade{dir, uint32(st.Mode) & 0o7777}, true
		}
		component, after, more := strings.Cut(strings.TrimLeft(rest, "/"), "/")
		if !more && component == "" {
			return blockade{}, false
		}
		next := filepath.Join(dir, component)
		if target, err := os.Readlink(next); err == nil && links < 40 {
			links++
			rest = target
			if more {
				rest += "/" + after
			}
			if filepath.IsAbs(target) {
				dir = "/"
			}
			continue
		}
		if !more {
			return blockade{}, false
		}
		dir, rest = next, after
	}
}

// systemDirectories are never handed to the child's uid, whatever they are
// called here, nor are pyplaypen's own.
var systemDirectories = []string{"/", "/bin", "/boot", "/dev", "/etc", "/home", "/lib", "/lib32", "/lib64", "/libx32", "/opt", "/proc", "/root",
	"/run", "/sbin", "/srv", "/sys", "/tmp", "/usr", "/var"}

func isSystemDirectory(st *unix.Stat_t) bool {
	own := slices.Clone(stateDirs)
	for _, dir := range temporaryDirs() {
		own = append(own, dir+"/"+privateDirsName())
	}
	for _, dir := range slices.Concat(systemDirectories, own) {
		var s unix.Stat_t
		if unix.Stat(dir, &s) == nil && s.Dev == st.Dev && s.Ino == st.Ino {
			return true
		}
	}
	return false
}
