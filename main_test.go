package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"
	"golang.org/x/sys/unix"
)

func TestMain(m *testing.M) {
	// A link by another name is a shim. Test binaries are named something.test.
	if _, isShim := shimName(os.Args[0]); isShim && !strings.HasSuffix(os.Args[0], ".test") {
		os.Exit(mainCode())
	}
	// Half of a script's time is waiting. More at once would be more than what a
	// uid that some of them share may have of processes. -parallel overrides it.
	flag.Set("test.parallel", "4")
	testscript.Main(cleaningM{m}, programs)
}

// A cleaningM removes what the tests share when all have run.
type cleaningM struct{ *testing.M }

func (m cleaningM) Run() int {
	if !isBounded() {
		// exec would refuse to start, which TestExecGate and TestContainer test.
		os.Setenv("PYPLAYPEN_WARN_ONLY", "1")
	}
	code := m.M.Run()
	if programDir != "" {
		os.RemoveAll(programDir)
	}
	return code
}

// programDir is where program has put its copy.
var programDir string

// program copies this test binary to where every uid can run it, under the name
// that makes it act as pyplaypen.
var program = sync.OnceValues(func() (string, error) {
	dir, err := os.MkdirTemp("/tmp", "pyplaypen-program-")
	if err != nil {
		return "", err
	}
	programDir = dir
	if err := os.Chmod(dir, 0o755); err != nil {
		return "", err
	}
	path, err := os.Executable()
	if err != nil {
		return "", err
	}
	self, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer self.Close()
	copied, err := os.OpenFile(filepath.Join(dir, "pyplaypen"), os.O_CREATE|os.O_WRONLY|os.O_EXCL, 0o755)
	if err != nil {
		return "", err
	}
	_, err = io.Copy(copied, self)
	return copied.Name(), errors.Join(err, copied.Close())
})

// programs are what scripts can execute, besides those on PATH.
var programs = map[string]func(){
	"pyplaypen": main,
	// One whose own memory is large.
	"pyplaypen-large": func() {
		ballast := make([]byte, 64<<20)
		for i := range ballast {
			ballast[i] = 1
		}
		code := mainCode()
		runtime.KeepAlive(ballast)
		os.Exit(code)
	},
}

// unusedUID is a uid for calls as root whose process count nobody else shares,
// neither another test nor another run of the tests. The kernel counts those in
// containers together, where pids are alike, so that the pid can't choose.
func unusedUID() string { return strconv.Itoa(uidBase + int(uidsUsed.Add(1))) }

var (
	uidBase   = 1_000_000 + rand.IntN(100_000)*1000
	uidPrefix = 2_000_000 + rand.IntN(20_000)*1000 // times 100
	uidsUsed  atomic.Int32
)

// isRoot reports whether this is a root that can drop.
func isRoot() bool {
	ok, _ := canDrop(defaultChildUID)
	return ok
}

// isBounded reports whether process_count is enforced for exec, so that it starts.
var isBounded = sync.OnceValue(func() bool {
	bound := findProcessBound(isRoot(), false, userNamespaceWorks)
	return bound.enforcement() != unsupported
})

// mustRun turns every skip for a missing tool or privilege into a failure, but
// for the reasons in maySkip, which TestMaySkip holds to be true.
var (
	mustRun = os.Getenv("PYPLAYPEN_TEST_MUST_RUN") == "1"
	maySkip = strings.FieldsFunc(os.Getenv("PYPLAYPEN_TEST_MAY_SKIP"), func(r rune) bool { return r == ',' })
)

func skip(t testing.TB, why string) {
	t.Helper()
	if mustRun && !slices.Contains(maySkip, why) {
		t.Fatal("skipped although nothing may be: " + why)
	}
	t.Skip(why)
}

func TestScript(t *testing.T) {
	testscript.RunT(scriptT{t}, testscript.Params{
		Dir:                 "testdata/script",
		RequireExplicitExec: true,
		RequireUniqueNames:  true,
		UpdateScripts:       os.Getenv("PYPLAYPEN_TEST_UPDATE") == "1",
		Setup:               setupScript,
		Condition:           condition,
		Cmds: map[string]func(*testscript.TestScript, bool, []string){
			"exits":      cmdExits,
			"signal":     cmdSignal,
			"waitfor":    cmdWaitFor,
			"gone":       cmdGone,
			"alive":      cmdAlive,
			"owner":      cmdOwner,
			"chown":      cmdChown,
			"mkfifo":     cmdMkfifo,
			"signalwhen": cmdSignalWhen,
			"waitgone":   cmdWaitGone,
			"result":     cmdResult,
			"printed":    cmdPrinted,
			"detail":     cmdDetail,
			"kept":       cmdKept,
			"dies":       cmdDies,
		},
	})
}

