package main

import "fmt"

// Exit codes of pyplaypen's own. A target's code passes through, and a signal
// n is 128+n.
const (
	exitUsage     = 2
	exitTimeout   = 124
	exitCannotRun = 125
	exitNotFound  = 127 // a shim, as a shell that finds no such command
	exitSignal    = 128
)

// An exitError ends the command with a code and a line that says why; the line
// is empty if everything was said already.
type exitError struct {
	code int
	line string
}

func (e *exitError) Error() string { return e.line }

// usageError refuses the command before anything was started.
func usageError(format string, args ...any) error {
	return &exitError{exitUsage, fmt.Errorf(format, args...).Error()}
}
