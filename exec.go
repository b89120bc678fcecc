package main

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	_ "embed"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"golang.org/x/sys/unix"
)

type execCmd struct {
	callFlags
	File            string   `arg:"" optional:"" help:"File with Python source; - for stdin."`
	Code            []string `short:"c" sep:"none" placeholder:"CODE" help:"Python source."`
	Python          word     `placeholder:"PATH" help:"Interpreter, looked up on PATH with the rights of the call (default python3; also PYPLAYPEN_PYTHON)."`
	ArtifactDir     word     `placeholder:"DIR" help:"Keep files that the code writes below DIR/sandbox-runs; made if missing (default .)."`
	GlobalsProvider word     `placeholder:"MODULE:FUNCTION" help:"Called in the child for a dict of globals."`
	TypeProjector   word     `placeholder:"MODULE:FUNCTION" help:"Called with values that have no JSON form; numpy-pandas is built in."`
	Extra           word     `placeholder:"JSON" help:"A JSON object to hand on to the globals provider."`
	WarnOnly        bool     `help:"Run although a limit is not enforced here (also PYPLAYPEN_WARN_ONLY=1)."`
	SelfCheck       bool     `help:"Run no code; start the interpreter, resolve provider and projector, and say so."`
}

func (*execCmd) Help() string {
	return `Example:
  pyplaypen exec -c 'sum(range(10))'
  pyplaypen exec --artifact-dir out --limit wall_seconds=10 script.py

Prints one JSON object: {"status", "return_value", "stdout", "error", "artifacts"}. The value is that of the last statement, if that is an expression.

Exit code: 0 for ok; 1 for an error of the code; 124 for timeout; 125 for busy, protocol, internal and extension; 128+n for crash, cpu_limit and cancelled; 2 for a usage error, a refused limit, or one that nothing enforces here.

` + limitsHelp(true)
}

// The types of error that a result may have.
const (
	errSyntax        = "syntax"
	errRuntime       = "runtime"
	errSerialization = "serialization"
	errTimeout       = "timeout"
	errCPU           = "cpu_limit"
	errMemory        = "memory_limit"
	errProcesses     = "process_limit"
	errOpenFiles     = "open_files_limit"
	errArtifact      = "artifact_limit"
	errReturn        = "return_limit"
	errBusy          = "busy"
	errCancelled     = "cancelled"
	errCrash         = "crash"
	errProtocol      = "protocol"
	errInternal      = "internal"
	errExtension     = "extension"
)

// execExit maps the types whose exit code does not depend on a signal; the rest are 1.
var execExit = map[string]int{
	errTimeout: exitTimeout, errBusy: exitCannotRun, errProtocol: exitCannotRun, errInternal: exitCannotRun, errExtension: exitCannotRun,
}

//go:embed runner.py
var runnerSource string

// runnerParts are compiled by the runner when it needs them.
var (
	//go:embed runner_main.py
	runnerMain string
	//go:embed runner_value.py
	runnerValue string
	//go:embed runner_error.py
	runnerError string
	//go:embed runner_setup.py
	runnerSetup string
)

// An execResult is what exec prints.
type execResult struct {
	value     json.RawMessage
	err       *execError
	artifacts []artifact
	code      int
	hashes    []string
}

type execError struct {
	Type    string        `json:"type"`
	Message string        `json:"message"`
	Details *errorDetails `json:"details,omitempty"`

	signal int    // that ended it, for the exit code
	limit  string // for the record
}

type errorDetails struct {
	Stderr        string `json:"stderr,omitempty"`
	Traceback     string `json:"traceback,omitempty"`
	CleanupFailed string `json:"cleanup_failed,omitempty"`
}

// An execCall is one exec from its source to its result.
type execCall struct {
	*call
	flags     *execCmd
	source    []byte
	workspace *workspace // nil for a self-check
	cwd       string     // the caller's
	python    string
	reader    frameReader
	argv      []string
}

