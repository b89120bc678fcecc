package main

import (
	"path/filepath"
	"slices"
	"testing"

	"golang.org/x/sys/unix"
)

func TestParseUIDs(t *testing.T) {
	for text, want := range map[string]uidRange{
		"1": {1, 1, false}, "7-7": {7, 7, true}, "5-4294967294": {5, 4294967294, true},
	} {
		if got, err := parseUIDs(text); err != nil || got != want {
			t.Errorf("%q: %v, %v", text, got, err)
		}
	}
	for _, text := range []string{"", "-", "0", "0-1", "1-", "-1", "1-0", "2-1", "1-2-3", "1--2", "a-b", " 1-2", "1-4294967295", "+1-2"} {
		if got, err := parseUIDs(text); err == nil {
			t.Errorf("%q: %v", text, got)
		}
	}
}

// TestLockPool takes locks as calls of different bounds would, and gives them back.
func TestLockPool(t *testing.T) {
	dir, err := openSlotDir(filepath.Join(t.TempDir(), "slots"))
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(dir)
	take := func(size, atOnce int) (int, int) {
		t.Helper()
		p := &lockPool{dir: dir, size: size, atOnce: atOnce, name: func(i int) string { return string(rune('a' + i)) }}
		fd, index, err := p.take()
		if err != nil {
			t.Fatal(err)
		}
		return fd, index
	}
	var held []int
	for want := range 3 {
		fd, index := take(8, 3)
		if fd < 0 || index != want {
			t.Fatalf("take %d: descriptor %d, index %d", want, fd, index)
		}
		held = append(held, fd)
	}
	for _, atOnce := range []int{1, 2, 3} {
		if fd, _ := take(8, atOnce); fd >= 0 {
			t.Errorf("taken although 3 are and %d may be", atOnce)
		}
	}
	unix.Close(held[1])
	if fd, _ := take(8, 2); fd >= 0 {
		t.Error("taken although 2 are and 2 may be")
	}
	fd, index := take(8, 3)
	if fd < 0 || index != 1 {
		t.Errorf("the one given back is not taken: descriptor %d, index %d", fd, index)
	}
	held[1] = fd
	fd, index = take(8, 8)
	if fd < 0 || index != 3 {
		t.Errorf("descriptor %d, index %d, want index 3", fd, index)
	}
	held = append(held, fd)
	if fd, _ := take(4, 4); fd >= 0 {
		t.Error("taken although all are")
	}
	for _, fd := range held {
		unix.Close(fd)
	}
	if fd, index := take(8, 1); fd < 0 || index != 0 {
		t.Errorf("with none held: descriptor %d, index %d", fd, index)
	} else {
		unix.Close(fd)
	}
	// What was looked at on the way is not held.
	if names, err := readAllNames(dir); err != nil || !slices.Contains(names, "d") || slices.Contains(names, "e") {
		t.Errorf("files %q, %v", names, err)
	}
}
