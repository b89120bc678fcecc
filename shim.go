package main

import (
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

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
	depth, err := shimDepth()
	if err != nil {
		return 0, err
	}
	self, err := os.Stat(selfExecutable)
	if err != nil {
		return 0, &exitError{exitCannotRun, "find pyplaypen's own file: " + err.Error()}
	}
	target, search, err := findBehindShim(arg0, self)
	if err != nil {
		return 0, err
	}
	if depth >= maxShimDepth {
		return 0, &exitError{exitCannotRun, "cannot run " + quoteName(target) + ": shims call each other, " + strconv.Itoa(depth) + " deep"}
	}
	os.Setenv(shimDepthVariable, strconv.Itoa(depth+1))
	if search != "" {
		os.Setenv("PATH", search)
	}
	return command(slices.Concat([]string{"run", "--stdin", "--", target}, args))
}

func shimDepth() (int, error) {
	text := os.Getenv(shimDepthVariable)
	if text == "" {
		return 0, nil
	}
	depth, err := strconv.ParseUint(text, 10, 16)
	if err != nil {
		return 0, usageError("%s=%q: want a number", shimDepthVariable, text)
	}
	return int(depth), nil
}

// findBehindShim returns what to run, and the PATH to run it with, which is
// empty if it stays as it is. The target is the bare name where the new PATH
// leads past all shims, so that run looks for it with the rights of the child's
// uid; else it is the path of the next program that is not pyplaypen.
func findBehindShim(arg0 string, self os.FileInfo) (target, search string, err error) {
	name, _ := shimName(arg0)
	old, set := os.LookupEnv("PATH")
	if !set {
		old = defaultPath
	}
	isSelf := func(file string) bool {
		st, err := os.Stat(file)
		return err == nil && os.SameFile(st, self)
	}
	kept := strings.Split(old, ":")
	if dir := shimDirectory(arg0, old, isSelf); holdsOnly(dir, isSelf) {
		shims, err := os.Stat(dir)
		kept = slices.DeleteFunc(kept, func(entry string) bool {
			st, err2 := os.Stat(path.Join(entry, ".")) // "" is the current directory
			return err == nil && err2 == nil && os.SameFile(st, shims)
		})
		search = strings.Join(kept, ":")
	}
	candidates := execCandidates(name, strings.Join(kept, ":"), true)
	next := slices.IndexFunc(candidates, func(file string) bool { return !isSelf(file) && isProgram(file) })
	if len(kept) == 0 || next < 0 {
		return "", "", &exitError{exitNotFound, quoteName(name) + ": no other program of this name on PATH for the shim to run"}
	}
	if slices.ContainsFunc(candidates, isSelf) {
		return candidates[next], search, nil
	}
	return name, search, nil
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