// run runs the source and returns the exit code.
func (f *execCmd) run(start time.Time) (int, error) {
	if err := f.check(); err != nil {
		return 0, err
	}
	c, err := newCall(&f.callFlags, purpose{exec: true, warnOnly: f.WarnOnly || switchedOn("PYPLAYPEN_WARN_ONLY")}, start)
	if err != nil {
		return 0, err
	}
	python, _ := f.Python.or("--python", "PYPLAYPEN_PYTHON")
	x := &execCall{call: c, flags: f, python: cmp.Or(python, "python3"), reader: frameReader{limit: c.limits.value[resultFrameBytes]}}
	if x.source, err = f.readSource(c.deadline, c.signals); err != nil {
		return 0, err
	}
	if x.cwd, err = os.Getwd(); err != nil {
		return 0, usageError("current directory: %w", err)
	}
	if c.id == "" {
		c.id = randomHex(16)
	}
	if err := c.openRecords(); err != nil {
		return 0, err
	}
	openErr := c.open()
	var o *outcome
	if openErr == nil {
		o = c.admit()
	}
	if !f.SelfCheck && o == nil {
		if x.workspace, err = newWorkspace(string(f.ArtifactDir), c.id, c.uid, c.signals.caught); err != nil {
			return 0, err
		}
		defer x.workspace.close()
	}
	c.announce(&f.callFlags)
	switch err = openErr; {
	case o != nil:
	case err == nil:
		if x.python, err = x.passShim(x.python); err == nil {
			x.seeFrom(x.cwd)
			o, err = x.supervise()
		}
	}
	if err != nil {
		o = &outcome{reason: reasonFailed, err: err}
	}
	r := x.settle(o)
	c.close()
	if err := c.refused(o); err != nil {
		return 0, err
	}
	code := x.report(o, r)
	if x.interrupted(o) {
		interrupt()
	}
	return code, nil
}

func (f *execCmd) check() error {
	sources := len(f.Code)
	if f.File != "" {
		sources++
	}
	switch {
	case f.SelfCheck && sources > 0:
		return usageError("exec: --self-check takes no source")
	case !f.SelfCheck && sources != 1:
		return usageError("exec: want exactly one of FILE, - and -c CODE")
	}
	for name, value := range map[string]string{"--globals-provider": string(f.GlobalsProvider), "--type-projector": string(f.TypeProjector)} {
		module, function, ok := strings.Cut(value, ":")
		if value != "" && (!ok || module == "" || function == "") && !(name == "--type-projector" && value == builtinProjector) {
			return usageError("%s %q: want MODULE:FUNCTION", name, value)
		}
	}
	if f.Extra != "" {
		if _, err := jsonObject(string(f.Extra)); err != nil {
			return usageError("--extra: %w", err)
		}
	}
	return nil
}

const builtinProjector = "numpy-pandas"

// readSource does not wait for a pipe beyond the deadline or a signal. What comes
// of the call then is a timeout, or what the signal makes of it, since nothing
// starts any more.
func (f *execCmd) readSource(deadline time.Time, signals *signals) ([]byte, error) {
	if f.SelfCheck {
		return nil, nil
	}
	if len(f.Code) > 0 {
		return []byte(f.Code[0]), nil
	}
	type result struct {
		source []byte
		err    error
	}
	done := make(chan result, 1)
	go func() {
		var r result
		if f.File == "-" {
			r.source, r.err = io.ReadAll(os.Stdin)
		} else {
			r.source, r.err = os.ReadFile(f.File)
		}
		done <- r
	}()
	late := time.NewTimer(time.Until(deadline) + sourceGrace)
	defer late.Stop()
	for {
		select {
		case r := <-done:
			if r.err != nil {
				return nil, usageError("%w", r.err)
			}
			return r.source, nil
		case sig := <-signals.cancels:
			signals.cancel(sig) // for the supervisor
			return nil, nil
		case <-signals.stops:
			signals.stop()
		case <-late.C:
			return nil, nil
		}
	}
}

// sourceGrace is for a file to be read where wall_seconds is next to nothing:
// one that can't be is a usage error under any limit.
const sourceGrace = 100 * time.Millisecond

