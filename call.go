package main

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
	"unicode/utf8"

	"golang.org/x/sys/unix"
)

// callFlags are the flags of every command that starts a process.
type callFlags struct {
	Limit      []string `sep:"none" placeholder:"NAME=VALUE" help:"Set a limit; repeatable, the last one of a name wins."`
	ChildUID   *string  `name:"child-uid" placeholder:"N" help:"As root: the uid and gid that the call drops to (default 65534; also PYPLAYPEN_CHILD_UID). A-B: a free one of the range, for this call alone."`
	KillAfter  *string  `placeholder:"SECONDS" help:"Grace between SIGTERM and SIGKILL at teardown (default 1)."`
	RequestID  word     `name:"request-id" placeholder:"ID" help:"Name of this call in the audit record: 1 to 128 of [A-Za-z0-9._-], not starting with a dot (default random)."`
	AuditFile  word     `placeholder:"PATH" help:"Append one audit record as a line of JSON (also PYPLAYPEN_AUDIT_FILE)."`
	AuditExtra word     `placeholder:"JSON" help:"A JSON object to copy into the audit record."`
	Report     word     `placeholder:"PATH" help:"Write one JSON object at the end: how the call ended and what it used; - for stderr."`

	Env      []string `sep:"none" placeholder:"NAME[=VALUE]" help:"Set a variable, or with --clean-env let the caller's through; repeatable."`
	CleanEnv bool     `help:"Keep the caller's environment from the target, but for PATH, HOME, TMPDIR, LANG, TERM and what --env names."`

	MaxConcurrency *string `placeholder:"N" help:"Let at most N calls, 1 to 32, run at once among those that share the slot directory, and wait for the others within wall_seconds (also PYPLAYPEN_MAX_CONCURRENCY)."`
	SlotDir        *string `placeholder:"DIR" help:"Directory of the slots, made if missing (default: this user's own below $XDG_RUNTIME_DIR, /run or /tmp)."`
}

// defaultGrace is that of --kill-after.
const defaultGrace = time.Second

// A call is one bounded process from its flags to its record.
type call struct {
	start    time.Time
	deadline time.Time
	limits   *limits // as asked for, lowered to the hard limits in force
	killFor  time.Duration
	id       string
	finished time.Time // when its records were made

	why       purpose
	uid       int         // to drop to; -1 if the target keeps the caller's
	userNS    bool        // the target is to have a user namespace of its own
	processes enforcement // of process_count, for this call; empty if it is not known yet
	notices   []string    // held until the call is known to start

	streams
	out, err *sink
	console  *console
	noRoom   error // that there are too few processes for pyplaypen itself
	signals  *signals
	sup      *supervisor
	audit    *audit
	report   *report

	private     *privateDir
	handover    *handover
	environment *environment
	env         []string
	late        goAhead // what is added to env once the child stage runs
	search      search

	slots, uids *lockPool // to wait for; nil if there is no bound
	locks       []int     // descriptors, of what it got
	queued      time.Duration
}

// A purpose is what a call is made for. Exec's calls enter a user namespace
// where that is what bounds process_count, and do not start unless every limit
// is enforced, or the user waives that. A call in place of pyplaypen has no
// parent that could make a user namespace for it.
type purpose struct{ exec, warnOnly, inPlace bool }

// newCall checks everything that can be refused before anything starts. Its
// errors are usage errors.
func newCall(f *callFlags, why purpose, start time.Time) (*call, error) {
	c := &call{start: start, why: why, uid: -1, limits: defaultLimits()}
	if !why.inPlace { // which has nothing to undo
		// The first timer has the runtime set up its poller, and it dies if no
		// descriptor is left for that.
		time.AfterFunc(time.Hour, func() {}).Stop()
		c.noRoom = roomForOwn() // before anything takes threads
		c.signals = catchSignals()
	}
	if err := c.limits.setList(os.Getenv("PYPLAYPEN_LIMITS")); err != nil {
		return nil, usageError("%w", err)
	}
	for _, item := range f.Limit {
		id, err := c.limits.set(item)
		if err != nil {
			return nil, usageError("%w", err)
		}
		if limitTable[id].execOnly && !why.exec {
			return nil, usageError("limit %s: bounds exec only, run has nothing that it would bound", item)
		}
	}
	uids, err := childUIDs(f.ChildUID)
	if err != nil {
		return nil, err
	}
	c.killFor = defaultGrace
	if f.KillAfter != nil {
		grace, err := parseSeconds(*f.KillAfter)
		if err != nil {
			return nil, usageError("--kill-after %q: %w", *f.KillAfter, err)
		}
		c.killFor = time.Duration(grace)
	}
	if f.RequestID != "" && !validRequestID(string(f.RequestID)) {
		return nil, usageError("--request-id %q: want 1 to 128 characters of A-Z a-z 0-9 . _ -, not starting with a dot", f.RequestID)
	}
	c.id = string(f.RequestID)
	auditFile, _ := f.AuditFile.or("--audit-file", "PYPLAYPEN_AUDIT_FILE")
	if c.audit, err = newAudit(auditFile, string(f.AuditExtra)); err != nil {
		return nil, err
	}
	c.report = newReport(string(f.Report))
	if c.environment, err = newEnvironment(f.Env, f.CleanEnv); err != nil {
		return nil, err
	}
	if name := c.environment.idle(); name != "" {
		c.notices = append(c.notices, fmt.Sprintf("--env %s has no effect without --clean-env: the call sees the whole environment", name))
	}
	if err := c.chooseIdentity(uids); err != nil {
		return nil, err
	}
	if c.slots, err = openSlots(f); err != nil {
		return nil, err
	}
	c.lowerLimits()
	c.stdout = &capture{limit: c.limits.value[stdoutBytes], hash: c.audit.newHash()}
	c.stderr = &capture{limit: c.limits.value[stderrBytes], hash: c.audit.newHash()}
	c.deadline = start.Add(c.limits.wall())
	if c.deadline.Before(start) { // 292 years do not fit behind today
		c.deadline = start.Add(math.MaxInt64 / 2)
	}
	return c, nil
}

