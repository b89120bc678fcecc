package main

import (
	"strconv"
	"strings"
)

// Building and walking kong's model of the command line costs about as much as
// starting the target. quickRun and quickExec read the flags without it in the
// plain case: every word a known flag with its value. For anything else, help
// and mistakes included, they report false, and kong decides. A test holds both
// to the same result for every flag.

func quickRun(args []string) (*runCmd, bool) {
	f := new(runCmd)
	switches := func(name string) *bool {
		switch name {
		case "--stdin":
			return &f.Stdin
		case "--buffer":
			return &f.Buffer
		case "--merge-output":
			return &f.MergeOutput
		case "--json":
			return &f.JSON
		case "--in-place":
			return &f.InPlace
		case "--restore-ownership":
			return &f.RestoreOwnership
		}
		return f.callFlags.switchNamed(name)
	}
	for len(args) > 0 {
		if s := switches(args[0]); s != nil {
			*s, args = true, args[1:]
			continue
		}
		name, value, rest, ok := flagAndValue(args)
		if !ok {
			return nil, false
		}
		if name == "--pass-fd" {
			fd, err := strconv.Atoi(value)
			if err != nil {
				return nil, false
			}
			f.PassFD = append(f.PassFD, fd)
		} else if !f.callFlags.set(name, value) {
			return nil, false
		}
		args = rest
	}
	return f, true
}

// quickExec takes the words in which joinCode has joined -c and its code.
func quickExec(args []string) (*execCmd, bool) {
	f := new(execCmd)
	switches := func(name string) *bool {
		switch name {
		case "--warn-only":
			return &f.WarnOnly
		case "--self-check":
			return &f.SelfCheck
		}
		return f.callFlags.switchNamed(name)
	}
	for len(args) > 0 {
		if s := switches(args[0]); s != nil {
			*s, args = true, args[1:]
			continue
		}
		if word := args[0]; word == "-" || word != "" && word[0] != '-' {
			if f.File != "" {
				return nil, false
			}
			f.File, args = word, args[1:]
			continue
		}
		name, value, rest, ok := flagAndValue(args)
		if !ok {
			return nil, false
		}
		ok = true
		switch name {
		case "--code":
			f.Code = append(f.Code, value)
		case "--python":
			ok = f.Python.set(value)
		case "--artifact-dir":
			ok = f.ArtifactDir.set(value)
		case "--globals-provider":
			ok = f.GlobalsProvider.set(value)
		case "--type-projector":
			ok = f.TypeProjector.set(value)
		case "--extra":
			ok = f.Extra.set(value)
		default:
			ok = f.callFlags.set(name, value)
		}
		if !ok {
			return nil, false
		}
		args = rest
	}
	return f, true
}

func (f *callFlags) set(name, value string) bool {
	switch name {
	case "--limit":
		f.Limit = append(f.Limit, value)
	case "--child-uid":
		f.ChildUID = &value
	case "--kill-after":
		f.KillAfter = &value
	case "--request-id":
		return f.RequestID.set(value)
	case "--audit-file":
		return f.AuditFile.set(value)
	case "--audit-extra":
		return f.AuditExtra.set(value)
	case "--report":
		return f.Report.set(value)
	case "--env":
		f.Env = append(f.Env, value)
	case "--max-concurrency":
		f.MaxConcurrency = &value
	case "--slot-dir":
		f.SlotDir = &value
	default:
		return false
	}
	return true
}

// set leaves an empty one to kong, which refuses it.
func (w *word) set(value string) bool {
	*w = word(value)
	return value != ""
}

func (f *callFlags) switchNamed(name string) *bool {
	if name == "--clean-env" {
		return &f.CleanEnv
	}
	return nil
}

// flagAndValue splits "--name=value" or "--name value" off the front.
func flagAndValue(args []string) (name, value string, rest []string, ok bool) {
	if name, value, ok = strings.Cut(args[0], "="); ok {
		return name, value, args[1:], true
	}
	if len(args) < 2 || strings.HasPrefix(args[1], "-") {
		return "", "", nil, false
	}
	return args[0], args[1], args[2:], true
}
