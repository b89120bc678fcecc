package main

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"os"
	"path"
	"slices"
	"strings"
	"unicode/utf8"

	"golang.org/x/sys/unix"
)

// An artifact is a file that exec's code left in its workspace.
type artifact struct {
	Path     string `json:"path"` // relative to the artifact directory
	Name     string `json:"name"`
	Bytes    int64  `json:"bytes"`
	MIMEType string `json:"mime_type"`

	inside string // path relative to the workspace
}

// mimeTypes is a fixed table, so that the result does not depend on what is
// installed on the machine.
var mimeTypes = map[string]string{
	".csv":     "text/csv",
	".tsv":     "text/tab-separated-values",
	".json":    "application/json",
	".jsonl":   "application/jsonl",
	".txt":     "text/plain",
	".parquet": "application/vnd.apache.parquet",
	".xlsx":    "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet",
	".html":    "text/html",
	".png":     "image/png",
	".jpg":     "image/jpeg",
	".jpeg":    "image/jpeg",
	".svg":     "image/svg+xml",
	".pdf":     "application/pdf",
}

func mimeType(name string) string {
	if t, ok := mimeTypes[strings.ToLower(path.Ext(name))]; ok {
		return t
	}
	return "application/octet-stream"
}

// An artifactError says which file breaks which rule.
type artifactError struct{ message string }

func (e *artifactError) Error() string { return e.message }

func refuseArtifact(format string, args ...any) error {
	return &artifactError{fmt.Sprintf(format, args...)}
}

// These bound the scan itself, whatever the code left.
const (
	scanDepth       = 64
	scanDirectories = 10_000
)

// A scan walks a workspace after everything in it is dead.
type scan struct {
	limits      *limits
	uid         int    // of the call, or -1
	prefix      string // of an artifact's path
	found       []artifact
	bytes       int64
	directories int
}

// scanArtifacts lists the regular files of the workspace, sorted by path. Names
// that begin with a dot, and files that are no files (FIFOs, sockets, devices),
// are not artifacts. Whatever could mean another file than it seems is refused:
// links of both kinds, names that are not UTF-8, which JSON could not give
// back, and what uid, if it is not negative, did not make but moved here.
//
// Other calls may run as the same uid and hold directories of this one open, so
// each is taken over before it is read. What it then says can't change.
// Its errors are artifactErrors, or faults of the scan.
func scanArtifacts(dir int, prefix string, uid int, l *limits) ([]artifact, error) {
	s := &scan{limits: l, prefix: prefix, uid: uid}
	if err := s.directory(dir, "", 0); err != nil {
		return nil, err
	}
	slices.SortFunc(s.found, func(a, b artifact) int { return strings.Compare(a.Path, b.Path) })
	return s.found, nil
}

func (s *scan) directory(dir int, inside string, depth int) error {
	s.directories++
	if depth > scanDepth || s.directories > scanDirectories {
		return refuseArtifact("more than %d levels or %d directories in the workspace", scanDepth, scanDirectories)
	}
	if err := takeOver(dir, s.uid >= 0); err != nil {
		return fmt.Errorf("scan %s: %w", inside, err)
	}
	fd, err := openDirAt(dir, ".")
	if err != nil {
		return fmt.Errorf("scan %s: %w", inside, err)
	}
	list := os.NewFile(uintptr(fd), inside)
	defer list.Close()
	for {
		names, err := list.Readdirnames(1024)
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return fmt.Errorf("scan %s: %w", inside, err)
		}
		for _, name := range names {
			if name[0] == '.' {
				continue
			}
			if err := s.entry(dir, name, path.Join(inside, name), depth); err != nil {
				return err
			}
		}
	}
}

func (s *scan) entry(dir int, name, inside string, depth int) error {
	var st unix.Stat_t
	if err := unix.Fstatat(dir, name, &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return fmt.Errorf("scan %s: %w", inside, err)
	}
	if !utf8.ValidString(name) {
		return refuseArtifact("the file name %q is not UTF-8", inside)
	}
	kind := st.Mode & unix.S_IFMT
	if (kind == unix.S_IFDIR || kind == unix.S_IFREG) && s.uid >= 0 && int(st.Uid) != s.uid {
		return refuseArtifact("%q belongs to uid %d", inside, st.Uid)
	}
	switch kind {
	case unix.S_IFDIR:
		sub, err := openDirAt(dir, name)
		if err == unix.EACCES && makeAccessible(dir, name) == nil {
			sub, err = openDirAt(dir, name)
		}
		if err != nil {
			return fmt.Errorf("scan %s: %w", inside, err)
		}
		defer unix.Close(sub)
		return s.directory(sub, inside, depth+1)
	case unix.S_IFLNK:
		return refuseArtifact("%q is a symbolic link", inside)
	case unix.S_IFREG:
		return s.file(&st, name, inside)
	}
	return nil
}