// seeFrom has relative paths to the interpreter and its modules mean what they
// mean in dir, although the interpreter starts in the workspace.
func (x *execCall) seeFrom(dir string) {
	if strings.Contains(x.python, "/") {
		x.python = absoluteIn(dir, x.python)
	}
	for _, name := range []string{"PATH", "PYTHONPATH"} {
		if list, _ := lookupEnv(x.env, name); list != "" {
			x.env = setEnv(x.env, name, absoluteList(dir, list))
		}
	}
	if x.search.path != "" {
		x.search.path = absoluteList(dir, x.search.path)
	}
}

func absoluteList(dir, list string) string {
	entries := strings.Split(list, ":")
	for i, entry := range entries {
		entries[i] = absoluteIn(dir, entry)
	}
	return strings.Join(entries, ":")
}

// absoluteIn does not clean the path, since .. behind a link leads elsewhere.
func absoluteIn(dir, p string) string {
	switch {
	case p == "":
		return dir
	case p[0] == '/':
		return p
	}
	return strings.TrimSuffix(dir, "/") + "/" + p
}

// supervise starts the interpreter in the workspace and waits for its end.
func (x *execCall) supervise() (o *outcome, err error) {
	stdin, out, errFD := -1, -1, -1
	defer func() {
		if err != nil { // the clean-up needs descriptors, which may be what is scarce
			for _, fd := range []int{stdin, out, errFD} {
				unix.Close(fd)
			}
			x.sup.closeInlets()
		}
	}()
	if stdin, err = emptyInput(); err != nil {
		return nil, fmt.Errorf("empty stdin: %w", err)
	}
	if out, errFD, err = x.connect(true, false); err != nil {
		return nil, err
	}
	frameFD, err := x.sup.addInlet(x.reader.write, nil)
	if err != nil {
		return nil, err
	}
	defer unix.Close(frameFD)
	rlimits, runnerSetsFiles := x.execRlimits()
	requestFD, err := unlinkedFile(x.request(runnerSetsFiles))
	if err != nil {
		return nil, fmt.Errorf("request: %w", err)
	}
	defer unix.Close(requestFD)
	clearCloseOnExec(frameFD)
	clearCloseOnExec(requestFD)
	x.argv = []string{x.python}
	if !x.needsSite() {
		x.argv = append(x.argv, "-S")
	}
	x.argv = append(x.argv, "-c", runnerSource, strconv.Itoa(requestFD), strconv.Itoa(frameFD))
	j := x.newJob(x.argv, stdin)
	j.spec.passFDs = []int{frameFD, requestFD}
	j.spec.rlimits = rlimits
	if leave := j.leaveUserNamespace; leave != nil {
		j.leaveUserNamespace = func(failed error) error {
			if err := leave(failed); err != nil {
				return err
			}
			fd, err := unlinkedFile(x.request(runnerSetsFiles)) // which names what enforces process_count
			if err == nil {
				err = unix.Dup2(fd, requestFD)
				unix.Close(fd)
			}
			return err
		}
	}
	j.prepare = x.prepare(x.makePrivateDir)
	back, err := x.enterWorkspace()
	if err != nil {
		return nil, err
	}
	defer back()
	return x.runJob(j, out, errFD), nil
}

// needsSite reports whether the source could tell that the module site was not
// loaded at the interpreter's start, a third of which it takes: site makes
// packages importable and adds a few builtins. A short source without any word
// that leads to an import or to those can't. That it is ASCII keeps out other
// spellings of the same names, which Python takes for equal.
func (x *execCall) needsSite() bool {
	if len(x.source) > 4096 || x.flags.SelfCheck || x.flags.GlobalsProvider != "" || x.flags.TypeProjector != "" {
		return true
	}
	for _, b := range x.source {
		if b >= utf8.RuneSelf {
			return true
		}
	}
	for _, word := range []string{
		"import", "__", "eval", "exec", "compile", "breakpoint", "globals", "locals", "vars", "dir", "attr",
		"exit", "quit", "help", "copyright", "credits", "license", "coding",
	} {
		if bytes.Contains(x.source, []byte(word)) {
			return true
		}
	}
	return false
}

