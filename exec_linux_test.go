package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
)

// sharedDir makes a directory that every uid can use.
func sharedDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("/tmp", "pyplaypen-test-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	if err := os.Chmod(dir, 0o777); err != nil {
		t.Fatal(err)
	}
	return dir
}

// capturedRun runs cmd and returns what came of it.
func capturedRun(t *testing.T, cmd *exec.Cmd) (stdout, stderr string, code int) {
	t.Helper()
	var out, errs strings.Builder
	cmd.Stdout, cmd.Stderr = &out, &errs
	err := cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Error(err)
	}
	return out.String(), errs.String(), cmd.ProcessState.ExitCode()
}

// TestExecGate proves, in each shape, that exec starts only where process_count
// is enforced or the user waives that, and that it then binds.
func TestExecGate(t *testing.T) {
	path, err := program()
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range shapes {
		t.Run(s.name, func(t *testing.T) {
			s.demand(t)
			uid := unusedUID()
			dir := sharedDir(t)
			ask := func(env string, args ...string) (string, string, int) {
				t.Helper()
				argv := append([]string{path, "exec", "--python", "/usr/bin/python3", "--child-uid", uid, "--limit", "memory_bytes=1TiB"}, args...)
				if env == "" {
					env = "PYPLAYPEN_WARN_ONLY="
				}
				argv = append([]string{"env", env}, argv...)
				cmd := s.wrap(t, argv)
				cmd.Dir = dir
				return capturedRun(t, cmd)
			}
			runs := func(stdout, stderr string, code int) {
				t.Helper()
				r, err := parseResult(stdout)
				if err != nil || r.Error != nil || string(r.ReturnValue) != "2" || code != 0 {
					t.Errorf("exit code %d, result %q (%v), stderr %q", code, stdout, err, stderr)
				}
				if says := strings.Contains(stderr, "not enforced here: process_count\n"); says != (s.expected == unsupported) {
					t.Errorf("stderr %q", stderr)
				}
			}
			refuses := func(stdout, stderr string, code int) {
				t.Helper()
				want := "process_count=%s: nothing enforces this limit here; put a pids cap on the container, run as root so that each call drops to its own UID, or "
				if code != exitUsage || stdout != "" || !strings.Contains(stderr, fmt.Sprintf(want, "16")) && !strings.Contains(stderr, fmt.Sprintf(want, "9")) {
					t.Errorf("exit code %d, stdout %q, stderr %q", code, stdout, stderr)
				}
				if left, _ := os.ReadDir(dir); len(left) > 0 {
					t.Errorf("left behind: %v", left)
				}
			}
			check := runs
			if s.expected == unsupported {
				check = refuses
			}
			check(ask("", "-c", "1 + 1"))
			check(ask("", "--limit", "process_count=9", "-c", "1 + 1"))
			check(ask("PYPLAYPEN_WARN_ONLY=true", "-c", "1 + 1"))
			check(ask("PYPLAYPEN_WARN_ONLY=0", "-c", "1 + 1"))
			runs(ask("PYPLAYPEN_WARN_ONLY=1", "-c", "1 + 1"))
			runs(ask("", "--warn-only", "-c", "1 + 1"))
			runs(ask("", "--warn-only", "--limit", "process_count=9", "-c", "1 + 1"))
			if stdout, stderr, code := ask("", "--self-check"); (code == 0) != (s.expected != unsupported) {
				t.Errorf("self-check: exit code %d, stdout %q, stderr %q", code, stdout, stderr)
			}

			forked, _, _ := ask("", "--warn-only", "--limit", "process_count=9", "-c", "import os, signal\nfor n in range(60):\n  if os.fork() == 0: signal.pause()")
			count := forkCounter + "n\n"
			stdout, stderr, code := ask("", "--warn-only", "--limit", "process_count=9", "-c", count)
			r, err := parseResult(stdout)
			if err != nil || code != 0 {
				t.Fatalf("exit code %d, result %q (%v), stderr %q", code, stdout, err, stderr)
			}
			bound := s.expected == enforcedPerCall || s.expected == enforcedPerUser
			if bound != (string(r.ReturnValue) == "9") {
				t.Errorf("%s processes under process_count=9; stderr %q", r.ReturnValue, stderr)
			} else if named := strings.Contains(forked, "process_count=9 reached"); named != bound {
				t.Errorf("a fork too many is answered with %q", forked)
			}
			if left, _ := os.ReadDir(dir); len(left) > 0 {
				t.Errorf("left behind: %v", left)
			}
		})
	}
}

