package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path"
	"regexp"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/rogpeppe/go-internal/testscript"
)

// A printedResult is what exec printed, taken apart.
type printedResult struct {
	Status      string          `json:"status"`
	ReturnValue json.RawMessage `json:"return_value"`
	Stdout      string          `json:"stdout"`
	Error       *execError      `json:"error"`
	Artifacts   []artifact      `json:"artifacts"`
}

// parseResult checks that text is one JSON object with exactly the documented
// keys, and that they fit each other.
func parseResult(text string) (*printedResult, error) {
	if !utf8.ValidString(text) {
		return nil, errors.New("not UTF-8")
	}
	if !strings.HasSuffix(text, "}\n") {
		return nil, errors.New("no newline at the end, or not alone")
	}
	if err := wantKeys([]byte(text), "status", "return_value", "stdout", "error", "artifacts"); err != nil {
		return nil, err
	}
	r := new(printedResult)
	d := json.NewDecoder(strings.NewReader(text))
	d.DisallowUnknownFields() // in the details too
	if err := d.Decode(r); err != nil {
		return nil, err
	}
	var parts struct {
		Error     json.RawMessage   `json:"error"`
		Artifacts []json.RawMessage `json:"artifacts"`
	}
	if err := json.Unmarshal([]byte(text), &parts); err != nil {
		return nil, err
	}
	if parts.Artifacts == nil {
		return nil, errors.New("artifacts is no array")
	}
	for _, a := range parts.Artifacts {
		if err := wantKeys(a, "path", "name", "bytes", "mime_type"); err != nil {
			return nil, fmt.Errorf("artifact: %w", err)
		}
	}
	switch {
	case r.Status == "ok" && r.Error == nil:
		return r, nil
	case r.Status != "error" || r.Error == nil || r.Error.Message == "":
		return nil, errors.New("status and error do not fit")
	case string(r.ReturnValue) != "null" || len(r.Artifacts) > 0:
		return nil, errors.New("an error with a value or artifacts")
	}
	keys := []string{"type", "message"}
	if d := r.Error.Details; d != nil {
		keys = append(keys, "details")
		if *d == (errorDetails{}) {
			return nil, errors.New("details are there and empty")
		}
	}
	return r, wantKeys(parts.Error, keys...)
}

// wantKeys checks an object's keys and their order.
func wantKeys(text []byte, want ...string) error {
	d := json.NewDecoder(bytes.NewReader(text))
	if t, err := d.Token(); err != nil || t != json.Delim('{') {
		return fmt.Errorf("no object: %v", err)
	}
	var got []string
	for d.More() {
		key, err := d.Token()
		if err != nil {
			return err
		}
		got = append(got, key.(string))
		var value json.RawMessage
		if err := d.Decode(&value); err != nil {
			return err
		}
	}
	if !slices.Equal(got, want) {
		return fmt.Errorf("keys %q, want %q", got, want)
	}
	return nil
}

// errorTypes are all that a result may name, with their exit codes; 0 stands
// for 128+n.
var errorTypes = map[string]int{
	"syntax": 1, "runtime": 1, "serialization": 1, "memory_limit": 1, "process_limit": 1, "open_files_limit": 1,
	"artifact_limit": 1, "return_limit": 1, "timeout": 124, "busy": 125, "protocol": 125, "internal": 125,
	"extension": 125, "crash": 0, "cpu_limit": 0, "cancelled": 0,
}

// result CODE ok VALUE args..., or result CODE TYPE MESSAGE args...: runs
// pyplaypen exec args; it exits with CODE and prints a result with the value's
// exact JSON text, or an error of the type whose message matches.
func cmdResult(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 4 {
		ts.Fatalf("usage: result CODE ok VALUE|TYPE MESSAGE args...")
	}
	cmdExits(ts, false, append([]string{args[0], "pyplaypen", "exec"}, args[3:]...))
	checkResult(ts, args[0], args[1], args[2])
}

// printed ok VALUE|TYPE MESSAGE: the same for what the last command printed.
func cmdPrinted(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 2 {
		ts.Fatalf("usage: printed ok VALUE|TYPE MESSAGE")
	}
	checkResult(ts, "", args[0], args[1])
}

