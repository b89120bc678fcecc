package main

import (
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

func TestPassable(t *testing.T) {
	for _, c := range []struct {
		owner, group, mode uint32
		uid                int
		bits               uint32
		want               bool
	}{
		{0, 0, 0o755, 7, 1, true},
		{0, 0, 0o755, 7, 3, false},
		{0, 0, 0o757, 7, 3, true},
		{0, 0, 0o700, 7, 1, false},
		{7, 0, 0o300, 7, 3, true},
		{7, 0, 0o077, 7, 1, false}, // the owner's bits count, whatever others may do
		{0, 7, 0o030, 7, 3, true},
		{0, 7, 0o703, 7, 1, false},
		{4294967294, 0, 0o700, 4294967294, 7, true},
		{0, 0, 0o1777, 7, 3, true},
	} {
		st := unix.Stat_t{Uid: c.owner, Gid: c.group}
		setInteger(&st.Mode, c.mode)
		if got := passable(&st, c.uid, c.bits); got != c.want {
			t.Errorf("%+v: got %v", c, got)
		}
	}
}

func TestBlockadeOf(t *testing.T) {
	top, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	for dir := top; dir != filepath.Clean(os.TempDir()) && dir != "/"; dir = filepath.Dir(dir) {
		os.Chmod(dir, 0o755)
	}
	at := func(name string) string { return filepath.Join(top, name) }
	for _, dir := range []string{"open/deep", "shut/deep"} {
		if err := os.MkdirAll(at(dir), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for link, target := range map[string]string{
		"absolute": at("shut/deep"), "relative": "shut", "open/up": "../shut/deep", "loop": "loop", "dangling": "nothing", "fine": "open",
	} {
		if err := os.Symlink(target, at(link)); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Chmod(at("shut"), 0o700); err != nil {
		t.Fatal(err)
	}
	t.Chdir(at("shut/deep"))
	const uid = 4711
	for path, blocked := range map[string]bool{
		at("open/deep/f"):    false,
		at("shut"):           false, // itself need not be passed
		at("shut/f"):         true,
		at("shut/deep/f"):    true,
		at("absolute"):       true, // resolving the link passes shut
		at("absolute/f"):     true,
		at("relative"):       false,
		at("relative/f"):     true,
		at("open/up/f"):      true,
		at("open/../shut/f"): true,
		at("fine/deep//f"):   false,
		at("loop/f"):         false,
		at("dangling/f"):     false,
		"f":                  false, // the current directory was entered before
		"../f":               true,
		"./f":                false,
	} {
		b, got := blockadeOf(path, uid)
		if got != blocked {
			t.Errorf("%s: got %v (%v)", path, got, b)
		} else if got && (b.dir != at("shut") || b.mode != 0o700) {
			t.Errorf("%s: named %v", path, b)
		}
	}
}

func TestIsSystemDirectory(t *testing.T) {
	for path, want := range map[string]bool{"/": true, "/usr": true, "/tmp/../etc/.": true, "/usr/bin/..": true, "/usr/share": false} {
		var st unix.Stat_t
		if err := unix.Stat(path, &st); err != nil {
			t.Fatal(err)
		}
		if got := isSystemDirectory(&st); got != want {
			t.Errorf("%s: got %v", path, got)
		}
	}
}

// setInteger is for a field whose size depends on the platform.
func setInteger[T ~uint16 | ~uint32](field *T, n uint32) { *field = T(n) }