// enterWorkspace changes to the directory that the child is to start in, by
// descriptor, and returns how to change back.
func (x *execCall) enterWorkspace() (back func(), err error) {
	here, err := unix.Open(".", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("current directory: %w", err)
	}
	there := -1
	switch {
	case x.workspace != nil:
		there = x.workspace.dir
	case x.private != nil:
		there = x.private.self
	}
	if there >= 0 {
		err = unix.Fchdir(there)
	}
	if err != nil {
		unix.Close(here)
		return nil, fmt.Errorf("enter the workspace: %w", err)
	}
	return func() {
		unix.Fchdir(here)
		unix.Close(here)
	}, nil
}

// interpreterFiles is a number of open files with which every interpreter
// starts and finds its modules. Where the limit is lower, the runner sets it
// once that is done, since it is for the code.
const interpreterFiles = 64

// execRlimits are those of the interpreter. A file may grow one byte beyond its
// limit, so that the scan sees that it was cut.
func (x *execCall) execRlimits() (list []rlim, runnerSetsFiles bool) {
	list = x.rlimits(1)
	for i := range list {
		if r := &list[i]; r.resource == unix.RLIMIT_NOFILE && r.hard < interpreterFiles {
			runnerSetsFiles = true
			hard := uint64(interpreterFiles)
			if inForce, ok := hardLimit(r.resource); ok {
				hard = min(hard, uint64(inForce))
			}
			r.soft, r.hard = hard, hard
		}
	}
	return list, runnerSetsFiles
}

func (x *execCall) request(setOpenFiles bool) []byte {
	f := x.flags
	number := func(id limitID) string { return x.limits.text(id) }
	fields := [][2]string{
		{"code", string(x.source)}, {"cwd", x.cwd}, {"request_id", x.id}, {"extra", string(f.Extra)},
		{"provider", string(f.GlobalsProvider)}, {"projector", string(f.TypeProjector)},
		{"return_value_bytes", number(returnValueBytes)}, {"result_frame_bytes", number(resultFrameBytes)},
		{"open_files", number(openFiles)}, {"memory_bytes", number(memoryBytes)}, {"file_bytes", number(fileBytes)},
		{"process_count", "-"}, {"self_check", ""}, {"set_open_files", ""},
		{"runner_main", runnerMain}, {"runner_value", runnerValue}, {"runner_error", runnerError}, {"runner_setup", runnerSetup},
	}
	if x.workspace != nil {
		fields = append(fields, [2]string{"workspace", x.workspace.path}, [2]string{"artifact_root", x.workspace.rootPath})
	}
	if x.processes == enforcedPerCall || x.processes == enforcedPerUser {
		fields = append(fields, [2]string{"process_count", number(processCount)})
	}
	if f.SelfCheck {
		fields = append(fields, [2]string{"self_check", "1"})
	}
	if setOpenFiles {
		fields = append(fields, [2]string{"set_open_files", "1"})
	}
	return encodeRequest(fields)
}

// settle turns the end of the interpreter into a result, and keeps or removes
// what it left on disk.
func (x *execCall) settle(o *outcome) *execResult {
	r := new(execResult)
	r.value, r.err = x.classify(o)
	if x.workspace == nil {
		return x.finish(r)
	}
	if err := x.workspace.seize(); err != nil && r.err == nil {
		r.err = &execError{Type: errInternal, Message: "take over the workspace: " + err.Error()}
	}
	if r.err == nil {
		x.collect(r)
	}
	if r.err != nil || len(r.artifacts) == 0 {
		r.artifacts = nil
		if err := x.workspace.remove(); err != nil {
			if r.err == nil {
				x.console.line("%v", err)
			} else {
				x.details(r.err).CleanupFailed = err.Error()
			}
		}
	}
	return x.finish(r)
}

// collect scans the workspace and keeps the artifacts.
func (x *execCall) collect(r *execResult) {
	w := x.workspace
	list, err := scanArtifacts(w.dir, path.Join(runsName, w.id), w.uid, x.limits)
	if err == nil && len(list) > 0 {
		r.hashes, err = w.keep(list, x.audit != nil)
	}
	var refused *artifactError
	switch {
	case errors.As(err, &refused):
		r.err = &execError{Type: errArtifact, Message: err.Error()}
	case err != nil:
		r.err = &execError{Type: errInternal, Message: "artifacts: " + err.Error()}
	default:
		r.artifacts = list
		r.value = artifactValue(r.value, list, w.path, w.realPath)
	}
}