func checkResult(ts *testscript.TestScript, code, kind, want string) {
	r, err := parseResult(ts.ReadFile("stdout"))
	if err != nil {
		ts.Fatalf("result: %v", err)
	}
	if kind == "ok" {
		if r.Error != nil {
			ts.Fatalf("%s: %s", r.Error.Type, r.Error.Message)
		}
		if string(r.ReturnValue) != want {
			ts.Fatalf("return value %s, want %s", r.ReturnValue, want)
		}
		return
	}
	if r.Error == nil {
		ts.Fatalf("no error, want %s", kind)
	}
	if r.Error.Type != kind {
		ts.Fatalf("error %s (%s), want %s", r.Error.Type, r.Error.Message, kind)
	}
	if !regexp.MustCompile(want).MatchString(r.Error.Message) {
		ts.Fatalf("message %q does not match %q", r.Error.Message, want)
	}
	if n, ok := errorTypes[kind]; !ok || n != 0 && code != "" && code != fmt.Sprint(n) {
		ts.Fatalf("exit code %s does not go with %s", code, kind)
	}
}

// detail NAME REGEXP: what the error of the last result has there; with ! it
// has nothing that matches.
func cmdDetail(ts *testscript.TestScript, neg bool, args []string) {
	if len(args) != 2 {
		ts.Fatalf("usage: detail stderr|traceback|cleanup_failed REGEXP")
	}
	r, err := parseResult(ts.ReadFile("stdout"))
	if err != nil || r.Error == nil {
		ts.Fatalf("no error in the result: %v", err)
	}
	text := ""
	if d := r.Error.Details; d != nil {
		text = map[string]string{"stderr": d.Stderr, "traceback": d.Traceback, "cleanup_failed": d.CleanupFailed}[args[0]]
	}
	if regexp.MustCompile("(?m)"+args[1]).MatchString(text) == neg {
		ts.Fatalf("details.%s is %q", args[0], text)
	}
}

// kept DIR PATH...: the last result lists exactly these artifacts, by their
// paths in the workspace and in this order, and exactly they are on disk below DIR.
func cmdKept(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) == 0 {
		ts.Fatalf("usage: kept DIR PATH...")
	}
	r, err := parseResult(ts.ReadFile("stdout"))
	if err != nil {
		ts.Fatalf("result: %v", err)
	}
	var listed []string
	workspace := ""
	for _, a := range r.Artifacts {
		part := strings.SplitN(a.Path, "/", 3)
		if len(part) != 3 || part[0] != "sandbox-runs" {
			ts.Fatalf("artifact path %q", a.Path)
		}
		workspace = path.Join(args[0], part[0], part[1])
		listed = append(listed, part[2])
		st, err := os.Lstat(ts.MkAbs(path.Join(args[0], a.Path)))
		ts.Check(err)
		if !st.Mode().IsRegular() || st.Size() != a.Bytes || st.Name() != a.Name {
			ts.Fatalf("%+v is %v, %d bytes, on disk", a, st.Mode(), st.Size())
		}
	}
	if !slices.Equal(listed, args[1:]) {
		ts.Fatalf("artifacts %q, want %q", listed, args[1:])
	}
	if len(listed) == 0 {
		return
	}
	var there []string
	var walk func(dir string)
	walk = func(dir string) {
		entries, err := os.ReadDir(ts.MkAbs(path.Join(workspace, dir)))
		ts.Check(err)
		for _, e := range entries {
			if name := path.Join(dir, e.Name()); e.IsDir() {
				walk(name)
			} else {
				there = append(there, name)
			}
		}
	}
	walk("")
	slices.Sort(there)
	if !slices.Equal(there, listed) {
		ts.Fatalf("on disk there are %q, listed are %q", there, listed)
	}
}

// dies FILE: the process whose pid stands in the file ends soon.
func cmdDies(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 1 {
		ts.Fatalf("usage: dies FILE")
	}
	for end := time.Now().Add(patience); processRuns(ts, args[0]); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			ts.Fatalf("the process of %s still runs", args[0])
		}
	}
}
