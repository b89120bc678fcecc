package main

import (
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// A keyboard types at an interactive shell on a pseudo-terminal and reads what
// the terminal shows.
type keyboard struct {
	t      *testing.T
	master *os.File
	shown  chan string
	text   string // shown and not yet expected
}

const prompt = "SHELL> "

// newKeyboard starts the shell as the leader of a session of its own.
func newKeyboard(t *testing.T) *keyboard {
	t.Helper()
	path, err := program()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := exec.LookPath("bash"); err != nil {
		skip(t, "bash is missing")
	}
	master, err := os.OpenFile("/dev/ptmx", os.O_RDWR|syscall.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.IoctlSetPointerInt(int(master.Fd()), unix.TIOCSPTLCK, 0); err != nil {
		t.Fatal(err)
	}
	number, err := unix.IoctlGetInt(int(master.Fd()), unix.TIOCGPTN)
	if err != nil {
		t.Fatal(err)
	}
	slave, err := os.OpenFile(fmt.Sprintf("/dev/pts/%d", number), os.O_RDWR|syscall.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer slave.Close()
	// Whatever started the tests may have ignored these, which the shell would
	// inherit; a signal that is caught is not ignored after exec.
	signal.Notify(make(chan os.Signal, 1), unix.SIGINT, unix.SIGQUIT, unix.SIGHUP)
	shell := exec.Command("bash", "--norc", "--noprofile", "-i")
	shell.Dir = openTempDir(t)
	shell.Env = []string{"PATH=" + filepath.Dir(path) + ":/usr/bin:/bin", "PS1=" + prompt, "TERM=dumb", "PYPLAYPEN_QUIET=1", "HISTFILE=", "PYPLAYPEN_CHILD_UID=" + unusedUID(), "PYPLAYPEN_WARN_ONLY=" + os.Getenv("PYPLAYPEN_WARN_ONLY")}
	shell.Stdin, shell.Stdout, shell.Stderr = slave, slave, slave
	shell.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	if err := shell.Start(); err != nil {
		t.Fatal(err)
	}
	k := &keyboard{t: t, master: master, shown: make(chan string, 1000)}
	go func() {
		defer close(k.shown)
		buf := make([]byte, 4096)
		for {
			n, err := master.Read(buf)
			if err != nil {
				return
			}
			k.shown <- string(buf[:n])
		}
	}()
	t.Cleanup(func() {
		master.Close() // SIGHUP for the session
		shell.Process.Kill()
		shell.Wait()
	})
	k.expect(prompt)
	return k
}

// types types the text. Ctrl-C and Ctrl-Z come a moment later: what an
// interactive bash runs may miss one that comes at once, without pyplaypen too.
func (k *keyboard) types(text string) {
	k.t.Helper()
	if text == "\x03" || text == "\x1a" {
		time.Sleep(300 * time.Millisecond)
	}
	if _, err := k.master.WriteString(text); err != nil {
		k.t.Fatal(err)
	}
}

// expect waits until the terminal has shown a match of the pattern.
func (k *keyboard) expect(pattern string) {
	k.t.Helper()
	re := regexp.MustCompile(pattern)
	timeout := time.After(patience)
	for {
		if at := re.FindStringIndex(k.text); at != nil {
			k.text = k.text[at[1]:]
			return
		}
		select {
		case more, ok := <-k.shown:
			if !ok {
				k.t.Fatalf("the terminal closed before %q; it showed %q", pattern, k.text)
			}
			k.text += more
		case <-timeout:
			k.t.Fatalf("%q did not come; the terminal showed %q", pattern, k.text)
		}
	}
}

// code asks the shell for the last exit code.
func (k *keyboard) code(want int) {
	k.t.Helper()
	k.types("echo code=$?.\n")
	k.expect(fmt.Sprintf(`\r\ncode=%d\.\r\n(.|\n)*%s`, want, prompt))
}

// modes asks for the terminal's modes.
func (k *keyboard) modes() string {
	k.t.Helper()
	modes, err := unix.IoctlGetTermios(int(k.master.Fd()), unix.TCGETS)
	if err != nil {
		k.t.Fatal(err)
	}
	return fmt.Sprintf("%x %x %x %x", modes.Iflag, modes.Oflag, modes.Cflag, modes.Lflag)
}

const python = "/usr/bin/python3"

// TestTerminalPrompt shows that an interpreter under pyplaypen is used at a
// terminal as without it.
func TestTerminalPrompt(t *testing.T) {
	t.Parallel()
	k := newKeyboard(t)
	k.types("pyplaypen run --stdin -- " + python + "\n")
	k.expect(`>>> `)
	k.types("6 * 7\n")
	k.expect(`\b42\r\n`) // before or after the next prompt, which comes on stderr
	k.types("import time; print('sleep' + 's', flush=True); time.sleep(100)\n")
	k.expect(`sleeps\r\n`)
	k.types("\x03") // Ctrl-C is the interpreter's
	k.expect(`KeyboardInterrupt(.|\n)*>>> `)
	k.types("\x1a") // Ctrl-Z suspends both
	k.expect(`Stopped(.|\n)*` + prompt)
	k.types("echo the shell is back\n")
	k.expect(`\r\nthe shell is back\r\n`)
	k.types("fg\n")
	k.expect(`fg\r\n.*pyplaypen run`)
	k.types("print('went' + ' on')\n")
	k.expect(`went on\r\n`)
	k.types("exit(3)\n")
	k.expect(prompt)
	k.code(3)
}

// TestTerminalRestored shows that the terminal is the shell's again, as it was,
// however the call ends.
func TestTerminalRestored(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name, flags, script string
		end                 func(k *keyboard)
		code                int
	}{
		{"exit", "", "stty raw -echo; exit 5", nil, 5},
		{"timeout", "--limit wall_seconds=3", "stty raw -echo; sleep 60", nil, 124},
		{"foreground with a child's group", "--limit wall_seconds=3", "exec bash --norc -ic \"stty raw -echo; sleep 60\"", nil, 124},
		{"target killed", "", "stty raw -echo; kill -9 $$", nil, 137},
		{"pyplaypen told to stop", "", "stty raw -echo; echo u\"\"p; exec sleep 60", func(k *keyboard) {
			k.expect(`up\n`)
			k.signalJob(unix.SIGTERM)
		}, 143},
		{"Ctrl-C", "", "echo u\"\"p; exec sleep 60", func(k *keyboard) { k.expect(`up\r\n`); k.types("\x03") }, 130},
		{"Ctrl-C without --stdin", "plain", "echo u\"\"p; exec sleep 60", func(k *keyboard) { k.expect(`up\r\n`); k.types("\x03") }, 130},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			k := newKeyboard(t)
			stdin, flags := "--stdin", tt.flags
			if flags == "plain" {
				stdin, flags = "", ""
			}
			k.types("stty cols 200\n") // or the shell folds what it shows
			k.expect(`cols 200\r\n(.|\n)*` + prompt)
			before := k.modes()
			k.types(fmt.Sprintf("pyplaypen run %s --kill-after 0.1 %s -- sh -c '%s'\n", stdin, flags, tt.script))
			if tt.end != nil {
				tt.end(k)
			}
			k.expect(prompt)
			k.code(tt.code)
			if after := k.modes(); after != before {
				t.Errorf("modes are %s, were %s", after, before)
			}
		})
	}
}