// childUIDs is what --child-uid or its variable names. Its errors are usage errors.
func childUIDs(flag *string) (uidRange, error) {
	text, source := setting(flag, "--child-uid", "PYPLAYPEN_CHILD_UID")
	if text == "" && flag == nil {
		return uidRange{first: defaultChildUID, last: defaultChildUID}, nil
	}
	r, err := parseUIDs(text)
	if err != nil {
		return r, usageError("%s %q: %w", source, text, err)
	}
	return r, nil
}

// chooseIdentity decides as whom the target runs, and what that means for
// process_count. Of a range, c.uid is the first until the call is admitted.
func (c *call) chooseIdentity(uids uidRange) (err error) {
	root, because := uids.canDrop()
	if root {
		c.uid = uids.first
		if uids.own {
			if c.uids, err = openUIDs(uids); err != nil {
				return err
			}
		}
	} else if because != "" {
		c.notices = append(c.notices, fmt.Sprintf("uid 0 %s: running as a plain user does, without a uid drop", because))
	}
	requested, why := c.limits.requested[processCount], c.why
	if why.inPlace && requested && !root {
		return usageError("%s: --in-place enforces it only as root, where the call drops to a UID; without --in-place run can make a user namespace for it", c.limits.assignment(processCount))
	}
	if !root && !requested && !why.exec && !why.inPlace {
		// Then it decides nothing, and is looked up while the child stage starts.
		return refuseRequested(c.limits, enforcements(""))
	}
	var userNamespace func() bool
	if requested || why.exec {
		userNamespace = userNamespaceExpected
	}
	return c.takeBound(findProcessBound(root, uids.own, userNamespace))
}

// takeBound has process_count bound so, and refuses a call for which that, or
// anything else that enforces its limits here, does not suffice.
func (c *call) takeBound(bound processBound) error {
	c.userNS = bound.userNamespace
	c.processes = bound.enforcement()
	values := enforcements(c.processes)
	if err := refuseRequested(c.limits, values); err != nil && !c.why.warnOnly {
		return err
	}
	if err := gate(c.limits, values); c.why.exec && !c.why.warnOnly && err != nil {
		return err
	}
	switch {
	case c.limits.requested[processCount] && c.processes == enforcedByContainer && bound.cap.max > c.limits.value[processCount]:
		c.notices = append(c.notices, capNotice(c.limits, bound.cap))
	case unenforcedNames(values) != "":
		c.notices = append(c.notices, "not enforced here: "+unenforcedNames(values))
	}
	return nil
}

// enforcements are those of every limit for this call.
func (c *call) enforcements() [numLimits]enforcement {
	if c.processes == "" {
		bound := findProcessBound(false, false, nil)
		c.processes = bound.enforcement()
	}
	return enforcements(c.processes)
}

// noteUnenforced says what a plain user's call that did not ask for process_count
// goes without.
func (c *call) noteUnenforced() {
	if c.processes != "" || c.console.quiet {
		return
	}
	names := unenforcedNames(c.enforcements())
	switch {
	case names == "":
	case names == processCount.String() && userNamespaceLikely():
		c.console.notice("not enforced unless requested: %s", names)
	default:
		c.console.notice("not enforced here: %s", names)
	}
}

