package main

import (
	"slices"
	"testing"
)

// TestInPlaceDecidesOnEveryFlag demands that a flag of run either works in
// place of pyplaypen or is refused there by its name.
func TestInPlaceDecidesOnEveryFlag(t *testing.T) {
	works := []string{"--limit", "--child-uid", "--stdin", "--pass-fd", "--env", "--clean-env", "--in-place"}
	var flags cli
	parser, err := newParser(&flags)
	if err != nil {
		t.Fatal(err)
	}
	for _, command := range parser.Model.Children {
		if command.Name != "run" {
			continue
		}
		for _, flag := range command.Flags {
			name := "--" + flag.Name
			words := []string{name}
			if !flag.IsBool() {
				words = append(words, "2")
			}
			run, ok := quickRun(words)
			if !ok {
				t.Fatalf("%q is not read", words)
			}
			if needs := run.supervisorNeeds(&call{limits: defaultLimits()}); slices.Contains(works, name) == slices.Contains(needs, name) {
				t.Errorf("%s: --in-place refuses %q", name, needs)
			}
		}
	}
}
