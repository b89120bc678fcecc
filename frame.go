package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"
	"unicode/utf8"
)

// The runner says hello before it touches the code, and sends one frame at its
// end. Both carry the version of the protocol.
const (
	runnerHello = "pyplaypen-runner 1\n"
	frameHeader = "pyplaypen-frame 1 "
)

// frameSlack is what an error frame may have beyond result_frame_bytes, which
// is for the user's value; and the header.
const frameSlack = 256 << 10

// A frame is what the runner says of how the code ended.
type frame struct {
	Status      string          `json:"status"`
	ReturnValue json.RawMessage `json:"return_value"`
	Python      string          `json:"python"` // version, for a self-check
	Error       *frameError     `json:"error"`
}

type frameError struct {
	Type      string `json:"type"`
	Message   string `json:"message"`
	Traceback string `json:"traceback"`
	Limit     string `json:"limit"`
}

// runnerErrors are the types that the runner may name. The others are the parent's.
var runnerErrors = []string{errSyntax, errRuntime, errSerialization, errMemory, errProcesses, errOpenFiles, errArtifact, errReturn, errExtension}

// frameReader takes what comes over the frame pipe, up to a bound.
type frameReader struct {
	limit    int64 // result_frame_bytes
	data     []byte
	overflow bool
}

func (r *frameReader) write(p []byte) {
	room := min(r.limit, math.MaxInt64-frameSlack) + frameSlack - int64(len(r.data))
	if int64(len(p)) > room {
		p, r.overflow = p[:room], true
	}
	r.data = append(r.data, p...)
}

// started reports whether the runner got as far as its hello.
func (r *frameReader) started() bool { return bytes.HasPrefix(r.data, []byte(runnerHello)) }

var errNoFrame = errors.New("no result")

// frame returns the one frame that came. Anything else that came is an error.
func (r *frameReader) frame() (*frame, error) {
	if !r.started() {
		return nil, errors.New("the runner's first words are unknown")
	}
	rest := r.data[len(runnerHello):]
	if len(rest) == 0 {
		return nil, errNoFrame
	}
	if r.overflow {
		return nil, fmt.Errorf("the frame is larger than result_frame_bytes=%d", r.limit)
	}
	rest, ok := bytes.CutPrefix(rest, []byte(frameHeader))
	line, body, more := bytes.Cut(rest, []byte("\n"))
	length, err := strconv.ParseUint(string(line), 10, 63)
	switch {
	case !ok || !more || err != nil:
		return nil, errors.New("the frame has an unknown header")
	case uint64(len(body)) < length:
		return nil, errors.New("the frame is cut short")
	case uint64(len(body)) > length:
		return nil, errors.New("something follows the frame")
	}
	return r.decode(body)
}

// decode takes a body apart. The code may have written it, so that whatever
// would not come out of the result as it went in is refused.
func (r *frameReader) decode(body []byte) (*frame, error) {
	if !utf8.Valid(body) {
		return nil, errors.New("the frame is malformed: it is not UTF-8")
	}
	if levels(body) > frameLevels {
		return nil, fmt.Errorf("the frame is malformed: more than %d levels", frameLevels)
	}
	f := new(frame)
	d := json.NewDecoder(bytes.NewReader(body))
	d.DisallowUnknownFields()
	if err := d.Decode(f); err != nil {
		return nil, fmt.Errorf("the frame is malformed: %w", err)
	}
	if _, err := d.Token(); err != io.EOF {
		return nil, errors.New("the frame is malformed: more than one value")
	}
	if f.Error != nil && f.Error.Limit != "" {
		if _, ok := findLimit(f.Error.Limit); !ok {
			return nil, errors.New("the frame is malformed: it names an unknown limit")
		}
	}
	switch {
	case f.Status == "ok" && f.Error == nil && (f.ReturnValue != nil) != (f.Python != ""):
		if int64(len(r.data)-len(runnerHello)) > r.limit {
			return nil, fmt.Errorf("the frame is larger than result_frame_bytes=%d", r.limit)
		}
		return f, nil
	case f.Status == "error" && f.Error != nil && f.ReturnValue == nil && f.Python == "" && slices.Contains(runnerErrors, f.Error.Type):
		return f, nil
	}
	return nil, errors.New("the frame is malformed: its parts do not fit")
}

// frameLevels is how deep a frame may nest: the value's 50 levels, and its own.
const frameLevels = 50 + 1

// levels counts how deep a JSON text nests.
func levels(text []byte) int {
	level, deepest, quoted := 0, 0, false
	for i := 0; i < len(text); i++ {
		switch c := text[i]; {
		case quoted && c == '\\':
			i++
		case c == '"':
			quoted = !quoted
		case quoted:
		case c == '[' || c == '{':
			level++
			deepest = max(deepest, level)
		case c == ']' || c == '}':
			level--
		}
	}
	return deepest
}

// encodeRequest encodes the fields that the runner reads: name, length, bytes.
func encodeRequest(fields [][2]string) []byte {
	var b bytes.Buffer
	for _, f := range fields {
		fmt.Fprintf(&b, "%s %d\n%s", f[0], len(f[1]), f[1])
	}
	return b.Bytes()
}
