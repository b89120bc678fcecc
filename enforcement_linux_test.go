package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// A shape is a way in which pyplaypen may find itself deployed. Its wrap turns
// a command into one that runs so.
type shape struct {
	name     string
	forRoot  bool // the test must be root to make it
	userns   bool // and user namespaces must be allowed
	expected enforcement
	max      int64 // of the pids cap, for enforcedByContainer
	wrap     func(t *testing.T, argv []string) *exec.Cmd
}

// demand ends the test where the shape can't be made.
func (s *shape) demand(t *testing.T) {
	t.Helper()
	switch {
	case s.forRoot && !isRoot():
		t.SkipNow() // the run as root covers it
	case s.userns && !userNamespacesAllowed():
		skip(t, reasonUserNamespaces)
	}
}

func plainCommand(argv []string) *exec.Cmd { return exec.Command(argv[0], argv[1:]...) }

// asUser drops to uid 1000, if it is not a plain user already.
func asUser(argv []string) []string {
	if !isRoot() {
		return argv
	}
	return append([]string{"setpriv", "--reuid", "1000", "--regid", "1000", "--clear-groups"}, argv...)
}

// withoutUserNamespaces runs argv where no further user namespace can be made:
// in one whose own sysctl forbids it.
func withoutUserNamespaces(argv []string) *exec.Cmd {
	return inUserNamespace(`echo 0 >/proc/sys/user/max_user_namespaces && exec "$@"`, argv)
}

// userNamespacesUsedUp runs argv where uid 1000 may have one more user namespace,
// and has it, so that only an attempt tells.
func userNamespacesUsedUp(argv []string) *exec.Cmd {
	holder := strings.Join(asUser([]string{"unshare", "-U", "sleep", "60"}), " ")
	return inUserNamespace(`echo 1 >/proc/sys/user/max_user_namespaces || exit
		`+holder+` &
		until held=$(readlink /proc/$!/ns/user) && test $held != $(readlink /proc/$$/ns/user); do sleep 0.01; done
		"$@"
		code=$?
		kill $!
		exit $code`, argv)
}

// withReadOnlyProc has argv start where ids can't be mapped, which shows only once
// there is a process in a namespace.
func withReadOnlyProc(t *testing.T, argv []string) []string {
	t.Helper()
	if exec.Command("unshare", "-m", "true").Run() != nil {
		skip(t, reasonMountNamespaces)
	}
	return append([]string{"unshare", "-m", "sh", "-c", `mount -o remount,bind,ro /proc && exec "$@"`, "sh"}, argv...)
}

// inUserNamespace runs the script, with argv as its arguments, in a user namespace
// in which all ids are mapped to themselves.
func inUserNamespace(script string, argv []string) *exec.Cmd {
	cmd := plainCommand(append([]string{"sh", "-c", script, "sh"}, argv...))
	all := []syscall.SysProcIDMap{{ContainerID: 0, HostID: 0, Size: 65536}}
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWUSER, UidMappings: all, GidMappings: all, GidMappingsEnableSetgroups: true}
	return cmd
}

// inCgroup has argv start in a cgroup with the pids cap, and below it as many
// more without one as depth says. The mode of the first may hide it from the user.
func inCgroup(t *testing.T, max int64, depth int, mode os.FileMode, argv []string) []string {
	t.Helper()
	top, err := os.MkdirTemp(pidsHierarchy(t), "pyplaypen-test-")
	if err != nil {
		t.Log(err)
		skip(t, reasonCgroup)
	}
	t.Cleanup(func() { os.Remove(top) })
	if err := os.Chmod(top, mode); err != nil {
		t.Fatal(err)
	}
	dir := top
	for range depth {
		dir = filepath.Join(dir, "nested")
		if err := os.Mkdir(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		made := dir
		t.Cleanup(func() { os.Remove(made) })
	}
	if err := os.WriteFile(filepath.Join(top, "pids.max"), []byte(strconv.FormatInt(max, 10)), 0o644); err != nil {
		t.Fatal(err)
	}
	return append([]string{"sh", "-c", `echo $$ >"$0/cgroup.procs" && exec "$@"`, dir}, argv...)
}

// cappedCommand is cmd, started in such a cgroup.
func cappedCommand(t *testing.T, max int64, depth int, mode os.FileMode, cmd *exec.Cmd) *exec.Cmd {
	t.Helper()
	cmd.Args = inCgroup(t, max, depth, mode, cmd.Args)
	cmd.Path = "/bin/sh"
	return cmd
}

// pidsHierarchy finds where this machine's pids controller is.
func pidsHierarchy(t *testing.T) string {
	t.Helper()
	text, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		mount, kind, _ := strings.Cut(line, " - ")
		f := strings.Fields(mount)
		k := strings.Fields(kind)
		switch {
		case k[0] == "cgroup" && slices.Contains(strings.Split(k[2], ","), "pids"):
			return f[4]
		case k[0] == "cgroup2":
			controllers, _ := os.ReadFile(filepath.Join(f[4], "cgroup.subtree_control"))
			if slices.Contains(strings.Fields(string(controllers)), "pids") {
				return f[4]
			}
		}
	}
	t.Log("no pids controller on this machine")
	skip(t, reasonCgroup)
	return ""
}

