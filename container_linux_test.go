package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"
)

// The tests here hold for one container, which .ci/containers starts by a row of
// the table in docs/containers.md. PYPLAYPEN_TEST_SHAPE is the row's first cell.

// installed is the program as the Dockerfile installs it.
const installed = "/usr/local/bin/pyplaypen"

// A containerShape is a row of the table.
type containerShape struct {
	flags     string
	runAs     string
	processes enforcement
	requested string // what becomes of run --limit process_count=9
	exec      string
}

func (s *containerShape) has(flag string) bool { return strings.Contains(s.flags, flag) }

// pidsLimit is the container's cap, or 0.
func (s *containerShape) pidsLimit() int {
	_, after, _ := strings.Cut(s.flags, "--pids-limit ")
	number, _, _ := strings.Cut(after, " ")
	n, _ := strconv.Atoi(number)
	return n
}

func containerShapes(t *testing.T) []containerShape {
	t.Helper()
	text, err := os.ReadFile("docs/containers.md")
	if err != nil {
		t.Fatal(err)
	}
	const heading = "| flags of docker run | calls run as | process_count | process_count=9 | exec |\n| --- | --- | --- | --- | --- |\n"
	_, table, ok := strings.Cut(string(text), heading)
	if !ok {
		t.Fatalf("docs/containers.md lacks the table that begins\n%s", heading)
	}
	table, _, _ = strings.Cut(table, "\n\n")
	var all []containerShape
	for line := range strings.Lines(table + "\n") {
		cells := strings.Split(strings.TrimSpace(line), " | ")
		if len(cells) != 5 {
			t.Fatalf("a row of %d cells: %s", len(cells), line)
		}
		flags := strings.Trim(strings.TrimPrefix(cells[0], "| "), "`")
		if flags == "(none)" {
			flags = ""
		}
		all = append(all, containerShape{flags, cells[1], enforcement(cells[2]), cells[3], strings.TrimSuffix(cells[4], " |")})
	}
	return all
}

// TestContainersTable: what a row says of process_count decides the rest.
func TestContainersTable(t *testing.T) {
	all := containerShapes(t)
	if len(all) < 12 {
		t.Errorf("only %d rows", len(all))
	}
	for _, s := range all {
		want := [2]string{"9", "starts"}
		switch s.processes {
		case enforcedByContainer:
			want[0] = "the cap"
		case unsupported:
			want = [2]string{"refused", "refused"}
		case enforcedPerUser, enforcedPerCall:
		default:
			t.Errorf("%q: process_count is %s", s.flags, s.processes)
		}
		if got := [2]string{s.requested, s.exec}; got != want {
			t.Errorf("%q: %q, want %q", s.flags, got, want)
		}
		if capped := s.pidsLimit() > 0; capped != (s.processes == enforcedByContainer) {
			t.Errorf("%q: capped %v, and process_count is %s", s.flags, capped, s.processes)
		}
	}
}