// artifactValue gives a return value that is an artifact's path, relative to
// the workspace or absolute, as its path relative to the artifact directory.
func artifactValue(value json.RawMessage, list []artifact, workspacePaths ...string) json.RawMessage {
	var text string
	if json.Unmarshal(value, &text) != nil {
		return value
	}
	for _, a := range list {
		same := text == a.inside
		for _, dir := range workspacePaths {
			same = same || text == filepath.Join(dir, a.inside)
		}
		if same {
			value, _ = json.Marshal(a.Path)
		}
	}
	return value
}

// finish sets what follows from the error.
func (x *execCall) finish(r *execResult) *execResult {
	if r.err == nil {
		return r
	}
	r.value = nil
	if len(x.kept[1]) > 0 {
		x.details(r.err).Stderr = validUTF8(x.kept[1])
	}
	r.code = 1
	if code, ok := execExit[r.err.Type]; ok {
		r.code = code
	}
	if x.flags.SelfCheck {
		r.code = exitCannotRun
	}
	if r.err.signal != 0 && (!x.flags.SelfCheck || r.err.Type == errCancelled) {
		r.code = exitSignal + r.err.signal
	}
	return r
}

func (x *execCall) details(e *execError) *errorDetails {
	if e.Details == nil {
		e.Details = new(errorDetails)
	}
	return e.Details
}

// classify says what became of the code, from what is known first: what
// pyplaypen did, what the kernel says, what the runner says.
func (x *execCall) classify(o *outcome) (json.RawMessage, *execError) {
	v := x.judge(o, []string{x.python})
	switch o.reason {
	case reasonTimeout:
		e := &execError{Type: errTimeout, Message: v.line, limit: v.limit}
		if o.started() && !x.reader.started() {
			e.Message += fmt.Sprintf("; the interpreter %s had not started", quoteName(x.python))
			if low := x.tooLow(""); low != nil {
				e.Message += ": " + x.assignments(low) + " may be too low for it"
			}
		}
		return nil, e
	case reasonCancelled:
		return nil, &execError{Type: errCancelled, Message: v.line, signal: int(o.signal)}
	case reasonBusy:
		return nil, &execError{Type: errBusy, Message: v.line}
	case reasonFailed:
		return nil, &execError{Type: errInternal, Message: v.line}
	}
	if !x.reader.started() {
		return nil, x.interpreterFailure(o, v)
	}
	if o.status.Signaled() {
		e := &execError{Type: errCrash, Message: v.line, signal: int(o.status.Signal()), limit: v.limit}
		switch v.limit {
		case cpuSeconds.String():
			e.Type = errCPU
		case fileBytes.String():
			e.Type, e.signal = errArtifact, 0
		}
		return nil, e
	}
	f, err := x.reader.frame()
	switch {
	case err == errNoFrame:
		return nil, &execError{Type: errProtocol, Message: fmt.Sprintf("the process ended with exit code %d before the code returned", o.status.ExitStatus())}
	case err != nil:
		return nil, &execError{Type: errProtocol, Message: err.Error()}
	case f.Error != nil:
		e := &execError{Type: f.Error.Type, Message: f.Error.Message, limit: f.Error.Limit}
		if f.Error.Traceback != "" {
			x.details(e).Traceback = f.Error.Traceback
		}
		return nil, e
	case x.flags.SelfCheck != (f.Python != ""):
		return nil, &execError{Type: errProtocol, Message: "the frame is malformed: its parts do not fit"}
	case int64(len(f.ReturnValue)) > x.limits.value[returnValueBytes]:
		return nil, &execError{Type: errProtocol, Message: "the value is larger than " + x.limits.assignment(returnValueBytes)}
	case x.flags.SelfCheck:
		version, err := json.Marshal(f.Python)
		if err != nil {
			return nil, &execError{Type: errInternal, Message: err.Error()}
		}
		return version, nil
	}
	return f.ReturnValue, nil
}

