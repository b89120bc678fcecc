package main

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// A tree is the leader of a call and all that descends from it. The supervisor
// is a subreaper: whatever loses its parent inside the tree becomes the
// supervisor's child, whichever session or group it moved to, so that "no child
// left" means that nothing is left (PR_SET_CHILD_SUBREAPER(2const)).
type tree struct {
	self, leader int
	forkThread   int  // of this process, the one that forked the leader
	scan         bool // the kernel has no children file: look through all of /proc
	reapedLeader bool
	usage        treeUsage
	progress     int // grows with every process signalled, found dead or reaped

	// Children that pyplaypen already had, such as the tee of a shell's
	// `exec > >(tee log); exec pyplaypen ...`, and the sessions that they and
	// pyplaypen are in. The leader starts a session, and no process can join an
	// existing one, so a child found in one of these sessions is an orphan of
	// theirs, not of the call.
	foreign         map[int]bool
	foreignSessions map[int]bool

	sent        map[int]syscall.Signal // the last signal sent to a child
	denied      map[int]bool           // children that kill(2) may not signal
	deniedAlive int                    // how many of these the last sweepKilling saw
}

// A process is a line of /proc/PID/stat, as far as it is needed.
type process struct {
	pid, ppid, group, session int
	threads                   int
	name                      string
	state                     byte
	cpu                       time.Duration
}

func (p process) String() string { return fmt.Sprintf("%s (pid %d)", p.name, p.pid) }

// newTree notes the children that there are. It comes before the fork.
func newTree() *tree {
	t := &tree{self: os.Getpid(), sent: map[int]syscall.Signal{}, denied: map[int]bool{}}
	if !t.childrenRemain() {
		return t
	}
	t.chooseListing()
	t.foreign, t.foreignSessions = map[int]bool{}, map[int]bool{}
	if sid, err := unix.Getsid(0); err == nil {
		t.foreignSessions[sid] = true
	}
	for _, pid := range t.children() {
		t.foreign[pid] = true
		if sid, err := unix.Getsid(pid); err == nil {
			t.foreignSessions[sid] = true
		}
	}
	return t
}

// chooseListing finds out how to list children.
func (t *tree) chooseListing() {
	// A kernel without CONFIG_PROC_CHILDREN.
	_, err := os.Stat("/proc/self/task/" + strconv.Itoa(t.self) + "/children")
	t.scan = err != nil || testOnlyNoChildrenFile
}

// adopt makes this process the parent of whatever the tree orphans. Its error is
// that the tree could not be torn down here, so nothing of it may start.
func (t *tree) adopt() error {
	if link, err := os.Readlink("/proc/self"); err != nil || link != strconv.Itoa(t.self) {
		return errors.New("no /proc of this PID namespace: what descends from the command could not be found and killed")
	}
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("become a subreaper: %w", err)
	}
	t.chooseListing()
	return nil
}

// ownProcesses is how many processes and threads pyplaypen may have when its
// child stage starts, that stage's included: 18 as a rule, and 21 once in ten thousand
// calls on a busy machine.
const ownProcesses = 24

// fewProcesses is a limit on processes from which on nobody needs to try whether
// there are enough: that of a user's session is above it.
const fewProcesses = 1024

// roomForOwn returns an error if a low limit on this user's processes, such as
// that of a call around this one, leaves too few for pyplaypen: the runtime dies
// with a dump of its stacks when it gets no thread. Whom the kernel counts /proc
// does not tell across user namespaces, so it is tried.
func roomForOwn() error {
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NPROC, &limit); err != nil || limit.Cur >= fewProcesses || canFork() {
		return nil
	}
	return fmt.Errorf("the limit of %d processes in force leaves too few for pyplaypen itself, which needs %d: raise the process_count of the call around it", limit.Cur, ownProcesses)
}

