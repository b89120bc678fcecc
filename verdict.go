package main

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// A verdict is what an outcome means to the user.
type verdict struct {
	status     string // ok, timeout, busy, cancelled, internal
	code       int    // exit code
	returncode *int   // the leader's: exit code, or minus the signal
	reason     string // exited, signaled, limit, cancelled, failed, busy
	limit      string // the name of the limit that ended it, if one did
	line       string // what names the cause, if it would be a riddle
}

// delivered is the verdict on a call whose output led to another exit code.
func (v verdict) delivered(code int) verdict {
	if code != v.code {
		v.status, v.reason, v.code = "internal", "failed", code
		switch {
		case code > exitSignal:
			v.status, v.reason = "cancelled", "cancelled"
		case code == exitTimeout:
			v.status, v.reason, v.limit = "timeout", "limit", wallSeconds.String()
		}
	}
	return v
}

// judge says what ended the call. Where pyplaypen ended it that is known, not
// guessed from the status.
func (c *call) judge(o *outcome, argv []string) verdict {
	v := verdict{}
	if o.reaped {
		code := o.status.ExitStatus()
		if o.status.Signaled() {
			code = -int(o.status.Signal())
		}
		v.returncode = &code
	}
	switch o.reason {
	case reasonTimeout:
		v.status, v.code, v.reason, v.limit = "timeout", exitTimeout, "limit", wallSeconds.String()
		v.line = c.limits.assignment(wallSeconds) + " exceeded; " + whatEnded(o)
	case reasonCancelled:
		v.status, v.code, v.reason = "cancelled", exitSignal+int(o.signal), "cancelled"
		v.line = "told to stop by " + signalName(o.signal) + "; " + whatEnded(o)
	case reasonBusy:
		v.status, v.code, v.reason = "busy", exitCannotRun, "busy"
		v.line = fmt.Sprintf("%v; %s has passed", o.err, c.limits.assignment(wallSeconds))
	case reasonFailed:
		v.status, v.code, v.reason, v.returncode = "internal", exitCannotRun, "failed", nil
		v.line = c.describeFailure(o, argv)
	default:
		v.status = "ok"
		c.judgeStatus(&v, o)
	}
	return v
}

func whatEnded(o *outcome) string {
	if !o.spawned {
		return "nothing was started"
	}
	return "process group terminated"
}

func (c *call) judgeStatus(v *verdict, o *outcome) {
	if !o.status.Signaled() {
		v.code, v.reason = o.status.ExitStatus(), "exited"
		return
	}
	sig := o.status.Signal()
	v.code, v.reason = exitSignal+int(sig), "signaled"
	id := numLimits
	switch {
	case sig == unix.SIGXCPU, sig == unix.SIGKILL && o.leaderCPU >= c.cpuKill():
		id = cpuSeconds
	case sig == unix.SIGXFSZ:
		id = fileBytes
	case sig == unix.SIGKILL:
		v.line = "killed by SIGKILL, likely the container's memory limit, not one of pyplaypen's"
	case sig == unix.SIGPIPE && (c.out.failure() != nil || c.err.failure() != nil || readerGone(1) || readerGone(2)):
		// As in a shell's pipeline, no riddle.
	case (sig == unix.SIGINT || sig == unix.SIGQUIT) && c.sup.term != nil:
		// Typed by whoever reads this.
	case sig == unix.SIGSEGV && c.limits.value[memoryBytes] < execFloor:
		v.reason, v.limit = "limit", memoryBytes.String()
		v.line = fmt.Sprintf("killed by SIGSEGV: %s is too little to start it", c.limits.assignment(memoryBytes))
	default:
		v.line = "killed by " + signalName(sig)
	}
	if id != numLimits {
		v.reason, v.limit = "limit", id.String()
		v.line = c.limits.assignment(id) + " exceeded"
	}
}

// execFloor is an address space in which hardly any program starts: execve(2)
// itself may fail where it can't return any more, which the kernel answers
// with SIGSEGV.
const execFloor = 1 << 20

