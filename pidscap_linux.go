package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// The pids controller counts tasks up the whole hierarchy: a fork has to fit
// under pids.max of the process's own cgroup and of every ancestor
// (cgroups(7)). So the smallest of those files is the cap that holds here, as
// far as it can be seen: a container sees its hierarchy from some cgroup
// downwards, and what lies above that may be tighter still.
//
// A cap that belongs to some other cgroup must never be taken for ours. A
// directory counts only if the kernel's own words put this process in it or
// below it: the path in /proc/self/cgroup against the root of the mount in
// /proc/self/mountinfo. What those two leave open is reported as unreadable.

// pidsCap is what the cgroups around this process say about how many processes they allow.
type pidsCap struct {
	max        int64    // the smallest finite pids.max found; 0 with finite false when there is none
	finite     bool     // a cap was found; max can be 0 even so, which forbids every fork
	file       string   // the pids.max file that holds max
	unreadable []string // files or mounts that should tell and could not be read, each with the reason
}

// membership is the cgroup that holds this process in one hierarchy.
type membership struct {
	v2    bool
	path  string // as seen from the root of the reader's cgroup namespace; "/../x" lies outside of it
	tells bool   // the pids controller may be in this hierarchy, so silence needs a reason
}

// mount is one line of /proc/self/mountinfo.
type mount struct {
	id, parent int64  // parent is noParent for the top of the tree that is listed
	root       string // the directory of the file system that shows at point
	point      string // absolute and clean
	fstype     string
	super      []string // the options of the file system as a whole; for cgroup v1 the controllers are among them
}

const noParent = -1

// readPidsCap finds the cap of the calling process. root is "/", or a
// directory with a recorded layout; file names in the answer leave it out.
func readPidsCap(root string) pidsCap {
	const cgroupFile, mountFile = "/proc/self/cgroup", "/proc/self/mountinfo"
	text, err := os.ReadFile(filepath.Join(root, cgroupFile))
	if errors.Is(err, fs.ErrNotExist) {
		return pidsCap{} // no cgroups in this kernel, or no /proc: nothing that should have told
	}
	if err != nil {
		return pidsCap{unreadable: []string{unreadableReason(cgroupFile, err)}}
	}
	members := parseMemberships(string(text))
	if len(members) == 0 {
		return pidsCap{}
	}
	text, err = os.ReadFile(filepath.Join(root, mountFile))
	if err != nil {
		return pidsCap{unreadable: []string{unreadableReason(mountFile, err)}}
	}
	var found pidsCap
	mounts := parseMountinfo(string(text))
	for _, member := range members {
		found.search(root, mounts, member)
	}
	return found
}

// parseMemberships picks the lines of /proc/self/cgroup that can bear on pids:
// "0::/path" for v2 and "N:controller,controller:/path" for v1 (cgroups(7)).
// The path is not escaped there, and it may contain colons.
func parseMemberships(text string) []membership {
	var members []membership
	pidsInV1 := false
	for line := range strings.Lines(text) {
		field := strings.SplitN(strings.TrimSuffix(line, "\n"), ":", 3)
		if len(field) != 3 {
			continue
		}
		if field[0] == "0" && field[1] == "" {
			members = append(members, membership{v2: true, path: field[2]})
		} else if slices.Contains(strings.Split(field[1], ","), "pids") {
			members = append(members, membership{path: field[2]})
			pidsInV1 = true
		}
	}
	// A controller is in one hierarchy at a time (cgroups(7)). With pids in a
	// v1 hierarchy, v2 has nothing to say about it and often is not mounted.
	for i, m := range members {
		members[i].tells = m.v2 != pidsInV1
	}
	return members
}

// search looks at one hierarchy through every mount that shows it.
func (c *pidsCap) search(root string, mounts []mount, member membership) {
	var unread []string // files
	var blind []string  // mounts that don't show our own cgroup; they matter if none does
	mounted := 0
	for i, m := range mounts {
		if !member.mountedAs(m) || servedBy(mounts, m.point) != i {
			continue
		}
		mounted++
		dirs, err := visibleDirs(m, member.path)
		if err == nil && isMissing(root, dirs[0]) {
			// The cgroup of a live process can't be removed: the process has
			// been moved meanwhile, or this is not what it looks like.
			dirs, err = nil, fmt.Errorf("no directory for cgroup %s", member.path)
		}
		if err != nil {
			blind = append(blind, unreadableReason(m.point, err))
		}
		for _, dir := range dirs {
			file := path.Join(dir, "pids.max")
			err := errors.New("another mount covers it")
			if servedBy(mounts, file) == i {
				err = c.take(root, file)
			}
			if err != nil {
				unread = append(unread, unreadableReason(file, err))
			}
		}
	}
	if !member.tells {
		return
	}
	if mounted == 0 {
		unread = append(unread, "/proc/self/cgroup: no mount shows the hierarchy of cgroup "+member.path)
	}
	if mounted == len(blind) {
		unread = append(unread, blind...)
	}
	c.unreadable = append(c.unreadable, unread...)
}

// mountedAs reports whether m shows the hierarchy of this membership. There is
// one v2 hierarchy, and at most one v1 hierarchy with pids.
func (member membership) mountedAs(m mount) bool {
	if member.v2 {
		return m.fstype == "cgroup2"
	}
	return m.fstype == "cgroup" && slices.Contains(m.super, "pids")
}