// TestTerminalBackground shows that a call in the background neither hangs on
// the terminal nor takes it from the shell.
func TestTerminalBackground(t *testing.T) {
	t.Parallel()
	k := newKeyboard(t)
	k.types("stty tostop cols 200\n")
	k.expect(prompt)
	// It wants to read: it is stopped, and the wall clock ends it.
	k.types("pyplaypen run --stdin --limit wall_seconds=3 --kill-after 0.1 -- cat &\n")
	k.expect(prompt)
	k.types("wait %1; echo code=$?.\n")
	k.expect(`\r\ncode=124\.\r\n`)
	// It wants to write, while the terminal stops background writers.
	k.types("pyplaypen run -- echo o''ut &\n")
	k.expect(`out\r\n`)
	k.types("\nwait; echo waited\n")
	k.expect(`\r\nwaited\r\n`)
	// fg gives it the terminal.
	k.types("pyplaypen run --stdin -- cat & sleep 0.3; fg\n")
	k.expect(`fg\r\n(.|\n)*pyplaypen run --stdin -- cat\r\n`)
	k.types("typed\n")
	k.expect(`typed\r\n(.|\n)*typed\r\n`)
	k.types("\x04")
	k.expect(prompt)
	k.code(0)
}

// TestTerminalPipeline shows that another member of the pipeline that uses the
// terminal neither stops the clock nor loses the terminal.
func TestTerminalPipeline(t *testing.T) {
	t.Parallel()
	k := newKeyboard(t)
	k.types("stty cols 200\n")
	k.expect(`cols 200\r\n(.|\n)*` + prompt)
	k.types("pyplaypen run --stdin --limit wall_seconds=3 --kill-after 0.1 -- sleep 60 | sh -c 'read x </dev/tty; echo got $x'\n")
	k.expect(`wall_seconds=3 exceeded`)
	k.types("this\n")
	k.expect(`got this\r\n(.|\n)*` + prompt)
}

