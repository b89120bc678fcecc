package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"strings"
)

// An enforcement names what keeps a limit.
type enforcement string

const (
	enforcedHard        enforcement = "hard"
	enforcedPerProcess  enforcement = "hard_per_process"
	enforcedBestEffort  enforcement = "best_effort_per_process"
	enforcedPerUser     enforcement = "hard_per_user"
	enforcedPerCall     enforcement = "hard_per_call"
	enforcedByContainer enforcement = "container"
	enforcedRetained    enforcement = "hard_retained"
	enforcedPostRun     enforcement = "hard_post_run"
	enforcedPerFile     enforcement = "hard_per_file"
	unsupported         enforcement = "unsupported"
)

// fixedEnforcement is what keeps each limit on every machine; an empty entry
// depends on the machine.
var fixedEnforcement = [numLimits]enforcement{
	wallSeconds:      enforcedHard,
	cpuSeconds:       enforcedPerProcess,
	memoryBytes:      memoryEnforcement,
	processCount:     "",
	openFiles:        enforcedHard,
	stdoutBytes:      enforcedRetained,
	stderrBytes:      enforcedRetained,
	returnValueBytes: enforcedHard,
	resultFrameBytes: enforcedHard,
	artifactCount:    enforcedPostRun,
	artifactBytes:    enforcedPostRun,
	fileBytes:        enforcedPerFile,
}

// A processBound is what would bound process_count for a call here.
type processBound struct {
	root          bool // each call drops to the child's uid
	ownUID        bool // which no other call has meanwhile
	userNamespace bool // the kernel lets this user make one, and the limit binds in it
	cap           pidsCap
}

// enforcement is what keeps process_count for a call that enters a user
// namespace where it can.
func (b *processBound) enforcement() enforcement {
	switch {
	case b.root && b.ownUID && processCountWorks:
		return enforcedPerCall
	case b.root && processCountWorks:
		return enforcedPerUser
	case b.userNamespace:
		return enforcedPerCall
	case b.cap.finite:
		return enforcedByContainer
	}
	return unsupported
}

// findProcessBound looks at this machine. It asks userNamespace, unless that is
// nil, whether the user can make one.
func findProcessBound(root, ownUID bool, userNamespace func() bool) processBound {
	b := processBound{root: root, ownUID: ownUID}
	if !root && processCountWorks {
		b.userNamespace = userNamespace != nil && userNamespace()
		if !b.userNamespace {
			b.cap = readPidsCap("/")
		}
	}
	return b
}

// enforcements are those of every limit, given that of process_count.
func enforcements(processes enforcement) [numLimits]enforcement {
	e := fixedEnforcement
	e[processCount] = processes
	return e
}

// refuseRequested returns the error for a requested limit that nothing keeps.
func refuseRequested(l *limits, e [numLimits]enforcement) error {
	for id := range numLimits {
		if l.requested[id] && e[id] == unsupported {
			return usageError("%s: nothing enforces this limit here; %s (see pyplaypen enforcement)", l.assignment(id), waysOut(id, "drop the flag"))
		}
	}
	return nil
}

// gate returns the error for exec, which does not start if nothing keeps one of
// its limits, requested or not. Where no deployment would help it does nothing.
func gate(l *limits, e [numLimits]enforcement) error {
	for id := range numLimits {
		if processCountWorks && e[id] == unsupported {
			return usageError("%s: nothing enforces this limit here; %s (see pyplaypen enforcement)", l.assignment(id), waysOut(id, "allow it with --warn-only"))
		}
	}
	return nil
}

// waysOut says what would have a limit enforced, and last what else can be done.
func waysOut(id limitID, last string) string {
	if id == processCount {
		return "put a pids cap on the container, run as root so that each call drops to its own UID, or " + last
	}
	return "run on Linux, or " + last
}

// unenforcedNames lists the limits that nothing keeps.
func unenforcedNames(e [numLimits]enforcement) string {
	var names []string
	for id := range numLimits {
		if e[id] == unsupported {
			names = append(names, id.String())
		}
	}
	return strings.Join(names, ", ")
}