// canFork forks as many processes as are wanting to ownProcesses. It does so on
// the one processor that the runtime has meanwhile, without giving it up in a
// system call: the runtime would want a thread for another while none is left.
func canFork() bool {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	want := ownProcesses - len(threadsOf(os.Getpid()))
	pids := make([]uintptr, 0, ownProcesses)
	pause := unix.Timespec{Sec: 1} // or they outlive a pyplaypen that is killed meanwhile
	var errno syscall.Errno
	for len(pids) < want && errno == 0 {
		var pid uintptr
		pid, _, errno = syscall.RawSyscall6(syscall.SYS_CLONE, uintptr(syscall.SIGCHLD), 0, 0, 0, 0, 0)
		if errno == 0 && pid == 0 {
			syscall.RawSyscall6(syscall.SYS_PPOLL, 0, 0, uintptr(unsafe.Pointer(&pause)), 0, 0, 0)
			syscall.RawSyscall(syscall.SYS_EXIT_GROUP, 0, 0, 0)
		}
		if errno == 0 {
			pids = append(pids, pid)
		}
	}
	for _, pid := range pids {
		syscall.RawSyscall(syscall.SYS_KILL, pid, uintptr(syscall.SIGKILL), 0)
	}
	for _, pid := range pids {
		for {
			if _, _, err := syscall.RawSyscall6(syscall.SYS_WAIT4, pid, 0, unix.WALL, 0, 0, 0); err != syscall.EINTR {
				break
			}
		}
	}
	return errno != syscall.EAGAIN // another error says nothing about how many
}

// sameSession says that the leader stays in this process's session, so that a
// session no longer tells what is foreign; the children that there are remain so.
func (t *tree) sameSession() { clear(t.foreignSessions) }

func (t *tree) isForeign(pid int) bool {
	if t.foreign == nil {
		return false
	}
	sid, err := unix.Getsid(pid)
	return t.foreign[pid] || err == nil && t.foreignSessions[sid]
}

// childrenRemain asks the kernel whether this process has any child of its own
// making, alive or dead.
func (t *tree) childrenRemain() bool {
	if t.foreign != nil { // wait(2) can't leave these out
		for _, pid := range t.children() {
			if !t.isForeign(pid) {
				return true
			}
		}
		return false
	}
	var err error
	for {
		err = unix.Waitid(unix.P_ALL, 0, nil, unix.WEXITED|unix.WNOHANG|unix.WNOWAIT|unix.WALL, nil)
		if err != unix.EINTR {
			return err != unix.ECHILD
		}
	}
}

// sweep reaps the children that are dead, except the leader, and sends sig, if
// it is not 0, to those alive that did not get it yet. It returns how many are
// alive. A child can't be reaped but here, so its pid is safe to signal.
// Deeper descendants become children when their parents die.
func (t *tree) sweep(sig syscall.Signal) (alive int) {
	for _, pid := range t.children() {
		if pid == t.leader || t.isForeign(pid) {
			continue
		}
		if t.reap(pid) {
			continue
		}
		alive++
		if sig != 0 && t.sent[pid] != sig {
			t.sent[pid] = sig
			unix.Kill(pid, sig)
			unix.Kill(pid, unix.SIGCONT)
		}
	}
	return alive
}

// sweepKilling sends SIGKILL to the children that did not get it yet. It reaps
// none before all are dead: a zombie still counts against RLIMIT_NPROC, so that
// a tree that forks as fast as it is killed gets no room for new processes.
func (t *tree) sweepKilling() (alive int) {
	t.deniedAlive = 0
	var dead []int
	for _, pid := range t.children() {
		if pid == t.leader || t.isForeign(pid) {
			continue
		}
		if t.isZombie(pid) {
			if t.sent[pid] != 0 {
				t.sent[pid] = 0
				t.progress++
			}
			dead = append(dead, pid)
			continue
		}
		alive++
		if t.sent[pid] != unix.SIGKILL {
			t.progress++
			t.sent[pid] = unix.SIGKILL
			t.denied[pid] = unix.Kill(pid, unix.SIGKILL) == unix.EPERM
		}
		if t.denied[pid] {
			t.deniedAlive++
			t.killBelow(pid)
		}
	}
	if alive > t.deniedAlive && len(dead) < zombieLimit {
		return alive
	}
	for _, pid := range dead {
		t.reap(pid)
	}
	return alive
}

