package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

// exampleRunner copies examples/ to where every uid can use it, and returns how
// to run a shell command there.
func exampleRunner(t *testing.T) func(command string) (output string, code int) {
	t.Helper()
	path, err := program()
	if err != nil {
		t.Fatal(err)
	}
	dir := openTempDir(t)
	if err := os.CopyFS(dir, os.DirFS("examples")); err != nil {
		t.Fatal(err)
	}
	return func(command string) (string, int) {
		t.Helper()
		cmd := exec.Command("sh", "-c", command)
		cmd.Dir = dir
		cmd.Env = []string{"PATH=" + filepath.Dir(path) + ":/usr/local/go/bin:/usr/local/bin:/usr/bin:/bin", "PYPLAYPEN_QUIET=1", "PYPLAYPEN_CHILD_UID=" + unusedUID(), "HOME=" + dir, "LANG=C.UTF-8"}
		if gocache, err := exec.Command("go", "env", "GOCACHE").Output(); err == nil {
			cmd.Env = append(cmd.Env, "GOCACHE="+strings.TrimSpace(string(gocache)))
		}
		out, err := cmd.CombinedOutput()
		if err != nil && cmd.ProcessState == nil {
			t.Fatal(err)
		}
		return string(out), cmd.ProcessState.ExitCode()
	}
}

// TestExamples runs each example with the real tool.
func TestExamples(t *testing.T) {
	tests := []struct {
		name, command string
		tools         []string
		code          int
		want          string
	}{
		{"script", "./script.sh", []string{"bash"}, 1, "got one\ngot two\ngot three\n271\n24\nfailed\n" +
			"pyplaypen: wall_seconds=2 exceeded; process group terminated\ntoo slow\n"},
		{"make", "make -s prefix shell", []string{"make"}, 0, "prefix\n256\n"},
		{"make slow", "make -s slow 2>&1 | grep -o 'wall_seconds=2 exceeded\\|Error 124'", []string{"make"}, 0,
			"wall_seconds=2 exceeded\nError 124\n"},
		{"make -j", "make -s -j 4 all 2>/dev/null | sort", []string{"make"}, 0, "256\nleaf a\nleaf b\nleaf c\nleaf d\nprefix\n"},
		{"make -j sub", "make -s -j 2 sub 2>&1 | grep -c 'jobserver unavailable'", []string{"make"}, 0, "1\n"},
		{"make -j shared", "make -s -j 2 shared 2>&1 | sort", []string{"make"}, 0, "leaf c\nleaf d\n"},
		{"parallel", "./parallel.sh 2>/dev/null | sort", []string{"parallel", "xargs"}, 0,
			"0\n1 of them failed\n124\nExitval\nxargs 1\nxargs 2\nxargs 3\nxargs 4\n"},
		{"agent", `./agent-shims.sh sh -c 'python3 -c "print(6 * 7)"; echo 1 | python3 -c "print(input())"'`, []string{"python3"}, 0, "42\n1\n"},
		{"agent bounded", `PYPLAYPEN_LIMITS=wall_seconds=2 ./agent-shims.sh sleep 60; echo $?`, nil, 0,
			"pyplaypen: wall_seconds=2 exceeded; process group terminated\n124\n"},
		{"agent limits", `PYPLAYPEN_LIMITS=open_files=77 ./agent-shims.sh python3 -c 'import resource, os; print(resource.getrlimit(resource.RLIMIT_NOFILE)[0], "/tmp." in os.environ["PATH"])'`,
			[]string{"python3"}, 0, "77 False\n"},
		{"node", "./node.sh", []string{"node"}, 0, "node [ 1, 4, 9 ]\n"},
		{"java", "./java.sh | grep -o java", []string{"java", "javac"}, 0, "java\n"},
		{"go", "./go.sh", []string{"go"}, 0, "go\n"},
	}
	for _, tt := range tests {
		// One after the other: as root they share a uid, and with it its process
		// count, of which the JVM takes more than the others allow.
		t.Run(tt.name, func(t *testing.T) {
			for _, tool := range tt.tools {
				if _, err := exec.LookPath(tool); err == nil {
					continue
				}
				if tool == "node" || tool == "java" || tool == "javac" { // too large to demand
					t.Skip(tool + " is missing")
				}
				skip(t, tool+" is missing")
			}
			out, code := exampleRunner(t)(tt.command)
			if code != tt.code || out != tt.want {
				t.Errorf("%s: exit code %d, want %d; prints:\n%s\nwant:\n%s", tt.command, code, tt.code, out, tt.want)
			}
		})
	}
}

// TestExampleGitHubActions runs the run lines of each step as the runner does:
// in a file that stands for {0} in the step's shell.
func TestExampleGitHubActions(t *testing.T) {
	text, err := os.ReadFile("examples/github-actions.yaml")
	if err != nil {
		t.Fatal(err)
	}
	run := exampleRunner(t)
	run("printf '#!/bin/sh\necho tested $(ulimit -n)\n' >test.sh; chmod 755 test.sh")
	want := []string{"", "tested 256\n", "all of this is one call\ntested 256\n"}
	steps := strings.Split(string(text), "\n  - ")[1:]
	if len(steps) != len(want) {
		t.Fatalf("%d steps, want %d", len(steps), len(want))
	}
	for i, step := range steps {
		shell := "sh -e {0}"
		if _, rest, ok := strings.Cut(step, "shell: "); ok {
			shell, _, _ = strings.Cut(rest, "\n")
		}
		_, lines, ok := strings.Cut(step, "run: ")
		if !ok {
			t.Fatalf("step without run: %s", step)
		}
		lines = strings.TrimPrefix(lines, "|\n")
		file := "step" + strconv.Itoa(i)
		out, code := run("cat >" + file + " <<'END'\n" + lines + "\nEND\n" + strings.ReplaceAll(shell, "{0}", "./"+file))
		if code != 0 || out != want[i] {
			t.Errorf("step %d: exit code %d, prints %q, want %q", i, code, out, want[i])
		}
	}
}
