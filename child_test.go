package main

import (
	"math"
	"reflect"
	"slices"
	"strings"
	"testing"
)

func TestChildSpecRoundTrip(t *testing.T) {
	for _, want := range []childSpec{
		{statusFD: 3, gateFD: -1, parent: 1, uid: -1},
		{statusFD: 9, gateFD: 5, parent: 32768, uid: 65534, passFDs: []int{3}},
		{statusFD: 9, parent: 4194304, uid: 4294967294, passFDs: []int{4, 3, 1000000},
			rlimits: []rlim{{1, 0, 0}, {7, 256, 256}, {9, math.MaxUint64, math.MaxUint64}}},
		{statusFD: 3, parent: 2, uid: 1, rlimits: []rlim{{0, 25, 26}}},
		{statusFD: 3, parent: 2, uid: -1, search: search{"", true}},
		{statusFD: 3, parent: 2, uid: 1, passFDs: []int{5}, rlimits: []rlim{{0, 25, 26}}, search: search{"/a b: PATH=/c :", true}},
		{statusFD: 3, parent: 2, uid: -1, userNamespace: true, rlimits: []rlim{{6, 5, 5}}},
	} {
		got, ok := decodeChildSpec(want.encode())
		if !ok || !reflect.DeepEqual(*got, want) {
			t.Errorf("%q: got %+v, %v", want.encode(), got, ok)
		}
	}
}

func TestDecodeChildSpecRefuses(t *testing.T) {
	for _, text := range []string{"", "3", "3 1 9 -1 ", "x 1 9 -1  ", "3 x 9 -1  ", "3 1 x -1  ", "3 1 9 x  ", "3 1 9 -1 no ", "3 1 9 -1   0:1", "3 1 9 -1   0:1:x", "3 1 9 -1   0:-1:1", "3 1 9 -1   0:1:2:3", "3 1 9 -1   0:18446744073709551616:1"} {
		if s, ok := decodeChildSpec(text); ok {
			t.Errorf("%q: got %+v", text, s)
		}
	}
}

func FuzzDecodeChildSpec(f *testing.F) {
	f.Add("3 1 9 -1  ")
	f.Add("9 1 2 65534 ns 3:4 0:25:26 7:256:256")
	f.Fuzz(func(t *testing.T, text string) {
		s, ok := decodeChildSpec(text)
		if !ok {
			return
		}
		again, ok := decodeChildSpec(s.encode())
		if !ok || !reflect.DeepEqual(s, again) {
			t.Fatalf("%q: %+v became %+v", text, s, again)
		}
	})
}

func TestChildRecordRoundTrip(t *testing.T) {
	want := []childRecord{{stepSkip, 0, 13}, {stepTry, 300, 0}, {stepExec, 65535, 133}}
	var text []byte
	for _, r := range want {
		b := r.encode()
		text = append(text, b[:]...)
	}
	if got := decodeChildRecords(append(text, 1, 2, 3)); !slices.Equal(got, want) {
		t.Errorf("got %v", got)
	}
}

func TestChildStepsHaveNames(t *testing.T) {
	for s := range stepExec + 1 {
		if s.String() == "" {
			t.Errorf("step %d has no name", s)
		}
	}
}

func TestExecCandidates(t *testing.T) {
	for _, c := range []struct {
		name, path string
		set        bool
		want       string
	}{
		{"ls", "/bin:/usr/bin", true, "/bin/ls /usr/bin/ls"},
		{"ls", "", false, "/bin/ls /usr/bin/ls"},
		{"ls", "", true, "ls"},
		{"ls", ":", true, "ls ls"},
		{"ls", ":/bin", true, "ls /bin/ls"},
		{"ls", "/bin::/x", true, "/bin/ls ls /x/ls"},
		{"ls", "/bin:", true, "/bin/ls ls"},
		{"ls", "/:/bin/:bin//", true, "/ls /bin/ls bin/ls"},
		{"./ls", "/bin", true, "./ls"},
		{"a/ls", "/bin", true, "a/ls"},
		{"/ls", "", false, "/ls"},
		{"", "/bin", true, ""},
	} {
		if got := strings.Join(execCandidates(c.name, c.path, c.set), " "); got != c.want {
			t.Errorf("%q on %q (%v): got %q, want %q", c.name, c.path, c.set, got, c.want)
		}
	}
}

func TestEnv(t *testing.T) {
	env := []string{"A=1", "AB=2", "A=3", "E=", "odd"}
	for name, want := range map[string]string{"A": "1", "AB": "2", "E": ""} {
		if got, ok := lookupEnv(env, name); !ok || got != want {
			t.Errorf("%s: got %q, %v", name, got, ok)
		}
	}
	for _, name := range []string{"B", "odd", "a"} {
		if got, ok := lookupEnv(env, name); ok {
			t.Errorf("%s: got %q", name, got)
		}
	}
	if got := setEnv(env, "A", "x y"); !slices.Equal(got, []string{"AB=2", "E=", "odd", "A=x y"}) {
		t.Errorf("got %q", got)
	}
}

// What goes through the gate arrives whole or not yet, however it is cut.
func TestGoAhead(t *testing.T) {
	for _, want := range []goAhead{nil, {"A=1"}, {"A=", "B=x=y\n\xff", "C=" + strings.Repeat("z", 5000)}} {
		whole := want.encode()
		for cut := range len(whole) {
			if got, ok := decodeGoAhead(whole[:cut]); ok {
				t.Fatalf("%d of %d bytes are read as %q", cut, len(whole), got)
			}
		}
		if got, ok := decodeGoAhead(whole); !ok || !slices.Equal(got, want) {
			t.Errorf("got %q, want %q", got, want)
		}
	}
	for _, env := range [][]string{{"A=1", "GOMAXPROCS=7", "HOME=/root"}, {"HOME=/root", "A=1"}, nil} {
		got := append(targetEnv(env), "HOME=/private").apply(stageEnv(env))
		want := setEnv(env, "HOME", "/private")
		slices.Sort(got)
		slices.Sort(want)
		if !slices.Equal(got, want) {
			t.Errorf("from %q the target gets %q, want %q", env, got, want)
		}
	}
}
