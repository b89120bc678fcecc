package main

import (
	"fmt"
	"strconv"
	"strings"
	"unicode"
)

// prefix starts every line that pyplaypen itself writes to stderr.
const prefix = "pyplaypen: "

// A console writes pyplaypen's own lines to stderr, between the target's, each
// at the start of a line.
type console struct {
	sink  *sink
	quiet bool
}

func newConsole(s *sink) *console {
	return &console{sink: s, quiet: switchedOn("PYPLAYPEN_QUIET")}
}

// line writes one line that is never silenced: what ended a call, or a record
// that was asked for.
func (c *console) line(format string, args ...any) {
	text := prefix + oneLine(fmt.Sprintf(format, args...)) + "\n"
	if *c.sink.last != '\n' {
		text = "\n" + text
	}
	c.sink.put([]byte(text))
}

// notice writes one line that PYPLAYPEN_QUIET=1 silences.
func (c *console) notice(format string, args ...any) {
	if !c.quiet {
		c.line(format, args...)
	}
}

// oneLine escapes what would break a line or move a terminal's cursor.
func oneLine(text string) string {
	if strings.IndexFunc(text, unicode.IsControl) < 0 {
		return text
	}
	var b strings.Builder
	for _, r := range text {
		if unicode.IsControl(r) {
			quoted := strconv.QuoteRune(r)
			b.WriteString(quoted[1 : len(quoted)-1])
		} else {
			b.WriteRune(r)
		}
	}
	return b.String()
}
