package main

import (
	"bufio"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func TestParseUIDs(t *testing.T) {
	for text, want := range map[string]uidRange{
		"1": {1, 1, false}, "7-7": {7, 7, true}, "5-4294967294": {5, 4294967294, true},
	} {
		if got, err := parseUIDs(text); err != nil || got != want {
			t.Errorf("%q: %v, %v", text, got, err)
		}
	}
	for _, text := range []string{"", "-", "0", "0-1", "1-", "-1", "1-0", "2-1", "1-2-3", "1--2", "a-b", " 1-2", "1-4294967295", "+1-2"} {
		if got, err := parseUIDs(text); err == nil {
			t.Errorf("%q: %v", text, got)
		}
	}
}

// TestLockPool takes locks as calls of different bounds would, and gives them back.
func TestLockPool(t *testing.T) {
	dir, err := openSlotDir(filepath.Join(t.TempDir(), "slots"), "queue")
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(dir)
	take := func(size, atOnce int) (int, int) {
		t.Helper()
		f, err := letterPool(dir, size, atOnce).take()
		if err != nil {
			t.Fatal(err)
		}
		return f.fd, f.index
	}
	var held []int
	for want := range 3 {
		fd, index := take(8, 3)
		if fd < 0 || index != want {
			t.Fatalf("take %d: descriptor %d, index %d", want, fd, index)
		}
		held = append(held, fd)
	}
	for _, atOnce := range []int{1, 2, 3} {
		if fd, _ := take(8, atOnce); fd >= 0 {
			t.Errorf("taken although 3 are and %d may be", atOnce)
		}
	}
	unix.Close(held[1])
	if fd, _ := take(8, 2); fd >= 0 {
		t.Error("taken although 2 are and 2 may be")
	}
	fd, index := take(8, 3)
	if fd < 0 || index != 1 {
		t.Errorf("the one given back is not taken: descriptor %d, index %d", fd, index)
	}
	held[1] = fd
	fd, index = take(8, 8)
	if fd < 0 || index != 3 {
		t.Errorf("descriptor %d, index %d, want index 3", fd, index)
	}
	held = append(held, fd)
	if fd, _ := take(4, 4); fd >= 0 {
		t.Error("taken although all are")
	}
	for _, fd := range held {
		unix.Close(fd)
	}
	if fd, index := take(8, 1); fd < 0 || index != 0 {
		t.Errorf("with none held: descriptor %d, index %d", fd, index)
	} else {
		unix.Close(fd)
	}
	// What was looked at on the way is not held.
	if names, err := readAllNames(dir); err != nil || !slices.Contains(names, "d") || slices.Contains(names, "e") {
		t.Errorf("files %q, %v", names, err)
	}
}

// letterPool has the locks a, b, c and so on.
func letterPool(dir, size, atOnce int) *lockPool {
	return &lockPool{dir: dir, path: "dir", size: size, atOnce: atOnce, queue: "queue", none: "none", name: func(i int) string { return string(rune('a' + i)) }}
}

// TestLockPoolInUse shows that what something else than a call uses is passed
// over, and never taken.
func TestLockPoolInUse(t *testing.T) {
	dir, err := openSlotDir(filepath.Join(t.TempDir(), "slots"), "queue")
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(dir)
	used := map[int]string{0: "x", 1: "y"}
	p := letterPool(dir, 3, 3)
	p.inUse = func() map[int]string { return used }
	f, err := p.take()
	if err != nil || f.fd < 0 || f.index != 2 || !slices.Equal(f.inUse, []string{"x", "y"}) {
		t.Fatalf("%+v, %v", f, err)
	}
	defer unix.Close(f.fd)
	if f, err := p.take(); err != nil || f.fd >= 0 || p.busy(f.inUse) != "none but those in use by others: x, y" {
		t.Errorf("%+v, %v", f, err)
	}
	delete(used, 1)
	f, err = p.take()
	if err != nil || f.fd < 0 || f.index != 1 {
		t.Fatalf("%+v, %v", f, err)
	}
	unix.Close(f.fd)
}

// TestLooksAtTheSameTime shows that calls which look at the same moment never
// let in too many, and that some of them get in.
func TestLooksAtTheSameTime(t *testing.T) {
	dir, err := openSlotDir(filepath.Join(t.TempDir(), "slots"), "queue")
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(dir)
	var in, times atomic.Int32
	var all sync.WaitGroup
	end := time.Now().Add(200 * time.Millisecond)
	for i := range 12 {
		all.Go(func() {
			atOnce := 1 + i%3
			for time.Now().Before(end) {
				f, err := letterPool(dir, 8, atOnce).take()
				if err != nil {
					t.Error(err)
					return
				}
				if f.fd < 0 {
					continue
				}
				if n := in.Add(1); n > 3 {
					t.Errorf("%d at once", n)
				}
				times.Add(1)
				time.Sleep(50 * time.Microsecond)
				in.Add(-1)
				f.drop()
			}
		})
	}
	all.Wait()
	if times.Load() == 0 {
		t.Error("nobody got in")
	}
}

// TestQueueHeadStopped shows that a call gets in although who is at the head of
// the queue does nothing, but not while a lock is free now and then only.
func TestQueueHeadStopped(t *testing.T) {
	dir, err := openSlotDir(filepath.Join(t.TempDir(), "slots"), "queue")
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(dir)
	p := letterPool(dir, 8, 1)
	queue, err := openLock(dir, "queue", true)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(queue)
	if err := flock(queue, unix.LOCK_EX); err != nil {
		t.Fatal(err)
	}
	f, o := p.enter(time.Now().Add(patience), &signals{})
	if o != nil {
		t.Fatalf("%+v", o)
	}
	// Taken and given back at once, in turns.
	done := make(chan bool)
	go func() {
		defer close(done)
		for end := time.Now().Add(2 * time.Second); time.Now().Before(end); {
			f.drop()
			for range 100 { // the look of the one behind may be in the way
				time.Sleep(time.Millisecond)
				if f, err = p.take(); err != nil {
					t.Error(err)
					return
				}
				if f.fd >= 0 {
					break
				}
			}
			time.Sleep(30 * time.Millisecond)
		}
	}()
	if got, o := p.enter(time.Now().Add(time.Second), &signals{}); o == nil {
		t.Error("it overtook a head that is alive")
		got.drop()
	}
	<-done
	f.drop()
}

// A waiter is a call in a process group of its own, which a shell could stop.
type waiter struct {
	t   *testing.T
	cmd *exec.Cmd
	out *bufio.Reader
	err strings.Builder
}

func startWaiter(t *testing.T, dir string, args ...string) *waiter {
	t.Helper()
	path, err := program()
	if err != nil {
		t.Fatal(err)
	}
	w := &waiter{t: t, cmd: exec.Command(path, args...)}
	w.cmd.Dir = dir
	w.cmd.Env = []string{"PATH=/usr/bin:/bin", "PYPLAYPEN_QUIET=1"}
	w.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	w.cmd.Stderr = &w.err
	out, err := w.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := w.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		w.cmd.Process.Kill()
		w.cmd.Wait()
	})
	w.out = bufio.NewReader(out)
	return w
}