// interpreterFailure explains an interpreter that ended before the runner's
// first word, naming the limit that is most likely too low for it.
func (x *execCall) interpreterFailure(o *outcome, v verdict) *execError {
	message := fmt.Sprintf("the interpreter %s did not start (%s)", quoteName(x.python), describeStatus(o.status))
	low := x.tooLow(v.limit)
	if low == nil {
		return &execError{Type: errInternal, Message: message}
	}
	return &execError{Type: errInternal, Message: message + ": " + x.assignments(low) + " is too low for it", limit: low[0].String()}
}

// tooLow lists the limits that may have kept the interpreter from its start: the
// one that has ended it, if one did, and those of which any interpreter needs more.
// Short of memory, Python may also start for ever.
func (x *execCall) tooLow(ended string) (low []limitID) {
	if id, ok := findLimit(ended); ok {
		low = append(low, id)
	}
	for _, enough := range []struct {
		id    limitID
		value int64
	}{{memoryBytes, 128 << 20}, {openFiles, 16}} {
		if x.limits.value[enough.id] < enough.value && !slices.Contains(low, enough.id) {
			return append(low, enough.id)
		}
	}
	return low
}

func (x *execCall) assignments(ids []limitID) string {
	var names []string
	for _, id := range ids {
		names = append(names, x.limits.assignment(id))
	}
	return strings.Join(names, " or ")
}

// report prints the result and returns the exit code.
func (x *execCall) report(o *outcome, r *execResult) int {
	x.explain(o, []string{x.python}, "")
	text, err := x.encode(r)
	if err != nil {
		r.err = &execError{Type: errInternal, Message: "encode the result: " + err.Error()}
		x.finish(r)
		text, _ = x.encode(r)
	}
	x.out.put(text)
	code := x.deliver(r.code)
	if x.recorded() {
		x.writeRecords(x.auditRecord(o, r, code), o)
	}
	return x.deliverLines(code)
}

// encode writes the result. The value's text goes in as it came.
func (x *execCall) encode(r *execResult) ([]byte, error) {
	if x.flags.SelfCheck {
		if r.err != nil {
			return marshalLine(struct {
				Status  string `json:"status"`
				Message string `json:"message"`
			}{"error", r.err.Message})
		}
		return fmt.Appendf(nil, "{\"status\":\"ok\",\"python\":%s}\n", r.value), nil
	}
	status, value := "ok", []byte(r.value)
	if r.err != nil {
		status, value = "error", []byte("null")
	}
	if r.artifacts == nil {
		r.artifacts = []artifact{}
	}
	rest, err := marshalLine(struct {
		Stdout    string     `json:"stdout"`
		Error     *execError `json:"error"`
		Artifacts []artifact `json:"artifacts"`
	}{validUTF8(x.kept[0]), r.err, r.artifacts})
	if err != nil {
		return nil, err
	}
	return bytes.Join([][]byte{fmt.Appendf(nil, `{"status":%q,"return_value":`, status), value, []byte(","), rest[1:]}, nil), nil
}

const eventSandbox = "sandbox_execution"

// auditRecord is the record of a call that ends with this exit code.
func (x *execCall) auditRecord(o *outcome, r *execResult, code int) map[string]any {
	v := x.judge(o, []string{x.python})
	if r.err == nil && code != 0 { // the result did not reach its reader
		v = v.delivered(code)
		r.err = &execError{Type: map[string]string{"timeout": errTimeout}[v.status], limit: v.limit}
		if r.err.Type == "" {
			r.err.Type = errInternal
		}
	}
	record := x.record(eventSandbox, o, v)
	sum := sha256.Sum256(x.source)
	record["code_sha256"] = hex.EncodeToString(sum[:])
	record["failure_type"] = nil
	record["status"] = "ok"
	delete(record, "returncode")
	if r.err != nil {
		record["status"], record["failure_type"] = "error", r.err.Type
		if r.err.limit != "" {
			record["reason"], record["limit"] = "limit", r.err.limit
		}
	}
	total, hashes := int64(0), []any{}
	for i, a := range r.artifacts {
		total += a.Bytes
		if i < len(r.hashes) {
			hashes = append(hashes, map[string]string{"path": a.Path, "sha256": r.hashes[i]})
		}
	}
	record["artifact_count"], record["artifact_bytes"], record["artifact_hashes"] = len(r.artifacts), total, hashes
	return record
}