// visibleDirs lists the directories below m for the process's cgroup and its
// ancestors, nearest first. The error says why its own is not among them; an
// ancestor may be, even then.
//
// Both paths are relative to the root of the reader's cgroup namespace, and
// begin with one "/.." for each level outside of it (cgroup_namespaces(7)).
func visibleDirs(m mount, self string) ([]string, error) {
	mountUp, mountNames, mountOK := splitCgroupPath(m.root)
	selfUp, selfNames, selfOK := splitCgroupPath(self)
	depth := len(mountNames)
	switch {
	case mountOK && selfOK && mountUp > selfUp && depth == 0:
		// The mount shows an ancestor of the namespace root that is above
		// this process too. The names on the way down to it are not known.
		return []string{m.point}, fmt.Errorf("shows %s, and not by which name to reach cgroup %s", m.root, self)
	case !mountOK || !selfOK || mountUp != selfUp || len(selfNames) < depth || !slices.Equal(mountNames, selfNames[:depth]):
		// Whatever is in there is a sibling or a descendant.
		return nil, fmt.Errorf("shows %s, which does not hold cgroup %s", m.root, self)
	}
	var dirs []string
	for dir := path.Join(m.point, path.Join(selfNames[depth:]...)); ; dir = path.Dir(dir) {
		dirs = append(dirs, dir)
		if dir == m.point {
			break
		}
	}
	return dirs, nil
}

func isMissing(root, name string) bool {
	_, err := os.Stat(filepath.Join(root, name))
	return errors.Is(err, fs.ErrNotExist)
}

// splitCgroupPath splits "/../../a/b" into 2 and [a b]. ok is false for what
// the kernel does not write, such as "/a/../b".
func splitCgroupPath(p string) (up int, names []string, ok bool) {
	rest, ok := strings.CutPrefix(p, "/")
	if !ok {
		return 0, nil, false
	}
	if rest == "" {
		return 0, nil, true
	}
	names = strings.Split(rest, "/")
	for len(names) > 0 && names[0] == ".." {
		up, names = up+1, names[1:]
	}
	bad := func(name string) bool { return name == "" || name == "." || name == ".." }
	return up, names, !slices.ContainsFunc(names, bad)
}

// take reads one pids.max and keeps it if it is the smallest so far. No such
// file is no cap: the root cgroup has none, nor has a v2 cgroup whose parent
// does not enable the controller for it (kernel admin-guide, cgroup-v2).
func (c *pidsCap) take(root, file string) error {
	text, err := os.ReadFile(filepath.Join(root, file))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	value := strings.TrimSuffix(string(text), "\n")
	if value == "max" {
		return nil
	}
	limit, err := strconv.ParseUint(value, 10, 63)
	if err != nil {
		return fmt.Errorf("neither a number nor max: %.40q", value)
	}
	if !c.finite || int64(limit) < c.max {
		c.max, c.finite, c.file = int64(limit), true, file
	}
	return nil
}

// unreadableReason says why file was not read. The error's own path has the prefix root,
// and is left out.
func unreadableReason(file string, err error) string {
	if pathErr, ok := errors.AsType[*fs.PathError](err); ok {
		err = pathErr.Err
	}
	return fmt.Sprintf("%s: %v", file, err)
}

// parseMountinfo parses /proc/self/mountinfo (proc_pid_mountinfo(5)) and leaves
// out lines that are not of its shape.
func parseMountinfo(text string) []mount {
	var mounts []mount
	listed := map[int64]bool{}
	for line := range strings.Lines(text) {
		if m, ok := parseMountLine(strings.TrimSuffix(line, "\n")); ok {
			mounts = append(mounts, m)
			listed[m.id] = true
		}
	}
	// The parent of the root mount is outside the namespace or above the
	// root directory and so not listed, or is the root mount itself.
	for i, m := range mounts {
		if !listed[m.parent] || m.parent == m.id {
			mounts[i].parent = noParent
		}
	}
	return mounts
}

// parseMountLine parses one line:
//
//	36 35 98:0 /root /point rw,noatime master:1 - fstype source rw,errors=continue
//
// Between the mount options and the hyphen there are any number of fields. The
// source may be empty, so two spaces in a row count.
func parseMountLine(line string) (mount, bool) {
	field := strings.Split(line, " ")
	hyphen := slices.Index(field, "-")
	if hyphen < 6 || len(field) < hyphen+4 {
		return mount{}, false
	}
	id, idErr := strconv.ParseUint(field[0], 10, 63)
	parent, parentErr := strconv.ParseUint(field[1], 10, 63)
	point := unescape(field[4])
	if idErr != nil || parentErr != nil || !path.IsAbs(point) || path.Clean(point) != point {
		return mount{}, false
	}
	return mount{
		id:     int64(id),
		parent: int64(parent),
		root:   unescape(field[3]),
		point:  point,
		fstype: field[hyphen+1],
		super:  strings.Split(field[hyphen+3], ","),
	}, true
}

// unescape undoes the kernel's escapes (getmntent(3)). A replacer goes over the
// text once, so the backslash that \134 gives starts no further escape.
func unescape(s string) string {
	return strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`).Replace(s)
}

// servedBy gives the index of the mount that a look-up of file ends in, or -1.
// It steps from mount to mount as the kernel does. The order of the lines
// alone does not tell: a mount may be hidden because one above it on the path
// was mounted over, and one that was moved keeps its place in the list.
func servedBy(mounts []mount, file string) int {
	at, id, depth := -1, int64(noParent), 0
	for range mounts { // as many steps as there are mounts, even if the parents go in a circle
		next := -1
		for i, m := range mounts {
			if m.parent != id || len(m.point) < depth || !isWithin(file, m.point) {
				continue
			}
			if next < 0 || len(m.point) <= len(mounts[next].point) { // of two on one point, the last
				next = i
			}
		}
		if next < 0 {
			break
		}
		at, id, depth = next, mounts[next].id, len(mounts[next].point)
	}
	return at
}

func isWithin(file, dir string) bool {
	return dir == "/" || file == dir || strings.HasPrefix(file, dir+"/")
}