// interpreters lists every CPython from 3.10 on that is found on the machine,
// one path for each installation.
func interpreters(t *testing.T) []string {
	t.Helper()
	var found, seen []string
	home, _ := os.UserHomeDir()
	patterns := []string{"/usr/bin/python3*", "/usr/local/bin/python3*", filepath.Join(home, ".pyenv/versions/*/bin/python3"), "/opt/*/bin/python3"}
	for _, dir := range filepath.SplitList(os.Getenv("PATH")) {
		patterns = append(patterns, filepath.Join(dir, "python3"))
	}
	name := regexp.MustCompile(`^python3(\.[0-9]+)?$`)
	for _, pattern := range patterns {
		paths, _ := filepath.Glob(pattern)
		for _, path := range paths {
			if !name.MatchString(filepath.Base(path)) {
				continue
			}
			out, err := exec.Command(path, "-c", `import sys; print(sys.executable if sys.version_info >= (3, 10) and sys.implementation.name == "cpython" else "")`).Output()
			executable := strings.TrimSpace(string(out))
			real, err2 := filepath.EvalSymlinks(executable)
			if err != nil || err2 != nil || executable == "" || slices.Contains(seen, real) {
				continue
			}
			seen, found = append(seen, real), append(found, real)
		}
	}
	if len(found) == 0 {
		skip(t, "no CPython from 3.10 on was found")
	}
	return found
}