func (w *waiter) signal(sig syscall.Signal) {
	w.t.Helper()
	if err := w.cmd.Process.Signal(sig); err != nil {
		w.t.Fatal(err)
	}
}

// says waits for one line on stdout.
func (w *waiter) says(want string) {
	w.t.Helper()
	line := make(chan string, 1)
	go func() {
		text, _ := w.out.ReadString('\n')
		line <- text
	}()
	select {
	case got := <-line:
		if got != want+"\n" {
			w.t.Fatalf("%q, want %q; %s", got, want, w.err.String())
		}
	case <-time.After(patience):
		w.t.Fatalf("no %q; %s", want, w.err.String())
	}
}

// stopped waits until the process is stopped, or no longer is.
func (w *waiter) stopped(want bool) {
	w.t.Helper()
	for end := time.Now().Add(patience); ; time.Sleep(2 * time.Millisecond) {
		stat, err := os.ReadFile("/proc/" + strconv.Itoa(w.cmd.Process.Pid) + "/stat")
		_, rest, _ := strings.Cut(string(stat), ") ")
		if err == nil && strings.HasPrefix(rest, "T") == want {
			return
		}
		if time.Now().After(end) {
			w.t.Fatalf("state %.1q; %s", rest, w.err.String())
		}
	}
}

// waits waits until the call has the file of the queue open, which it keeps for as
// long as it waits.
func (w *waiter) waits() {
	w.t.Helper()
	fds := "/proc/" + strconv.Itoa(w.cmd.Process.Pid) + "/fd"
	for end := time.Now().Add(patience); ; time.Sleep(2 * time.Millisecond) {
		entries, _ := os.ReadDir(fds)
		for _, e := range entries {
			if link, _ := os.Readlink(fds + "/" + e.Name()); strings.Contains(link, "/queue-") {
				time.Sleep(20 * time.Millisecond) // from the opening to the wait
				return
			}
		}
		if time.Now().After(end) {
			w.t.Fatalf("it does not wait; %s", w.err.String())
		}
	}
}

// TestWaiterStopped shows that what waits for a slot is stopped by Ctrl-Z like
// any program and goes on afterwards, and that nobody waits behind it meanwhile,
// whether it stands at the head of the queue or not.
func TestWaiterStopped(t *testing.T) {
	t.Parallel()
	for _, sig := range []syscall.Signal{unix.SIGTSTP, unix.SIGSTOP} {
		t.Run(unix.SignalName(sig), func(t *testing.T) {
			t.Parallel()
			dir := openTempDir(t)
			uid := unusedUID()
			call := func(script string) *waiter {
				return startWaiter(t, dir, "run", "--child-uid", uid, "--stdin", "--max-concurrency", "1", "--slot-dir", "slots", "--", "sh", "-c", script)
			}
			go1, go4 := filepath.Join(dir, "go1"), filepath.Join(dir, "go4")
			first := call("echo first; until test -e go1; do sleep 0.01; done")
			first.says("first")
			head := call("echo head")
			head.waits()
			second := call("echo second")
			second.waits()
			head.signal(sig)
			head.stopped(true)
			second.signal(sig)
			second.stopped(true)
			third := call("echo third")
			third.waits()
			if err := os.WriteFile(go1, nil, 0o644); err != nil {
				t.Fatal(err)
			}
			third.says("third")
			fourth := call("echo fourth; until test -e go4; do sleep 0.01; done")
			fourth.says("fourth")
			for _, w := range []*waiter{head, second} {
				w.signal(unix.SIGCONT)
				w.stopped(false)
			}
			if err := os.WriteFile(go4, nil, 0o644); err != nil {
				t.Fatal(err)
			}
			head.says("head")
			second.says("second")
			for _, w := range []*waiter{first, head, second, third, fourth} {
				if err := w.cmd.Wait(); err != nil {
					t.Errorf("%v: %s", err, w.err.String())
				}
			}
		})
	}
}