// scriptT is a testing.T whose Skip is skip.
type scriptT struct{ *testing.T }

func (t scriptT) Run(name string, f func(testscript.T)) {
	t.T.Run(name, func(t *testing.T) { f(scriptT{t}) })
}

func (t scriptT) Skip(args ...any) { skip(t.T, fmt.Sprint(args...)) }

func (t scriptT) Verbose() bool { return testing.Verbose() }

// setupScript opens the directories that testscript makes 0700: the uid that
// root drops to must reach the program and its files. Limits and switches of
// the developer's own environment stay out of the tests.
func setupScript(env *testscript.Env) error {
	path, _, _ := strings.Cut(env.Getenv("PATH"), string(os.PathListSeparator))
	for _, dir := range []string{env.WorkDir, path} {
		for ; dir != filepath.Clean(os.TempDir()) && dir != "/"; dir = filepath.Dir(dir) {
			if st, err := os.Stat(dir); err != nil || st.Mode().Perm()&0o055 == 0o055 {
				continue
			}
			if err := os.Chmod(dir, 0o755); err != nil {
				return err
			}
		}
	}
	env.Setenv("PATH", path+":/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin")
	env.Setenv("BIN", path)
	env.Setenv("PROGRAM", path+"/pyplaypen") // for where PATH does not lead to it
	env.Setenv("TMPDIR", "/tmp")
	env.Setenv("PYPLAYPEN_CHILD_UID", unusedUID())
	prefix := strconv.Itoa(uidPrefix + int(uidsUsed.Add(1)))
	env.Setenv("N", prefix) // two digits more make uids of the script's own
	env.Defer(func() {
		for _, what := range []string{"uid-" + prefix + "[0-9][0-9]", "queue-" + prefix + "[0-9][0-9]-*"} {
			files, _ := filepath.Glob("/run/pyplaypen-uids/" + what)
			for _, file := range files {
				os.Remove(file)
			}
		}
	})
	env.Setenv("UID", strconv.Itoa(os.Getuid()))
	if !isBounded() {
		env.Setenv("PYPLAYPEN_WARN_ONLY", "1")
	}
	return nil
}

func condition(name string) (bool, error) {
	switch name {
	case "root":
		return isRoot(), nil
	case "read-only": // of the root file system
		return unix.Access("/usr", unix.W_OK) == unix.EROFS, nil
	case "runs": // /run can be written to
		return unix.Access("/run", unix.W_OK) == nil, nil
	case "bounded":
		return isBounded(), nil
	case "numpy":
		return exec.Command("/usr/bin/python3", "-c", "import numpy, pandas").Run() == nil, nil
	case "userns":
		return userNamespaceWorks(), nil
	case "nslimit": // to be set in a user namespace; /proc/sys may be read-only
		return exec.Command("unshare", "-U", "--map-root-user", "sh", "-c", "echo 2 >/proc/sys/user/max_user_namespaces").Run() == nil, nil
	case "mountns": // a mount namespace to try file systems in
		return exec.Command("unshare", "-m", "true").Run() == nil, nil
	}
	return false, fmt.Errorf("unknown condition %q", name)
}

// exits N cmd...: the command exits with code N, exactly.
func cmdExits(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 {
		ts.Fatalf("usage: exits N cmd...")
	}
	want, err := strconv.Atoi(args[0])
	ts.Check(err)
	got := 0
	if err := ts.Exec(args[1], args[2:]...); err != nil {
		var exit *exec.ExitError
		if !errors.As(err, &exit) {
			ts.Fatalf("%v", err)
		}
		if got = exit.ExitCode(); got < 0 {
			ts.Fatalf("killed by %v", exit.Sys().(syscall.WaitStatus).Signal())
		}
	}
	if got != want {
		ts.Fatalf("exit code %d, want %d", got, want)
	}
}

