package main

import (
	"os"
	"strconv"
	"strings"
)

// Building and walking kong's model of the command line costs about as much as
// starting the target. quickRun and quickExec read the flags without it in the
// plain case: every word a known flag with its value. For anything else, help
// and mistakes included, they report false, and kong decides. A test holds both
// to the same result for every flag.

func quickRun(args []string) (*runCmd, bool) {
	f := &runCmd{callFlags: defaultCallFlags()}
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
	f := &execCmd{callFlags: defaultCallFlags(), Python: "python3"}
	if python, ok := os.LookupEnv("PYPLAYPEN_PYTHON"); ok {
		f.Python = python
	}
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
		switch name {
		case "--code":
			f.Code = append(f.Code, value)
		case "--python":
			f.Python = value
		case "--artifact-dir":
			f.ArtifactDir = value
		case "--globals-provider":
			f.GlobalsProvider = value
		case "--type-projector":
			f.TypeProjector = value
		case "--extra":
			f.Extra = value
		default:
			if !f.callFlags.set(name, value) {
				return nil, false
			}
		}
		args = rest
	}
	return f, true
}

// defaultCallFlags are kong's defaults for callFlags.
func defaultCallFlags() callFlags {
	return callFlags{KillAfter: "1", AuditFile: os.Getenv("PYPLAYPEN_AUDIT_FILE")}
}

func (f *callFlags) set(name, value string) bool {
	switch name {
	case "--limit":
		f.Limit = append(f.Limit, value)
	case "--child-uid":
		f.ChildUID = &value
	case "--kill-after":
		f.KillAfter = value
	case "--request-id":
		f.RequestID = value
	case "--audit-file":
		f.AuditFile = value
	case "--audit-extra":
		f.AuditExtra = value
	case "--report":
		f.Report = value
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
