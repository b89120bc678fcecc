package main

import (
	"slices"
	"strconv"
	"strings"
	"syscall"
)

// childStage is the first argument that makes pyplaypen the stage between the
// supervisor and the target: it sets limits, drops privileges and execs.
const childStage = "__child"

// A childSpec is all that the child stage needs to know. It travels as one
// argument, since the environment and the descriptors belong to the target.
type childSpec struct {
	statusFD int    // close-on-exec pipe that takes childRecords
	gateFD   int    // pipe that gives the word to go on; -1 for none
	parent   int    // pid of the supervisor
	uid      int    // uid and gid to drop to; -1 for none
	passFDs  []int  // descriptors that the target keeps, besides 0, 1 and 2
	rlimits  []rlim // set in this order, last of all
	search   search

	userNamespace bool // of the call's own, in which RLIMIT_NPROC is to bind
}

// An rlim is one rlimit to set, never above the hard limit already in force.
type rlim struct {
	resource   int
	soft, hard uint64
}

// A search is where the target is looked for if that is not its own PATH.
type search struct {
	path string
	set  bool
}

// candidates lists the paths that execvp(3) would try for a command name.
func (s search) candidates(name string, env []string) []string {
	if !s.set {
		s.path, s.set = lookupEnv(env, "PATH")
	}
	return execCandidates(name, s.path, s.set)
}

// searchMark begins what is last in a spec, and goes on to its end.
const searchMark = " PATH="

// encode writes the spec as "status gate parent uid ns fd:fd:... resource:soft:hard ...",
// and " PATH=..." for a search.
func (s *childSpec) encode() string {
	var b strings.Builder
	b.WriteString(strconv.Itoa(s.statusFD) + " " + strconv.Itoa(s.gateFD) + " " + strconv.Itoa(s.parent) + " " + strconv.Itoa(s.uid) + " ")
	if s.userNamespace {
		b.WriteString("ns")
	}
	b.WriteByte(' ')
	for i, fd := range s.passFDs {
		if i > 0 {
			b.WriteByte(':')
		}
		b.WriteString(strconv.Itoa(fd))
	}
	for _, r := range s.rlimits {
		b.WriteString(" " + strconv.Itoa(r.resource) + ":" + strconv.FormatUint(r.soft, 10) + ":" + strconv.FormatUint(r.hard, 10))
	}
	if s.search.set {
		b.WriteString(searchMark + s.search.path)
	}
	return b.String()
}

func decodeChildSpec(text string) (*childSpec, bool) {
	s := new(childSpec)
	text, s.search.path, s.search.set = strings.Cut(text, searchMark)
	fields := strings.Split(text, " ")
	if len(fields) < 6 || fields[4] != "" && fields[4] != "ns" {
		return nil, false
	}
	for i, p := range []*int{&s.statusFD, &s.gateFD, &s.parent, &s.uid} {
		n, err := strconv.Atoi(fields[i])
		if err != nil {
			return nil, false
		}
		*p = n
	}
	s.userNamespace = fields[4] == "ns"
	for f := range strings.SplitSeq(fields[5], ":") {
		if fd, err := strconv.Atoi(f); err == nil {
			s.passFDs = append(s.passFDs, fd)
		}
	}
	for _, f := range fields[6:] {
		part := strings.Split(f, ":")
		if len(part) != 3 {
			return nil, false
		}
		resource, err1 := strconv.Atoi(part[0])
		soft, err2 := strconv.ParseUint(part[1], 10, 64)
		hard, err3 := strconv.ParseUint(part[2], 10, 64)
		if err1 != nil || err2 != nil || err3 != nil {
			return nil, false
		}
		s.rlimits = append(s.rlimits, rlim{resource, soft, hard})
	}
	return s, true
}

// runtimeVariables steer Go's runtime. The child stage starts with settings of
// its own: one thread is all that it needs, and a collection that began could go
// on under the limits, where an allocation is fatal.
var runtimeVariables = []string{"GOMAXPROCS", "GOGC", "GOMEMLIMIT", "GODEBUG"}

// stageEnv is the environment that the child stage starts with, for a target
// that is to have env.
func stageEnv(env []string) []string {
	return append(unsetEnv(env, runtimeVariables...), "GOMAXPROCS=1", "GOGC=off")
}

// targetEnv is what the target's environment has besides.
func targetEnv(env []string) (word goAhead) {
	for _, name := range runtimeVariables {
		if value, ok := lookupEnv(env, name); ok {
			word = append(word, name+"="+value)
		}
	}
	return word
}

// A goAhead is what the supervisor says through the gate: variables to add to
// the target's environment. The child stage takes longest to get there, so what
// only the target needs is made meanwhile.
type goAhead []string

// apply returns the target's environment, from the child stage's.
func (g goAhead) apply(env []string) []string {
	env = unsetEnv(env, runtimeVariables...)
	for _, variable := range g {
		name, value, _ := strings.Cut(variable, "=")
		env = setEnv(env, name, value)
	}
	return env
}

