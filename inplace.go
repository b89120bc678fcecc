package main

import (
	"errors"
	"math"
	"os"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// inPlace sets the limits, drops from root and executes argv in place of
// pyplaypen: what the child stage does, without a supervisor around it. It
// returns only if that failed.
func (f *runCmd) inPlace(argv []string, start time.Time) (int, error) {
	c, err := newCall(&f.callFlags, purpose{inPlace: true}, start)
	if err != nil {
		return 0, err
	}
	if needs := f.supervisorNeeds(c); len(needs) > 0 {
		return 0, usageError("--in-place leaves no supervisor, which %s would need", strings.Join(needs, ", "))
	}
	c.env = c.environment.apply(os.Environ())
	c.err = newSink(2, func() {})
	c.console = newConsole(c.err)
	c.announce(&f.callFlags)
	if c.uid >= 0 {
		// A private directory would have nobody to remove it, and the caller's
		// home is not the uid's.
		c.provide("HOME", "/nonexistent")
		c.warnOfBlockedDirectory()
		if text := c.skippedNotice(c.foreseeSearch(argv), argv); text != "" {
			c.console.notice("%s", text)
		}
		given := append([]int{1, 2}, f.PassFD...)
		if f.Stdin {
			given = append(given, 0)
		}
		for _, fd := range given {
			allowReopen(fd)
		}
	}
	c.flush(c.err)
	if !f.Stdin {
		if err := emptyOwnStdin(); err != nil {
			return 0, &exitError{exitCannotRun, "cannot run " + quoteName(argv[0]) + ": empty stdin: " + err.Error()}
		}
	}
	p := &childProcess{spec: &childSpec{statusFD: -1, gateFD: -1, uid: c.uid, passFDs: f.PassFD, rlimits: c.rlimits(0)}}
	words := c.prepareLastWords(argv)
	runtime.LockOSThread()
	debug.SetGCPercent(-1) // this waits for the end of a collection that has begun
	debug.SetMemoryLimit(math.MaxInt64)
	p.become(argv, c.env)
	if last := p.said[len(p.said)-1]; last.step == stepExec {
		words.say(last)
		return exitCannotRun, nil
	}
	return 0, &exitError{exitCannotRun, c.describeFailure(&outcome{spawned: true, records: p.said}, argv)}
}

// lastWords are the lines about an execve(2) that failed. They are put together
// before the limits are set: under RLIMIT_AS the runtime does not survive an
// allocation that it has no memory for. It is also the caller, not the uid that
// it drops to, who can see what was in the way.
type lastWords struct {
	whole  []lastWord // for the errnos that the path does not say enough about
	prefix []string   // for any other, by the candidate's index
}

type lastWord struct {
	errno syscall.Errno
	line  string
}

func (c *call) prepareLastWords(argv []string) lastWords {
	var w lastWords
	foreseen := c.foreseeSearch(argv).records
	at := uint16(0)
	for _, r := range foreseen {
		if r.step == stepSkip {
			at = r.index
		}
	}
	errnos := []syscall.Errno{syscall.ENOENT, syscall.ENOTDIR, syscall.EACCES, syscall.ENOMEM}
	if c.limits.value[memoryBytes] < execFloor {
		errnos = append(errnos, syscall.E2BIG)
	}
	for _, errno := range errnos {
		o := outcome{spawned: true, records: slices.Clone(foreseen)}
		o.records = append(o.records, childRecord{stepExec, at, errno})
		w.whole = append(w.whole, lastWord{errno, prefix + oneLine(c.describeFailure(&o, argv)) + "\n"})
	}
	for _, candidate := range c.search.candidates(argv[0], c.env) {
		w.prefix = append(w.prefix, prefix+oneLine("cannot run "+quoteName(argv[0])+": "+candidate+": "))
	}
	return w
}

// say writes the line for the record without an allocation.
func (w *lastWords) say(r childRecord) {
	for i := range w.whole {
		if w.whole[i].errno == r.errno {
			writeString(2, w.whole[i].line)
			return
		}
	}
	writeString(2, w.prefix[r.index])
	writeString(2, r.errno.Error())
	writeString(2, "\n")
}

func writeString(fd uintptr, text string) {
	syscall.RawSyscall(syscall.SYS_WRITE, fd, uintptr(unsafe.Pointer(unsafe.StringData(text))), uintptr(len(text)))
}

// supervisorNeeds names what was asked for that takes a supervisor.
func (f *runCmd) supervisorNeeds(c *call) []string {
	var needs []string
	for _, id := range []limitID{wallSeconds, stdoutBytes, stderrBytes} {
		if c.limits.requested[id] {
			needs = append(needs, c.limits.assignment(id))
		}
	}
	auditFile, auditSource := f.AuditFile.or("--audit-file", "PYPLAYPEN_AUDIT_FILE")
	_, slotSource := setting(f.MaxConcurrency, "--max-concurrency", "PYPLAYPEN_MAX_CONCURRENCY")
	uids, uidSource := setting(f.ChildUID, "--child-uid", "PYPLAYPEN_CHILD_UID")
	// As everywhere, for a plain user the variable means nothing.
	ownUID := strings.Contains(uids, "-") && (f.ChildUID != nil || c.uids != nil)
	for _, flag := range []struct {
		name string
		set  bool
	}{
		{"--buffer", f.Buffer}, {"--merge-output", f.MergeOutput}, {"--json", f.JSON},
		{"--restore-ownership", f.RestoreOwnership}, {"--kill-after", f.KillAfter != nil},
		{"--request-id", f.RequestID != ""}, {auditSource, auditFile != ""}, {"--audit-extra", f.AuditExtra != ""},
		{"--report", f.Report != ""}, {slotSource, f.MaxConcurrency != nil || c.slots != nil}, {"--slot-dir", f.SlotDir != nil},
		{uidSource + " with a range", ownUID},
		{"PYPLAYPEN_AUDIT=1", switchedOn("PYPLAYPEN_AUDIT")}, {"PYPLAYPEN_BUFFER=1", switchedOn("PYPLAYPEN_BUFFER")},
	} {
		if flag.set {
			needs = append(needs, flag.name)
		}
	}
	return needs
}

// foreseeSearch says what the search through PATH will say as the child's uid:
// once the target runs there is nobody left to tell that a program was skipped.
func (c *call) foreseeSearch(argv []string) *outcome {
	var o outcome
	for i, candidate := range c.search.candidates(argv[0], c.env) {
		if _, err := os.Stat(candidate); err != nil && !errors.Is(err, syscall.EACCES) {
			continue
		}
		if isProgram(candidate) && c.inTheWay(candidate, syscall.EACCES) == "" {
			o.records = append(o.records, childRecord{stepTry, uint16(i), 0})
			break
		}
		o.records = append(o.records, childRecord{stepSkip, uint16(i), syscall.EACCES})
	}
	return &o
}

// emptyOwnStdin puts an empty stdin in the place of this process's own: a
// descriptor that is opened gets the lowest number that is free.
func emptyOwnStdin() error {
	unix.Close(0)
	fd, err := emptyInput()
	if err == nil {
		clearCloseOnExec(fd)
	}
	return err
}
