package main

import (
	"bytes"
	"crypto/sha256"
	"strings"
	"testing"
	"unicode/utf8"
)

// cutStream is what a stream is to come out as, from the whole of it.
func cutStream(stream []byte, limit int) (out []byte, dropped int) {
	if len(stream) <= limit {
		return stream, 0
	}
	head := max(0, limit-15)
	for start := max(0, head-3); start < head; start++ {
		if _, size := utf8.DecodeRune(stream[start:]); start+size > head {
			head = start
		}
	}
	return append(bytes.Clone(stream[:head]), "\n...[truncated]"[:min(limit, 15)]...), len(stream) - head
}

// checkCapture writes the stream in pieces of the given size.
func checkCapture(t *testing.T, stream []byte, limit, piece int) {
	t.Helper()
	var got []byte
	hash := sha256.New()
	c := &capture{limit: int64(limit), hash: hash, emit: func(p []byte) { got = append(got, p...) }}
	for rest := stream; len(rest) > 0; {
		n := min(piece, len(rest))
		mine := bytes.Clone(rest[:n])
		c.write(mine)
		clear(mine) // the caller's buffer is used again
		rest = rest[n:]
		// All but what may have to make room for the marker is out at once.
		if written := len(stream) - len(rest); len(got) < min(written, limit-18) {
			t.Fatalf("limit %d, pieces of %d: %d bytes out after %d written", limit, piece, len(got), written)
		}
		if len(c.held) > 18 {
			t.Fatalf("limit %d, pieces of %d: %d bytes held back", limit, piece, len(c.held))
		}
	}
	c.close()
	want, dropped := cutStream(stream, limit)
	switch sum := sha256.Sum256(stream); {
	case !bytes.Equal(got, want):
		t.Fatalf("limit %d, pieces of %d: %q came out as %q, want %q", limit, piece, stream, got, want)
	case len(got) > limit:
		t.Fatalf("limit %d, pieces of %d: %d bytes came out", limit, piece, len(got))
	case c.dropped() != int64(dropped) || c.written != int64(len(stream)):
		t.Fatalf("limit %d, pieces of %d: %d of %d bytes dropped, want %d of %d", limit, piece, c.dropped(), c.written, dropped, len(stream))
	case !bytes.Equal(hash.Sum(nil), sum[:]):
		t.Fatalf("limit %d, pieces of %d: the digest is not that of all that was written", limit, piece)
	}
}

func TestCaptureRule(t *testing.T) {
	for _, test := range []struct {
		stream string
		limit  int
		want   string
	}{
		{"", 0, ""},
		{"a", 0, ""},
		{"ab", 1, "\n"},
		{"abcdef", 4, "\n..."},
		{strings.Repeat("a", 15), 14, "\n...[truncated"},
		{strings.Repeat("a", 15), 15, strings.Repeat("a", 15)},
		{strings.Repeat("a", 16), 15, "\n...[truncated]"},
		{strings.Repeat("a", 17), 16, "a\n...[truncated]"},
		{"a" + strings.Repeat("é", 10), 17, "a\n...[truncated]"},
		{"a" + strings.Repeat("é", 10), 18, "aé\n...[truncated]"},
		{strings.Repeat("€", 10), 17, "\n...[truncated]"},
		{strings.Repeat("€", 10), 18, "€\n...[truncated]"},
		{strings.Repeat("😀", 10), 18, "\n...[truncated]"},
		{strings.Repeat("😀", 10), 19, "😀\n...[truncated]"},
		// Bytes that are no character are cut where they are.
		{strings.Repeat("\xff", 20), 17, "\xff\xff\n...[truncated]"},
		{strings.Repeat("\x80", 20), 18, "\x80\x80\x80\n...[truncated]"},
		{"ab\xf0\x9f" + strings.Repeat("c", 20), 19, "ab\xf0\x9f\n...[truncated]"},
	} {
		got, _ := cutStream([]byte(test.stream), test.limit)
		if string(got) != test.want {
			t.Errorf("the test's own rule cuts %q at %d to %q, want %q", test.stream, test.limit, got, test.want)
		}
		for piece := 1; piece <= len(test.stream)+1; piece++ {
			checkCapture(t, []byte(test.stream), test.limit, piece)
		}
	}
}

// Every limit, cut at every offset of every kind of character, in pieces of
// every size.
func TestCaptureEveryOffset(t *testing.T) {
	for _, stream := range []string{
		strings.Repeat("aé€😀", 6),
		strings.Repeat("😀", 15),
		strings.Repeat("a\x80é\xff\xf0\x9f€\xe2\x82\x00", 5),
		"short",
	} {
		for limit := 0; limit <= len(stream)+2; limit++ {
			for _, piece := range []int{1, 2, 3, 5, 16, len(stream)} {
				checkCapture(t, []byte(stream), limit, piece)
			}
		}
	}
}

func TestCaptureWithoutHash(t *testing.T) {
	var got []byte
	c := &capture{limit: 20, emit: func(p []byte) { got = append(got, p...) }}
	c.write([]byte("hello"))
	c.close()
	if string(got) != "hello" {
		t.Errorf("got %q", got)
	}
}

func FuzzCapture(f *testing.F) {
	f.Add([]byte("aé€😀aé€😀aé€😀"), byte(19), byte(1))
	f.Add([]byte("\xff\xfe\x80\xf0\x9f\x98"), byte(3), byte(2))
	f.Add(bytes.Repeat([]byte("😀"), 60), byte(200), byte(64))
	f.Fuzz(func(t *testing.T, stream []byte, limit, piece byte) {
		checkCapture(t, stream, int(limit), max(1, int(piece)))
		checkCapture(t, stream, int(limit), len(stream)+1)
	})
}
