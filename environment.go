package main

import (
	"errors"
	"os"
	"slices"
	"strings"
)

// keptVariables are those of the caller's that --clean-env leaves: without them
// few programs find their files or write their text right.
var keptVariables = []string{"PATH", "HOME", "TMPDIR", "LANG", "TERM"}

// An environment is what the target gets to see of the caller's.
type environment struct {
	clean bool
	named []string // NAME or NAME=VALUE, the last one of a name wins
}

func newEnvironment(items []string, clean bool) (*environment, error) {
	for _, item := range items {
		if name, _, _ := strings.Cut(item, "="); name == "" {
			return nil, usageError("--env %q: want NAME or NAME=VALUE", item)
		}
	}
	return &environment{clean, items}, nil
}

// names reports whether the variable was named, so that nothing else sets it.
func (e *environment) names(name string) bool {
	return slices.ContainsFunc(e.named, func(item string) bool {
		n, _, _ := strings.Cut(item, "=")
		return n == name
	})
}

// apply makes the target's environment from the caller's. As with docker run
// and env(1), a NAME that the caller does not have is not set.
func (e *environment) apply(caller []string) []string {
	env := caller
	if e.clean {
		env = nil
		for _, name := range keptVariables {
			if value, ok := lookupEnv(caller, name); ok {
				env = setEnv(env, name, value)
			}
		}
	}
	for _, item := range e.named {
		name, value, given := strings.Cut(item, "=")
		if !given {
			var ok bool
			if value, ok = lookupEnv(caller, name); !ok {
				env = unsetEnv(env, name)
				continue
			}
		}
		env = setEnv(env, name, value)
	}
	return env
}

// idle is the first NAME that changes nothing, since the whole environment is
// the target's anyway. HOME and TMPDIR may else be a private directory's.
func (e *environment) idle() string {
	for _, item := range e.named {
		if !e.clean && !strings.Contains(item, "=") && item != "HOME" && item != "TMPDIR" {
			return item
		}
	}
	return ""
}

// provide sets a variable of the target's, unless the user has named it.
func (c *call) provide(name, value string) {
	if !c.environment.names(name) {
		c.env = setEnv(c.env, name, value)
		c.late = append(c.late, name+"="+value)
	}
}

// switchedOn reads a variable that is a switch: only the literal 1 is true.
func switchedOn(variable string) bool { return os.Getenv(variable) == "1" }

// setting is what a flag says, or the variable in its place where the flag was
// not given, and which of the two it was. An empty variable says nothing.
func setting(flag *string, flagName, variable string) (value, source string) {
	if flag != nil {
		return *flag, flagName
	}
	return os.Getenv(variable), variable
}

// A word is the value of a flag to which an empty one would mean nothing, so
// that it is refused; empty, the flag was not given.
type word string

func (w *word) UnmarshalText(text []byte) error {
	if len(text) == 0 {
		return errors.New("is empty")
	}
	*w = word(text)
	return nil
}

// or is setting for a word.
func (w word) or(flagName, variable string) (value, source string) {
	if w != "" {
		return string(w), flagName
	}
	return setting(nil, flagName, variable)
}