// lowerLimits takes over the hard rlimits that pyplaypen itself runs under,
// where they are stricter.
func (c *call) lowerLimits() {
	for _, r := range rlimitOrder {
		if r.id == processCount && c.uid < 0 && !c.userNS {
			continue // not set at all
		}
		if hard, ok := hardLimit(r.resource); ok && c.limits.value[r.id] > hard {
			if c.limits.requested[r.id] {
				c.notices = append(c.notices, fmt.Sprintf("%s lowered to the hard limit %d", c.limits.assignment(r.id), hard))
			}
			c.limits.value[r.id] = hard
		}
	}
}

// hardLimit is the hard rlimit in force, if there is one.
func hardLimit(resource int) (int64, bool) {
	var r unix.Rlimit
	if err := unix.Getrlimit(resource, &r); err != nil || r.Max > math.MaxInt64-1 {
		return 0, false
	}
	return int64(r.Max), true
}

// rlimits lists what the child stage sets. file_bytes is raised by fileExtra.
func (c *call) rlimits(fileExtra int64) []rlim {
	var list []rlim
	for _, r := range rlimitOrder {
		soft := c.limits.value[r.id]
		hard := soft
		switch r.id {
		case cpuSeconds:
			hard++ // SIGXCPU at the soft limit, SIGKILL at the hard one
		case fileBytes:
			soft += fileExtra
			hard = soft
		case processCount:
			if c.uid < 0 && !c.userNS {
				continue // the uid is not the call's own
			}
		}
		if inForce, ok := hardLimit(r.resource); ok {
			soft, hard = min(soft, inForce), min(hard, inForce)
		}
		list = append(list, rlim{r.resource, uint64(soft), uint64(hard)})
	}
	return list
}

// open prepares what the call needs to run: signals first, so that whatever
// comes after is undone. Close must follow, also after an error.
func (c *call) open() error {
	wake := func() {}
	var sup *supervisor
	err := c.noRoom
	if err == nil {
		sup, err = newSupervisor(c.signals)
	}
	if err == nil {
		c.sup, wake = sup, sup.wake
	}
	c.out, c.err = newSink(1, wake), newSink(2, wake)
	if c.out.isStream(c.err) {
		c.err.last = c.out.last
	}
	c.console = newConsole(c.err)
	c.env = c.environment.apply(os.Environ())
	return err
}

// announce prints the notices of a call that is about to start.
func (c *call) announce(f *callFlags) {
	for _, n := range c.notices {
		c.console.notice("%s", n)
	}
	if c.uid < 0 && f.ChildUID != nil && *f.ChildUID != strconv.Itoa(os.Geteuid()) {
		c.console.notice("--child-uid %s has no effect: only root can drop to another uid", *f.ChildUID)
	}
}

// goOn reports whether the call is still to be started: its time is not up and
// no signal has ended it.
func (c *call) goOn() bool { return time.Now().Before(c.deadline) && len(c.signals.cancels) == 0 }

// prepare makes what the target needs, while the child stage starts, and returns
// what that adds to its environment.
func (c *call) prepare(makers ...func()) func() goAhead {
	return func() goAhead {
		for _, m := range makers {
			m()
		}
		c.err.flush(time.Now(), noticesWait, &signals{}) // notices come before the target's output
		return c.late
	}
}

// noticesWait is how long the target waits for a reader of stderr that takes none
// of the notices.
const noticesWait = 20 * time.Millisecond

// makePrivateDir makes the call's TMPDIR, which as root is its HOME too.
func (c *call) makePrivateDir() {
	var err error
	if c.private, err = newPrivateDir(c.uid, c.goOn); err == nil {
		c.provide("TMPDIR", c.private.path)
		if c.uid >= 0 {
			c.provide("HOME", c.private.path)
		}
		return
	}
	if c.uid < 0 {
		c.console.notice("no private TMPDIR could be made: %v", err)
		return
	}
	if c.environment.names("HOME") {
		c.console.notice("no private directory could be made: %v", err)
		return
	}
	c.provide("HOME", "/nonexistent")
	c.console.notice("HOME is /nonexistent: no private directory could be made: %v", err)
}

// takeDirectory hands the current directory to the call's uid.
func (c *call) takeDirectory(restoreOwnership bool) {
	var notice string
	if c.handover, notice = handOver(c.uid, restoreOwnership, c.goOn); notice != "" {
		c.console.notice("%s", notice)
	}
	c.warnOfBlockedDirectory()
}

// warnOfBlockedDirectory says that the current directory, which is entered
// before the drop, can't be reached by its path.
func (c *call) warnOfBlockedDirectory() {
	if cwd, err := os.Getwd(); err == nil {
		if b, blocked := blockadeOf(cwd, c.uid); blocked && b.dir != cwd {
			c.console.notice("uid %d cannot pass %s: below it relative paths work, absolute ones do not", c.uid, b)
		}
	}
}