// signal NAME: sends the signal to every command in the background.
func cmdSignal(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 1 {
		ts.Fatalf("usage: signal NAME")
	}
	sig := unix.SignalNum("SIG" + args[0])
	if sig == 0 {
		ts.Fatalf("no signal SIG%s", args[0])
	}
	for _, cmd := range ts.BackgroundCmds() {
		ts.Check(cmd.Process.Signal(sig))
	}
}

// signalwhen FILE NAME...: as soon as FILE holds a line, sends the signals to
// the process whose pid it is, while the script goes on. A target that writes
// $PPID has its pyplaypen signalled.
func cmdSignalWhen(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 {
		ts.Fatalf("usage: signalwhen FILE NAME...")
	}
	file := ts.MkAbs(args[0])
	var signals []syscall.Signal
	for _, name := range args[1:] {
		sig := unix.SignalNum("SIG" + name)
		if sig == 0 {
			ts.Fatalf("no signal SIG%s", name)
		}
		signals = append(signals, sig)
	}
	go func() {
		for end := time.Now().Add(patience); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
			line, err := os.ReadFile(file)
			if err != nil || len(line) == 0 {
				continue
			}
			if pid, err := strconv.Atoi(strings.TrimSpace(string(line))); err == nil && pid > 1 {
				for _, sig := range signals {
					unix.Kill(pid, sig)
				}
			}
			return
		}
	}()
}

const patience = 60 * time.Second

// waitfor FILE: until the file is there and not empty.
func cmdWaitFor(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 1 {
		ts.Fatalf("usage: waitfor FILE")
	}
	for end := time.Now().Add(patience); ; time.Sleep(5 * time.Millisecond) {
		if st, err := os.Stat(ts.MkAbs(args[0])); err == nil && st.Size() > 0 {
			return
		}
		if time.Now().After(end) {
			ts.Fatalf("%s did not appear", args[0])
		}
	}
}

// processRuns reports whether the process whose pid stands in the file runs.
func processRuns(ts *testscript.TestScript, file string) bool {
	pid := strings.TrimSpace(ts.ReadFile(file))
	stat, err := os.ReadFile("/proc/" + pid + "/stat")
	if err != nil {
		return false
	}
	_, rest, _ := strings.Cut(string(stat), ") ")
	return rest != "" && rest[0] != 'Z' && rest[0] != 'X'
}

// gone FILE...: none of the processes whose pids stand in the files runs, now.
func cmdGone(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) == 0 {
		ts.Fatalf("usage: gone FILE...")
	}
	for _, file := range args {
		if processRuns(ts, file) {
			ts.Fatalf("the process of %s still runs", file)
		}
	}
}

// alive FILE...: all of the processes whose pids stand in the files run.
func cmdAlive(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) == 0 {
		ts.Fatalf("usage: alive FILE...")
	}
	for _, file := range args {
		if !processRuns(ts, file) {
			ts.Fatalf("the process of %s does not run", file)
		}
	}
}

// waitgone FILE...: until none of the processes whose pids stand in the files runs.
func cmdWaitGone(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) == 0 {
		ts.Fatalf("usage: waitgone FILE...")
	}
	for _, file := range args {
		for end := time.Now().Add(patience); processRuns(ts, file); time.Sleep(5 * time.Millisecond) {
			if time.Now().After(end) {
				ts.Fatalf("the process of %s still runs", file)
			}
		}
	}
}

// owner UID FILE...: the files belong to the uid.
func cmdOwner(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 {
		ts.Fatalf("usage: owner UID FILE...")
	}
	for _, file := range args[1:] {
		var st unix.Stat_t
		ts.Check(unix.Lstat(ts.MkAbs(file), &st))
		if strconv.Itoa(int(st.Uid)) != args[0] {
			ts.Fatalf("%s belongs to %d, want %s", file, st.Uid, args[0])
		}
	}
}

// chown UID FILE...: as root.
func cmdChown(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 {
		ts.Fatalf("usage: chown UID FILE...")
	}
	uid, err := strconv.Atoi(args[0])
	ts.Check(err)
	for _, file := range args[1:] {
		ts.Check(os.Lchown(ts.MkAbs(file), uid, uid))
	}
}

// mkfifo FILE
func cmdMkfifo(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 1 {
		ts.Fatalf("usage: mkfifo FILE")
	}
	ts.Check(unix.Mkfifo(ts.MkAbs(args[0]), 0o666))
}
