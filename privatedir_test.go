package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

func openTestDir(t *testing.T, path string) int {
	t.Helper()
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Close(fd) })
	return fd
}

func TestRemoveTree(t *testing.T) {
	steps := map[string]func(t *testing.T, path, outside string) error{
		"empty": func(t *testing.T, path, outside string) error { return nil },
		"wide": func(t *testing.T, path, outside string) error {
			for i := range 5000 { // more than one reading of the directory returns
				if err := os.WriteFile(fmt.Sprintf("%s/%d", path, i), nil, 0o600); err != nil {
					return err
				}
			}
			return nil
		},
		"deep and wide": func(t *testing.T, path, outside string) error {
			for i := range 40 {
				if err := os.MkdirAll(fmt.Sprintf("%s/%d/a/b/c/d", path, i), 0o700); err != nil {
					return err
				}
				if err := os.WriteFile(fmt.Sprintf("%s/%d/a/f", path, i), nil, 0); err != nil {
					return err
				}
			}
			return nil
		},
		"deeper than a path": func(t *testing.T, path, outside string) error {
			at, err := unix.Open(path, unix.O_RDONLY|unix.O_DIRECTORY, 0)
			for range 3000 {
				if err == nil {
					err = unix.Mkdirat(at, "directory", 0o700)
				}
				next, openErr := openDirAt(at, "directory")
				unix.Close(at)
				at, err = next, errors.Join(err, openErr)
			}
			unix.Close(at)
			return err
		},
		"no permissions": func(t *testing.T, path, outside string) error {
			return errors.Join(os.MkdirAll(path+"/a/b/c", 0o700), os.Chmod(path+"/a/b/c", 0), os.Chmod(path+"/a/b", 0),
				os.Chmod(path+"/a", 0), os.Chmod(path, 0))
		},
		"links": func(t *testing.T, path, outside string) error {
			return errors.Join(os.Mkdir(path+"/sub", 0o700), os.Symlink(outside, path+"/link"), os.Symlink(outside, path+"/sub/link"),
				os.Link(outside+"/file", path+"/sub/hard"), unix.Mkfifo(path+"/sub/fifo", 0))
		},
		"names of its own": func(t *testing.T, path, outside string) error {
			var err error
			for i := range 10 {
				err = errors.Join(err, os.WriteFile(fmt.Sprintf("%s/.moved-%d", path, i), nil, 0o600),
					os.MkdirAll(fmt.Sprintf("%s/%d/a/b", path, i), 0o700))
			}
			return err
		},
	}
	for name, prepare := range steps {
		t.Run(name, func(t *testing.T) {
			top := t.TempDir()
			outside := filepath.Join(top, "outside")
			if err := errors.Join(os.Mkdir(outside, 0o755), os.WriteFile(outside+"/file", nil, 0o600), os.Mkdir(top+"/doomed", 0o700)); err != nil {
				t.Fatal(err)
			}
			if err := prepare(t, top+"/doomed", outside); err != nil {
				t.Fatal(err)
			}
			if err := removeTree(openTestDir(t, top), "doomed"); err != nil {
				t.Error(err)
			}
			if _, err := os.Lstat(top + "/doomed"); !errors.Is(err, os.ErrNotExist) {
				t.Errorf("still there: %v", err)
			}
			if st, err := os.Stat(outside); err != nil || st.Mode().Perm() != 0o755 {
				t.Errorf("outside: %v, %v", st, err)
			}
			if _, err := os.Stat(outside + "/file"); err != nil {
				t.Error(err)
			}
		})
	}
}

func TestRemoveTreeFollowsNoLink(t *testing.T) {
	top := t.TempDir()
	if err := errors.Join(os.MkdirAll(top+"/dir/sub", 0o755), os.Symlink("dir", top+"/link")); err != nil {
		t.Fatal(err)
	}
	if err := removeTree(openTestDir(t, top), "link"); err == nil {
		t.Error("removed what a link leads to")
	}
	if _, err := os.Stat(top + "/dir/sub"); err != nil {
		t.Error(err)
	}
}

func TestOpenOwnDir(t *testing.T) {
	top := t.TempDir()
	open := func(name string, mode uint32) error {
		fd, err := openOwnDir(top+"/"+name, mode)
		if err == nil {
			unix.Close(fd)
		}
		return err
	}
	perm := func(name string) os.FileMode {
		st, err := os.Stat(top + "/" + name)
		if err != nil {
			t.Fatal(err)
		}
		return st.Mode().Perm()
	}
	old := unix.Umask(0o077)
	err := open("new", 0o711)
	unix.Umask(old)
	if err != nil || perm("new") != 0o711 {
		t.Errorf("new: %v, mode %o", err, perm("new"))
	}
	if err := open("new", 0o711); err != nil {
		t.Errorf("again: %v", err)
	}
	if err := errors.Join(os.Mkdir(top+"/lax", 0o755), os.Mkdir(top+"/group", 0o700), os.Chmod(top+"/group", 0o730),
		os.Mkdir(top+"/all", 0o700), os.Chmod(top+"/all", 0o1777), os.WriteFile(top+"/file", nil, 0o600),
		os.Symlink("lax", top+"/link"), os.Symlink("nothing", top+"/dangling")); err != nil {
		t.Fatal(err)
	}
	if err := open("lax", 0o700); err != nil || perm("lax") != 0o700 {
		t.Errorf("lax: %v, mode %o", err, perm("lax"))
	}
	for _, name := range []string{"group", "all", "file", "link", "dangling", "missing/x"} {
		if err := open(name, 0o700); err == nil {
			t.Errorf("%s: taken", name)
		}
	}
	if _, err := os.Lstat(top + "/nothing"); err == nil {
		t.Error("made through a link")
	}
	if isRoot() {
		if err := errors.Join(os.Mkdir(top+"/theirs", 0o700), os.Chown(top+"/theirs", 4711, 0)); err != nil {
			t.Fatal(err)
		}
		if err := open("theirs", 0o700); err == nil {
			t.Error("theirs: taken")
		}
	}
}