// killBelow kills what descends from a process that can't itself be killed, and
// so does not become a child of this one.
func (t *tree) killBelow(pid int) {
	seen := map[int]bool{}
	var walk func(int)
	walk = func(pid int) {
		p, err := readProcess(pid)
		if err != nil {
			return
		}
		for _, child := range t.childrenOf(p) {
			if !seen[child] {
				seen[child] = true
				t.signalDistant(child, unix.SIGKILL)
				walk(child)
			}
		}
	}
	walk(pid)
}

// zombieLimit is how many dead children are left unreaped at the most, since
// where nothing bounds the tree's processes they use up the machine's pids.
const zombieLimit = 4096

func (t *tree) isZombie(pid int) bool {
	var info unix.Siginfo
	err := unix.Waitid(unix.P_PID, pid, &info, unix.WEXITED|unix.WNOHANG|unix.WNOWAIT|unix.WALL, nil)
	return err == nil && info.Signo != 0
}

func (t *tree) reap(pid int) bool {
	var usage unix.Rusage
	wpid, err := unix.Wait4(pid, nil, unix.WNOHANG|unix.WALL, &usage)
	if wpid != pid && err != unix.ECHILD {
		return false
	}
	if wpid == pid {
		t.usage.add(&usage)
	}
	t.progress++
	delete(t.sent, pid)
	delete(t.denied, pid)
	return true
}

// terminate sends SIGTERM to the leader's group and to the descendants outside
// it. Stopped ones are continued, or it would not reach them.
func (t *tree) terminate(descendants []process) {
	t.signalGroup(unix.SIGTERM)
	for _, p := range descendants {
		// Who is in the group now was in it when it was signalled.
		group, _ := unix.Getpgid(p.pid)
		switch {
		case group == t.leader:
			t.sent[p.pid] = unix.SIGTERM // sweep will not repeat it
		case p.ppid != t.self: // sweep does the others
			t.signalDistant(p.pid, unix.SIGTERM)
		}
	}
	t.sweep(unix.SIGTERM)
}

// signalGroup signals the leader's group. Unless the leader was reaped its
// number can't belong to another group.
func (t *tree) signalGroup(sig syscall.Signal) {
	if t.reapedLeader {
		return
	}
	unix.Kill(-t.leader, sig)
	t.denied[t.leader] = unix.Kill(t.leader, 0) == unix.EPERM
	unix.Kill(-t.leader, unix.SIGCONT)
}

// signalDistant signals a descendant that is not a child, and whose pid could
// therefore be reused at any time: a pidfd pins it, then its ancestry is looked
// at once more.
func (t *tree) signalDistant(pid int, sig syscall.Signal) {
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return
	}
	defer unix.Close(fd)
	for at := pid; at != t.self; {
		p, err := readProcess(at)
		if err != nil || p.ppid <= 1 && p.ppid != t.self || t.isForeign(at) {
			return
		}
		at = p.ppid
	}
	unix.PidfdSendSignal(fd, sig, nil, 0)
	unix.PidfdSendSignal(fd, unix.SIGCONT, nil, 0)
}

// descendants lists what is alive in the tree. It stops looking at the given
// time, since a tree that forks without end also slows down who looks at it.
func (t *tree) descendants(until time.Time) []process {
	var found []process
	seen := map[int]bool{}
	var walk func(parent int, children []int)
	walk = func(parent int, children []int) {
		for _, child := range children {
			if seen[child] || time.Now().After(until) || parent == t.self && t.isForeign(child) {
				continue
			}
			seen[child] = true
			p, err := readProcess(child)
			switch {
			case err == nil && p.state != 'Z' && p.state != 'X':
				found = append(found, p)
			case err != nil && unix.Kill(child, 0) == unix.EPERM: // hidden by /proc's hidepid
				found = append(found, process{pid: child, ppid: parent, name: "another user's process"})
			}
			if err == nil {
				walk(child, t.childrenOf(p))
			}
		}
	}
	walk(t.self, t.children())
	return found
}