// capNotice says by how much a container's cap is looser than what was asked for.
func capNotice(l *limits, cap pidsCap) string {
	return fmt.Sprintf("%s is bounded only by the container's cap of %d processes (%s)", l.assignment(processCount), cap.max, cap.file)
}

type enforcementCmd struct {
	JSON     bool    `name:"json" help:"Print one JSON object with, for each limit, its default, the number in force and an explanation."`
	ChildUID *string `name:"child-uid" placeholder:"N" help:"Answer for calls with this --child-uid, N or A-B (also PYPLAYPEN_CHILD_UID)."`
	Check    word    `placeholder:"NAME[,NAME]" help:"Print nothing; exit 0 if all of these limits are enforced, 1 if not."`
}

func (*enforcementCmd) Help() string {
	return `Examples:
  pyplaypen enforcement
  pyplaypen enforcement --check process_count,memory_bytes || echo "needs a pids cap"

Values: hard, kept for the call as a whole; hard_per_process, a kernel rlimit on each process; best_effort_per_process, address space of each process; hard_per_user, your number for the UID that root drops to, over all calls that share it; hard_per_call, your number for this call alone, in a user namespace (run when requested, exec always) or, as root, on a UID that no other call has (--child-uid A-B); container, a cgroup pids cap at the operator's number; hard_retained, output beyond it is dropped; hard_post_run, checked after the run; hard_per_file, a kernel rlimit on each file; unsupported, nothing enforces it here.`
}

// containerResources is the last line of the listing: what no prefix of a
// command can bound.
const containerResources = "container_resources"

// run prints what enforces each limit on this machine, and returns the exit code.
func (f *enforcementCmd) run() (int, error) {
	var checked []limitID
	if f.Check != "" {
		for name := range strings.SplitSeq(string(f.Check), ",") {
			id, ok := findLimit(strings.TrimSpace(name))
			if !ok {
				return 0, usageError("--check %q: unknown name; the limits are %s", name, strings.Join(limitNames(), ", "))
			}
			checked = append(checked, id)
		}
	}
	uids, err := childUIDs(f.ChildUID)
	if err != nil {
		return 0, err
	}
	root, why := uids.canDrop()
	bound := findProcessBound(root, uids.own, userNamespaceWorks)
	values := enforcements(bound.enforcement())
	if f.Check != "" {
		return checkEnforced(checked, values)
	}
	if f.JSON {
		return 0, printEnforcementJSON(&bound, why, values)
	}
	var b strings.Builder
	for id := range numLimits {
		fmt.Fprintf(&b, "%s: %s\n", id, values[id])
	}
	fmt.Fprintf(&b, "%s: %s\n", containerResources, enforcedByContainer)
	if _, err := os.Stdout.WriteString(b.String()); err != nil {
		return 0, &exitError{exitCannotRun, "write stdout: " + err.Error()}
	}
	if values[processCount] == unsupported && len(bound.cap.unreadable) > 0 {
		fmt.Fprintln(os.Stderr, prefix+oneLine("a pids cap may hold but could not be read: "+strings.Join(bound.cap.unreadable, "; ")))
	}
	return 0, nil
}

func checkEnforced(ids []limitID, values [numLimits]enforcement) (int, error) {
	var missing []string
	for _, id := range ids {
		if values[id] == unsupported {
			missing = append(missing, id.String())
		}
	}
	if missing != nil {
		return 0, &exitError{1, "not enforced here: " + strings.Join(missing, ", ")}
	}
	return 0, nil
}

// An enforcementEntry is what enforcement --json says of one limit.
type enforcementEntry struct {
	Value       enforcement `json:"value"`
	Default     json.Number `json:"default,omitempty"`
	Effective   json.Number `json:"effective,omitempty"` // of a call that does not ask for another
	Explanation string      `json:"explanation"`
}

