package main

import (
	"errors"
	"math"
	"strings"
	"testing"
	"time"
)

const year = 365 * 24 * time.Hour

func TestLimitAccepted(t *testing.T) {
	for _, test := range []struct {
		item string
		id   limitID
		want int64
	}{
		{"wall_seconds=30", wallSeconds, 30e9},
		{"wall_seconds=1.5", wallSeconds, 15e8},
		{"wall_seconds=1e1", wallSeconds, 1e10},
		{"wall_seconds=1_0.5", wallSeconds, 105e8},
		{"wall_seconds=.5", wallSeconds, 5e8},
		{"wall_seconds=0", wallSeconds, 0},
		{"wall_seconds=0.0", wallSeconds, 0},
		{"wall_seconds=8.2", wallSeconds, 8200e6}, // 8199999999.999999 in floating point
		{"wall_seconds=1e-12", wallSeconds, 1},
		{"wall_seconds=9.2e9", wallSeconds, 9.2e18},
		{"cpu_seconds=0", cpuSeconds, 0},
		{"cpu_seconds=9200000000", cpuSeconds, 9_200_000_000},
		{"cpu_seconds=007", cpuSeconds, 7},
		{"process_count=1_000_000", processCount, 1_000_000},
		{"open_files=9223372036854775805", openFiles, math.MaxInt64 - 2},
		{"memory_bytes=0", memoryBytes, 0},
		{"memory_bytes=0TiB", memoryBytes, 0},
		{"memory_bytes=512MiB", memoryBytes, 512 << 20},
		{"memory_bytes=1_024KiB", memoryBytes, 1 << 20},
		{"stdout_bytes=1KiB", stdoutBytes, 1 << 10},
		{"stderr_bytes=3GiB", stderrBytes, 3 << 30},
		{"file_bytes=2TiB", fileBytes, 2 << 40},
		{"file_bytes=8388607TiB", fileBytes, 8388607 << 40},
		{"return_value_bytes=1KiB", returnValueBytes, 1 << 10},
		{"result_frame_bytes=1KiB", resultFrameBytes, 1 << 10},
		{"artifact_count=3", artifactCount, 3},
		{"artifact_bytes=1KiB", artifactBytes, 1 << 10},
	} {
		l := defaultLimits()
		id, err := l.set(test.item)
		if err != nil || id != test.id || l.value[id] != test.want || !l.requested[id] {
			t.Errorf("%s: limit %d, value %d, requested %v, error %v; want limit %d, value %d",
				test.item, id, l.value[id], l.requested[id], err, test.id, test.want)
		}
	}
}

// refusedValues are those that no limit of a kind takes.
func refusedValues(kind limitKind) map[string]string {
	refused := map[string]string{
		"": "want a", "abc": "want a", "nan": "want a", "NaN": "want a",
		"inf": "want a", "Inf": "want a", "+inf": "want a", "-inf": "want a", "infinity": "want a",
		"0x10": "want a", "0x1p4": "want a", "0b1": "want a", "0o7": "want a",
		"1__0": "want a", "_1": "want a", "1_": "want a", "_": "want a", "1_.5": "want a",
		" 1": "want a", "1 ": "want a", "1\n": "want a", "1\x00": "want a", "1;2": "want a", "1=2": "want a",
		"1MB": "want a", "1G": "want a", "1k": "want a", "1s": "want a", "١": "want a", "-": "want a", "-abc": "want a",
		"-1": "negative", "-0": "negative", "-0.5": "negative", "-.5": "negative", "-1e400": "negative",
		"99999999999999999999": "too large",
	}
	if kind == kindSeconds {
		for _, v := range []string{"9200000001", "9.3e9", "1e400", "9223372036854775807", "18446744073709551615"} {
			refused[v] = "too large"
		}
		for _, v := range []string{"1KiB", ".", "e", "1e", "1.5.5", "1-1", "+-1"} {
			refused[v] = "want a number of seconds"
		}
		return refused
	}
	for _, v := range []string{"9223372036854775806", "9223372036854775807", "9223372036854775808", "18446744073709551615", "18446744073709551616"} {
		refused[v] = "too large"
	}
	for _, v := range []string{"1.5", "1.0", "1.", "1e3", "1E3"} {
		refused[v] = "want a whole number"
	}
	suffixed := []string{"1kib", "1KIB", "1Kib", "1KB", "1K", "1B", "1PiB", "KiB", "1 KiB", "1KiB ", "1KiBKiB", "1KiBMiB", "1_KiB", "1.5KiB", "0x1KiB", "MiB1"}
	if kind == kindCount {
		suffixed = append(suffixed, "1KiB", "1MiB", "1GiB", "1TiB")
	} else {
		refused["-1KiB"] = "negative"
		for _, v := range []string{"9007199254740992KiB", "8796093022208MiB", "8589934592GiB", "8388608TiB", "16777216TiB", "18446744073709551616TiB"} {
			refused[v] = "too large"
		}
	}
	for _, v := range suffixed {
		refused[v] = "want a whole number"
	}
	return refused
}

