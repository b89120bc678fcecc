package main

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"hash"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// policyVersion names the meaning of the record's keys and of the limits.
const policyVersion = "1"

// An audit is where a call's record goes; nil if nobody asked for one. A
// record holds no code, no arguments, no output and no environment.
type audit struct {
	onStderr bool
	file     int // descriptor, or -1
	path     string
	extra    json.RawMessage
}

// newAudit returns nil if no record is asked for. Its errors are usage errors.
func newAudit(path, extra string) (*audit, error) {
	a := &audit{onStderr: os.Getenv("PYPLAYPEN_AUDIT") == "1", file: -1, path: path, extra: json.RawMessage("null")}
	if extra != "" {
		object, err := jsonObject(extra)
		if err != nil {
			return nil, usageError("--audit-extra: %w", err)
		}
		a.extra = object
	}
	if !a.onStderr && path == "" {
		return nil, nil
	}
	return a, nil
}

// open opens the audit file, so that a call that can't be recorded is refused
// before it starts. Its errors are usage errors.
func (a *audit) open() (err error) {
	if a == nil || a.path == "" {
		return nil
	}
	// Not blocking: a FIFO without a reader is refused, not waited for.
	a.file, err = unix.Open(a.path, unix.O_WRONLY|unix.O_CREAT|unix.O_APPEND|unix.O_CLOEXEC|unix.O_NONBLOCK|unix.O_NOCTTY, 0o600)
	if err != nil {
		return usageError("audit file %s: %w", a.path, err)
	}
	return nil
}

// newHash is for a stream that the record will hold the digest of.
func (a *audit) newHash() hash.Hash {
	if a == nil {
		return nil
	}
	return sha256.New()
}

// record builds what every event has in common.
func (c *call) record(event string, o *outcome, v verdict) map[string]any {
	finished := time.Now()
	effective, enforced := map[string]any{}, map[string]string{}
	values := enforcements(c.processes)
	for id, info := range limitTable {
		if info.execOnly && event == eventProcess {
			continue
		}
		effective[info.name] = json.Number(c.limits.text(limitID(id)))
		enforced[info.name] = string(values[id])
	}
	r := map[string]any{
		"event":            event,
		"request_id":       c.id,
		"policy_version":   policyVersion,
		"effective_limits": effective,
		"enforcement":      enforced,
		"started_at":       c.start.UTC().Format(time.RFC3339Nano),
		"finished_at":      finished.UTC().Format(time.RFC3339Nano),
		"duration_ms":      finished.Sub(c.start).Milliseconds(),
		"queue_ms":         0,
		"spawned":          o.started(),
		"status":           v.status,
		"returncode":       v.returncode,
		"reason":           v.reason,
		"limit":            nil,
		"cpu_ms":           (o.usage.Utime.Nano() + o.usage.Stime.Nano()) / int64(time.Millisecond),
		"max_rss_bytes":    maxRSS(o.usage),
		"leftovers":        len(o.leftovers),
		"artifact_count":   0,
		"artifact_bytes":   0,
		"artifact_hashes":  []any{},
		"audit_extra":      c.audit.extra,
	}
	if v.limit != "" {
		r["limit"] = v.limit
	}
	for name, s := range map[string]*capture{"stdout": c.stdout, "stderr": c.stderr} {
		r[name+"_bytes"] = s.written
		r[name+"_sha256"] = hex.EncodeToString(s.hash.Sum(nil))
	}
	return r
}

const eventProcess = "process_execution"

// write sends the record where it was asked for.
func (c *call) writeAudit(record map[string]any) {
	line, err := marshalLine(record) // maps are written with sorted keys
	if err != nil {
		c.console.line("audit record: %v", err)
		return
	}
	if c.audit.onStderr {
		c.console.line("%s", bytes.TrimSuffix(line, []byte("\n")))
	}
	if c.audit.file >= 0 {
		// One write, so that records of calls at the same time do not mix.
		if n, err := unix.Write(c.audit.file, line); err != nil || n < len(line) {
			if err == nil {
				err = fmt.Errorf("%d of %d bytes written", n, len(line))
			}
			c.console.line("audit file %s: %v", c.audit.path, err)
		}
		unix.Close(c.audit.file)
	}
}

// marshalLine encodes v as one line of JSON, without the escapes that only HTML
// needs, and with DEL escaped: the one control character that JSON leaves as it
// is, and that oneLine would write in a way that JSON does not know.
func marshalLine(v any) ([]byte, error) {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	err := e.Encode(v)
	return bytes.ReplaceAll(b.Bytes(), []byte("\x7f"), []byte(`\u007f`)), err
}

// argvDigest is the SHA-256 of the arguments, each followed by a NUL byte, as
// in /proc/PID/cmdline.
func argvDigest(argv []string) string {
	h := sha256.New()
	for _, a := range argv {
		h.Write([]byte(a))
		h.Write([]byte{0})
	}
	return hex.EncodeToString(h.Sum(nil))
}
