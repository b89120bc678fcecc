package main

import (
	"fmt"
	"path"
	"strings"
	"time"
	"unicode/utf8"

	"golang.org/x/sys/unix"
)

type runCmd struct {
	callFlags
	Stdin            bool  `help:"Pass stdin on to the target, which else reads end of file at once."`
	Buffer           bool  `help:"Hold the output back until the end: then stdout whole, then stderr whole."`
	MergeOutput      bool  `help:"One pipe for stdout and stderr, bounded by stdout_bytes, printed on stdout."`
	JSON             bool  `name:"json" help:"Print one JSON object in place of the streams."`
	PassFD           []int `name:"pass-fd" sep:"none" placeholder:"N" help:"Let descriptor N through to the target at the same number; repeatable."`
	RestoreOwnership bool  `help:"As root: give the files that the call made below the current directory to the directory's owner."`
}

func (*runCmd) Help() string {
	return `Example:
  pyplaypen run --limit wall_seconds=10 --limit memory_bytes=512MiB -- python3 script.py

Exit code: the target's own; 128+n if signal n killed it; 124 if wall_seconds ran out; 125 if it could not be run; 2 for a usage error or a refused limit.

` + limitsHelp()
}

// run bounds one command and returns the exit code.
func (f *runCmd) run(argv []string, start time.Time) (int, error) {
	if err := f.check(argv); err != nil {
		return 0, err
	}
	c, err := newCall(&f.callFlags, false, start)
	if err != nil {
		return 0, err
	}
	r := runOutput{
		call: c, flags: f,
		stdout: &capture{limit: c.limits.value[stdoutBytes], hash: c.audit.newHash()},
		stderr: &capture{limit: c.limits.value[stderrBytes], hash: c.audit.newHash()},
	}
	err = c.open(&f.callFlags, f.RestoreOwnership)
	var o *outcome
	if err == nil {
		o, err = r.supervise(argv)
	}
	c.close()
	if err != nil {
		o = &outcome{reason: reasonFailed, err: err}
	}
	return r.report(o, argv), nil
}

// check refuses what would not do what the user meant.
func (f *runCmd) check(argv []string) error {
	if !f.Stdin {
		name := path.Base(argv[0])
		if len(argv) == 1 && readsProgramFromStdin(name) || len(argv) > 1 && argv[1] == "-" && name != "env" {
			return usageError("stdin is not available to %s, which would read an empty program and succeed; --stdin lets it through", quoteName(argv[0]))
		}
	}
	for _, fd := range f.PassFD {
		if fd < 3 {
			return usageError("--pass-fd %d: want a descriptor from 3 on", fd)
		}
		// What is close-on-exec here can't have come from the caller.
		if flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0); err != nil || flags&unix.FD_CLOEXEC != 0 {
			return usageError("--pass-fd %d: not open", fd)
		}
	}
	return nil
}

// readsProgramFromStdin knows the interpreters that run their stdin if they are
// called without an argument.
func readsProgramFromStdin(name string) bool {
	switch name {
	case "sh", "bash", "dash", "zsh", "ksh", "fish", "node", "ruby", "perl", "lua", "php":
		return true
	}
	return strings.HasPrefix(name, "python") || strings.HasPrefix(name, "pypy")
}

// A runOutput is what becomes of the streams of a run.
type runOutput struct {
	*call
	flags          *runCmd
	stdout, stderr *capture
	kept           [2][]byte // with --buffer and --json
}

func (r *runOutput) supervise(argv []string) (*outcome, error) {
	stdin := 0
	if !r.flags.Stdin {
		var err error
		if stdin, err = emptyInput(); err != nil {
			return nil, fmt.Errorf("empty stdin: %w", err)
		}
	}
	out, errFD, err := r.connect()
	if err != nil {
		return nil, err
	}
	j := r.newJob(argv, stdin)
	j.spec.passFDs = r.flags.PassFD
	j.spec.rlimits = r.rlimits(0)
	if r.uid >= 0 {
		for _, fd := range append([]int{stdin, out, errFD}, r.flags.PassFD...) {
			allowReopen(fd)
		}
	}
	o := r.sup.run(j, out, errFD)
	r.stdout.close()
	r.stderr.close()
	return o, nil
}

// connect makes the pipes for the target's stdout and stderr.
func (r *runOutput) connect() (out, err int, e error) {
	connectOne := func(c *capture, s *sink, kept *[]byte) (int, error) {
		if r.flags.Buffer || r.flags.JSON {
			c.emit = func(p []byte) { *kept = append(*kept, p...) }
			return r.sup.addInlet(c.write, nil)
		}
		c.emit = s.put
		return r.sup.addInlet(c.write, s)
	}
	if out, e = connectOne(r.stdout, r.out, &r.kept[0]); e != nil {
		return -1, -1, e
	}
	if r.flags.MergeOutput {
		r.stderr.emit = func([]byte) {}
		return out, out, nil
	}
	err, e = connectOne(r.stderr, r.err, &r.kept[1])
	return out, err, e
}

// emptyInput opens a stdin that is at its end.
func emptyInput() (int, error) {
	fd, err := unix.Open("/dev/null", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err == nil {
		return fd, nil
	}
	r, w, err := newPipe()
	if err != nil {
		return -1, err
	}
	unix.Close(w)
	return r, nil
}

// report prints what is to be said after the end and returns the exit code.
func (r *runOutput) report(o *outcome, argv []string) int {
	v := r.judge(o, argv)
	switch {
	case r.flags.JSON:
		r.out.put(r.resultJSON(v))
	case r.flags.Buffer:
		r.out.put(r.kept[0])
		r.out.flush(r.deadline, finalGrace)
		r.err.put(r.kept[1])
	}
	if o.started() {
		if text := r.skippedNotice(o, argv); text != "" {
			r.console.notice("%s", text)
		}
	}
	for _, s := range []struct {
		id limitID
		*capture
	}{{stdoutBytes, r.stdout}, {stderrBytes, r.stderr}} {
		if n := s.dropped(); n > 0 {
			r.console.notice("%s exceeded, %d bytes dropped", r.limits.assignment(s.id), n)
		}
	}
	if v.line != "" {
		r.console.line("%s", v.line)
	}
	if len(o.leftovers) > 0 {
		r.console.notice("%s", leftoverNotice(o.leftovers))
	}
	if len(o.stuck) > 0 {
		r.console.line("could not kill %s", firstFew(o.stuck))
	}
	if r.audit != nil {
		if r.id == "" {
			r.id = randomHex(16)
		}
		record := r.record(eventProcess, o, v, r.stdout, r.stderr)
		record["argv_sha256"] = argvDigest(argv)
		r.writeAudit(record)
	}
	return r.flush(v.code)
}

func (r *runOutput) resultJSON(v verdict) []byte {
	line, err := marshalLine(struct {
		Status     string `json:"status"`
		Returncode *int   `json:"returncode"`
		TimedOut   bool   `json:"timed_out"`
		Stdout     string `json:"stdout"`
		Stderr     string `json:"stderr"`
	}{v.status, v.returncode, v.status == "timeout", validUTF8(r.kept[0]), validUTF8(r.kept[1])})
	if err != nil { // strings and numbers can't fail
		panic(fmt.Sprintf("encode result: %v", err))
	}
	return line
}

// validUTF8 replaces each byte that is no UTF-8 by U+FFFD.
func validUTF8(p []byte) string {
	if utf8.Valid(p) {
		return string(p)
	}
	return string([]rune(string(p)))
}