func (s *scan) file(st *unix.Stat_t, name, inside string) error {
	value := func(id limitID) int64 { return s.limits.value[id] }
	s.bytes += st.Size
	switch {
	case st.Nlink > 1:
		return refuseArtifact("%q has more than one hard link", inside)
	case st.Size > value(fileBytes):
		return refuseArtifact("%q is larger than %s", inside, s.limits.assignment(fileBytes))
	case int64(len(s.found)) >= value(artifactCount):
		return refuseArtifact("more files than %s", s.limits.assignment(artifactCount))
	case s.bytes > value(artifactBytes):
		return refuseArtifact("the files have more bytes than %s", s.limits.assignment(artifactBytes))
	}
	s.found = append(s.found, artifact{Path: path.Join(s.prefix, inside), Name: name, Bytes: st.Size, MIMEType: mimeType(name), inside: inside})
	return nil
}

// keep leaves in the workspace what was listed and nothing else, and gives it
// to the owner of the artifact directory. With hashes it also returns each
// file's SHA-256, in the order of the list.
func (w *workspace) keep(list []artifact, hashes bool) ([]string, error) {
	listed := map[string]bool{"": true}
	for _, a := range list {
		for p := a.inside; p != "." && !listed[p]; p = path.Dir(p) {
			listed[p] = true
		}
	}
	if err := w.keepIn(w.dir, "", listed); err != nil {
		return nil, err
	}
	var sums []string
	for _, a := range list {
		if !hashes {
			break
		}
		sum, err := hashAt(w.dir, a.inside)
		if err != nil {
			return nil, err
		}
		sums = append(sums, sum)
	}
	if w.uid >= 0 {
		return sums, unix.Fchown(w.dir, w.ownerUID, w.ownerGID)
	}
	return sums, nil
}

func (w *workspace) keepIn(dir int, inside string, listed map[string]bool) error {
	names, err := readAllNames(dir)
	if err != nil {
		return err
	}
	for _, name := range names {
		p := path.Join(inside, name)
		if !listed[p] {
			err = removeAny(dir, name)
		} else {
			err = w.keepEntry(dir, name, p, listed)
		}
		if err != nil {
			return fmt.Errorf("%s: %w", p, err)
		}
	}
	return nil
}

func (w *workspace) keepEntry(dir int, name, inside string, listed map[string]bool) error {
	fd, err := openPinned(dir, name)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return err
	}
	if st.Mode&unix.S_IFMT == unix.S_IFDIR {
		sub, err := openDirAt(dir, name)
		if err != nil {
			return err
		}
		defer unix.Close(sub)
		if err := w.keepIn(sub, inside, listed); err != nil {
			return err
		}
	} else if st.Mode&unix.S_IFMT != unix.S_IFREG || st.Nlink > 1 || w.uid >= 0 && int(st.Uid) != w.uid {
		return refuseArtifact("%q changed while it was kept", inside)
	}
	if w.uid < 0 {
		return nil
	}
	return chownPinned(fd, w.ownerUID, w.ownerGID)
}

// removeAny removes a file or a whole directory.
func removeAny(dir int, name string) error {
	err := unlinkFileOrEmptyDir(dir, name)
	if err == unix.ENOTEMPTY || err == unix.EEXIST || err == unix.EACCES {
		return removeTree(dir, name)
	}
	return err
}

// hashAt is the SHA-256 of a file below dir, no component of which may be a link.
func hashAt(dir int, inside string) (string, error) {
	root, err := openDirAt(dir, ".")
	if err != nil {
		return "", err
	}
	at := root
	defer func() { unix.Close(at) }()
	parts := strings.Split(inside, "/")
	for _, part := range parts[:len(parts)-1] {
		next, err := openDirAt(at, part)
		if err != nil {
			return "", err
		}
		unix.Close(at)
		at = next
	}
	name := parts[len(parts)-1]
	fd, err := unix.Openat(at, name, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if drops, _ := canDrop(defaultChildUID); err == unix.EACCES && !drops { // a file that its own code made unreadable
		unix.Fchmodat(at, name, 0o600, 0)
		fd, err = unix.Openat(at, name, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	}
	if err != nil {
		return "", err
	}
	f := os.NewFile(uintptr(fd), inside)
	defer f.Close()
	h := sha256.New()
	if _, err := io.Copy(h, f); err != nil {
		return "", err
	}
	return hex.EncodeToString(h.Sum(nil)), nil
}
