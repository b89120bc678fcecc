package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// TestGate shows a child stage that waits for its supervisor's word: signals end
// it as they would end the target, except those that the caller ignores, and it
// ends with the call, whose target has not run.
func TestGate(t *testing.T) {
	if !isRoot() {
		return // only root's calls wait for anything then
	}
	path, err := program()
	if err != nil {
		t.Fatal(err)
	}
	for _, sig := range []syscall.Signal{unix.SIGTERM, unix.SIGKILL} {
		dir := openTempDir(t)
		held, err := openOwnDir(filepath.Join(dir, privateDirsName()), 0o711)
		if err != nil {
			t.Fatal(err)
		}
		if err := flock(held, unix.LOCK_EX); err != nil {
			t.Fatal(err)
		}
		cmd := plainCommand([]string{"nohup", path, "run", "--", "touch", "ran"})
		cmd.Dir = dir
		cmd.Env = append(os.Environ(), "TMPDIR="+dir, "PYPLAYPEN_CHILD_UID="+unusedUID())
		var stderr strings.Builder
		cmd.Stderr = &stderr
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		child := waitingStage(t, cmd.Process.Pid)
		caught, ignored := signalMask(t, child, "SigCgt"), signalMask(t, child, "SigIgn")
		for _, s := range []syscall.Signal{unix.SIGHUP, unix.SIGINT, unix.SIGQUIT, unix.SIGTERM, unix.SIGXCPU} {
			if bit := uint64(1) << (s - 1); caught&bit != 0 || ignored&bit != 0 != (s == unix.SIGHUP) {
				t.Errorf("%v: caught %#x, ignored %#x", s, caught, ignored)
			}
		}
		cmd.Process.Signal(sig)
		cmd.Wait()
		want := map[syscall.Signal]int{unix.SIGTERM: 143, unix.SIGKILL: -1}[sig]
		if code := cmd.ProcessState.ExitCode(); code != want {
			t.Errorf("%v: exit code %d, want %d", sig, code, want)
		}
		if said := strings.Contains(stderr.String(), "; nothing was started\n"); said != (sig == unix.SIGTERM) {
			t.Errorf("%v: stderr %q", sig, stderr.String())
		}
		for end := time.Now().Add(patience); ; time.Sleep(5 * time.Millisecond) {
			if p, err := readProcess(child); err != nil || p.state == 'Z' {
				break
			}
			if time.Now().After(end) {
				t.Fatalf("%v: the child stage outlives the call", sig)
			}
		}
		if _, err := os.Stat(filepath.Join(dir, "ran")); err == nil {
			t.Errorf("%v: the target ran", sig)
		}
		unix.Close(held)
	}
}

// waitingStage waits until the call has a child stage that can be at its gate:
// it has dropped from root, and sleeps.
func waitingStage(t *testing.T, pid int) int {
	t.Helper()
	for end := time.Now().Add(patience); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
		for _, child := range childrenByScan(pid) {
			if p, err := readProcess(child); err == nil && p.state == 'S' && signalMask(t, child, "CapEff") == 0 {
				time.Sleep(20 * time.Millisecond) // from the drop to the gate
				return child
			}
		}
	}
	t.Fatal("no child stage came")
	return 0
}

// signalMask reads a mask in hexadecimal digits from /proc/PID/status.
func signalMask(t *testing.T, pid int, name string) uint64 {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		t.Fatal(err)
	}
	_, after, _ := strings.Cut(string(text), "\n"+name+":")
	digits, _, _ := strings.Cut(after, "\n")
	mask, err := strconv.ParseUint(strings.TrimSpace(digits), 16, 64)
	if err != nil {
		t.Fatal(err)
	}
	return mask
}