// TestTerminalInterruptBeforeStart shows that Ctrl-C is pyplaypen's, and not the
// child stage's, as long as the target is not there.
func TestTerminalInterruptBeforeStart(t *testing.T) {
	t.Parallel()
	if !isRoot() {
		return // only root's calls wait for anything then
	}
	dir := openTempDir(t)
	held, err := openOwnDir(dir+"/"+privateDirsName(), 0o711)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(held)
	if err := flock(held, unix.LOCK_EX); err != nil {
		t.Fatal(err)
	}
	k := newKeyboard(t)
	k.types("TMPDIR=" + dir + " pyplaypen run --stdin -- echo started\n")
	k.expect(`started\r\n`) // as typed
	k.types("\x03")
	k.expect(`pyplaypen: told to stop by SIGINT; nothing was started\r\n(.|\n)*` + prompt)
	k.code(130)
}

// TestTerminalInterruptEndsLoop shows that Ctrl-C ends a shell's loop, as it does
// without pyplaypen.
func TestTerminalInterruptEndsLoop(t *testing.T) {
	t.Parallel()
	for _, stdin := range []string{"--stdin", ""} {
		k := newKeyboard(t)
		k.types("for i in 1 2 3; do pyplaypen run " + stdin + " -- sh -c 'echo r\"\"ound; exec sleep 60'; done\n")
		k.expect(`\bround\r\n`)
		k.types("\x03")
		k.expect(prompt)
		k.code(130)
	}
}

// TestSuspendWithoutTerminal shows that Ctrl-Z also stops a target that has no
// terminal, and fg continues it.
func TestSuspendWithoutTerminal(t *testing.T) {
	t.Parallel()
	k := newKeyboard(t)
	k.types("pyplaypen run -- sh -c 'echo $$ >pid; while :; do date +%s%N >tick; sleep 0.01; done'\n")
	dir, err := os.Readlink(fmt.Sprintf("/proc/%d/cwd", k.shellPID()))
	if err != nil {
		t.Fatal(err)
	}
	tick := func() string { text, _ := os.ReadFile(filepath.Join(dir, "tick")); return string(text) }
	moves := func(within time.Duration) bool {
		for start, end := tick(), time.Now().Add(within); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
			if now := tick(); now != start && now != "" && strings.HasSuffix(now, "\n") {
				return true
			}
		}
		return false
	}
	if !moves(patience) {
		t.Fatal("the target does not run")
	}
	k.types("\x1a")
	k.expect(`Stopped(.|\n)*` + prompt)
	if moves(300 * time.Millisecond) {
		t.Error("the target runs on while pyplaypen is suspended")
	}
	k.types("fg\n")
	if !moves(patience) {
		t.Error("the target was not continued")
	}
	k.types("\x03")
	k.expect(prompt)
	k.code(130)
}