// TestExecInterpreters runs what depends on Python's version with each of them.
func TestExecInterpreters(t *testing.T) {
	program, err := program()
	if err != nil {
		t.Fatal(err)
	}
	nest := strings.Repeat("[", 50) + strings.Repeat("]", 50)
	cases := []struct {
		name, code string
		flags      []string
		want       string // value, or type and message
	}{
		{"expression", "1 + 1", nil, `ok 2`},
		{"statements", "x = 3\nx * 2", nil, `ok 6`},
		{"large integer", "10 ** 5000 - 10 ** 5000 + 7 ** 60", nil, `ok 508021860739623365322188197652216501772434524836001`},
		{"many digits", "10 ** 4999", nil, "ok 1" + strings.Repeat("0", 4999)},
		{"depth", nest, nil, "ok " + nest},
		{"set and tuple", "[{1}, (2,), frozenset([3])]", nil, `ok [[1],[2],[3]]`},
		{"enum", "import enum\nclass E(enum.IntEnum):\n    a = 1\nclass S(str, enum.Enum):\n    b = 'b'\n[E.a, S.b]", nil, `ok [1,"b"]`},
		{"dataclass and pickle", "import dataclasses, pickle\n@dataclasses.dataclass\nclass P:\n    x: int\npickle.loads(pickle.dumps(P(4))).x", nil, `ok 4`},
		{"artifact", "open('a.txt', 'w').close()\n'a.txt'", []string{"--request-id", "kept"}, `ok "sandbox-runs/kept/a.txt"`},
		{"syntax", "x = 1\nif x\n", nil, `syntax SyntaxError at line 2: expected ':'`},
		{"one line's syntax", "1 +", nil, `syntax SyntaxError at line 1: invalid syntax`},
		{"exception", "def f():\n    raise ValueError('v')\nf()", nil, `runtime ValueError at line 2: v`},
		{"one line's exception", "1 / 0", nil, `runtime ZeroDivisionError at line 1: division by zero`},
		{"exit", "import sys\nsys.exit(4)", nil, `runtime SystemExit at line 2: exit code 4`},
		{"group", "raise ExceptionGroup('g', [ValueError()])" + "\n", nil, `runtime `},
		{"recursion", "def f(): f()\nf()", nil, `runtime RecursionError at line 1: maximum recursion depth exceeded`},
		{"deep recursion", "import sys\nsys.setrecursionlimit(10 ** 9)\ndef f(): f()\nf()", []string{"--limit", "memory_bytes=128MiB"}, ``},
		{"memory", "x = bytearray(1 << 30)", []string{"--limit", "memory_bytes=256MiB"}, `memory_limit MemoryError at line 1: memory_bytes=268435456 reached`},
		{"fork", "import os, time\nwhile True:\n    if not os.fork(): time.sleep(60)", []string{"--limit", "process_count=4"}, `process_limit BlockingIOError at line 3: `},
		{"thread", "import threading, time\nwhile True:\n    threading.Thread(target=time.sleep, args=(60,), daemon=True).start()", []string{"--limit", "process_count=4"}, `process_limit RuntimeError at line 3: can't start new thread: process_count=4 reached`},
		{"subprocess", "import subprocess\nsubprocess.run(['true'])\nwhile True:\n    subprocess.Popen(['sleep', '60'])", []string{"--limit", "process_count=4"}, `process_limit BlockingIOError at line 4: `},
		{"socket", "import socket\na, b = socket.socketpair()\na.setblocking(False)\na.recv(1)", nil, `runtime BlockingIOError at line 4: `},
		{"open files", "1 + 1", []string{"--limit", "open_files=1"}, `ok 2`},
		{"too many open files", "x = []\nwhile True: x.append(open('/dev/null'))", []string{"--limit", "open_files=20"}, `open_files_limit OSError at line 2: `},
		{"file size", "open('f', 'w').write('x' * 1000000)", []string{"--limit", "file_bytes=1000"}, `artifact_limit `},
		{"return size", "'x' * 1000", []string{"--limit", "return_value_bytes=100"}, `return_limit return_value_bytes=100 exceeded`},
		{"nan", "float('nan')", nil, `serialization $: nan `},
		{"vanish", "import os\nos._exit(0)", nil, `protocol the process ended with exit code 0 before the code returned`},
		{"crash", "import os\nos.abort()", nil, `crash killed by SIGABRT`},
		{"timeout", "import time\ntime.sleep(60)", []string{"--limit", "wall_seconds=3"}, `timeout wall_seconds=3 exceeded`},
		{"cpu", "while True: pass", []string{"--limit", "cpu_seconds=1"}, `cpu_limit cpu_seconds=1 exceeded`},
		{"too little memory", "1", []string{"--limit", "memory_bytes=6MiB"}, `internal `},
	}
	for _, python := range interpreters(t) {
		t.Run(python, func(t *testing.T) {
			t.Parallel()
			dir := sharedDir(t)
			prefix, uid := []string{}, unusedUID()
			if blocked := false; isRoot() {
				if _, blocked = blockadeOf(python, uidBase); blocked {
					// Only its owner reaches it: root as a user that can't drop.
					prefix = []string{"setpriv", "--bounding-set", "-all", "--inh-caps", "-all", "env", "PYPLAYPEN_WARN_ONLY=1"}
				}
			}
			base := append(prefix, program, "exec", "--child-uid", uid, "--python", python)
			out, _, code := capturedRun(t, inDir(dir, append(base, "--self-check")))
			if code != 0 || !strings.HasPrefix(out, `{"status":"ok","python":"3.1`) {
				t.Fatalf("self-check: exit code %d, %q", code, out)
			}
			for _, c := range cases {
				if slices.Contains(c.flags, "process_count=4") && (len(prefix) > 0 || !isRoot() && !userNamespacesAllowed()) {
					continue // nothing bounds it there, or a cap that is larger
				}
				stdout, stderr, _ := capturedRun(t, inDir(dir, slices.Concat(base, c.flags, []string{"-c", c.code})))
				r, err := parseResult(stdout)
				if err != nil {
					t.Errorf("%s: %v in %q; stderr %q", c.name, err, stdout, stderr)
					continue
				}
				got := "ok " + string(r.ReturnValue)
				if r.Error != nil {
					got = r.Error.Type + " " + r.Error.Message
				}
				if !strings.HasPrefix(got, c.want) || r.Error == nil && c.want != "" && got != c.want {
					t.Errorf("%s: %q, want %q; details %+v", c.name, got, c.want, r.Error)
				}
			}
			if left, _ := filepath.Glob(dir + "/sandbox-runs/*"); len(left) != 1 {
				t.Errorf("on disk: %q", left)
			}
		})
	}
}

