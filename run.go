package main

import (
	"fmt"
	"path"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

type runCmd struct {
	callFlags
	Stdin            bool  `help:"Pass stdin on to the target, which else reads end of file at once."`
	Buffer           bool  `help:"Hold the output back until the end: then stdout whole, then stderr whole (also PYPLAYPEN_BUFFER=1)."`
	MergeOutput      bool  `help:"One pipe for stdout and stderr, bounded by stdout_bytes, printed on stdout."`
	JSON             bool  `name:"json" help:"Print one JSON object in place of the streams."`
	PassFD           []int `name:"pass-fd" sep:"none" placeholder:"N" help:"Let descriptor N through to the target at the same number; repeatable."`
	InPlace          bool  `help:"Only set the limits, drop from root, and execute the command in place of pyplaypen: no supervisor, no wall clock, no capture."`
	RestoreOwnership bool  `help:"As root: give the files that the call made below the current directory to the directory's owner."`

	behindShim search // a shim's
}

func (*runCmd) Help() string {
	return `Example:
  pyplaypen run --limit wall_seconds=10 --limit memory_bytes=512MiB -- python3 script.py

Exit code: the target's own; 128+n if signal n killed it; 124 if wall_seconds ran out; 125 if it could not be run; 2 for a usage error or a refused limit.

` + limitsHelp(false)
}

// run bounds one command and returns the exit code.
func (f *runCmd) run(argv []string, start time.Time) (int, error) {
	if err := f.check(argv); err != nil {
		return 0, err
	}
	if f.InPlace {
		return f.inPlace(argv, start)
	}
	c, err := newCall(&f.callFlags, purpose{}, start)
	if err != nil {
		return 0, err
	}
	c.search = f.behindShim
	if err := c.openRecords(); err != nil {
		return 0, err
	}
	r := runOutput{call: c, flags: f, buffer: f.Buffer || switchedOn("PYPLAYPEN_BUFFER")}
	err = c.open()
	var o *outcome
	if err == nil {
		o = c.admit()
	}
	if err == nil && o == nil {
		c.announce(&f.callFlags)
		if !c.search.set {
			argv[0], err = c.passShim(argv[0])
		}
		if err == nil {
			o, err = r.supervise(argv)
		}
	}
	c.close()
	if err != nil {
		o = &outcome{reason: reasonFailed, err: err}
	}
	if err := r.refused(o); err != nil {
		return 0, err
	}
	return r.report(o, argv), nil
}

// check refuses what would not do what the user meant.
func (f *runCmd) check(argv []string) error {
	if !f.Stdin {
		name := path.Base(argv[0])
		if len(argv) == 1 && readsProgramFromStdin(name) || len(argv) > 1 && argv[1] == "-" && name != "env" {
			return usageError("stdin is not available to %s, which would find it empty; --stdin lets it through", quoteName(argv[0]))
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

// A runOutput is a run's call, with what becomes of its output.
type runOutput struct {
	*call
	flags  *runCmd
	buffer bool
}

func (r *runOutput) supervise(argv []string) (*outcome, error) {
	stdin := 0
	if !r.flags.Stdin {
		var err error
		if stdin, err = emptyInput(); err != nil {
			return nil, fmt.Errorf("empty stdin: %w", err)
		}
	}
	out, errFD, err := r.connect(r.buffer || r.flags.JSON, r.flags.MergeOutput)
	if err != nil {
		return nil, err
	}
	j := r.newJob(argv, stdin)
	j.spec.passFDs = r.flags.PassFD
	if r.flags.Stdin {
		j.terminal = controllingTerminal(stdin)
	}
	j.spec.rlimits = r.rlimits(0)
	if r.uid >= 0 {
		j.prepare = r.prepare(r.makePrivateDir, func() { r.takeDirectory(r.flags.RestoreOwnership) })
	} else {
		j.prepare = r.prepare(r.noteUnenforced)
	}
	return r.runJob(j, out, errFD), nil
}

// report prints what is to be said after the end and returns the exit code.
func (r *runOutput) report(o *outcome, argv []string) int {
	v := r.judge(o, argv)
	code, buffered := v.code, r.buffer && !r.flags.JSON
	switch {
	case r.flags.JSON:
		r.out.put(r.resultJSON(v))
	case buffered:
		r.out.put(r.kept[0])
		code = r.deliver(code) // stdout whole comes first
		r.err.put(r.kept[1])
	}
	first := !buffered && r.err.last == r.out.last // or the lines could overtake stdout
	if first {
		code = r.deliver(code)
	}
	r.explain(o, argv, v.line)
	if !buffered && !first {
		code = r.deliver(code)
	}
	if r.recorded() {
		if r.id == "" {
			r.id = randomHex(16)
		}
		record := r.record(eventProcess, o, v.delivered(code))
		record["argv_sha256"] = argvDigest(argv)
		r.writeRecords(record, o)
	}
	code = r.deliverLines(code)
	if r.interrupted(o) {
		interrupt()
	}
	return code
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