var shapes = []shape{
	{"root", true, false, enforcedPerUser, 0, func(t *testing.T, argv []string) *exec.Cmd { return plainCommand(argv) }},
	{"user", false, true, enforcedPerCall, 0, func(t *testing.T, argv []string) *exec.Cmd { return plainCommand(asUser(argv)) }},
	{"user who can't read the program", true, true, unsupported, 0, func(t *testing.T, argv []string) *exec.Cmd {
		path, err := program()
		if err != nil {
			t.Fatal(err)
		}
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		hidden := filepath.Join(openTempDir(t), "pyplaypen")
		if err := os.WriteFile(hidden, text, 0o711); err != nil {
			t.Fatal(err)
		}
		argv = strings.Split(strings.ReplaceAll(strings.Join(argv, "\x00"), path, hidden), "\x00")
		return plainCommand(asUser(append([]string{"env"}, argv...))) // setpriv itself could read it
	}},
	{"user without namespaces", true, true, unsupported, 0, func(t *testing.T, argv []string) *exec.Cmd {
		return withoutUserNamespaces(asUser(argv))
	}},
	{"user with a pids cap", true, true, enforcedByContainer, 40, func(t *testing.T, argv []string) *exec.Cmd {
		return cappedCommand(t, 40, 0, 0o755, withoutUserNamespaces(asUser(argv)))
	}},
	{"user with a pids cap on a parent", true, true, enforcedByContainer, 41, func(t *testing.T, argv []string) *exec.Cmd {
		return cappedCommand(t, 41, 2, 0o755, withoutUserNamespaces(asUser(argv)))
	}},
	{"user with a pids cap that it can't read", true, true, unsupported, 0, func(t *testing.T, argv []string) *exec.Cmd {
		return cappedCommand(t, 43, 0, 0o700, withoutUserNamespaces(asUser(argv)))
	}},
	{"user whose namespaces are used up", true, true, unsupported, 0, func(t *testing.T, argv []string) *exec.Cmd {
		return userNamespacesUsedUp(asUser(argv))
	}},
	{"user whose namespaces are used up with a pids cap", true, true, enforcedByContainer, 44, func(t *testing.T, argv []string) *exec.Cmd {
		return cappedCommand(t, 44, 0, 0o755, userNamespacesUsedUp(asUser(argv)))
	}},
	{"user with a read-only /proc", true, true, unsupported, 0, func(t *testing.T, argv []string) *exec.Cmd {
		return plainCommand(withReadOnlyProc(t, asUser(argv)))
	}},
	{"user with a read-only /proc and a pids cap", true, true, enforcedByContainer, 45, func(t *testing.T, argv []string) *exec.Cmd {
		return plainCommand(inCgroup(t, 45, 0, 0o755, withReadOnlyProc(t, asUser(argv))))
	}},
	{"user with namespaces and a pids cap", true, true, enforcedPerCall, 0, func(t *testing.T, argv []string) *exec.Cmd {
		return plainCommand(inCgroup(t, 40, 0, 0o755, asUser(argv)))
	}},
	{"nested in root's call", true, true, enforcedPerCall, 0, func(t *testing.T, argv []string) *exec.Cmd {
		return plainCommand(nested(argv))
	}},
	{"nested in a user's call", false, true, enforcedPerCall, 0, func(t *testing.T, argv []string) *exec.Cmd {
		return plainCommand(asUser(nested(argv)))
	}},
	{"uid 0 without capabilities", true, false, unsupported, 0, func(t *testing.T, argv []string) *exec.Cmd {
		return plainCommand(append([]string{"setpriv", "--bounding-set", "-all", "--inh-caps", "-all"}, argv...))
	}},
	{"uid 0 without capabilities with a pids cap", true, false, enforcedByContainer, 42, func(t *testing.T, argv []string) *exec.Cmd {
		return plainCommand(inCgroup(t, 42, 0, 0o755, append([]string{"setpriv", "--bounding-set", "-all", "--inh-caps", "-all"}, argv...)))
	}},
	{"root by another number", true, true, unsupported, 0, func(t *testing.T, argv []string) *exec.Cmd {
		cmd := plainCommand(argv)
		cmd.SysProcAttr = &syscall.SysProcAttr{
			Cloneflags:  unix.CLONE_NEWUSER,
			UidMappings: []syscall.SysProcIDMap{{ContainerID: 1000, HostID: 0, Size: 1}},
			GidMappings: []syscall.SysProcIDMap{{ContainerID: 1000, HostID: 0, Size: 1}},
		}
		return cmd
	}},
	{"uid 0 of a user's namespace", false, true, enforcedPerCall, 0, func(t *testing.T, argv []string) *exec.Cmd {
		return plainCommand(asUser(append([]string{"unshare", "-r"}, argv...)))
	}},
}

