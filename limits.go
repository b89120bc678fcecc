package main

import (
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"
)

// limitID names a row of limitTable.
type limitID int

// The order is the order of every listing: help, enforcement, the audit record.
const (
	wallSeconds limitID = iota
	cpuSeconds
	memoryBytes
	processCount
	openFiles
	stdoutBytes
	stderrBytes
	returnValueBytes
	resultFrameBytes
	artifactCount
	artifactBytes
	fileBytes
	numLimits
)

type limitKind string

const (
	kindSeconds limitKind = "float" // held in nanoseconds
	kindCount   limitKind = "int"
	kindBytes   limitKind = "bytes" // a count that takes a binary suffix
)

// A limitInfo is what pyplaypen knows of a limit before any call.
type limitInfo struct {
	name     string
	kind     limitKind
	value    int64 // the default; nanoseconds for kindSeconds
	execOnly bool  // run has nothing that it would bound
	help     string
}

// limitTable is the one place where a limit's name, kind, default and help text stand.
var limitTable = [numLimits]limitInfo{
	wallSeconds:      {name: "wall_seconds", kind: kindSeconds, value: int64(30 * time.Second), help: "monotonic time from start of the call to the kill"},
	cpuSeconds:       {name: "cpu_seconds", kind: kindCount, value: 25, help: "CPU time of each process by itself: soft limit N, hard limit N+1"},
	memoryBytes:      {name: "memory_bytes", kind: kindBytes, value: 1 << 30, help: "address space of each process by itself (Linux)"},
	processCount:     {name: "process_count", kind: kindCount, value: 16, help: "processes and threads at once (Linux, once the call owns its UID or user namespace)"},
	openFiles:        {name: "open_files", kind: kindCount, value: 256, help: "open file descriptors of each process"},
	stdoutBytes:      {name: "stdout_bytes", kind: kindBytes, value: 64 << 10, help: "stdout that is kept"},
	stderrBytes:      {name: "stderr_bytes", kind: kindBytes, value: 64 << 10, help: "stderr that is kept"},
	returnValueBytes: {name: "return_value_bytes", kind: kindBytes, value: 1_000_000, execOnly: true, help: "exec: JSON text of the return value"},
	resultFrameBytes: {name: "result_frame_bytes", kind: kindBytes, value: 2_000_000, execOnly: true, help: "exec: the whole frame from the runner"},
	artifactCount:    {name: "artifact_count", kind: kindCount, value: 16, execOnly: true, help: "exec: files kept"},
	artifactBytes:    {name: "artifact_bytes", kind: kindBytes, value: 50 << 20, execOnly: true, help: "exec: all files kept, together"},
	fileBytes:        {name: "file_bytes", kind: kindBytes, value: 50 << 20, help: "size of each file written"},
}

func (id limitID) String() string { return limitTable[id].name }

const (
	// A second count beyond this does not fit in the nanoseconds that the
	// clock, and the kernel for RLIMIT_CPU, hold it in.
	maxSeconds = 9_200_000_000
	// N+1 is set for some limits, and must stay below RLIM_INFINITY,
	// which is the largest int64 on macOS.
	maxCount = math.MaxInt64 - 2
)

var binarySuffixes = []struct {
	name  string
	shift uint
}{{"KiB", 10}, {"MiB", 20}, {"GiB", 30}, {"TiB", 40}}

// limits holds the values in force for one call.
type limits struct {
	value     [numLimits]int64 // nanoseconds for wall_seconds, else counts and bytes
	requested [numLimits]bool  // set by the environment or a flag
}

func defaultLimits() *limits {
	l := new(limits)
	for id, info := range limitTable {
		l.value[id] = info.value
	}
	return l
}

func (l *limits) wall() time.Duration { return time.Duration(l.value[wallSeconds]) }

// text renders the value as a user would write it.
func (l *limits) text(id limitID) string { return limitText(id, l.value[id]) }

func limitText(id limitID, v int64) string {
	if limitTable[id].kind == kindSeconds {
		return strconv.FormatFloat(float64(v)/1e9, 'f', -1, 64)
	}
	return strconv.FormatInt(v, 10)
}

// assignment is "name=value", the way every message names a limit.
func (l *limits) assignment(id limitID) string { return id.String() + "=" + l.text(id) }

// setList applies the items of PYPLAYPEN_LIMITS, "name=value,name=value".
// Blanks around items and empty items are ignored.
func (l *limits) setList(list string) error {
	for item := range strings.SplitSeq(list, ",") {
		if item = strings.TrimSpace(item); item == "" {
			continue
		}
		if _, err := l.set(item); err != nil {
			return fmt.Errorf("PYPLAYPEN_LIMITS: %w", err)
		}
	}
	return nil
}

