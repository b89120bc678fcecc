package main

import (
	"fmt"
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
	root          bool // each call drops to a uid of its own
	userNamespace bool // the kernel lets this user make one
	cap           pidsCap
}

// enforcement is what bounds process_count if the call enters a user namespace
// where it can.
func (b *processBound) enforcement() enforcement {
	switch {
	case b.root && processCountWorks:
		return enforcedPerUser
	case b.userNamespace:
		return enforcedPerCall
	case b.cap.finite:
		return enforcedByContainer
	}
	return unsupported
}

// enforcements are those of every limit, given that of process_count.
func enforcements(processes enforcement) [numLimits]enforcement {
	e := fixedEnforcement
	e[processCount] = processes
	return e
}

// refuseUnsupported returns the error for a requested limit that nothing keeps.
func refuseUnsupported(l *limits, e [numLimits]enforcement) error {
	for id := range numLimits {
		if l.requested[id] && e[id] == unsupported {
			return usageError("%s: nothing enforces this limit here; %s (see pyplaypen enforcement)", l.assignment(id), waysOut)
		}
	}
	return nil
}

const waysOut = "put a pids cap on the container, run as root so that each call drops to its own UID, or drop the flag"

// unenforcedNames lists the limits that a call has at their defaults and that
// nothing keeps.
func unenforcedNames(l *limits, e [numLimits]enforcement) string {
	var names []string
	for id := range numLimits {
		if !l.requested[id] && e[id] == unsupported {
			names = append(names, id.String())
		}
	}
	return strings.Join(names, ", ")
}

// capNotice says by how much a container's cap is looser than what was asked for.
func capNotice(l *limits, cap pidsCap) string {
	return fmt.Sprintf("%s is bounded only by the container's cap of %d processes (%s)", l.assignment(processCount), cap.max, cap.file)
}