// A directory whose maker still holds it is not stale.
func TestSweepStale(t *testing.T) {
	top := t.TempDir()
	if err := errors.Join(os.MkdirAll(top+"/held/sub", 0o700), os.MkdirAll(top+"/stale/sub", 0o700), os.WriteFile(top+"/file", nil, 0)); err != nil {
		t.Fatal(err)
	}
	if err := flock(openTestDir(t, top+"/held"), unix.LOCK_EX); err != nil {
		t.Fatal(err)
	}
	sweepStale(openTestDir(t, top), "")
	if _, err := os.Stat(top + "/held/sub"); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(top + "/stale"); err == nil {
		t.Error("the stale directory is still there")
	}
}

// The next call gets the directory of the last one, under another name, unless
// it could tell.
func TestSpare(t *testing.T) {
	top := t.TempDir()
	uid := -1
	open := func() *privateDir {
		t.Helper()
		d, err := makePrivateDir(openTestDir(t, top), top, uid, func() bool { return false })
		if err != nil {
			t.Fatal(err)
		}
		return d
	}
	spares := func() int {
		names, err := os.ReadDir(top)
		if err != nil {
			t.Fatal(err)
		}
		return len(names)
	}
	for _, test := range []struct {
		name string
		do   func(d *privateDir) error
		kept bool
	}{
		{"nothing", func(d *privateDir) error { return nil }, true},
		{"contents", func(d *privateDir) error { return os.MkdirAll(d.path+"/a/b", 0o700) }, true},
		{"mode", func(d *privateDir) error { return os.Chmod(d.path, 0o1000) }, true},
		{"attribute", func(d *privateDir) error { return unix.Setxattr(d.path, "user.x", []byte("y"), 0) }, false},
		{"many entries", func(d *privateDir) error {
			for i := range 3000 {
				if err := os.Mkdir(d.path+"/"+strings.Repeat("x", 100)+strconv.Itoa(i), 0o700); err != nil {
					return err
				}
			}
			return nil
		}, false},
		{"nothing again", func(d *privateDir) error { return nil }, true},
	} {
		first := open()
		name := first.name
		if err := test.do(first); errors.Is(err, unix.ENOTSUP) {
			continue // a file system without extended attributes
		} else if err != nil {
			t.Fatal(err)
		}
		var st unix.Stat_t
		unix.Fstat(first.self, &st)
		grew := st.Size > 64<<10 // not every file system counts
		if err := first.remove(); err != nil {
			t.Fatal(err)
		}
		if kept := spares() == 1; kept != test.kept && (test.name != "many entries" || grew) {
			t.Errorf("%s: kept is %v", test.name, kept)
		}
		second := open()
		if second.name == name || spares() != 1 {
			t.Errorf("%s: %q after %q, %d directories", test.name, second.name, name, spares())
		}
		if names, err := readNames(second.self); err != nil || len(names) > 0 {
			t.Errorf("%s: %q, %v in the next directory", test.name, names, err)
		}
		if err := unix.Fstat(second.self, &st); err != nil || st.Mode&0o7777 != 0o700 {
			t.Errorf("%s: mode %o", test.name, st.Mode)
		}
		if err := second.remove(); err != nil {
			t.Fatal(err)
		}
	}
	var all []*privateDir
	for range maxSpares + 3 {
		all = append(all, open())
	}
	for _, d := range all {
		if err := d.remove(); err != nil {
			t.Fatal(err)
		}
	}
	if spares() != maxSpares {
		t.Errorf("%d spares, want %d", spares(), maxSpares)
	}
	if isRoot() { // another uid's call gets none of these
		uid = 4711
		d := open()
		if spares() != maxSpares+1 {
			t.Errorf("%d directories, want %d", spares(), maxSpares+1)
		}
		if err := d.remove(); err != nil {
			t.Fatal(err)
		}
		if _, err := os.Stat(top + "/" + sparePrefix + "4711-" + d.name); err != nil || spares() != maxSpares {
			t.Errorf("%d spares, want %d, and that of the last call among them: %v", spares(), maxSpares, err)
		}
	}
}