// set applies one "name=value" and marks the limit as requested.
func (l *limits) set(item string) (limitID, error) {
	name, text, ok := strings.Cut(item, "=")
	if !ok {
		return 0, fmt.Errorf("limit %q: want name=value", item)
	}
	id, ok := findLimit(name)
	if !ok {
		return 0, fmt.Errorf("limit %q: unknown name; the limits are %s", item, strings.Join(limitNames(), ", "))
	}
	v, err := parseLimit(limitTable[id].kind, text)
	if err == nil && id == cpuSeconds && v > maxSeconds {
		err = errTooLarge
	}
	if err != nil {
		return 0, fmt.Errorf("limit %s=%q: %w", name, text, err)
	}
	l.value[id], l.requested[id] = v, true
	return id, nil
}

func findLimit(name string) (limitID, bool) {
	for id, info := range limitTable {
		if info.name == name {
			return limitID(id), true
		}
	}
	return 0, false
}

func limitNames() []string {
	names := make([]string, numLimits)
	for id, info := range limitTable {
		names[id] = info.name
	}
	return names
}

var (
	errNegative = errors.New("must not be negative")
	errTooLarge = errors.New("too large")
)

// parseLimit reads one value. Zero is the tightest value; nothing means "off".
func parseLimit(kind limitKind, text string) (int64, error) {
	if kind == kindSeconds {
		return parseSeconds(text)
	}
	digits, shift := text, uint(0)
	if kind == kindBytes {
		for _, s := range binarySuffixes {
			if rest, ok := strings.CutSuffix(text, s.name); ok {
				digits, shift = rest, s.shift
			}
		}
	}
	if isNegative(digits) {
		return 0, errNegative
	}
	plain, ok := dropUnderscores(digits)
	if !ok || strings.Trim(plain, "0123456789") != "" {
		if kind == kindBytes {
			return 0, errors.New("want a whole number, or one with KiB, MiB, GiB or TiB behind it")
		}
		return 0, errors.New("want a whole number")
	}
	v, err := strconv.ParseInt(plain, 10, 64)
	if err != nil || v > maxCount>>shift {
		return 0, errTooLarge
	}
	return v << shift, nil
}

// parseSeconds reads a decimal number of seconds into nanoseconds. A positive
// value that is too small to hold becomes one nanosecond, never "already over".
func parseSeconds(text string) (int64, error) {
	if isNegative(text) {
		return 0, errNegative
	}
	plain, ok := dropUnderscores(text)
	// The set of characters keeps out nan, inf and hexadecimal floats.
	if !ok || strings.Trim(plain, "0123456789.eE+-") != "" {
		return 0, errors.New("want a number of seconds")
	}
	seconds, err := strconv.ParseFloat(plain, 64)
	switch {
	case errors.Is(err, strconv.ErrRange) || err == nil && seconds > maxSeconds:
		return 0, errTooLarge
	case err != nil:
		return 0, errors.New("want a number of seconds")
	case seconds > 0:
		return max(1, int64(math.Round(seconds*1e9))), nil
	}
	return 0, nil
}

// isNegative tells a number with a minus sign from text that is no number.
func isNegative(text string) bool {
	return len(text) > 1 && text[0] == '-' && (text[1] >= '0' && text[1] <= '9' || text[1] == '.')
}

// dropUnderscores removes single underscores that stand between digits, as
// Python's int() does. It reports false for any other use, and for no text.
func dropUnderscores(text string) (string, bool) {
	if !strings.Contains(text, "_") {
		return text, text != ""
	}
	isDigit := func(i int) bool { return i >= 0 && i < len(text) && text[i] >= '0' && text[i] <= '9' }
	for i := range len(text) {
		if text[i] == '_' && !(isDigit(i-1) && isDigit(i+1)) {
			return "", false
		}
	}
	return strings.ReplaceAll(text, "_", ""), true
}

// limitsHelp is the table as help text; the limits of exec alone are left out
// where they do not count.
func limitsHelp(forExec bool) string {
	var b strings.Builder
	b.WriteString("Limits (--limit NAME=VALUE, or PYPLAYPEN_LIMITS=NAME=VALUE,NAME=VALUE):\n")
	for id, info := range limitTable {
		if !info.execOnly || forExec {
			fmt.Fprintf(&b, "  %-18s %-10s %s\n", info.name, limitText(limitID(id), info.value), info.help)
		}
	}
	b.WriteString("Byte limits also take KiB, MiB, GiB and TiB. Zero is the tightest value, never \"off\".")
	return b.String()
}