// nested wraps argv in an outer call that leaves room for the threads of the
// inner pyplaypen.
func nested(argv []string) []string {
	path, _ := program()
	return append([]string{path, "run", "--child-uid", unusedUID(), "--limit", "process_count=100", "--limit", "memory_bytes=1TiB", "--"}, argv...)
}

// forkCounter prints how many processes it could have at once, itself included.
const forkCounter = `
import os, signal
n = 1
while n < 60:
    try:
        if os.fork() == 0:
            signal.pause()
    except BlockingIOError:
        break
    n += 1
print(n)
`

// TestProcessCountShapes proves each value of process_count: what enforcement
// prints, and that the limit binds, or that it is refused.
func TestProcessCountShapes(t *testing.T) {
	path, err := program()
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range shapes {
		t.Run(s.name, func(t *testing.T) {
			s.demand(t)
			uid := unusedUID()
			ask := func(argv ...string) (string, string, int) {
				t.Helper()
				cmd := s.wrap(t, append([]string{path}, argv...))
				cmd.Dir = "/tmp"
				var stdout, stderr strings.Builder
				cmd.Stdout, cmd.Stderr = &stdout, &stderr
				err := cmd.Run()
				var exit *exec.ExitError
				if err != nil && !errors.As(err, &exit) {
					t.Fatal(err)
				}
				return stdout.String(), stderr.String(), cmd.ProcessState.ExitCode()
			}
			stdout, stderr, _ := ask("enforcement")
			if !strings.Contains(stdout, "\nprocess_count: "+string(s.expected)+"\n") {
				t.Errorf("enforcement printed %q, want process_count: %s; stderr %q", stdout, s.expected, stderr)
			}
			if says := strings.Contains(stderr, "a pids cap may hold but could not be read: "); says != (s.name == "user with a pids cap that it can't read") {
				t.Errorf("enforcement said on stderr: %q", stderr)
			}
			_, _, code := ask("enforcement", "--check", "process_count")
			if want := map[bool]int{true: 1, false: 0}[s.expected == unsupported]; code != want {
				t.Errorf("enforcement --check exits %d, want %d", code, want)
			}
			stdout, _, _ = ask("enforcement", "--json")
			var object map[string]enforcementEntry
			if err := json.Unmarshal([]byte(stdout), &object); err != nil {
				t.Fatalf("enforcement --json: %v in %q", err, stdout)
			}
			entry := object["process_count"]
			wantNumber := json.Number("16")
			switch s.expected {
			case unsupported:
				wantNumber = ""
			case enforcedByContainer:
				wantNumber = json.Number(strconv.FormatInt(s.max, 10))
			}
			if entry.Value != s.expected || entry.Effective != wantNumber || entry.Default != "16" {
				t.Errorf("enforcement --json says %+v, want value %s and effective %q", entry, s.expected, wantNumber)
			}

			run := []string{"run", "--limit", "memory_bytes=1TiB", "--child-uid", uid, "--limit", "process_count=9", "--", "python3", "-c", forkCounter}
			stdout, stderr, code = ask(run...)
			switch s.expected {
			case unsupported:
				if code != exitUsage || stdout != "" || !strings.Contains(stderr, "process_count=9: nothing enforces this limit here; put a pids cap on the container, run as root so that each call drops to its own UID, or drop the flag (see pyplaypen enforcement)") {
					t.Errorf("requested and unsupported: exit code %d, stdout %q, stderr %q", code, stdout, stderr)
				}
			case enforcedByContainer:
				if n, _ := strconv.Atoi(strings.TrimSpace(stdout)); n <= 9 || int64(n) >= s.max {
					t.Errorf("%q processes under a cap of %d; stderr %q", stdout, s.max, stderr)
				}
				if notice := fmt.Sprintf("process_count=9 is bounded only by the container's cap of %d processes", s.max); !strings.Contains(stderr, notice) {
					t.Errorf("stderr %q lacks %q", stderr, notice)
				}
			default:
				if stdout != "9\n" || code != 0 {
					t.Errorf("%q processes under process_count=9, exit code %d, stderr %q", stdout, code, stderr)
				}
			}

			stdout, stderr, code = ask("run", "--limit", "memory_bytes=1TiB", "--child-uid", uid, "--", "python3", "-c", forkCounter)
			notice := ""
			switch s.expected {
			case unsupported:
				notice = "pyplaypen: not enforced here: process_count\n"
				if s.name == "user whose namespaces are used up" || s.name == "user with a read-only /proc" { // which takes an attempt to know
					notice = "pyplaypen: not enforced unless requested: process_count\n"
				}
			case enforcedPerCall:
				if s.name != "user with namespaces and a pids cap" {
					notice = "pyplaypen: not enforced unless requested: process_count\n"
				}
			}
			if notice == "" == strings.Contains(stderr, "not enforced") || !strings.Contains(stderr, notice) {
				t.Errorf("at the default: stderr %q, want the notice %q", stderr, notice)
			}
			if n, _ := strconv.Atoi(strings.TrimSpace(stdout)); code != 0 || (s.expected == enforcedPerUser) != (n == 16) {
				t.Errorf("at the default: %d processes, exit code %d", n, code)
			}
		})
	}
}

