package main

import (
	"unicode/utf8"

	"golang.org/x/sys/unix"
)

// streams are the target's stdout and stderr on their way through pyplaypen.
type streams struct {
	stdout, stderr *capture
	kept           [2][]byte // what is held back until the end
}

// connect makes the pipes for the target's stdout and stderr and returns their
// writing ends. Output is forwarded as it comes, or kept; merged, both are one
// pipe that counts as stdout.
func (c *call) connect(keep, merge bool) (out, err int, e error) {
	connectOne := func(capture *capture, s *sink, kept *[]byte) (int, error) {
		if keep {
			capture.emit = func(p []byte) { *kept = append(*kept, p...) }
			return c.sup.addInlet(capture.write, nil)
		}
		capture.emit = s.put
		return c.sup.addInlet(capture.write, s)
	}
	if out, e = connectOne(c.stdout, c.out, &c.kept[0]); e != nil {
		return -1, -1, e
	}
	if merge {
		c.stderr.emit = func([]byte) {}
		return out, out, nil
	}
	if err, e = connectOne(c.stderr, c.err, &c.kept[1]); e != nil {
		unix.Close(out)
		return -1, -1, e
	}
	return out, err, nil
}

// runJob runs the job to its end and closes its streams.
func (c *call) runJob(j *job, out, err int) *outcome {
	if c.uid >= 0 {
		for _, fd := range append([]int{j.stdin, out, err}, j.spec.passFDs...) {
			allowReopen(fd)
		}
	}
	o := c.sup.run(j, out, err)
	c.stdout.close()
	c.stderr.close()
	return o
}

// explain prints what there is to say about the end of a call. The line that
// names its cause may be empty.
func (c *call) explain(o *outcome, argv []string, cause string) {
	if o.started() {
		if text := c.skippedNotice(o, argv); text != "" {
			c.console.notice("%s", text)
		}
	}
	for _, s := range []struct {
		id limitID
		*capture
	}{{stdoutBytes, c.stdout}, {stderrBytes, c.stderr}} {
		if n := s.dropped(); n > 0 {
			c.console.notice("%s exceeded, %d bytes dropped", c.limits.assignment(s.id), n)
		}
	}
	if cause != "" {
		c.console.line("%s", cause)
	}
	if killed := o.killedLeftovers(); len(killed) > 0 {
		c.console.notice("%s", leftoverNotice(killed))
	}
	if len(o.stuck) > 0 {
		c.console.line("could not kill %s", firstFew(o.stuck))
	}
}

// emptyInput opens a stdin that is at its end.
func emptyInput() (int, error) {
	fd, err := unix.Open("/dev/null", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err == nil {
		return fd, nil
	}
	r, w, err := newPipe()
	if err != nil {
		return -1, err
	}
	unix.Close(w)
	return r, nil
}

// validUTF8 replaces each byte that is no UTF-8 by U+FFFD.
func validUTF8(p []byte) string {
	if utf8.Valid(p) {
		return string(p)
	}
	return string([]rune(string(p)))
}