// TestSuspendWhileWaiting shows that Ctrl-Z stops pyplaypen as any program where
// no target runs that it could be for, and fg has it go on.
func TestSuspendWhileWaiting(t *testing.T) {
	t.Parallel()
	for name, try := range map[string]func(k *keyboard){
		"for a slot": func(k *keyboard) {
			k.types("pyplaypen run --max-concurrency 1 --slot-dir slots -- sh -c 'echo h\"\"eld; until test -e go; do sleep 0.01; done' &\n")
			k.expect(`held\r\n`)
			k.types("pyplaypen run --max-concurrency 1 --slot-dir slots -- echo i''n\n")
			k.types("\x1a")
			k.expect(`Stopped(.|\n)*` + prompt)
			k.types("touch go; fg\n")
			k.expect(`\bin\r\n`)
			k.expect(prompt)
			k.code(0)
		},
		"for source": func(k *keyboard) {
			k.types("pyplaypen exec -\n")
			k.types("\x1a")
			k.expect(`Stopped(.|\n)*` + prompt)
			k.types("fg\n")
			k.expect(`fg\r\n(.|\n)*exec -\r\n`)
			k.types("6 * 7\n\x04")
			k.expect(`"return_value":42`)
			k.expect(prompt)
			k.types("pyplaypen exec -\n")
			k.types("\x03")
			k.expect(`"type":"cancelled","message":"told to stop by SIGINT; nothing was started"`)
			k.expect(prompt)
			k.code(130)
		},
		"for the reader of its output": func(k *keyboard) {
			k.types("pyplaypen run --buffer --limit stdout_bytes=1MiB -- seq 100000 | sh -c 'read x; echo reads $x; sleep 1; wc -l'\n")
			k.expect(`reads 1\r\n`)
			k.types("\x1a")
			k.expect(`Stopped(.|\n)*` + prompt)
			k.types("fg\n")
			k.expect(`\b99999\r\n(.|\n)*` + prompt)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			k := newKeyboard(t)
			k.types("stty cols 200\n")
			k.expect(`cols 200\r\n(.|\n)*` + prompt)
			try(k)
		})
	}
}

// signalJob signals the shell's one child.
func (k *keyboard) signalJob(sig syscall.Signal) {
	k.t.Helper()
	children := childrenByScan(k.shellPID())
	if len(children) != 1 {
		k.t.Fatalf("the shell has the children %v", children)
	}
	if err := unix.Kill(children[0], sig); err != nil {
		k.t.Fatal(err)
	}
}

// shellPID is the leader of the terminal's session.
func (k *keyboard) shellPID() int {
	k.t.Helper()
	sid, err := unix.IoctlGetInt(int(k.master.Fd()), unix.TIOCGSID)
	if err != nil {
		k.t.Fatal(err)
	}
	return sid
}

// TestHeldStop shows that a stop that is held back happens, unless SIGCONT comes
// before it.
func TestHeldStop(t *testing.T) {
	const variable = "PYPLAYPEN_TEST_HELD_STOP"
	switch os.Getenv(variable) {
	case "stops":
		holdStop()
		releaseStop(takeDefault)
		return
	case "goes on":
		for range 100 {
			holdStop()
			unix.Kill(os.Getpid(), unix.SIGCONT)
			releaseStop(takeDefault)
			holdStop()
			releaseStop(ignore)
		}
		return
	}
	for _, what := range []string{"stops", "goes on"} {
		cmd := exec.Command(os.Args[0], "-test.run=^TestHeldStop$")
		cmd.Env = append(os.Environ(), variable+"="+what)
		cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // whose parent is outside: not orphaned
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		var status unix.WaitStatus
		if _, err := unix.Wait4(cmd.Process.Pid, &status, unix.WUNTRACED, nil); err != nil {
			t.Fatal(err)
		}
		if status.Stopped() {
			unix.Kill(cmd.Process.Pid, unix.SIGKILL)
			cmd.Wait()
		}
		if status.Stopped() != (what == "stops") || status.Stopped() && status.StopSignal() != unix.SIGTSTP || status.Exited() && status.ExitStatus() != 0 {
			t.Errorf("%s: %#x", what, status)
		}
	}
}
