package main

import (
	"hash"
	"unicode/utf8"
)

// truncationMarker ends a stream that was cut. It counts against the limit.
const truncationMarker = "\n...[truncated]"

// A capture keeps the first limit bytes of one stream and hands them on as
// they come. What it hands on never exceeds limit bytes: of a longer stream
// that is the first limit-len(truncationMarker) bytes, trimmed back to a whole
// UTF-8 character, and the marker. Only the few bytes that might have to make
// room for the marker are held back until the stream's end is known.
type capture struct {
	limit int64
	emit  func([]byte) // must not keep its argument
	hash  hash.Hash    // of everything written; nil where nobody asked

	written int64 // by the target
	kept    int64 // of these, handed on
	held    []byte
	cut     bool
}

// write takes the next bytes of the stream.
func (c *capture) write(p []byte) {
	if c.hash != nil {
		c.hash.Write(p)
	}
	at := c.written
	c.written += int64(len(p))
	if c.cut {
		return
	}
	head := max(0, c.limit-int64(len(truncationMarker))) // where the marker would begin
	safe := max(0, head-(utf8.UTFMax-1))                 // before this nothing is ever trimmed
	if at < safe {
		n := min(int64(len(p)), safe-at)
		c.pass(p[:n])
		p, at = p[n:], at+n
	}
	if len(p) > 0 {
		c.held = append(c.held, p[:min(int64(len(p)), c.limit-at)]...)
	}
	if c.written > c.limit {
		c.cut = true
		c.pass(c.held[:wholeCharacters(c.held, int(head-safe))])
		c.emit([]byte(truncationMarker[:min(c.limit, int64(len(truncationMarker)))]))
		c.held = nil
	}
}

// close hands on what was held back. No write may follow.
func (c *capture) close() {
	c.pass(c.held)
	c.held = nil
}

func (c *capture) pass(p []byte) {
	if len(p) > 0 {
		c.kept += int64(len(p))
		c.emit(p)
	}
}

// dropped is how much of the stream was not handed on.
func (c *capture) dropped() int64 { return c.written - c.kept - int64(len(c.held)) }

// wholeCharacters moves the cut at p[:n] back to the start of the UTF-8
// character that it falls inside. Bytes that are no UTF-8 are cut where they are.
func wholeCharacters(p []byte, n int) int {
	for start := n - 1; start >= 0 && n-start < utf8.UTFMax; start-- {
		if r, size := utf8.DecodeRune(p[start:]); r != utf8.RuneError || size > 1 {
			if start+size > n {
				return start
			}
			return n
		}
	}
	return n
}