// Every kind of refused value is refused for every limit, from a flag and from
// the environment, by a usage error of one line that names the limit and the value.
func TestLimitRefused(t *testing.T) {
	try := func(environment string, flags ...string) error {
		t.Setenv("PYPLAYPEN_LIMITS", environment)
		_, err := newCall(&callFlags{Limit: flags}, purpose{}, time.Now())
		return err
	}
	check := func(source string, err error, mention ...string) {
		t.Helper()
		var exit *exitError
		if !errors.As(err, &exit) || exit.code != exitUsage {
			t.Errorf("%s: error %v, want a usage error", source, err)
			return
		}
		for _, m := range mention {
			if !strings.Contains(exit.line, m) {
				t.Errorf("%s: the line %q does not mention %q", source, exit.line, m)
			}
		}
		if strings.Contains(oneLine(exit.line), "\n") {
			t.Errorf("%s: more than one line: %q", source, exit.line)
		}
	}
	for _, info := range limitTable {
		values := refusedValues(info.kind)
		if info.name == cpuSeconds.String() {
			values["9200000001"] = "too large"
		}
		for value, why := range values {
			item := info.name + "=" + value
			mention := []string{info.name, strings.ReplaceAll(oneLine(value), `\x00`, ""), why}
			check("--limit "+item, try("", item), mention...)
			if strings.TrimSpace(value) == value && !strings.Contains(value, "\x00") {
				check("PYPLAYPEN_LIMITS="+item, try("open_files=9,"+item), append(mention, "PYPLAYPEN_LIMITS")...)
			}
		}
		check("no =", try("", info.name), info.name, "name=value")
		check("no = in the environment", try(info.name), info.name, "name=value")
		for _, name := range []string{info.name + " ", " " + info.name, strings.ToUpper(info.name), info.name + "x", info.name[:len(info.name)-1], strings.ReplaceAll(info.name, "_", "-")} {
			check("name "+name, try("", name+"=1"), append([]string{name + "=1", "unknown name"}, limitNames()...)...)
		}
	}
	check("empty flag", try("", ""), "name=value")
	check("empty name", try("", "=1"), "unknown name")
	check("environment, good one after bad", try("nonsense=1,open_files=3"), "nonsense=1", "unknown name")
	check("flag that corrects a bad environment", try("open_files=x", "open_files=3"), "PYPLAYPEN_LIMITS", `open_files="x"`)
}

func TestLimitSources(t *testing.T) {
	call := func(environment string, flags ...string) *limits {
		t.Helper()
		t.Setenv("PYPLAYPEN_LIMITS", environment)
		c, err := newCall(&callFlags{Limit: flags}, purpose{}, time.Now())
		if err != nil {
			t.Fatalf("PYPLAYPEN_LIMITS=%q, flags %q: %v", environment, flags, err)
		}
		return c.limits
	}
	if l := call(""); *l != *defaultLimits() {
		t.Errorf("without a source: %v, want the defaults", l)
	}
	l := call(" wall_seconds=3 ,, \topen_files=7\n,stdout_bytes=1,stdout_bytes=2, ", "open_files=8", "stderr_bytes=5", "stderr_bytes=6")
	want := defaultLimits()
	for id, v := range map[limitID]int64{wallSeconds: 3e9, openFiles: 8, stdoutBytes: 2, stderrBytes: 6} {
		want.value[id], want.requested[id] = v, true
	}
	if *l != *want {
		t.Errorf("limits %v, want %v", l, want)
	}
	if l := call(" , ,"); *l != *defaultLimits() {
		t.Errorf("empty items: %v, want the defaults", l)
	}
	// What is asked for at its default is asked for all the same.
	if l := call("cpu_seconds=25"); !l.requested[cpuSeconds] {
		t.Error("a limit at its default does not count as requested")
	}
}

// The environment is shared by both commands; a flag is given to one of them.
func TestLimitExecOnly(t *testing.T) {
	for id, info := range limitTable {
		item := info.name + "=1"
		for _, forExec := range []bool{false, true} {
			t.Setenv("PYPLAYPEN_LIMITS", "")
			_, err := newCall(&callFlags{Limit: []string{item}}, purpose{exec: forExec, warnOnly: true}, time.Now())
			if refused := err != nil; refused != (info.execOnly && !forExec) {
				if limitID(id) != processCount { // which may be refused for want of enforcement
					t.Errorf("--limit %s, exec %v: error %v", item, forExec, err)
				}
			}
		}
		if info.execOnly {
			t.Setenv("PYPLAYPEN_LIMITS", item)
			if _, err := newCall(&callFlags{}, purpose{}, time.Now()); err != nil {
				t.Errorf("PYPLAYPEN_LIMITS=%s: %v", item, err)
			}
		}
	}
}

