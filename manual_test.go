package main

import (
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/alecthomas/kong"
)

const manualFile = "docs/pyplaypen.1"

// A manualItem is one .It of the manual with the text below it.
type manualItem struct{ head, body string }

// manual reads the page: the items of each section and subsection by its
// heading, in the words of a reader, and all of the text.
func manual(t *testing.T) (items map[string][]manualItem, text string) {
	t.Helper()
	page, err := os.ReadFile(manualFile)
	if err != nil {
		t.Fatal(err)
	}
	items = map[string][]manualItem{}
	heading := ""
	for line := range strings.Lines(string(page)) {
		macro, rest, _ := strings.Cut(strings.TrimSuffix(line, "\n"), " ")
		list := items[heading]
		switch macro {
		case ".Sh", ".Ss":
			heading = rest
			items[heading] = nil
		case ".It":
			items[heading] = append(list, manualItem{head: mdocWords(rest)})
		default:
			if len(list) > 0 {
				list[len(list)-1].body += mdocWords(strings.TrimPrefix(strings.TrimSuffix(line, "\n"), ".")) + "\n"
			}
		}
		text += mdocWords(strings.TrimPrefix(line, "."))
	}
	return items, text
}

var mdocEscapes = strings.NewReplacer(`\(aq`, "'", `\(dq`, `"`, `\-`, "-", `\e`, `\`, `\&`, "")

// mdocWords writes one line of mdoc(7) as it is shown, as far as the page uses
// macros that matter to its tests.
func mdocWords(line string) string {
	var b strings.Builder
	glue, dash := true, false
	for _, word := range strings.Split(line, " ") {
		switch word {
		case "Fl":
			if dash {
				b.WriteString("- ")
			}
			dash = true
			continue
		case "Ns":
			glue = true
			continue
		case "Ar", "Cm", "Ev", "Li", "Pa", "Ql", "Sy", "Xr", "Nm":
			continue
		}
		if strings.Trim(word, ".,:;)") == "" && b.Len() > 0 {
			glue = true
		}
		if !glue {
			b.WriteByte(' ')
		}
		if dash {
			b.WriteByte('-')
		}
		b.WriteString(mdocEscapes.Replace(word))
		glue, dash = false, false
	}
	return b.String()
}

func heads(items []manualItem) []string {
	var list []string
	for _, item := range items {
		list = append(list, item.head)
	}
	return list
}

func model(t *testing.T) *kong.Application {
	t.Helper()
	var flags cli
	parser, err := newParser(&flags)
	if err != nil {
		t.Fatal(err)
	}
	return parser.Model
}

// flagHead is how the manual introduces a flag.
func flagHead(flag *kong.Flag) string {
	value := ""
	if !flag.IsBool() {
		value = flag.FormatPlaceHolder()
	}
	head := "--" + flag.Name
	if value != "" {
		head += "=" + value
	}
	if flag.Short != 0 {
		short := "-" + string(flag.Short)
		if value != "" {
			short += " " + value
		}
		head = short + ", " + head
	}
	return head
}

// TestManualFlags holds the manual's flags, in their order, against kong's
// model, with their defaults and variables.
func TestManualFlags(t *testing.T) {
	items, text := manual(t)
	want := map[string][]string{}
	known := map[string]bool{}
	shared := reflect.TypeFor[callFlags]()
	add := func(heading string, flag *kong.Flag) {
		known[flag.Name] = true
		head := flagHead(flag)
		if slices.Contains(want[heading], head) {
			return // run's, seen again as exec's
		}
		want[heading] = append(want[heading], head)
		index := slices.IndexFunc(items[heading], func(item manualItem) bool { return item.head == head })
		if index < 0 {
			return // said below
		}
		body := items[heading][index].body
		if flag.HasDefault && !flag.IsBool() && !(strings.Contains(body, flag.Default) && strings.Contains(body, "default")) {
			t.Errorf("%s: the default %q is missing", head, flag.Default)
		}
		for _, variable := range regexp.MustCompile(`PYPLAYPEN_[A-Z_]+`).FindAllString(flag.Help+" "+strings.Join(flag.Envs, " "), -1) {
			index := slices.IndexFunc(items["ENVIRONMENT"], func(item manualItem) bool { return item.head == variable })
			if index < 0 || !strings.Contains(items["ENVIRONMENT"][index].body, "--"+flag.Name) {
				t.Errorf("ENVIRONMENT does not say that %s stands for --%s", variable, flag.Name)
			}
		}
	}
	app := model(t)
	for _, flag := range app.Flags {
		add("Flags of every command", flag)
	}
	for _, command := range app.Children {
		if command.Hidden {
			continue
		}
		if !slices.Contains(heads(items["DESCRIPTION"]), command.Name) {
			t.Errorf("DESCRIPTION does not list %s", command.Name)
		}
		for _, flag := range command.Flags {
			heading := "Flags of " + command.Name
			if command.Name != "enforcement" && fieldOf(shared, flag) {
				heading = "Flags of run and exec"
			}
			add(heading, flag)
		}
	}
	for heading, list := range items {
		if strings.HasPrefix(heading, "Flags of") && !slices.Equal(heads(list), want[heading]) {
			t.Errorf("%s: %q, want %q", heading, heads(list), want[heading])
		}
		delete(want, heading)
	}
	for heading := range want {
		t.Errorf("no subsection %q", heading)
	}
	for _, name := range regexp.MustCompile(`--([a-z][a-z-]*)`).FindAllStringSubmatch(text, -1) {
		if !known[name[1]] {
			t.Errorf("the manual names %s, which is no flag", name[0])
		}
	}
}

// fieldOf reports whether the flag is set in a field of the type.
func fieldOf(shared reflect.Type, flag *kong.Flag) bool {
	for i := range shared.NumField() {
		field := shared.Field(i)
		name := strings.ToLower(strings.Join(regexp.MustCompile(`[A-Z]+[a-z]*`).FindAllString(field.Name, -1), "-"))
		if explicit := field.Tag.Get("name"); explicit != "" {
			name = explicit
		}
		if name == flag.Name {
			return true
		}
	}
	return false
}

// TestManualLimits holds the manual's limits against the table, and demands that
// it calls no other word a limit or a command.
func TestManualLimits(t *testing.T) {
	items, _ := manual(t)
	var want []string
	said := items["LIMITS"][:min(len(items["LIMITS"]), int(numLimits))] // a table of programs follows
	words := map[string]bool{}
	for id, info := range limitTable {
		want = append(want, fmt.Sprintf("%s Pq %s, default %s", info.name, info.kind, limitText(limitID(id), info.value)))
		words[info.name] = true
		if id < len(said) && strings.HasPrefix(said[id].body, "exec\nonly") != info.execOnly {
			t.Errorf("%s: only one of the manual and the program has it as exec's own", info.name)
		}
	}
	if got := heads(said); !slices.Equal(got, want) {
		t.Errorf("LIMITS: %q, want %q", got, want)
	}
	for _, command := range model(t).Children {
		words[command.Name] = true
	}
	page, err := os.ReadFile(manualFile)
	if err != nil {
		t.Fatal(err)
	}
	for _, match := range regexp.MustCompile(`(?m)\bCm ([a-z_ ,]+)`).FindAllStringSubmatch(string(page), -1) {
		for _, word := range strings.FieldsFunc(match[1], func(r rune) bool { return r == ' ' || r == ',' }) {
			if !words[word] {
				t.Errorf("the manual names %q, which is neither a limit nor a command", word)
			}
		}
	}
}

// sources is the text of the program.
func sources(t *testing.T) string {
	t.Helper()
	files, err := filepath.Glob("*.go")
	if err != nil {
		t.Fatal(err)
	}
	parts, err := filepath.Glob("*.py")
	if err != nil {
		t.Fatal(err)
	}
	var b strings.Builder
	for _, file := range append(files, parts...) {
		if strings.HasSuffix(file, "_test.go") {
			continue
		}
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		b.Write(text)
	}
	return b.String()
}

// wantSame compares two lists as sets.
func wantSame(t *testing.T, what string, got, want []string) {
	t.Helper()
	got, want = slices.Clone(got), slices.Clone(want)
	slices.Sort(got)
	slices.Sort(want)
	if got, want = slices.Compact(got), slices.Compact(want); !slices.Equal(got, want) {
		t.Errorf("%s: %q, want %q", what, got, want)
	}
}

// TestManualVariables holds the manual's variables against those that the
// program reads.
func TestManualVariables(t *testing.T) {
	items, text := manual(t)
	variable := regexp.MustCompile(`PYPLAYPEN_[A-Z_]+`)
	var explained []string
	for _, head := range heads(items["ENVIRONMENT"]) {
		if variable.MatchString(head) {
			explained = append(explained, head)
		}
	}
	read := variable.FindAllString(sources(t), -1)
	wantSame(t, "variables explained", explained, read)
	wantSame(t, "variables named", variable.FindAllString(text, -1), read)
}

// TestManualWords holds the words for what enforces a limit, the types of error
// and the exit codes against the program.
func TestManualWords(t *testing.T) {
	items, _ := manual(t)
	code := sources(t)
	constants := func(pattern string) []string {
		var list []string
		for _, match := range regexp.MustCompile(pattern).FindAllStringSubmatch(code, -1) {
			list = append(list, match[1])
		}
		if len(list) < 5 {
			t.Fatalf("%s: only %d found", pattern, len(list))
		}
		return list
	}
	var values []string
	for _, item := range items["ENFORCEMENT"] {
		if !strings.Contains(item.head, " ") { // else a deployment
			values = append(values, item.head)
		}
	}
	wantSame(t, "values of enforcement", values, constants(`(?m)enforcement = "(\w+)"$`))
	for id, value := range fixedEnforcement {
		if value == "" || value == unsupported { // depends on the machine
			continue
		}
		index := slices.IndexFunc(items["ENFORCEMENT"], func(item manualItem) bool { return item.head == string(value) })
		if index < 0 || !strings.Contains(items["ENFORCEMENT"][index].body, limitID(id).String()) {
			t.Errorf("ENFORCEMENT does not say that %s is %s", limitID(id), value)
		}
	}

	var types []string
	for _, name := range constants(`(?m)^\terr[A-Z]\w+ += "(\w+)"$`) {
		exit := "1"
		if n, ok := execExit[name]; ok {
			exit = strconv.Itoa(n)
		}
		if name == errCPU || name == errCrash || name == errCancelled {
			exit = "128+n"
		}
		types = append(types, name+" Pq "+exit)
	}
	wantSame(t, "types of error", heads(items["Error types of exec"]), types)

	want := []string{"the command's own", fmt.Sprintf("%d+n", exitSignal)}
	for _, n := range []int{exitUsage, exitTimeout, exitCannotRun, exitNotFound} {
		want = append(want, strconv.Itoa(n))
	}
	wantSame(t, "exit codes", heads(items["EXIT STATUS"]), want)
}

// TestManualKeys holds the keys of all that is printed as JSON against it.
func TestManualKeys(t *testing.T) {
	items, text := manual(t)
	keys := func(line []byte) []string {
		var object map[string]any
		if err := json.Unmarshal(line, &object); err != nil {
			t.Fatalf("%s: %v", line, err)
		}
		return slices.Collect(maps.Keys(object))
	}
	c := &call{limits: defaultLimits(), audit: &audit{extra: json.RawMessage("null")}}
	c.stdout, c.stderr = &capture{hash: sha256.New()}, &capture{hash: sha256.New()}
	r := &runOutput{call: c, flags: &runCmd{}}
	x := &execCall{call: c, flags: &execCmd{}}
	o := &outcome{reason: reasonTimeout}
	wantSame(t, "result of run", heads(items["JSON result of run"]), keys(r.resultJSON(verdict{})))
	result, err := x.encode(&execResult{value: json.RawMessage("1")})
	if err != nil {
		t.Fatal(err)
	}
	wantSame(t, "result of exec", heads(items["JSON result of exec"]), keys(result))

	run := c.record(eventProcess, o, verdict{})
	run["argv_sha256"] = argvDigest(nil)
	exec := x.auditRecord(o, &execResult{}, 0)
	both := func(a, b map[string]any) []string {
		return slices.AppendSeq(slices.Collect(maps.Keys(a)), maps.Keys(b))
	}
	wantSame(t, "audit record", heads(items["AUDIT RECORD"]), both(run, exec))
	wantSame(t, "report", heads(items["WHAT A CALL USED"]), both(c.reportOf(run, o), c.reportOf(exec, o)))

	body := func(heading, head string) string {
		index := slices.IndexFunc(items[heading], func(item manualItem) bool { return item.head == head })
		if index < 0 {
			t.Fatalf("%s has no %s", heading, head)
		}
		return items[heading][index].body
	}
	for _, tt := range []struct {
		of   reflect.Type
		text string
	}{
		{reflect.TypeFor[execError](), body("JSON result of exec", "error")},
		{reflect.TypeFor[errorDetails](), body("JSON result of exec", "error")},
		{reflect.TypeFor[artifact](), body("JSON result of exec", "artifacts")},
		{reflect.TypeFor[enforcementEntry](), body("Flags of enforcement", "--json")},
	} {
		for i := range tt.of.NumField() {
			key, _, _ := strings.Cut(tt.of.Field(i).Tag.Get("json"), ",")
			if key != "" && !strings.Contains(tt.text, key) {
				t.Errorf("the manual does not name the key %s of %v", key, tt.of)
			}
		}
	}
	for _, word := range slices.Concat(slices.Collect(maps.Keys(mimeTypes)), stateDirs, []string{runsName, builtinProjector, "pyplaypen-uids", "pyplaypen-slots-EUID", "pyplaypen-EUID"}) {
		if !strings.Contains(text, word) {
			t.Errorf("the manual does not name %s", word)
		}
	}
}

// TestManualExamples runs the manual's examples as TestReadmeExamples runs the
// README's. A command goes on behind a backslash.
func TestManualExamples(t *testing.T) {
	path, err := program()
	if err != nil {
		t.Fatal(err)
	}
	page, err := os.ReadFile(manualFile)
	if err != nil {
		t.Fatal(err)
	}
	runExamples(t, filepath.Dir(path), mdocEscapes.Replace(string(page)), ".Bd -literal -offset indent\n", ".Ed\n", 8)
}

// TestManualRenders demands that the tools that show the page have nothing to
// complain about.
func TestManualRenders(t *testing.T) {
	for _, tt := range []struct {
		needs string
		args  []string
	}{
		{"groff", []string{"man", "--warnings=w", "-l", manualFile}},
		{"mandoc", []string{"mandoc", "-T", "lint", "-W", "warning", manualFile}},
	} {
		t.Run(tt.needs, func(t *testing.T) {
			for _, tool := range []string{tt.needs, tt.args[0]} {
				if _, err := exec.LookPath(tool); err != nil {
					skip(t, tool+" is missing")
				}
			}
			cmd := exec.Command(tt.args[0], tt.args[1:]...)
			cmd.Env = append(os.Environ(), "LC_ALL=C.UTF-8", "MANWIDTH=80", "MANPAGER=cat")
			var complaints strings.Builder
			cmd.Stderr = &complaints
			out, err := cmd.Output()
			if err != nil || complaints.Len() > 0 {
				t.Errorf("%v: %v\n%s", tt.args, err, complaints.String())
			}
			if tt.needs == "mandoc" && len(out) > 0 {
				t.Errorf("mandoc: %s", out)
			}
			if tt.needs == "groff" && !strings.Contains(string(out), "SEE ALSO") {
				t.Errorf("man shows: %s", out)
			}
		})
	}
}
