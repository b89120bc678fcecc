package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"
)

// framed puts the header before a body.
func framed(body string) string { return fmt.Sprintf("%s%d\n%s", frameHeader, len(body), body) }

func readFrame(limit int64, stream string) (*frameReader, *frame, error) {
	r := &frameReader{limit: limit}
	for len(stream) > 0 { // in pieces, as a pipe delivers it
		n := min(len(stream), 7)
		r.write([]byte(stream[:n]))
		stream = stream[n:]
	}
	f, err := r.frame()
	return r, f, err
}

func TestFrame(t *testing.T) {
	ok := `{"status":"ok","return_value":1}`
	for _, c := range []struct{ name, stream, want string }{
		{"value", runnerHello + framed(ok), "value 1"},
		{"null", runnerHello + framed(`{"status":"ok","return_value":null}`), "value null"},
		{"text stays as it is", runnerHello + framed(`{"status":"ok","return_value":{"b":1.0,"a":[10000000000000000000000000000001,"ü"]}}`), `value {"b":1.0,"a":[10000000000000000000000000000001,"ü"]}`},
		{"white space around", runnerHello + framed(" "+ok+"\n"), "value 1"},
		{"self-check", runnerHello + framed(`{"status":"ok","python":"3.11.2"}`), "python 3.11.2"},
		{"error", runnerHello + framed(`{"status":"error","error":{"type":"syntax","message":"m","traceback":"t"}}`), "error syntax"},
		{"error of a limit", runnerHello + framed(`{"status":"error","error":{"type":"memory_limit","message":"m","limit":"memory_bytes"}}`), "error memory_limit"},
		{"braces in a string", runnerHello + framed(`{"status":"ok","return_value":"`+strings.Repeat(`[{\"`, 100)+`"}`), `value "` + strings.Repeat(`[{\"`, 100) + `"`},
		{"as deep as a value goes", runnerHello + framed(`{"status":"ok","return_value":`+strings.Repeat("[", 50)+strings.Repeat("]", 50)+"}"), "value " + strings.Repeat("[", 50) + strings.Repeat("]", 50)},

		{"nothing", "", "the runner's first words are unknown"},
		{"no hello", framed(ok), "the runner's first words are unknown"},
		{"hello of another version", "pyplaypen-runner 2\n" + framed(ok), "the runner's first words are unknown"},
		{"hello only", runnerHello, "no result"},
		{"hello twice", runnerHello + runnerHello, "the frame has an unknown header"},
		{"frame of another version", runnerHello + "pyplaypen-frame 2 2\n{}", "the frame has an unknown header"},
		{"no length", runnerHello + "pyplaypen-frame 1 \n{}", "the frame has an unknown header"},
		{"negative length", runnerHello + "pyplaypen-frame 1 -2\n{}", "the frame has an unknown header"},
		{"signed length", runnerHello + "pyplaypen-frame 1 +2\n{}", "the frame has an unknown header"},
		{"endless length", runnerHello + "pyplaypen-frame 1 99999999999999999999\n{}", "the frame has an unknown header"},
		{"header only", runnerHello + "pyplaypen-frame 1 2", "the frame has an unknown header"},
		{"part of a header", runnerHello + "pypl", "the frame has an unknown header"},
		{"cut short", runnerHello + framed(ok)[:30], "the frame is cut short"},
		{"twice", runnerHello + framed(ok) + framed(ok), "something follows the frame"},
		{"a byte more", runnerHello + framed(ok) + "\n", "something follows the frame"},
		{"empty", runnerHello + framed(""), "the frame is malformed: EOF"},
		{"no JSON", runnerHello + framed("{"), "the frame is malformed: unexpected EOF"},
		{"two values", runnerHello + framed(ok+"{}"), "the frame is malformed: more than one value"},
		{"a brace too many", runnerHello + framed(ok+"}"), "the frame is malformed: more than one value"},
		{"no object", runnerHello + framed("[]"), "the frame is malformed: json: cannot unmarshal"},
		{"null alone", runnerHello + framed("null"), "the frame is malformed: its parts do not fit"},
		{"NaN", runnerHello + framed(`{"status":"ok","return_value":NaN}`), "the frame is malformed: invalid character"},
		{"not UTF-8", runnerHello + framed("{\"status\":\"ok\",\"return_value\":\"\xff\"}"), "the frame is malformed: it is not UTF-8"},
		{"too deep", runnerHello + framed(`{"status":"ok","return_value":`+strings.Repeat("[", 51)+strings.Repeat("]", 51)+"}"), "the frame is malformed: more than 51 levels"},
		{"unknown key", runnerHello + framed(`{"status":"ok","return_value":1,"x":2}`), "the frame is malformed: json: unknown field"},
		{"unknown status", runnerHello + framed(`{"status":"great","return_value":1}`), "the frame is malformed: its parts do not fit"},
		{"no value", runnerHello + framed(`{"status":"ok"}`), "the frame is malformed: its parts do not fit"},
		{"value and version", runnerHello + framed(`{"status":"ok","return_value":1,"python":"3"}`), "the frame is malformed: its parts do not fit"},
		{"value and error", runnerHello + framed(`{"status":"ok","return_value":1,"error":{"type":"syntax","message":"m"}}`), "the frame is malformed: its parts do not fit"},
		{"error and value", runnerHello + framed(`{"status":"error","return_value":1,"error":{"type":"syntax","message":"m"}}`), "the frame is malformed: its parts do not fit"},
		{"error without one", runnerHello + framed(`{"status":"error"}`), "the frame is malformed: its parts do not fit"},
		{"a type that is the parent's to say", runnerHello + framed(`{"status":"error","error":{"type":"timeout","message":"m"}}`), "the frame is malformed: its parts do not fit"},
		{"a limit that is none", runnerHello + framed(`{"status":"error","error":{"type":"runtime","message":"m","limit":"sky"}}`), "the frame is malformed: it names an unknown limit"},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, f, err := readFrame(2_000_000, c.stream)
			got := ""
			switch {
			case err != nil:
				got = err.Error()
			case f.Error != nil:
				got = "error " + f.Error.Type
			case f.Python != "":
				got = "python " + f.Python
			default:
				got = "value " + string(f.ReturnValue)
			}
			if !strings.HasPrefix(got, c.want) || err == nil && got != c.want {
				t.Errorf("got %q, want %q", got, c.want)
			}
		})
	}
}