func printEnforcementJSON(bound *processBound, why string, values [numLimits]enforcement) error {
	// A map would be sorted by name; the table has its own order.
	b := []byte("{")
	add := func(name string, entry enforcementEntry) error {
		text, err := marshalLine(entry)
		b = append(b, fmt.Sprintf("%q:%s,", name, bytes.TrimSpace(text))...)
		return err
	}
	for id := range numLimits {
		entry := enforcementEntry{values[id], json.Number(limitText(id, limitTable[id].value)), effectiveNumber(id, bound, values[id]), explain(id, bound, why, values[id])}
		if err := add(id.String(), entry); err != nil {
			return err
		}
	}
	err := add(containerResources, enforcementEntry{Value: enforcedByContainer, Explanation: "Total memory, CPU share, disk and network are for the container around the call to bound; pyplaypen does not."})
	if err != nil {
		return err
	}
	b[len(b)-1] = '}'
	_, err = os.Stdout.Write(append(b, '\n'))
	return err
}

// effectiveNumber is what binds a call that does not ask for another number; it
// is empty if nothing does.
func effectiveNumber(id limitID, bound *processBound, value enforcement) json.Number {
	v := limitTable[id].value
	switch value {
	case unsupported:
		return ""
	case enforcedByContainer:
		v = bound.cap.max
	}
	for _, r := range rlimitOrder {
		if hard, ok := hardLimit(r.resource); ok && r.id == id && value != enforcedByContainer {
			v = min(v, hard)
		}
	}
	return json.Number(limitText(id, v))
}

// explain says in one sentence what the value means here and how to get a
// stronger one.
func explain(id limitID, bound *processBound, why string, value enforcement) string {
	switch id {
	case wallSeconds:
		return "The supervisor kills the whole process tree when it has passed."
	case cpuSeconds:
		return "RLIMIT_CPU on each process by itself: a tree of N processes may use N times as much; wall_seconds bounds them all."
	case memoryBytes:
		if value == unsupported {
			return "RLIMIT_AS does not bind on this system; run in a container with a memory limit."
		}
		return "RLIMIT_AS on each process by itself bounds address space, not use; a memory limit on the container bounds the use of all."
	case openFiles:
		return "RLIMIT_NOFILE on each process."
	case stdoutBytes, stderrBytes:
		return "What is written beyond it is read, counted and dropped."
	case returnValueBytes, resultFrameBytes:
		return "exec refuses a larger result."
	case artifactCount, artifactBytes:
		return "exec checks it after the run, when everything is dead; while the code runs, file_bytes and the container's disk limit bound it."
	case fileBytes:
		return "RLIMIT_FSIZE on each file that is written; the number of files is for the container's disk limit to bound."
	}
	switch value {
	case enforcedPerUser:
		return "RLIMIT_NPROC binds for the UID that each call drops to; calls that share the UID share the number, so give calls that run at the same time UIDs of their own with --child-uid A-B."
	case enforcedPerCall:
		if bound.root {
			return "RLIMIT_NPROC binds for the UID that the call drops to, a free one of the range, which no other call with a range has meanwhile."
		}
		return "RLIMIT_NPROC in a user namespace of the call's own: run enters one when process_count is requested, exec always."
	case enforcedByContainer:
		return fmt.Sprintf("The cgroup's cap of %d processes (%s) bounds all that runs in it, not this call; run as root, so that each call drops to its own UID, to have your own number enforced.", bound.cap.max, bound.cap.file)
	}
	reason := "user namespaces do not work here for this user, and no pids cap was found"
	if why != "" {
		reason = "uid 0 " + why + " cannot drop to another uid, and " + reason
	}
	if len(bound.cap.unreadable) > 0 {
		reason += ", though one may hold that could not be read (" + strings.Join(bound.cap.unreadable, "; ") + ")"
	}
	if !processCountWorks {
		reason = "this system has no limit of processes for one call"
	}
	return "Nothing bounds it: " + reason + "; put a pids cap on the container, or run as root so that each call drops to its own UID."
}
