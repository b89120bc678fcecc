package main

import (
	"bytes"
	"os"
	"os/exec"
	"testing"
)

// TestEveryCallSucceeds runs the simplest command many times: what goes wrong
// between the limits and execve does so about once in a hundred calls.
// PYPLAYPEN_TEST_SOAK=1 runs 3,000.
func TestEveryCallSucceeds(t *testing.T) {
	calls := 200
	if os.Getenv("PYPLAYPEN_TEST_SOAK") == "1" {
		calls = 3000
	}
	program, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	for i := range calls {
		var output bytes.Buffer
		c := exec.Cmd{
			Path: program, Args: []string{"pyplaypen", "run", "--", "/bin/true"}, Dir: dir,
			Env: append(os.Environ(), "PYPLAYPEN_QUIET=1"), Stdout: &output, Stderr: &output,
		}
		if err := c.Run(); err != nil || output.Len() > 0 {
			t.Fatalf("call %d: %v\n%s", i+1, err, output.Bytes())
		}
	}
}