func TestLimitTable(t *testing.T) {
	for id, info := range limitTable {
		if info.name == "" || info.help == "" {
			t.Errorf("limit %d has no name or no help", id)
		}
		if !strings.Contains(limitsHelp(true), "  "+info.name+" ") {
			t.Errorf("%s is not in the help", info.name)
		}
		if found, ok := findLimit(info.name); !ok || found != limitID(id) {
			t.Errorf("%s is found as limit %d", info.name, found)
		}
		if strings.HasSuffix(info.name, "_bytes") != (info.kind == kindBytes) {
			t.Errorf("%s is of kind %s", info.name, info.kind)
		}
	}
	for id, want := range map[limitID]string{
		wallSeconds: "30", cpuSeconds: "25", memoryBytes: "1073741824", processCount: "16", openFiles: "256",
		stdoutBytes: "65536", stderrBytes: "65536", returnValueBytes: "1000000", resultFrameBytes: "2000000",
		artifactCount: "16", artifactBytes: "52428800", fileBytes: "52428800",
	} {
		if got := defaultLimits().text(id); got != want {
			t.Errorf("the default of %v is %s, want %s", id, got, want)
		}
	}
}

// The largest wall clock that is accepted lies far in the future, not in the past.
func TestLimitLargestWallClock(t *testing.T) {
	t.Setenv("PYPLAYPEN_LIMITS", "wall_seconds=9.2e9")
	start := time.Now()
	c, err := newCall(&callFlags{}, purpose{}, start)
	if err != nil {
		t.Fatal(err)
	}
	if left := c.deadline.Sub(start); left < 100*year {
		t.Errorf("the deadline is %v away", left)
	}
}

// checkHeld reports a limit that is off, negative, or not what its text says.
func checkHeld(t *testing.T, l *limits) {
	t.Helper()
	for id := range numLimits {
		v := l.value[id]
		if v < 0 || v > math.MaxInt64-2 {
			t.Fatalf("%v is %d", id, v)
		}
		again, err := parseLimit(limitTable[id].kind, l.text(id))
		// A float64 has 53 bits.
		if err != nil || again != v && (limitTable[id].kind != kindSeconds || math.Abs(float64(again-v)) > float64(v)/(1<<51)) {
			t.Fatalf("%v: %d is written %q, which reads as %d (%v)", id, v, l.text(id), again, err)
		}
	}
	c := &call{limits: l, uid: 1}
	for _, r := range c.rlimits(1) {
		if r.soft > r.hard || r.hard > math.MaxInt64-1 {
			t.Fatalf("rlimit %d: soft %d, hard %d", r.resource, r.soft, r.hard)
		}
	}
}

// What is accepted is never negative, never off, and reads back as itself.
func FuzzLimit(f *testing.F) {
	for id, info := range limitTable {
		f.Add(byte(id), limitText(limitID(id), info.value))
		for value := range refusedValues(info.kind) {
			f.Add(byte(id), value)
		}
	}
	for _, value := range []string{"1_000", "512MiB", "1e1", "1e-12", "9.2e9", "1234567890.123456789", "9223372036854775805", "8388607TiB"} {
		f.Add(byte(wallSeconds), value)
		f.Add(byte(memoryBytes), value)
	}
	f.Fuzz(func(t *testing.T, at byte, value string) {
		id := limitID(at) % numLimits
		l := defaultLimits()
		set, err := l.set(id.String() + "=" + value)
		if err != nil {
			if *l != *defaultLimits() {
				t.Fatalf("%q was refused and changed a limit all the same", value)
			}
			return
		}
		if set != id || !l.requested[id] || strings.Trim(value, "0123456789_.eE+-KMGTiB") != "" {
			t.Fatalf("%q was accepted for %v", value, id)
		}
		checkHeld(t, l)
	})
}

// A list changes the limits that it names, and no other.
func FuzzLimitList(f *testing.F) {
	for _, list := range []string{
		"", " , ", "wall_seconds=1", "wall_seconds=1,cpu_seconds=2 , memory_bytes=3KiB,", "open_files=1,open_files=x",
		"wall_seconds==1", "wall_seconds=1 cpu_seconds=2", "stdout_bytes=\x00", "stdout_bytes=1\u00a0", "\ufeffstdout_bytes=1",
	} {
		f.Add(list)
	}
	f.Fuzz(func(t *testing.T, list string) {
		l := defaultLimits()
		if l.setList(list) != nil {
			return
		}
		checkHeld(t, l)
		for id, info := range limitTable {
			if named := strings.Contains(list, info.name+"="); named != l.requested[id] || !named && l.value[id] != info.value {
				t.Fatalf("%q: %s is %d, requested %v", list, info.name, l.value[id], l.requested[id])
			}
		}
	})
}