// cpuKill is the CPU time from which on a SIGKILL is the kernel's for
// RLIMIT_CPU: about the soft limit, since few get past the SIGXCPU there but
// those that ignore it. The kernel holds against the limits the clock ticks that
// found the process running, while /proc tells its true run time, which was up
// to a quarter less on a busy virtual machine.
func (c *call) cpuKill() time.Duration {
	for _, r := range c.rlimits(0) {
		if r.resource == unix.RLIMIT_CPU {
			return time.Duration(r.soft) * time.Second * 2 / 3
		}
	}
	return 1<<63 - 1
}

// readerGone reports whether nobody reads what is written to fd any more.
func readerGone(fd int) bool {
	fds := []unix.PollFd{{Fd: int32(fd)}}
	n, err := unix.Poll(fds, 0)
	return err == nil && n > 0 && fds[0].Revents&(unix.POLLERR|unix.POLLHUP) != 0
}

// describeFailure says why the target never ran, and names the path in the way.
func (c *call) describeFailure(o *outcome, argv []string) string {
	if !o.spawned {
		return "cannot run " + quoteName(argv[0]) + ": " + o.err.Error()
	}
	r, failed := o.failure()
	if !failed {
		return fmt.Sprintf("cannot run %s: the child stage died before it (%s)", quoteName(argv[0]), describeStatus(o.status))
	}
	if r.step == stepRlimit {
		if list := c.rlimits(0); int(r.index) < len(list) {
			return fmt.Sprintf("cannot run %s: set %s: %v", quoteName(argv[0]), rlimitName(list[r.index].resource), r.errno)
		}
	}
	if r.step != stepExec {
		return fmt.Sprintf("cannot run %s: %v: %v", quoteName(argv[0]), r.step, r.errno)
	}
	candidates := c.search.candidates(argv[0], c.env)
	at := min(int(r.index), len(candidates)-1)
	skipped := make([]bool, len(candidates))
	skipped[at] = r.errno == syscall.EACCES
	for _, record := range o.records {
		if record.step == stepSkip && int(record.index) < len(candidates) {
			skipped[record.index] = true
		}
	}
	return "cannot run " + quoteName(argv[0]) + ": " + c.whyNotExecuted(argv[0], candidates, skipped, at, r.errno)
}

func describeStatus(status unix.WaitStatus) string {
	if status.Signaled() {
		return "killed by " + signalName(status.Signal())
	}
	return fmt.Sprintf("exit code %d", status.ExitStatus())
}

func rlimitName(resource int) string {
	for _, r := range rlimitOrder {
		if r.resource == resource {
			return r.id.String()
		}
	}
	return "rlimit"
}

// whyNotExecuted explains the errno of execve: for the candidate at the index
// at, or, if the search went through all, for the first that is there. Those
// skipped could not be reached or executed.
func (c *call) whyNotExecuted(name string, candidates []string, skipped []bool, at int, errno syscall.Errno) string {
	switch errno {
	case syscall.ENOMEM, syscall.E2BIG: // the latter for arguments that do not fit in
		if errno == syscall.ENOMEM || c.limits.value[memoryBytes] < execFloor {
			return fmt.Sprintf("%s is too little to start it", c.limits.assignment(memoryBytes))
		}
	case syscall.ENOENT, syscall.ENOTDIR, syscall.EACCES:
		searched := !strings.Contains(name, "/")
		for i, path := range candidates {
			// A directory of PATH that can't be passed matters only if it has the program.
			if st, err := os.Lstat(path); searched && (err != nil || st.IsDir()) {
				continue
			}
			one := errno
			if errno == syscall.EACCES && !skipped[i] {
				one = syscall.ENOENT
			}
			if why := c.inTheWay(path, one); why != "" {
				return why
			}
		}
		if searched {
			return "not found on PATH"
		}
	}
	return fmt.Sprintf("%s: %v", candidates[at], errno)
}