// encode ends each variable, and the whole, with a zero byte, which no variable
// can hold.
func (g goAhead) encode() []byte {
	var p []byte
	for _, variable := range g {
		p = append(append(p, variable...), 0)
	}
	return append(p, 0)
}

// decodeGoAhead returns false while p is only the beginning.
func decodeGoAhead(p []byte) (goAhead, bool) {
	var g goAhead
	for len(p) > 0 && p[0] != 0 {
		variable, rest, whole := strings.Cut(string(p), "\x00")
		if !whole {
			return nil, false
		}
		g, p = append(g, variable), []byte(rest)
	}
	return g, len(p) > 0
}

// waitAtGate waits for the supervisor's word, and returns the environment with
// what it adds. Without a word the call is off.
func (s *childSpec) waitAtGate(env []string) ([]string, bool) {
	if s.gateFD < 0 {
		return env, true
	}
	var said []byte
	for {
		var buf [512]byte
		n, err := syscall.Read(s.gateFD, buf[:])
		if err == syscall.EINTR {
			continue
		}
		if n <= 0 || err != nil {
			return nil, false
		}
		said = append(said, buf[:n]...)
		if word, whole := decodeGoAhead(said); whole {
			return word.apply(env), true
		}
	}
}

// A childStep is a step of the child stage that can fail.
type childStep byte

const (
	stepDecode childStep = iota
	stepDescriptors
	stepGroups
	stepGID
	stepUID
	stepDropCheck
	stepNoNewPrivs
	stepDeathSignal
	stepSignals
	stepNamespace
	stepRlimit // record.index is the position in childSpec.rlimits
	stepExec   // record.index is the position in execCandidates
	// Not failures: what is said on the way through PATH.
	stepSkip   // execve of the candidate failed, the search goes on
	stepTry    // the candidate is tried next, after at least one skip
	stepExecve // all is set, execve comes next: without this the stage itself died; see peakRecord
)

func (s childStep) String() string {
	return [...]string{
		"read the child stage's arguments", "mark descriptors close-on-exec", "clear the supplementary groups",
		"set the gid", "set the uid", "check that the uid took", "set no_new_privs", "set the parent-death signal",
		"reset signals", "see a limit of processes bind in its user namespace", "set a limit", "execute",
	}[s]
}

// A childRecord is what the child stage says over the status pipe. Its encoding
// has a fixed size and needs no allocation, since nothing may be allocated once
// the address space is limited. End of file without a failure means that
// execve worked.
type childRecord struct {
	step  childStep
	index uint16
	errno syscall.Errno
}

const childRecordSize = 4

// peakRecord is the record of stepExecve. In place of an index and an errno it
// holds, in KiB and at most 16 GiB, the peak of the resident set that the
// kernel will count for the target although it is pyplaypen's: the counter
// outlives execve(2), and starts with the supervisor's, whose memory a child
// shares until its own first execve.
func peakRecord(bytes int64) childRecord {
	kib := min(bytes>>10, 1<<24-1)
	return childRecord{stepExecve, uint16(kib), syscall.Errno(kib >> 16)}
}

// peak is what peakRecord was made for, in bytes.
func (r childRecord) peak() int64 { return (int64(r.errno)<<16 | int64(r.index)) << 10 }

func (r childRecord) encode() [childRecordSize]byte {
	return [...]byte{byte(r.step), byte(r.index), byte(r.index >> 8), byte(r.errno)}
}

func decodeChildRecords(p []byte) []childRecord {
	var records []childRecord
	for ; len(p) >= childRecordSize; p = p[childRecordSize:] {
		records = append(records, childRecord{childStep(p[0]), uint16(p[1]) | uint16(p[2])<<8, syscall.Errno(p[3])})
	}
	return records
}

// defaultPath is where execvp(3) looks when PATH is not set.
const defaultPath = "/bin:/usr/bin"

// execCandidates lists the paths that execvp(3) would try for a command name.
func execCandidates(name, path string, pathSet bool) []string {
	if strings.Contains(name, "/") || name == "" {
		return []string{name}
	}
	if !pathSet {
		path = defaultPath
	}
	var candidates []string
	for dir := range strings.SplitSeq(path, ":") {
		if dir == "" {
			candidates = append(candidates, name) // the current directory
		} else {
			candidates = append(candidates, strings.TrimRight(dir, "/")+"/"+name)
		}
	}
	return candidates
}

// lookupEnv is os.LookupEnv for an environment that is not the process's own.
// As in getenv(3), the first entry counts.
func lookupEnv(env []string, name string) (string, bool) {
	for _, e := range env {
		if len(e) > len(name) && e[len(name)] == '=' && e[:len(name)] == name {
			return e[len(name)+1:], true
		}
	}
	return "", false
}

// setEnv returns env with name set to value, once.
func setEnv(env []string, name, value string) []string {
	return append(unsetEnv(env, name), name+"="+value)
}

// unsetEnv returns env without the names, and with room for as many.
func unsetEnv(env []string, names ...string) []string {
	out := make([]string, 0, len(env)+len(names))
	for _, e := range env {
		name, _, _ := strings.Cut(e, "=")
		if !slices.Contains(names, name) {
			out = append(out, e)
		}
	}
	return out
}
