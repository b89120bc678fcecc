package main

import (
	"reflect"
	"testing"
)

// TestQuickRun holds quickRun to kong: for the same words both give the same
// flags, or quickRun leaves it to kong.
func TestQuickRun(t *testing.T) {
	tests := []struct {
		words []string
		quick bool
	}{
		{nil, true},
		{[]string{"--limit", "a=1", "--limit=b=2", "--limit", "c=x,y"}, true},
		{[]string{"--child-uid", "7", "--kill-after=0.5", "--request-id", "r", "--audit-file", "f", "--audit-extra", `{"a":1}`}, true},
		{[]string{"--stdin", "--buffer", "--merge-output", "--json", "--in-place", "--restore-ownership"}, true},
		{[]string{"--pass-fd", "5", "--pass-fd=63"}, true},
		{[]string{"--env", "A=b=c,d", "--env=E", "--env=F=", "--clean-env"}, true},
		{[]string{"--report", "-x"}, false},
		{[]string{"--report=-", "--max-concurrency", "4", "--slot-dir", "d", "--child-uid", "5-9"}, true},
		{[]string{"--max-concurrency=", "--slot-dir=", "--child-uid="}, true},
		{[]string{"--request-id", "a", "--request-id", "b"}, true},
		{[]string{"--kill-after=", "--kill-after", "1"}, true},
		{[]string{"--audit-file="}, false},
		{[]string{"--report", ""}, false},
		{[]string{"--request-id="}, false},
		{[]string{"--audit-extra="}, false},
		{[]string{"--help"}, false},
		{[]string{"-h"}, false},
		{[]string{"--limit"}, false},
		{[]string{"--limit", "--stdin"}, false},
		{[]string{"--kill-after", "-1"}, false},
		{[]string{"--pass-fd", "x"}, false},
		{[]string{"--stdin=false"}, false},
		{[]string{"--no-stdin"}, false},
		{[]string{"--nosuch"}, false},
		{[]string{"word"}, false},
		{[]string{""}, false},
	}
	for _, env := range []string{"", "from-environment"} {
		t.Setenv("PYPLAYPEN_AUDIT_FILE", env)
		for _, tt := range tests {
			got, quick := quickRun(tt.words)
			if quick != tt.quick {
				t.Errorf("%q: quick is %v", tt.words, quick)
			}
			if !quick {
				continue
			}
			var flags cli
			parser, err := newParser(&flags)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := parser.Parse(append([]string{"run"}, tt.words...)); err != nil {
				t.Errorf("%q: kong refuses what quickRun takes: %v", tt.words, err)
			}
			if !reflect.DeepEqual(*got, flags.Run) {
				t.Errorf("%q:\nquick %+v\nkong  %+v", tt.words, *got, flags.Run)
			}
		}
	}
}

// TestQuickExec does the same for exec.
func TestQuickExec(t *testing.T) {
	tests := []struct {
		words []string
		quick bool
	}{
		{nil, true},
		{[]string{"-c", "1 + 1"}, true},
		{[]string{"-c", "-1 + 2", "--limit", "a=1"}, true},
		{[]string{"-c", ""}, true},
		{[]string{"-c", "1", "-c", "2"}, false},
		{[]string{"--code", "x=1"}, true},
		{[]string{"-"}, true},
		{[]string{"file.py", "--python", "/usr/bin/python3", "--artifact-dir=out"}, true},
		{[]string{"--self-check", "--globals-provider", "m:f", "--type-projector", "numpy-pandas"}, true},
		{[]string{"--warn-only", "--extra", "{}", "--child-uid", "7", "f"}, true},
		{[]string{"--clean-env", "--env", "A", "--report", "r", "--max-concurrency=4", "--slot-dir=d", "-c", "1"}, true},
		{[]string{"-c"}, false},
		{[]string{"a", "b"}, false},
		{[]string{"--help"}, false},
		{[]string{"--python", "-x", "f"}, false},
		{[]string{"--python=", "f"}, false},
		{[]string{"--artifact-dir", "", "f"}, false},
		{[]string{"--extra=", "-c", "1"}, false},
		{[]string{"--", "f"}, false},
		{[]string{""}, false},
	}
	for _, env := range []string{"", "/opt/python"} {
		t.Setenv("PYPLAYPEN_PYTHON", env)
		for _, tt := range tests {
			words := joinCode(append([]string{"exec"}, tt.words...))
			got, quick := quickExec(words[1:])
			if quick != tt.quick {
				t.Errorf("%q: quick is %v", tt.words, quick)
			}
			if !quick {
				continue
			}
			var flags cli
			parser, err := newParser(&flags)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := parser.Parse(words); err != nil {
				t.Errorf("%q: kong refuses what quickExec takes: %v", tt.words, err)
			}
			if !reflect.DeepEqual(*got, flags.Exec) {
				t.Errorf("%q:\nquick %+v\nkong  %+v", tt.words, *got, flags.Exec)
			}
		}
	}
}

// TestQuickKnowsEveryFlag fails when a flag is added that only kong knows, so
// that a plain use of it is not quick.
func TestQuickKnowsEveryFlag(t *testing.T) {
	var flags cli
	parser, err := newParser(&flags)
	if err != nil {
		t.Fatal(err)
	}
	for _, command := range parser.Model.Children {
		quick := map[string]func([]string) bool{
			"run":  func(words []string) bool { _, ok := quickRun(words); return ok },
			"exec": func(words []string) bool { _, ok := quickExec(words); return ok },
		}[command.Name]
		if quick == nil {
			continue
		}
		for _, flag := range command.Flags {
			words := []string{"--" + flag.Name}
			if !flag.IsBool() {
				words = append(words, "1")
			}
			if !quick(words) {
				t.Errorf("%s --%s is left to kong", command.Name, flag.Name)
			}
		}
	}
}
