package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// runsName is the directory below the artifact directory that has the workspaces.
const runsName = "sandbox-runs"

// A workspace is the directory that exec's code starts in:
// DIR/sandbox-runs/REQUEST-ID, 0700, of the call's uid. All that happens to it
// goes through descriptors, so that no link can lead it elsewhere.
type workspace struct {
	root, runs, dir int // descriptors
	id              string
	path            string // absolute
	realPath        string // the same, links resolved, as getcwd(3) has it
	rootPath        string
	uid             int // of the call, or -1
	ownerUID        int // of DIR, who gets what is kept
	ownerGID        int
}

// newWorkspace makes it, once safe is closed. Its errors are usage errors, and
// leave nothing behind.
func newWorkspace(dir, id string, uid int, safe <-chan struct{}) (*workspace, error) {
	given := dir != ""
	if !given {
		dir = "."
	}
	fail := func(err error) (*workspace, error) {
		if !given {
			return nil, usageError("workspace in the current directory: %w; --artifact-dir DIR has it elsewhere", err)
		}
		return nil, usageError("--artifact-dir %s: %w", quoteName(dir), err)
	}
	abs, err := filepath.Abs(dir)
	if err != nil {
		return fail(err)
	}
	if err := os.MkdirAll(abs, 0o777); err != nil {
		return fail(err)
	}
	w := &workspace{root: -1, runs: -1, dir: -1, id: id, uid: uid, rootPath: abs, path: filepath.Join(abs, runsName, id)}
	if w.root, err = unix.Open(abs, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0); err != nil {
		return fail(err)
	}
	if w.realPath, err = filepath.EvalSymlinks(abs); err != nil {
		w.close()
		return fail(err)
	}
	w.realPath = filepath.Join(w.realPath, runsName, id)
	var st unix.Stat_t
	if err := unix.Fstat(w.root, &st); err != nil {
		w.close()
		return fail(err)
	}
	w.ownerUID, w.ownerGID = int(st.Uid), int(st.Gid)
	<-safe
	err = w.make()
	if err == nil && uid >= 0 {
		letPass(w.runs)
		if given {
			letPass(w.root)
		}
		err = unix.Fchown(w.dir, uid, uid)
		if err != nil {
			w.remove()
		}
	}
	if err != nil {
		w.close()
		if errors.Is(err, unix.EEXIST) {
			return nil, usageError("--request-id %s: %s exists", id, w.path)
		}
		return fail(err)
	}
	return w, nil
}

// make makes sandbox-runs and the workspace in it. Another call that ends at
// the same time may remove an empty sandbox-runs in between, so it tries again.
func (w *workspace) make() error {
	for range 1000 {
		made := false
		switch err := unix.Mkdirat(w.root, runsName, 0o777); err {
		case nil:
			made = true
		case unix.EEXIST:
		default:
			return err
		}
		runs, err := openDirAt(w.root, runsName)
		if err == unix.ENOENT {
			continue
		}
		if err != nil {
			if made {
				unix.Unlinkat(w.root, runsName, unix.AT_REMOVEDIR)
			}
			return err
		}
		if made && w.uid >= 0 {
			unix.Fchown(runs, w.ownerUID, w.ownerGID)
		}
		err = unix.Mkdirat(runs, w.id, 0o700)
		if err == nil {
			w.runs = runs
			if w.dir, err = openDirAt(runs, w.id); err == nil {
				err = unix.Fchmod(w.dir, 0o700) // the umask may have taken bits away
			}
			if err != nil {
				unix.Unlinkat(runs, w.id, unix.AT_REMOVEDIR)
				unix.Unlinkat(w.root, runsName, unix.AT_REMOVEDIR)
			}
			return err
		}
		unix.Close(runs)
		if err != unix.ENOENT {
			if made {
				unix.Unlinkat(w.root, runsName, unix.AT_REMOVEDIR)
			}
			return err
		}
	}
	return errors.New("sandbox-runs keeps vanishing")
}

// letPass adds the right to pass a directory for others.
func letPass(fd int) {
	var st unix.Stat_t
	if unix.Fstat(fd, &st) == nil && st.Mode&0o001 == 0 {
		unix.Fchmod(fd, uint32(st.Mode)&0o7777|0o001)
	}
}

// seize shuts out the processes of the call's uid that belong to other calls,
// and undoes what the code may have done to the mode.
func (w *workspace) seize() error { return takeOver(w.dir, w.uid >= 0) }

// takeOver makes a directory that is no longer the code's to change: its
// owner may do everything, and nobody else may write to it. As root the owner
// is root, which also takes the rights from those who hold it open.
func takeOver(dir int, root bool) error {
	if root {
		if err := unix.Fchown(dir, os.Geteuid(), -1); err != nil {
			return err
		}
	}
	var st unix.Stat_t
	if err := unix.Fstat(dir, &st); err != nil {
		return err
	}
	return unix.Fchmod(dir, uint32(st.Mode)&0o755|0o700)
}

// remove removes the workspace with all that is in it, and sandbox-runs if it
// is empty then.
func (w *workspace) remove() error {
	if err := removeTree(w.runs, w.id); err != nil && err != unix.ENOENT {
		return fmt.Errorf("remove %s: %w", w.path, err)
	}
	unix.Unlinkat(w.root, runsName, unix.AT_REMOVEDIR)
	return nil
}

func (w *workspace) close() {
	for _, fd := range []int{w.root, w.runs, w.dir} {
		if fd >= 0 {
			unix.Close(fd)
		}
	}
}