// TestContainer proves the row of the container that it runs in.
func TestContainer(t *testing.T) {
	flags, inside := os.LookupEnv("PYPLAYPEN_TEST_SHAPE")
	if !inside {
		return // .ci/containers covers it
	}
	all := containerShapes(t)
	i := slices.IndexFunc(all, func(s containerShape) bool { return s.flags == flags })
	if i < 0 {
		t.Fatalf("docs/containers.md has no row %q", flags)
	}
	s := &all[i]
	env := append(os.Environ(), "PYPLAYPEN_WARN_ONLY=")
	pyplaypen := func(args ...string) (stdout, stderr string, code int) {
		t.Helper()
		cmd := plainCommand(append([]string{installed}, args...))
		cmd.Dir, cmd.Env = "/", env
		return capturedRun(t, cmd)
	}
	dropless := "" // said at each call of a uid 0 that can't drop
	if s.runAs == "uid 0" {
		dropless = "pyplaypen: uid 0 without CAP_SETUID: running as a plain user does, without a uid drop\n"
	}
	root := s.processes == enforcedPerUser || s.processes == enforcedPerCall
	if root {
		// The uid's process count is shared with other containers.
		env = append(env, "PYPLAYPEN_LIMITS=process_count=10000")
	}
	if root != isRoot() || (s.processes != unsupported) != isBounded() {
		t.Errorf("the tests take this for root %v, bounded %v", isRoot(), isBounded())
	}

	t.Run("enforcement", func(t *testing.T) {
		stdout, stderr, code := pyplaypen("enforcement")
		if want := "\nprocess_count: " + string(s.processes) + "\n"; code != 0 || stderr != "" || !strings.Contains(stdout, want) {
			t.Errorf("exit code %d, stdout %q, stderr %q; want %q", code, stdout, stderr, want)
		}
		_, _, code = pyplaypen("enforcement", "--check", "process_count")
		if want := s.processes == unsupported; (code == 1) != want || (code == 0) == want {
			t.Errorf("--check: exit code %d", code)
		}
		stdout, _, _ = pyplaypen("enforcement", "--json")
		if n := s.pidsLimit(); n > 0 && !strings.Contains(stdout, fmt.Sprintf(`"process_count":{"value":"container","default":16,"effective":%d,`, n)) {
			t.Errorf("--json: %s", stdout)
		}
	})

	t.Run("uid", func(t *testing.T) {
		stdout, stderr, code := pyplaypen("run", "--", "sh", "-c", "id -u; id -g; id -G")
		f := strings.Fields(stdout)
		if code != 0 || len(f) < 3 || f[0] != f[1] && root || f[0] != f[2] && root || len(f) > 3 && root {
			t.Fatalf("exit code %d, stdout %q, stderr %q", code, stdout, stderr)
		}
		uid, _ := strconv.Atoi(f[0])
		if want, exact := strings.CutPrefix(s.runAs, "uid "); exact && f[0] != want || !exact && (uid < 20000 || uid > 20099) {
			t.Errorf("runs as %q, want %s", f, s.runAs)
		}
		notice := dropless
		if root && !s.has("--read-only") {
			notice += fmt.Sprintf("pyplaypen: / is a system directory: it is not handed to uid %s, which cannot create files in it\n", f[0])
		}
		if s.processes == unsupported {
			notice += "pyplaypen: not enforced here: process_count\n"
		}
		if stderr != notice {
			t.Errorf("stderr %q, want %q", stderr, notice)
		}
		stdout, stderr, code = pyplaypen("run", "--", "sh", "-c", "touch $HOME/f && echo $HOME")
		if root && (code != 0 || !strings.HasPrefix(stdout, "/tmp/pyplaypen-0/")) {
			t.Errorf("HOME: exit code %d, stdout %q, stderr %q", code, stdout, stderr)
		}
	})

	t.Run("process_count", func(t *testing.T) {
		args := []string{"run", "--limit", "process_count=9"}
		if root {
			uid := unusedUID() // for the same reason
			if s.processes == enforcedPerCall {
				uid += "-" + uid
			}
			args = append(args, "--child-uid", uid)
		}
		stdout, stderr, code := pyplaypen(append(args, "--", "python3", "-c", forkCounter)...)
		switch s.requested {
		case "refused":
			if code != exitUsage || stdout != "" || !strings.Contains(stderr, "process_count=9: nothing enforces this limit here; put a pids cap on the container, run as root so that each call drops to its own UID, or drop the flag") {
				t.Errorf("exit code %d, stdout %q, stderr %q", code, stdout, stderr)
			}
		case "the cap":
			notice := fmt.Sprintf("process_count=9 is bounded only by the container's cap of %d processes", s.pidsLimit())
			if n, _ := strconv.Atoi(strings.TrimSpace(stdout)); code != 0 || n <= 9 || !strings.Contains(stderr, notice) {
				t.Errorf("exit code %d, stdout %q, stderr %q", code, stdout, stderr)
			}
		default:
			if code != 0 || stdout != "9\n" || strings.Contains(stderr, "process_count") {
				t.Errorf("exit code %d, stdout %q, stderr %q", code, stdout, stderr)
			}
		}
	})

	t.Run("exec", func(t *testing.T) {
		refuses := func(args ...string) {
			t.Helper()
			stdout, stderr, code := pyplaypen(args...)
			if code != exitUsage || stdout != "" || !strings.Contains(stderr, "nothing enforces this limit here") {
				t.Errorf("%q: exit code %d, stdout %q, stderr %q", args, code, stdout, stderr)
			}
		}
		// In a directory that the uid can't write to, what the code needs is TMPDIR.
		starts := func(args ...string) {
			t.Helper()
			stdout, stderr, code := pyplaypen(args...)
			if r, err := parseResult(stdout); code != 0 || err != nil || r.Error != nil || string(r.ReturnValue) != "[2,true]" {
				t.Errorf("%q: exit code %d, stdout %q (%v), stderr %q", args, code, stdout, err, stderr)
			}
		}
		source := []string{"--artifact-dir", "/tmp/artifacts", "-c", "import os, tempfile; [1 + 1, tempfile.TemporaryFile().write(b'x') == 1]"}
		call := append([]string{"exec"}, source...)
		waived := append([]string{"exec", "--warn-only"}, source...)
		if s.exec == "refused" {
			refuses(call...)
			refuses("exec", "--self-check")
			refuses(slices.Concat([]string{"exec", "--limit", "process_count=9"}, source)...)
		} else {
			starts(call...)
		}
		starts(waived...)
	})

	// The limits that do not depend on the shape, and the teardown.
	t.Run("limits", func(t *testing.T) {
		stdout, stderr, code := pyplaypen("run", "--limit", "wall_seconds=2", "--", "sh", "-c", "setsid sleep 61 & sleep 60")
		if code != exitTimeout || stdout != "" || !strings.Contains(stderr, "pyplaypen: wall_seconds=2 exceeded; process group terminated\n") {
			t.Errorf("exit code %d, stdout %q, stderr %q", code, stdout, stderr)
		}
		if out, err := exec.Command("pgrep", "-f", "^sleep 6").Output(); err == nil {
			t.Errorf("still there: %s", out)
		}
		stdout, stderr, code = pyplaypen("run", "--limit", "memory_bytes=256MiB", "--", "python3", "-c", "bytearray(1 << 29)")
		if code != 1 || !strings.Contains(stderr, "MemoryError") {
			t.Errorf("exit code %d, stdout %q, stderr %q", code, stdout, stderr)
		}
	})

	// A directory in the image is handed over to the uid, and given back.
	t.Run("directory", func(t *testing.T) {
		if !root {
			return
		}
		parent := "/srv"
		if s.has("--read-only") {
			parent = "/tmp"
		}
		dir, err := os.MkdirTemp(parent, "")
		if err != nil {
			t.Fatal(err)
		}
		defer os.RemoveAll(dir)
		if err := os.Chmod(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		cmd := plainCommand([]string{installed, "run", "--", "touch", "made"})
		cmd.Dir, cmd.Env = dir, env
		stdout, stderr, code := capturedRun(t, cmd)
		if code != 0 {
			t.Errorf("exit code %d, stdout %q, stderr %q", code, stdout, stderr)
		}
		out, err := exec.Command("stat", "-c", "%u", dir, filepath.Join(dir, "made")).Output()
		owners := strings.Fields(string(out))
		if err != nil || owners[0] != "0" || owners[1] == "0" {
			t.Errorf("owners %q, %v", owners, err)
		}
	})

	t.Run("memory", func(t *testing.T) {
		if !s.has("--memory") {
			return
		}
		stdout, stderr, code := pyplaypen("run", "--limit", "memory_bytes=8GiB", "--", "python3", "-c", "x = b'x' * (1 << 30)")
		if code != 137 || stdout != "" || !strings.HasSuffix(stderr, "pyplaypen: killed by SIGKILL, likely the container's memory limit, not one of pyplaypen's\n") {
			t.Errorf("run: exit code %d, stdout %q, stderr %q", code, stdout, stderr)
		}
		stdout, stderr, code = pyplaypen("exec", "--artifact-dir", "/tmp/artifacts", "--limit", "memory_bytes=8GiB", "-c", "x = b'x' * (1 << 30)")
		if r, err := parseResult(stdout); code != 137 || err != nil || r.Error == nil || r.Error.Type != "crash" || !strings.Contains(r.Error.Message, "likely the container's memory limit") {
			t.Errorf("exec: exit code %d, stdout %q, stderr %q", code, stdout, stderr)
		}
	})

	t.Run("network", func(t *testing.T) {
		links, err := os.ReadDir("/sys/class/net")
		if err != nil {
			t.Fatal(err)
		}
		if alone := len(links) == 1; alone != s.has("--network none") {
			t.Errorf("interfaces %v", links)
		}
	})

	t.Run("root file system", func(t *testing.T) {
		err := os.WriteFile("/srv/probe", nil, 0o600)
		if os.Geteuid() == 0 && (err == nil) == s.has("--read-only") {
			t.Errorf("writing to it: %v", err)
		}
		os.Remove("/srv/probe")
	})

	t.Run("init", func(t *testing.T) {
		name, err := os.ReadFile("/proc/1/comm")
		if tini := strings.Contains(string(name), "init"); err != nil || tini != s.has("--init") {
			t.Errorf("PID 1 is %q, %v", name, err)
		}
	})
}

// TestMaySkip: each reason for which a test may be skipped holds here.
func TestMaySkip(t *testing.T) {
	for _, why := range maySkip {
		holds := false
		switch why {
		case reasonUserNamespaces:
			holds = !userNamespacesAllowed()
		case reasonMountNamespaces:
			holds = exec.Command("unshare", "-m", "true").Run() != nil
		case reasonCgroup:
			dir, err := os.MkdirTemp(pidsHierarchy(t), "pyplaypen-test-")
			holds = err != nil
			os.Remove(dir)
		case reasonUnbounded:
			holds = !isBounded()
		case reasonReadOnly:
			holds = unix.Access("/usr", unix.W_OK) == unix.EROFS
		case "numpy is missing":
			holds = exec.Command("/usr/bin/python3", "-c", "import numpy, pandas").Run() != nil
		default:
			tool, ok := strings.CutSuffix(why, " is missing")
			if !ok {
				t.Errorf("unknown reason %q", why)
			}
			_, err := exec.LookPath(tool)
			if strings.Contains(tool, "/") {
				_, err = os.Stat(tool)
			}
			holds = err != nil
		}
		if !holds {
			t.Errorf("%q is not so here", why)
		}
	}
}

// Reasons to skip a test, besides "... is missing". Scripts say them too.
const (
	reasonUserNamespaces  = "no user namespaces"
	reasonMountNamespaces = "no mount namespaces"
	reasonCgroup          = "no cgroup can be made"
	reasonUnbounded       = "nothing enforces process_count"
	reasonReadOnly        = "the root file system is read-only"
)

// userNamespacesAllowed reports whether a plain user can make one.
var userNamespacesAllowed = sync.OnceValue(func() bool {
	return plainCommand(asUser([]string{"unshare", "--user", "true"})).Run() == nil
})
