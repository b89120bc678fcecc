package main

import (
	"slices"
	"strconv"
	"testing"

	"golang.org/x/sys/unix"
)

// A call that finds many records looks at a few, and at that of its directory
// always; a few calls look at all.
func TestRecordsToSee(t *testing.T) {
	t.Chdir(t.TempDir())
	var st unix.Stat_t
	if err := unix.Stat(".", &st); err != nil {
		t.Fatal(err)
	}
	here := (&handoverRecord{dev: uint64(st.Dev), ino: st.Ino}).name()
	for _, others := range []int{0, 1, recordsAtOnce, recordsAtOnce + 1, 100} {
		names := []string{here}
		for i := range others {
			names = append(names, strconv.Itoa(i)+"-1")
		}
		seen := map[string]bool{}
		for turn := range len(names) {
			list := recordsToSee(slices.Clone(names), turn*7)
			if !slices.Contains(list, here) || len(list) > recordsAtOnce+1 || len(list) < min(len(names), recordsAtOnce) {
				t.Errorf("%d others, turn %d: %q", others, turn, list)
			}
			for i, name := range list {
				seen[name] = true
				if slices.Contains(list[:i], name) {
					t.Errorf("%d others: %q twice", others, name)
				}
			}
		}
		if len(seen) != len(names) {
			t.Errorf("%d of %d seen", len(seen), len(names))
		}
	}
}