// close undoes open.
func (c *call) close() {
	if c.handover != nil {
		if err := c.handover.giveBack(); err != nil {
			c.console.line("%v", err)
		}
		c.handover = nil
	}
	if c.private != nil {
		if err := c.private.remove(); err != nil {
			c.console.line("%v", err)
		}
		c.private = nil
	}
	c.leave()
}

// newJob is the job for argv, with everything but the descriptors filled in.
func (c *call) newJob(argv []string, stdin int) *job {
	j := &job{
		argv: argv, env: c.env, stdin: stdin, deadline: c.deadline, killAfter: c.killFor,
		spec: childSpec{uid: c.uid, search: c.search},
	}
	if c.userNS {
		enterUserNamespace(&j.attr)
		j.spec.userNamespace = true
		j.leaveUserNamespace = func(err error) error { return c.leaveUserNamespace(j, err) }
	}
	return j
}

// leaveUserNamespace has the job do without the namespace that was expected, after
// its ids could not be mapped, as where /proc is read-only, if there is another
// bound. Otherwise it returns why the call can't go on.
func (c *call) leaveUserNamespace(j *job, failed error) error {
	if !errors.Is(failed, os.ErrPermission) && !errors.Is(failed, unix.EROFS) {
		return failed
	}
	bound := findProcessBound(false, false, userNamespaceWorks)
	if bound.userNamespace { // so that is not why
		return failed
	}
	said := len(c.notices)
	if err := c.takeBound(bound); err != nil {
		return err
	}
	for _, n := range c.notices[said:] {
		c.console.notice("%s", n)
	}
	clearUserNamespace(&j.attr)
	j.spec.userNamespace = false
	j.spec.rlimits = slices.DeleteFunc(j.spec.rlimits, func(r rlim) bool { return r.resource == unix.RLIMIT_NPROC })
	return nil
}

// refused returns the usage error that kept the call from its start, if one did.
func (c *call) refused(o *outcome) error {
	var refusal *exitError
	if o == nil || !errors.As(o.err, &refusal) {
		return nil
	}
	c.deliverLines(0)
	return refusal
}

// finalGrace is how long the reader of pyplaypen's own output may take nothing
// after the wall clock has run out.
const finalGrace = time.Second

// deliver waits for the reader of stdout, within bounds, and returns the exit
// code: a success that was not delivered is none.
func (c *call) deliver(code int) int {
	left, sig := c.flush(c.out)
	switch {
	case sig != 0:
		c.console.line("told to stop by %s; %d bytes of stdout not delivered", signalName(sig), left)
		code = exitSignal + int(sig)
	case left > 0:
		c.console.line("%s exceeded while the reader of stdout took too little; %d bytes not delivered", c.limits.assignment(wallSeconds), left)
		code = cmp.Or(code, exitTimeout)
	}
	if err := c.out.failure(); err != nil && err != unix.EPIPE {
		c.console.line("write stdout: %v", err)
		code = cmp.Or(code, exitCannotRun)
	}
	return code
}

// deliverLines does the same for stderr, last of all.
func (c *call) deliverLines(code int) int {
	left, sig := c.flush(c.err)
	switch err := c.err.failure(); {
	case sig != 0:
		return exitSignal + int(sig)
	case left > 0:
		return cmp.Or(code, exitTimeout)
	case err != nil && err != unix.EPIPE:
		return cmp.Or(code, exitCannotRun)
	}
	return code
}

func (c *call) flush(s *sink) (left int, sig syscall.Signal) {
	from := c.signals
	if from == nil { // in place of pyplaypen
		from = &signals{}
	}
	return s.flush(c.deadline, finalGrace, from)
}

// parseUID accepts the uids that a call may drop to.
func parseUID(text string) (int, error) {
	n, err := strconv.ParseUint(text, 10, 32)
	switch {
	case err != nil:
		return 0, fmt.Errorf("want a uid from 1 to %d", uint32(math.MaxUint32-1))
	case n == 0:
		return 0, fmt.Errorf("uid 0 is root, which is what the drop is from")
	case n == math.MaxUint32:
		return 0, fmt.Errorf("%d means \"no change\" to the kernel", n)
	}
	return int(n), nil
}

func validRequestID(id string) bool {
	if len(id) < 1 || len(id) > 128 || id[0] == '.' {
		return false
	}
	return strings.Trim(id, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-") == ""
}

// jsonObject checks that text is one JSON object.
func jsonObject(text string) (json.RawMessage, error) {
	var object map[string]json.RawMessage
	if err := json.Unmarshal([]byte(text), &object); err != nil || object == nil || !utf8.ValidString(text) {
		return nil, fmt.Errorf("want a JSON object")
	}
	return json.RawMessage(text), nil
}

// signalName is SIGTERM for 15, and "signal 40" for one without a name.
func signalName(sig syscall.Signal) string {
	if name := unix.SignalName(sig); name != "" {
		return name
	}
	return "signal " + strconv.Itoa(int(sig))
}
