package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// section returns the text of README.md below a heading.
func section(t *testing.T, heading string) string {
	t.Helper()
	text, err := os.ReadFile("README.md")
	if err != nil {
		t.Fatal(err)
	}
	_, after, ok := strings.Cut(string(text), "\n## "+heading+"\n")
	if !ok {
		t.Fatalf("README.md has no section %q", heading)
	}
	body, _, _ := strings.Cut(after, "\n## ")
	return body
}

// TestReadmeExamples runs every command of README.md that begins with "$ " and
// compares what it prints, on both streams, with what stands below it. A line
// "[exit code N]" stands for a code that is not 0.
func TestReadmeExamples(t *testing.T) {
	path, err := program()
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile("README.md")
	if err != nil {
		t.Fatal(err)
	}
	runExamples(t, filepath.Dir(path), string(text), "```console\n", "```\n", 10)
}

// runExamples runs the commands of the blocks between begin and end, of which
// there should be at least so many, and compares what they print.
func runExamples(t *testing.T, programDir, text, begin, end string, least int) {
	t.Helper()
	examples := 0
	for _, block := range strings.Split(text, begin)[1:] {
		block, _, _ = strings.Cut(block, end)
		for _, example := range strings.Split("\n"+block, "\n$ ")[1:] {
			examples++
			command, want, _ := strings.Cut(strings.ReplaceAll(example, "\\\n", " "), "\n")
			if want != "" && !strings.HasSuffix(want, "\n") {
				want += "\n"
			}
			t.Run(command, func(t *testing.T) {
				t.Parallel()
				if got := runExample(t, programDir, command); got != want {
					t.Errorf("%s\nprints:\n%s\nwritten is:\n%s", command, got, want)
				}
			})
		}
	}
	if examples < least {
		t.Errorf("only %d examples found", examples)
	}
}

func runExample(t *testing.T, programDir, command string) string {
	t.Helper()
	cmd := exec.Command("sh", "-c", command)
	cmd.Dir = openTempDir(t)
	cmd.Env = []string{"PATH=" + programDir + ":/usr/local/bin:/usr/bin:/bin", "PYPLAYPEN_QUIET=1", "LANG=C.UTF-8", "PYPLAYPEN_CHILD_UID=" + unusedUID(), "PYPLAYPEN_WARN_ONLY=" + os.Getenv("PYPLAYPEN_WARN_ONLY")}
	out, err := cmd.CombinedOutput()
	text := string(out)
	if text != "" && !strings.HasSuffix(text, "\n") {
		text += "\n"
	}
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		text += fmt.Sprintf("[exit code %d]\n", exit.ExitCode())
	} else if err != nil {
		t.Fatal(err)
	}
	return text
}

// openTempDir is a t.TempDir that other uids can reach.
func openTempDir(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	for d := dir; d != filepath.Clean(os.TempDir()) && d != "/"; d = filepath.Dir(d) {
		os.Chmod(d, 0o755)
	}
	return dir
}

// TestReadmeQuickStart runs the README's two commands on a copy of what git
// tracks, or of the whole tree where there is no git.
func TestReadmeQuickStart(t *testing.T) {
	if os.Getenv("PYPLAYPEN_TEST_QUICK_START") != "" {
		return // this is the second command, run by this test
	}
	if _, err := exec.LookPath("go"); err != nil {
		skip(t, "go is missing")
	}
	_, after, _ := strings.Cut(section(t, "Two commands"), "```sh\n")
	block, _, _ := strings.Cut(after, "```\n")
	commands := strings.Split(strings.TrimSpace(block), "\n")
	if len(commands) != 2 {
		t.Fatalf("README.md has %d commands, want 2: %q", len(commands), commands)
	}
	dir := openTempDir(t)
	const tracked = `git ls-files -z --cached --others --exclude-standard >"$1/files" && xargs -0 cp --parents -t "$1" <"$1/files"`
	if exec.Command("sh", "-c", tracked, "sh", dir).Run() != nil {
		if out, err := exec.Command("cp", "-R", ".", dir).CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
	}
	run := func(command string) string {
		cmd := exec.Command("sh", "-c", command)
		cmd.Dir = dir
		// Only one small test of the second command: all of them run around this one.
		cmd.Env = append(os.Environ(), "PYPLAYPEN_TEST_QUICK_START=1", "GOFLAGS=-run=TestReadmeLimits")
		var stderr strings.Builder
		cmd.Stderr = &stderr
		out, err := cmd.Output()
		if err != nil {
			t.Errorf("%s: %v\n%s%s", command, err, out, stderr.String())
		}
		return string(out)
	}
	if got := run(strings.Replace(commands[0], "go run", "GOFLAGS= go run", 1)); got != "42\n" {
		t.Errorf("%s prints %q", commands[0], got)
	}
	if got := run(commands[1]); !strings.Contains(got, "ok  \tpyplaypen") {
		t.Errorf("%s prints %q", commands[1], got)
	}
}

// TestReadmeLimits holds the README's table against the one in limits.go.
func TestReadmeLimits(t *testing.T) {
	var want strings.Builder
	want.WriteString("| name | kind | default | bounds |\n| --- | --- | --- | --- |\n")
	for id, info := range limitTable {
		fmt.Fprintf(&want, "| %s | %s | %s | %s |\n", info.name, info.kind, limitText(limitID(id), info.value), info.help)
	}
	if !strings.Contains(section(t, "Limits"), want.String()) {
		t.Errorf("README.md's table of limits should be:\n%s", want.String())
	}
}

// TestReadmeRecipes demands that what the recipes show stands in an example, and
// that each example is linked.
func TestReadmeRecipes(t *testing.T) {
	text := section(t, "Recipes")
	files, err := filepath.Glob("examples/*")
	if err != nil || len(files) == 0 {
		t.Fatalf("no examples: %v", err)
	}
	lines := map[string]bool{"": true}
	for _, file := range files {
		content, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(string(content)) {
			lines[strings.TrimSuffix(line, "\n")] = true
		}
		switch filepath.Ext(file) {
		case ".sh", ".yaml", "":
			if !strings.Contains(text, "("+file+")") {
				t.Errorf("README.md does not link %s", file)
			}
		}
	}
	blocks := strings.Split(text, "```")
	for i := 1; i < len(blocks); i += 2 {
		_, code, _ := strings.Cut(blocks[i], "\n")
		for line := range strings.Lines(code) {
			if !lines[strings.TrimSuffix(line, "\n")] {
				t.Errorf("no example has the line %q", line)
			}
		}
	}
}

// TestReadmeAgents demands that the flags in what agents are told exist.
func TestReadmeAgents(t *testing.T) {
	parts := strings.Split(section(t, "For coding agents"), "`")
	commands := 0
	for i := 1; i < len(parts); i += 2 {
		words, found := strings.CutPrefix(parts[i], "pyplaypen ")
		if !found {
			if !strings.HasPrefix(parts[i], "--limit ") && parts[i] != "--stdin" {
				continue
			}
			words = "run " + parts[i]
		}
		commands++
		own, _, _ := strings.Cut(words+" ", "-- ")
		var flags cli
		parser, err := newParser(&flags)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := parser.Parse(strings.Fields(own)); err != nil {
			t.Errorf("%s: %v", parts[i], err)
		}
		limits := defaultLimits()
		for _, item := range append(flags.Run.Limit, flags.Exec.Limit...) {
			if _, err := limits.set(item); err != nil {
				t.Errorf("%s: %v", parts[i], err)
			}
		}
	}
	if commands < 6 {
		t.Errorf("only %d commands found", commands)
	}
}