// leaderCPU is the CPU time of a leader that a signal killed, without that of
// its children, which wait4(2) would include. The leader is still a zombie.
func (t *tree) leaderCPU() time.Duration {
	var info unix.Siginfo
	err := unix.Waitid(unix.P_PID, t.leader, &info, unix.WEXITED|unix.WNOHANG|unix.WNOWAIT|unix.WALL, nil)
	if err != nil || info.Code != cldKilled {
		return 0
	}
	p, _ := readProcess(t.leader)
	return p.cpu
}

// Codes of SIGCHLD, see sigaction(2).
const (
	cldKilled  = 2
	cldStopped = 5
)

// leaderStopped is the signal that has stopped the leader since it was asked
// for last, or 0.
func (t *tree) leaderStopped() syscall.Signal {
	var info struct { // siginfo_t as waitid(2) fills it
		signo, errno, code int32
		_                  int32
		pid, uid, status   int32
		_                  [100]byte
	}
	_, _, errno := syscall.Syscall6(syscall.SYS_WAITID, unix.P_PID, uintptr(t.leader), uintptr(unsafe.Pointer(&info)), unix.WSTOPPED|unix.WNOHANG|unix.WALL, 0, 0)
	if errno != 0 || info.signo == 0 || info.code != cldStopped {
		return 0
	}
	return syscall.Signal(info.status)
}

func (t *tree) reapLeader() (unix.WaitStatus, bool) {
	var status unix.WaitStatus
	for {
		var usage unix.Rusage
		pid, err := unix.Wait4(t.leader, &status, unix.WALL, &usage)
		if err != unix.EINTR {
			t.usage.add(&usage)
			t.reapedLeader = true
			return status, pid == t.leader
		}
	}
}

// selfExecutable is this very program, even if its file has another name by now.
const selfExecutable = "/proc/self/exe"

// fork starts the child stage, from this very executable, and returns its
// pid and a descriptor that is readable once it has exited.
func (t *tree) fork(argv []string, attr *syscall.ProcAttr) (pid, fd int, err error) {
	t.forkThread = unix.Gettid()
	fd = -1
	attr.Sys.PidFD = &fd
	attr.Sys.Pdeathsig = unix.SIGKILL // until the child stage's own
	for end := time.Now().Add(namespacesEnd); ; {
		pid, err = syscall.ForkExec(selfExecutable, argv, attr)
		if err != syscall.ENOSPC || !namespacesMayEnd(end) {
			break
		}
	}
	if err != nil {
		return 0, -1, err
	}
	if fd < 0 {
		if fd, err = unix.PidfdOpen(pid, unix.PIDFD_NONBLOCK); err != nil {
			err = fmt.Errorf("pidfd, which needs Linux 5.4: %w", err)
		}
	}
	if err == nil && idsAreUnmapped(attr.Sys) {
		if err = mapOwnIDs(pid); err != nil && exits(fd) {
			err = nil // something has killed it, which the supervisor deals with
		}
	}
	if err != nil {
		unix.Kill(pid, unix.SIGKILL)
		unix.Wait4(pid, nil, 0, nil)
		unix.Close(fd)
	}
	return pid, fd, err
}

// exits reports whether the process of the pidfd has exited, or is about to.
func exits(fd int) bool {
	n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, int(signalsAtOnce/time.Millisecond))
	return err == nil && n > 0
}

// children lists the children of this process. One that exits while the kernel
// makes the list may hide another (proc_pid_children(5)), so callers look again.
func (t *tree) children() []int {
	if t.scan {
		return childrenByScan(t.self)
	}
	threads := []int{t.self} // which adopts orphans
	if t.forkThread != 0 && t.forkThread != t.self {
		threads = append(threads, t.forkThread)
	}
	return childrenOfThreads(t.self, threads)
}

