package main

import (
	"time"

	"golang.org/x/sys/unix"
)

// treeUsage adds up what the kernel says of each process that is waited for,
// which includes whatever that process has waited for itself. The counters of
// RUSAGE_CHILDREN would do the same, but they outlive execve(2), and with it
// hold the children of whoever started pyplaypen in its place.
type treeUsage struct {
	user, system time.Duration
	peak         int64 // bytes: the resident set of the largest process
}

func (t *treeUsage) add(u *unix.Rusage) {
	t.user += time.Duration(u.Utime.Nano())
	t.system += time.Duration(u.Stime.Nano())
	t.peak = max(t.peak, maxRSS(u))
}

// ownPeak is the peak of the resident set that the kernel counts for this
// process, in bytes.
func ownPeak() int64 {
	var u unix.Rusage
	unix.Getrusage(unix.RUSAGE_SELF, &u)
	return maxRSS(&u)
}

// peakSlack is by how much the kernel's number must exceed what the child stage
// said of itself to be the target's: what the stage touches after that, and the
// kernel's counters, which may lag behind by some pages for each CPU.
const peakSlack = 1 << 20

// ownPeak is what pyplaypen's own stages left in the counter of the leader.
func (o *outcome) ownPeak() int64 {
	for _, r := range o.records {
		if r.step == stepExecve {
			return r.peak()
		}
	}
	return 0
}

// peakMeasured reports whether usage.peak is that of a process of the target's,
// or else only more than all of them had.
func (o *outcome) peakMeasured() bool { return o.started() && o.usage.peak > o.ownPeak()+peakSlack }
