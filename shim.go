package main

import (
	"errors"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// A shim is pyplaypen under the name of another program: a link in a directory
// that stands early on PATH. It takes no flags of its own; what would be flags
// of run comes from the environment.

// shimDepthVariable counts the shims around a shim. A shim never runs itself,
// but some other wrapper that it finds may look for the program from the start
// of PATH again and find the shim. Before a loop reaches the end of the count it
// may run into a limit, such as process_count.
const shimDepthVariable = "PYPLAYPEN_SHIM_DEPTH"

const maxShimDepth = 8

// shimName returns the name that pyplaypen was called by, and whether that
// makes it a shim.
func shimName(arg0 string) (string, bool) {
	name := path.Base(arg0)
	return name, arg0 != "" && name != "/" && !strings.HasPrefix(name, "pyplaypen")
}

// shim acts as run --stdin around the next program of the name on PATH.
func shim(arg0 string, args []string) (int, error) {
	start := time.Now()
	depth, err := shimDepth()
	if err != nil {
		return 0, err
	}
	self, err := os.Stat(selfExecutable)
	if err != nil {
		return 0, &exitError{exitCannotRun, "find pyplaypen's own file: " + err.Error()}
	}
	name, _ := shimName(arg0)
	list, set := os.LookupEnv("PATH")
	behind, keep, next := lookBehindShim(arg0, search{list, set}, self)
	if next == "" {
		return 0, &exitError{exitNotFound, quoteName(name) + ": no other program of this name on PATH for the shim to run"}
	}
	if depth >= maxShimDepth {
		return 0, &exitError{exitCannotRun, "cannot run " + quoteName(next) + ": shims call each other, " + strconv.Itoa(depth) + " deep"}
	}
	os.Setenv(shimDepthVariable, strconv.Itoa(depth+1))
	if keep.set {
		os.Setenv("PATH", keep.path)
	}
	run := runCmd{Stdin: true, behindShim: behind}
	return run.run(slices.Concat([]string{name}, args), start)
}

func shimDepth() (int, error) {
	text := os.Getenv(shimDepthVariable)
	if text == "" {
		return 0, nil
	}
	depth, err := strconv.ParseUint(text, 10, 16)
	if err != nil || depth > maxShimDepth {
		return 0, usageError("%s=%q: want a number from 0 to %d", shimDepthVariable, text, maxShimDepth)
	}
	return int(depth), nil
}

// passShim has the call look for its program behind the shims on its PATH, which
// would bind it once more, and returns the name to look for.
func (c *call) passShim(arg0 string) (string, error) {
	name, maybe := shimName(arg0)
	self, err := os.Stat(selfExecutable)
	if !maybe || err != nil {
		return arg0, nil
	}
	// All of them: which one the child's uid gets to is for execve(2) to tell.
	if !slices.ContainsFunc(c.search.candidates(arg0, c.env), func(candidate string) bool {
		st, err := os.Stat(candidate)
		return err == nil && os.SameFile(st, self)
	}) {
		return arg0, nil
	}
	list, set := lookupEnv(c.env, "PATH")
	behind, keep, next := lookBehindShim(arg0, search{list, set}, self)
	if next == "" {
		return arg0, errors.New("it is a shim, and no other program of this name is on PATH")
	}
	c.search = behind
	if keep.set {
		c.env = setEnv(c.env, "PATH", keep.path)
	}
	return name, nil
}

// lookBehindShim returns where run is to look for the program, with the rights
// of the child's uid as always: in the directories of was, its PATH, in which the
// name does not lead to pyplaypen itself. keep is the program's own PATH, if
// that does not stay as it is, and next the first program that is there for any
// uid.
func lookBehindShim(arg0 string, was search, self os.FileInfo) (behind, keep search, next string) {
	name, _ := shimName(arg0)
	old := was.path
	if !was.set {
		old = defaultPath
	}
	isSelf := func(file string) bool {
		st, err := os.Stat(file)
		return err == nil && os.SameFile(st, self)
	}
	dirs := strings.Split(old, ":")
	if dir := shimDirectory(arg0, old, isSelf); holdsOnly(dir, isSelf) {
		shims, err := os.Stat(dir)
		dirs = slices.DeleteFunc(dirs, func(entry string) bool {
			st, err2 := os.Stat(path.Join(entry, ".")) // "" is the current directory
			return err == nil && err2 == nil && os.SameFile(st, shims)
		})
		keep = search{strings.Join(dirs, ":"), true}
	}
	in := func(entry string) string { return execCandidates(name, entry, true)[0] }
	dirs = slices.DeleteFunc(dirs, func(entry string) bool { return isSelf(in(entry)) })
	if at := slices.IndexFunc(dirs, func(entry string) bool { return isProgram(in(entry)) }); at >= 0 {
		next = in(dirs[at])
	}
	return search{strings.Join(dirs, ":"), true}, keep, next
}

// shimDirectory is where the shim was found: by its path, or on PATH.
func shimDirectory(arg0, search string, isSelf func(string) bool) string {
	if strings.Contains(arg0, "/") {
		return path.Dir(arg0)
	}
	for _, candidate := range execCandidates(arg0, search, true) {
		if isSelf(candidate) {
			return path.Dir(candidate)
		}
	}
	return ""
}

// holdsOnly reports whether each of the directory's entries is pyplaypen.
func holdsOnly(dir string, isSelf func(string) bool) bool {
	entries, err := os.ReadDir(dir)
	return dir != "" && err == nil && !slices.ContainsFunc(entries, func(e os.DirEntry) bool { return !isSelf(filepath.Join(dir, e.Name())) })
}

// isProgram reports whether file is one that this process could execute.
func isProgram(file string) bool {
	st, err := os.Stat(file)
	return err == nil && st.Mode().IsRegular() && unix.Access(file, unix.X_OK) == nil
}