// TestChildStageProvesProcessCount shows a child stage that was told of a user
// namespace, and is not in one, so that as uid 0 no limit of processes binds.
func TestChildStageProvesProcessCount(t *testing.T) {
	if text, err := os.ReadFile("/proc/self/uid_map"); err != nil || !isRootOutside(string(text), os.Geteuid()) {
		return // the run as root covers it
	}
	path, err := program()
	if err != nil {
		t.Fatal(err)
	}
	for _, told := range []bool{true, false} {
		r, w, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		spec := childSpec{statusFD: 3, gateFD: -1, uid: -1, userNamespace: told}
		cmd := &exec.Cmd{Path: path, Args: []string{"pyplaypen", childStage, spec.encode(), "echo", "ran"}, ExtraFiles: []*os.File{w}}
		stdout, _ := cmd.Output()
		w.Close()
		records, err := io.ReadAll(r)
		r.Close()
		if err != nil {
			t.Fatal(err)
		}
		got, want := decodeChildRecords(records), stepExecve
		if told {
			want = stepNamespace
		}
		if len(got) != 1 || got[0].step != want || told && got[0].errno != syscall.ENOTSUP || (string(stdout) == "ran\n") == told {
			t.Errorf("told %v: records %v, stdout %q", told, got, stdout)
		}
	}
}

// TestTargetFillsPidsCap shows that a target that takes every process there is,
// and the supervisor's share with it, is still supervised: its output comes, the
// wall clock holds, and nothing of it is left.
func TestTargetFillsPidsCap(t *testing.T) {
	if !isRoot() {
		return // the run as root covers it
	}
	path, err := program()
	if err != nil {
		t.Fatal(err)
	}
	const script = `
import os, signal, sys
while True:
    try:
        if os.fork() == 0:
            signal.pause()
    except BlockingIOError:
        break
print("full", flush=True)
print("also here", file=sys.stderr, flush=True)
signal.pause()
`
	for range 3 {
		argv := []string{path, "run", "--limit", "wall_seconds=2", "--", "python3", "-I", "-S", "-c", script}
		cmd := plainCommand(inCgroup(t, 40, 0, 0o755, asUser(argv)))
		cmd.Dir = "/tmp"
		var stdout, stderr strings.Builder
		cmd.Stdout, cmd.Stderr = &stdout, &stderr
		if err := cmd.Run(); cmd.ProcessState.ExitCode() != exitTimeout {
			t.Fatalf("%v; stderr %q", err, stderr.String())
		}
		if stdout.String() != "full\n" || !strings.Contains(stderr.String(), "also here\n") {
			t.Errorf("stdout %q, stderr %q", stdout.String(), stderr.String())
		}
		left, err := os.ReadFile(filepath.Join(cmd.Args[3], "cgroup.procs"))
		if err != nil || len(left) > 0 {
			t.Errorf("left in the cgroup: %q %v", left, err)
		}
	}
}

func TestReleaseAtLeast(t *testing.T) {
	for release, want := range map[string]bool{
		"5.14.0-427.el9.x86_64": true, "5.14": true, "5.15.0-generic": true, "6.1.0-13-amd64": true,
		"5.13.19": false, "5.4.0": false, "4.18.0-553.el8": false, "4.4.0": false, "": false, "x": false, "6": false,
	} {
		if got := releaseAtLeast(release, 5, 14); got != want {
			t.Errorf("%q: %v", release, got)
		}
	}
}