// childrenOf does the same for another process.
func (t *tree) childrenOf(p process) []int {
	if t.scan {
		return childrenByScan(p.pid)
	}
	threads := []int{p.pid}
	if p.threads > 1 {
		threads = threadsOf(p.pid)
	}
	return childrenOfThreads(p.pid, threads)
}

// childrenOfThreads asks thread by thread, as the kernel lists children by the
// thread that is their parent.
func childrenOfThreads(pid int, threads []int) []int {
	var pids []int
	for _, tid := range threads {
		list, _ := readProc("/proc/" + strconv.Itoa(pid) + "/task/" + strconv.Itoa(tid) + "/children")
		pids = append(pids, parsePIDs(list)...)
	}
	return pids
}

func threadsOf(pid int) []int {
	entries, _ := os.ReadDir("/proc/" + strconv.Itoa(pid) + "/task")
	var tids []int
	for _, e := range entries {
		if tid, ok := parsePID(e.Name()); ok {
			tids = append(tids, tid)
		}
	}
	return tids
}

// testOnlyNoChildrenFile makes newTree act as on a kernel that lacks it.
var testOnlyNoChildrenFile bool

func childrenByScan(parent int) []int {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil
	}
	var pids []int
	for _, e := range entries {
		if pid, ok := parsePID(e.Name()); ok {
			if p, err := readProcess(pid); err == nil && p.ppid == parent {
				pids = append(pids, pid)
			}
		}
	}
	return pids
}

func parsePIDs(list []byte) []int {
	var pids []int
	for _, field := range bytes.Fields(list) {
		if pid, ok := parsePID(string(field)); ok {
			pids = append(pids, pid)
		}
	}
	return pids
}

func parsePID(text string) (int, bool) {
	if text == "" || text[0] < '0' || text[0] > '9' {
		return 0, false
	}
	pid, err := strconv.Atoi(text)
	return pid, err == nil
}

// clockTick is USER_HZ, which is 100 on every architecture that Go supports.
const clockTick = 10 * time.Millisecond

func readProcess(pid int) (process, error) {
	stat, err := readProc("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return process{}, err
	}
	// The name is in parentheses and may itself hold any byte.
	open, shut := bytes.IndexByte(stat, '('), bytes.LastIndexByte(stat, ')')
	if open < 0 || shut < open {
		return process{}, fmt.Errorf("/proc/%d/stat: unknown format", pid)
	}
	f := bytes.Fields(stat[shut+1:]) // from field 3, the state, on
	if len(f) < 20 {
		return process{}, fmt.Errorf("/proc/%d/stat: unknown format", pid)
	}
	number := func(i int) int { n, _ := strconv.Atoi(string(f[i-3])); return n }
	return process{
		pid:     pid,
		name:    string(stat[open+1 : shut]),
		state:   f[0][0],
		ppid:    number(4),
		group:   number(5),
		session: number(6),
		threads: number(20),
		cpu:     time.Duration(number(14)+number(15)) * clockTick,
	}, nil
}

// readProc reads a file of /proc whole.
func readProc(path string) ([]byte, error) {
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	defer unix.Close(fd)
	buf := make([]byte, 0, 512)
	for {
		if len(buf) == cap(buf) {
			buf = append(buf, make([]byte, len(buf))...)[:len(buf)]
		}
		n, err := unix.Read(fd, buf[len(buf):cap(buf)])
		if err == unix.EINTR {
			continue
		}
		if n <= 0 || err != nil {
			return buf, err
		}
		buf = buf[:len(buf)+n]
	}
}

// maxRSS is the peak of a resident set in bytes. The kernel counts in KiB
// (getrusage(2)).
func maxRSS(u *unix.Rusage) int64 { return u.Maxrss << 10 }