// inTheWay looks for what keeps path from running, as seen with the caller's rights.
func (c *call) inTheWay(path string, errno syscall.Errno) string {
	if c.uid >= 0 && errno == syscall.EACCES {
		if b, blocked := blockadeOf(path, c.uid); blocked {
			return fmt.Sprintf("%s: uid %d cannot pass %s", path, c.uid, b)
		}
	}
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil {
		if errno == syscall.EACCES && errors.Is(err, syscall.EACCES) {
			if b, blocked := blockadeOf(path, os.Geteuid()); blocked {
				return fmt.Sprintf("%s: permission denied at %s", path, b)
			}
		}
		return ""
	}
	mode := uint32(st.Mode)
	switch {
	case mode&unix.S_IFMT == unix.S_IFDIR:
		return path + " is a directory"
	case errno == syscall.EACCES && mode&0o111 == 0:
		return fmt.Sprintf("%s is not executable (mode %04o)", path, mode&0o7777)
	case errno == syscall.EACCES && c.uid >= 0 && !passable(&st, c.uid, 1):
		return fmt.Sprintf("%s is not executable for uid %d (mode %04o, owner %d)", path, c.uid, mode&0o7777, st.Uid)
	}
	if interpreter := interpreterOf(path); interpreter != "" {
		if errno == syscall.EACCES {
			if why := c.inTheWay(interpreter, errno); why != "" {
				return fmt.Sprintf("%s: its interpreter %s", path, why)
			}
		} else if _, err := os.Stat(interpreter); err != nil {
			return fmt.Sprintf("%s: its interpreter %s does not exist", path, interpreter)
		}
	} else if errno == syscall.ENOENT {
		return path + ": its dynamic loader does not exist"
	}
	return ""
}

// interpreterOf reads the interpreter from a script's first line.
func interpreterOf(path string) string {
	f, err := os.Open(path)
	if err != nil {
		return ""
	}
	defer f.Close()
	line, _ := bufio.NewReaderSize(f, 256).ReadString('\n')
	rest, ok := strings.CutPrefix(line, "#!")
	fields := strings.Fields(rest)
	if !ok || len(fields) == 0 {
		return ""
	}
	return fields[0]
}

// skippedNotice says that a program was passed over on PATH because the
// child's uid can't reach it, and which one runs in its place.
func (c *call) skippedNotice(o *outcome, argv []string) string {
	if c.uid < 0 {
		return ""
	}
	candidates := c.search.candidates(argv[0], c.env)
	used, why := "", ""
	for _, r := range o.records {
		if int(r.index) >= len(candidates) {
			continue
		}
		candidate := candidates[r.index]
		switch r.step {
		case stepTry:
			used = candidate
		case stepSkip:
			var st unix.Stat_t
			if why == "" && unix.Stat(candidate, &st) == nil && st.Mode&unix.S_IFMT == unix.S_IFREG && st.Mode&0o111 != 0 {
				why = c.inTheWay(candidate, syscall.EACCES)
			}
		}
	}
	if why == "" || used == "" {
		return ""
	}
	return fmt.Sprintf("skipped %s; running %s instead", why, used)
}

// leftoverNotice counts and names what the target left behind.
func leftoverNotice(list []process) string {
	noun := "processes"
	if len(list) == 1 {
		noun = "process"
	}
	return fmt.Sprintf("killed %d leftover %s: %s", len(list), noun, firstFew(list))
}

func firstFew(list []process) string {
	names := make([]string, len(list))
	for i, p := range list {
		names[i] = p.String()
	}
	return few(names)
}

// few lists the first of them, and says how many more there are.
func few(list []string) string {
	const most = 5
	text := strings.Join(list[:min(most, len(list))], ", ")
	if len(list) > most {
		text += fmt.Sprintf(" and %d more", len(list)-most)
	}
	return text
}

// quoteName shows a command's name, quoted if it could be misread.
func quoteName(name string) string {
	if name == "" || strings.ContainsAny(name, " \t:'\"\\") || oneLine(name) != name {
		return fmt.Sprintf("%q", name)
	}
	return name
}
