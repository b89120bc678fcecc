package main

import (
	"slices"
	"testing"
)

func TestEnvironment(t *testing.T) {
	caller := []string{"PATH=/bin", "SECRET=s", "TOKEN=a=b", "TERM=x", "odd", "TERM=y", "EMPTY="}
	for _, tt := range []struct {
		items []string
		clean bool
		want  []string
	}{
		{nil, false, caller},
		{nil, true, []string{"PATH=/bin", "TERM=x"}},
		{[]string{"TOKEN", "EMPTY", "MISSING"}, true, []string{"PATH=/bin", "TERM=x", "TOKEN=a=b", "EMPTY="}},
		{[]string{"A=1", "A=2=3"}, true, []string{"PATH=/bin", "TERM=x", "A=2=3"}},
		{[]string{"A=1", "PATH=/mine"}, true, []string{"TERM=x", "A=1", "PATH=/mine"}},
		{[]string{"MISSING=1", "MISSING"}, true, []string{"PATH=/bin", "TERM=x"}},
		{[]string{"SECRET="}, false, []string{"PATH=/bin", "TOKEN=a=b", "TERM=x", "odd", "TERM=y", "EMPTY=", "SECRET="}},
	} {
		before := slices.Clone(caller)
		e, err := newEnvironment(tt.items, tt.clean)
		if err != nil {
			t.Fatal(err)
		}
		if got := e.apply(caller); !slices.Equal(got, tt.want) {
			t.Errorf("%q, clean %v: %q, want %q", tt.items, tt.clean, got, tt.want)
		}
		if !slices.Equal(caller, before) {
			t.Fatalf("%q changed the caller's own to %q", tt.items, caller)
		}
	}
}