func inDir(dir string, argv []string) *exec.Cmd {
	cmd := plainCommand(argv)
	cmd.Dir = dir
	return cmd
}

// TestExecTogether has many calls in one DIR at once: each keeps its own file
// or nothing, sandbox-runs comes and goes, and of those with one id one runs.
func TestExecTogether(t *testing.T) {
	program, err := program()
	if err != nil {
		t.Fatal(err)
	}
	dir, uid := sharedDir(t), unusedUID()
	call := func(args ...string) (string, string, int) {
		argv := append([]string{program, "exec", "--python", "/usr/bin/python3", "--child-uid", uid, "--limit", "process_count=100"}, args...)
		return capturedRun(t, inDir(dir, argv))
	}
	var wg sync.WaitGroup
	var mu sync.Mutex
	kept, same := 0, 0
	for i := range 24 {
		wg.Go(func() {
			switch i % 3 {
			case 0: // leaves nothing
				stdout, stderr, code := call("-c", "open('.x', 'w').close()")
				if r, err := parseResult(stdout); err != nil || code != 0 || len(r.Artifacts) != 0 {
					t.Errorf("exit code %d, %q, %q", code, stdout, stderr)
				}
			case 1: // keeps a file
				stdout, stderr, code := call("-c", fmt.Sprintf("open('x', 'w').write('%d')\n'x'", i))
				r, err := parseResult(stdout)
				if err != nil || code != 0 || len(r.Artifacts) != 1 {
					t.Errorf("exit code %d, %q, %q", code, stdout, stderr)
					return
				}
				if text, err := os.ReadFile(filepath.Join(dir, r.Artifacts[0].Path)); err != nil || string(text) != fmt.Sprint(i) {
					t.Errorf("%q, %v", text, err)
				}
				mu.Lock()
				kept++
				mu.Unlock()
			case 2: // wants an id that others want
				stdout, stderr, code := call("--request-id", "same", "-c", "import os\nassert os.listdir() == []\nopen('only', 'w').close()")
				if code == exitUsage && stdout == "" && strings.Contains(stderr, "sandbox-runs/same exists") {
					return
				}
				if r, err := parseResult(stdout); err != nil || code != 0 || len(r.Artifacts) != 1 {
					t.Errorf("exit code %d, %q, %q", code, stdout, stderr)
				}
				mu.Lock()
				same++
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	left, _ := filepath.Glob(dir + "/sandbox-runs/*/*")
	if kept != 8 || same != 1 || len(left) != 9 {
		t.Errorf("%d kept, %d with the id, on disk %q", kept, same, left)
	}
}

// TestExecMemoryFloor: whatever the address space, a call that has too little
// of it says so.
func TestExecMemoryFloor(t *testing.T) {
	program, err := program()
	if err != nil {
		t.Fatal(err)
	}
	dir := sharedDir(t)
	worked := false
	for mib := range 41 {
		argv := []string{program, "exec", "--python", "/usr/bin/python3", "--limit", "cpu_seconds=2", "--limit", "wall_seconds=60", "--limit", fmt.Sprintf("memory_bytes=%dMiB", mib), "-c", "1 + 1"}
		stdout, stderr, code := capturedRun(t, inDir(dir, argv))
		r, err := parseResult(stdout)
		switch {
		case err != nil:
			t.Errorf("%d MiB: %v in %q; stderr %q", mib, err, stdout, stderr)
		case r.Error == nil:
			worked = true
		case worked:
			t.Errorf("%d MiB: %+v although less was enough", mib, r.Error)
		case !slices.Contains([]string{errInternal, errMemory}, r.Error.Type) || !strings.Contains(r.Error.Message, fmt.Sprintf("memory_bytes=%d", mib<<20)):
			t.Errorf("%d MiB: exit code %d, %s %s, %+v", mib, code, r.Error.Type, r.Error.Message, r.Error.Details)
		}
	}
	if !worked {
		t.Error("40 MiB are not enough")
	}
}
