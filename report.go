package main

import (
	"bytes"
	"fmt"
	"math"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// A recordFile takes a line of JSON at the end of a call. It is opened before
// the call starts, with the caller's rights, so that a call that can't be
// recorded is refused.
type recordFile struct {
	what string // for messages
	path string // empty if none was asked for
	fd   int    // -1 until it is open
}

// open opens the file to append to. Its errors are usage errors.
func (f *recordFile) open() (err error) {
	if f.path == "" {
		return nil
	}
	// As root the directory may have been a call's, which put a link there.
	var st unix.Stat_t
	if unix.Lstat(f.path, &st) == nil && st.Mode&unix.S_IFMT == unix.S_IFLNK && st.Uid != 0 && int(st.Uid) != os.Geteuid() {
		return usageError("%s %s: is a link of uid %d, which is not followed", f.what, f.path, st.Uid)
	}
	// Not blocking: a FIFO without a reader is refused, not waited for.
	const flags = unix.O_WRONLY | unix.O_CREAT | unix.O_APPEND | unix.O_CLOEXEC | unix.O_NONBLOCK | unix.O_NOCTTY
	f.fd, err = unix.Open(f.path, flags, 0o600)
	if err != nil {
		return usageError("%s %s: %w", f.what, f.path, err)
	}
	return nil
}

// empty empties the file, so that nobody takes an earlier call's line for this
// one's. What is no regular file stays as it is.
func (f *recordFile) empty() { unix.Ftruncate(f.fd, 0) }

// sameAs reports whether two open files are one.
func (f *recordFile) sameAs(other *recordFile) bool {
	var a, b unix.Stat_t
	return unix.Fstat(f.fd, &a) == nil && unix.Fstat(other.fd, &b) == nil && a.Dev == b.Dev && a.Ino == b.Ino && a.Mode&unix.S_IFMT == unix.S_IFREG
}

// write writes the line and closes the file.
func (f *recordFile) write(line []byte) error {
	if f.fd < 0 {
		return nil
	}
	defer unix.Close(f.fd)
	// One write, so that records of calls at the same time do not mix.
	n, err := unix.Write(f.fd, line)
	if err == nil && n < len(line) {
		err = fmt.Errorf("%d of %d bytes written", n, len(line))
	}
	if err != nil {
		return fmt.Errorf("%s %s: %w", f.what, f.path, err)
	}
	return nil
}

// A report is where the account of what a call used goes; nil if nobody asked
// for one.
type report struct {
	onStderr bool
	file     recordFile
}

func newReport(path string) *report {
	switch path {
	case "":
		return nil
	case "-":
		return &report{onStderr: true, file: recordFile{fd: -1}}
	}
	return &report{file: recordFile{what: "report", path: path, fd: -1}}
}

// openRecords opens the files that the call was asked to write to. Its errors
// are usage errors.
func (c *call) openRecords() error {
	if c.audit != nil || c.report != nil {
		<-c.signals.caught // a call that has a record says in it how it ended
	}
	if c.audit != nil {
		if err := c.audit.file.open(); err != nil {
			return err
		}
	}
	if c.report == nil || c.report.onStderr {
		return nil
	}
	if err := c.report.file.open(); err != nil {
		return err
	}
	if c.audit != nil && c.report.file.sameAs(&c.audit.file) {
		return usageError("--report %s: is the audit file, which a report would empty", c.report.file.path)
	}
	c.report.file.empty()
	return nil
}

// reportedKeys are those that a report shares with the audit record.
var reportedKeys = []string{
	"request_id", "status", "returncode", "failure_type", "reason", "limit", "queue_ms", "leftovers", "stdout_bytes", "stderr_bytes",
}

// The values of peak_rss_measure.
const (
	peakLargestProcess = "largest_process" // ru_maxrss of getrusage(2), over the tree
	peakUpperBound     = "upper_bound"     // it does not exceed pyplaypen's own share in it
)

// reportOf builds the report of a call from its record.
func (c *call) reportOf(record map[string]any, o *outcome) map[string]any {
	r := map[string]any{
		"wall_ms":                milliseconds(c.finished.Sub(c.start)),
		"user_ms":                milliseconds(o.usage.user),
		"system_ms":              milliseconds(o.usage.system),
		"stdout_dropped_bytes":   c.stdout.dropped(),
		"stderr_dropped_bytes":   c.stderr.dropped(),
		"peak_rss_bytes":         nil,
		"peak_rss_at_most_bytes": nil,
		"peak_rss_measure":       nil,
	}
	for _, key := range reportedKeys {
		if value, ok := record[key]; ok {
			r[key] = value
		}
	}
	if o.started() {
		r["peak_rss_at_most_bytes"], r["peak_rss_measure"] = o.usage.peak, peakUpperBound
		if o.peakMeasured() {
			r["peak_rss_bytes"], r["peak_rss_measure"] = o.usage.peak, peakLargestProcess
		}
	}
	return r
}

// milliseconds rounds to whole microseconds, which is what the kernel counts in.
func milliseconds(d time.Duration) float64 {
	return math.Round(float64(d)/float64(time.Microsecond)) / 1000
}

// writeRecords sends the audit record and the report where they were asked for.
func (c *call) writeRecords(record map[string]any, o *outcome) {
	if c.audit != nil {
		c.writeLine("audit record", record, c.audit.onStderr, &c.audit.file)
	}
	if c.report != nil {
		c.writeLine("report", c.reportOf(record, o), c.report.onStderr, &c.report.file)
	}
}

func (c *call) writeLine(what string, object map[string]any, onStderr bool, file *recordFile) {
	line, err := marshalLine(object) // maps are written with sorted keys
	if err != nil {
		c.console.line("%s: %v", what, err)
		return
	}
	if onStderr {
		c.console.line("%s", bytes.TrimSuffix(line, []byte("\n")))
	}
	if err := file.write(line); err != nil {
		c.console.line("%v", err)
	}
}
