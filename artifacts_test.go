package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"
)

func TestMIMEType(t *testing.T) {
	for name, want := range map[string]string{
		"a.csv": "text/csv", "a.CSV": "text/csv", "a.tar.json": "application/json", "a.svg": "image/svg+xml",
		"a": "application/octet-stream", "csv": "application/octet-stream", "a.exe": "application/octet-stream", "a.": "application/octet-stream",
		"b.jpg": "image/jpeg", "b.jpeg": "image/jpeg",
	} {
		if got := mimeType(name); got != want {
			t.Errorf("%s: %s, want %s", name, got, want)
		}
	}
	if len(mimeTypes) != 13 {
		t.Errorf("%d MIME types", len(mimeTypes))
	}
}

// safe is closed: a test's workspace has no signal to wait for.
var safe = func() chan struct{} {
	c := make(chan struct{})
	close(c)
	return c
}()

// openTestWorkspace makes one in a fresh directory.
func openTestWorkspace(t *testing.T, dir, id string) *workspace {
	t.Helper()
	w, err := newWorkspace(dir, id, -1, safe)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(w.close)
	return w
}

func TestScanSortsByPath(t *testing.T) {
	dir := t.TempDir()
	w := openTestWorkspace(t, dir, "x")
	for _, name := range []string{"b/c", "b.c", "b", "a/z", "a-", "Z", "é", "a/a/a"} {
		if name == "b" {
			continue // is a directory
		}
		p := filepath.Join(w.path, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(p), 0o700), os.WriteFile(p, nil, 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	list, err := scanArtifacts(w.dir, "p", -1, defaultLimits())
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, a := range list {
		got = append(got, a.Path)
	}
	want := []string{"p/Z", "p/a-", "p/a/a/a", "p/a/z", "p/b.c", "p/b/c", "p/é"}
	if !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestScanDepth(t *testing.T) {
	for _, depth := range []int{scanDepth, scanDepth + 1} {
		w := openTestWorkspace(t, t.TempDir(), "x")
		if err := os.MkdirAll(filepath.Join(w.path, strings.Repeat("d/", depth)), 0o700); err != nil {
			t.Fatal(err)
		}
		_, err := scanArtifacts(w.dir, "p", -1, defaultLimits())
		var refused *artifactError
		if errors.As(err, &refused) != (depth > scanDepth) {
			t.Errorf("%d levels: %v", depth, err)
		}
	}
}

// TestKeepChecksAgain: what the scan accepted and then became something else is
// not kept.
func TestKeepChecksAgain(t *testing.T) {
	for name, change := range map[string]func(string) error{
		"symbolic link": func(p string) error { return errors.Join(os.Remove(p), os.Symlink("/etc/passwd", p)) },
		"hard link":     func(p string) error { return os.Link(p, filepath.Dir(p)+"/../../other") },
		"FIFO":          func(p string) error { return errors.Join(os.Remove(p), unix.Mkfifo(p, 0o600)) },
		"gone":          os.Remove,
		"directory link": func(p string) error {
			return errors.Join(os.RemoveAll(filepath.Dir(p)), os.Symlink("/etc", filepath.Dir(p)))
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := openTestWorkspace(t, t.TempDir(), "x")
			file := filepath.Join(w.path, "sub", "passwd")
			if err := errors.Join(os.Mkdir(filepath.Dir(file), 0o700), os.WriteFile(file, []byte("x"), 0o600)); err != nil {
				t.Fatal(err)
			}
			list, err := scanArtifacts(w.dir, "p", -1, defaultLimits())
			if err != nil || len(list) != 1 {
				t.Fatal(list, err)
			}
			if err := change(file); err != nil {
				t.Fatal(err)
			}
			if sums, err := w.keep(list, true); err == nil {
				t.Errorf("kept, with digests %q", sums)
			}
		})
	}
}

// TestWorkspaceRace has many calls in one DIR make and remove their workspaces,
// and sandbox-runs with the last of them.
func TestWorkspaceRace(t *testing.T) {
	dir := t.TempDir()
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			for n := range 200 {
				w, err := newWorkspace(dir, fmt.Sprintf("w%d-%d", i, n), -1, safe)
				if err != nil {
					t.Error(err)
					return
				}
				err = os.WriteFile(filepath.Join(w.path, "file"), nil, 0o600)
				if e := w.remove(); err != nil || e != nil {
					t.Error(err, e)
				}
				w.close()
			}
		})
	}
	wg.Wait()
	if left, _ := os.ReadDir(dir); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
}

// TestOneWorkspaceForAnID: of many calls with one id, one gets it.
func TestOneWorkspaceForAnID(t *testing.T) {
	dir := t.TempDir()
	var wg sync.WaitGroup
	got := make(chan *workspace, 16)
	for range cap(got) {
		wg.Go(func() {
			w, err := newWorkspace(dir, "same", -1, safe)
			if err == nil {
				got <- w
			} else if !strings.HasSuffix(err.Error(), "same exists") {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if len(got) != 1 {
		t.Fatalf("%d calls have it", len(got))
	}
	w := <-got
	if err := w.remove(); err != nil {
		t.Error(err)
	}
	w.close()
}

// TestWorkspaceLeavesNothing: an error in the making leaves neither directory.
func TestWorkspaceLeavesNothing(t *testing.T) {
	if os.Geteuid() == 0 {
		return // everything works as root
	}
	dir := t.TempDir()
	if w, err := newWorkspace(dir, "x", 1, safe); err == nil { // a uid that a user can't give files to
		w.close()
		t.Fatal("no error")
	}
	if left, _ := os.ReadDir(dir); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
}

func TestArtifactValue(t *testing.T) {
	list := []artifact{{Path: "sandbox-runs/r/a b", inside: "a b"}, {Path: "sandbox-runs/r/s/x", inside: "s/x"}}
	for value, want := range map[string]string{
		`"a b"`: `"sandbox-runs/r/a b"`, `"/d/r/s/x"`: `"sandbox-runs/r/s/x"`, `"/real/s/x"`: `"sandbox-runs/r/s/x"`,
		`"s/../a b"`: `"s/../a b"`, `["a b"]`: `["a b"]`, `null`: `null`, `12345678901234567890123`: `12345678901234567890123`,
		`"s"`: `"s"`, `"/d/r/"`: `"/d/r/"`, `"\u0061 b"`: `"sandbox-runs/r/a b"`,
	} {
		if got := string(artifactValue([]byte(value), list, "/d/r", "/real")); got != want {
			t.Errorf("%s: %s, want %s", value, got, want)
		}
	}
}