func TestFrameSize(t *testing.T) {
	value := func(n int) string {
		return framed(`{"status":"ok","return_value":"` + strings.Repeat("x", n) + `"}`)
	}
	whole := int64(len(value(100)))
	message := framed(`{"status":"error","error":{"type":"runtime","message":"` + strings.Repeat("x", 100) + `"}}`)
	for _, c := range []struct {
		limit  int64
		stream string
		ok     bool
	}{
		{whole, value(100), true},
		{whole - 1, value(100), false},
		{math.MaxInt64 - 2, value(100), true},
		{0, message, true}, // an error always gets through
		{0, value(frameSlack), false},
		{0, framed(`{"status":"error","error":{"type":"runtime","message":"` + strings.Repeat("x", frameSlack) + `"}}`), false},
	} {
		r, _, err := readFrame(c.limit, runnerHello+c.stream)
		if c.ok != (err == nil) {
			t.Errorf("%d bytes under a limit of %d: %v", len(c.stream), c.limit, err)
		}
		if err != nil && !strings.HasPrefix(err.Error(), fmt.Sprintf("the frame is larger than result_frame_bytes=%d", c.limit)) {
			t.Errorf("error %q", err)
		}
		if int64(len(r.data)) > max(c.limit, c.limit+frameSlack) {
			t.Errorf("kept %d bytes under a limit of %d", len(r.data), c.limit)
		}
	}
}

// FuzzFrame: whatever comes over the pipe, a frame that is accepted makes a
// result that anybody can read, and the reader keeps no more than it should.
func FuzzFrame(f *testing.F) {
	for _, body := range []string{
		`{"status":"ok","return_value":1}`, `{"status":"ok","python":"3.11.2"}`,
		`{"status":"error","error":{"type":"syntax","message":"m","limit":"open_files"}}`, `{"status":"ok","return_value":[{"a":"\"["}]}`,
	} {
		f.Add([]byte(runnerHello+framed(body)), uint16(1000))
		f.Add([]byte(body), uint16(20))
	}
	f.Fuzz(func(t *testing.T, data []byte, limit uint16) {
		check := func(stream []byte) {
			r := &frameReader{limit: int64(limit)}
			r.write(stream[:len(stream)/2])
			r.write(stream[len(stream)/2:])
			if len(r.data) > int(limit)+frameSlack {
				t.Fatalf("kept %d bytes", len(r.data))
			}
			got, err := r.frame()
			if (got == nil) == (err == nil) {
				t.Fatalf("both or none: %v, %v", got, err)
			}
			if err != nil {
				return
			}
			if got.Status == "ok" && int64(len(r.data)-len(runnerHello)) > r.limit {
				t.Fatal("a value larger than the limit")
			}
			if got.Error != nil {
				if !slices.Contains(runnerErrors, got.Error.Type) {
					t.Fatalf("type %q", got.Error.Type)
				}
				return
			}
			if got.Python != "" {
				return
			}
			if !utf8.Valid(got.ReturnValue) || !json.Valid(got.ReturnValue) || !bytes.Contains(stream, got.ReturnValue) {
				t.Fatalf("value %q", got.ReturnValue)
			}
		}
		check(data)
		check([]byte(runnerHello + framed(string(data))))
	})
}

func TestEncodeRequest(t *testing.T) {
	got := string(encodeRequest([][2]string{{"code", "a\nb"}, {"extra", ""}, {"cwd", "/ü"}}))
	if want := "code 3\na\nbextra 0\ncwd 3\n/ü"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}
