package main

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"hash"
	"time"
)

// policyVersion names the meaning of the record's keys and of the limits.
const policyVersion = "1"

// An audit is where a call's record goes; nil if nobody asked for one. A
// record holds no code, no arguments, no output and no environment.
type audit struct {
	onStderr bool
	file     recordFile
	extra    json.RawMessage
}

// newAudit returns nil if no record is asked for. Its errors are usage errors.
func newAudit(path, extra string) (*audit, error) {
	a := &audit{onStderr: switchedOn("PYPLAYPEN_AUDIT"), file: recordFile{what: "audit file", path: path, fd: -1}, extra: json.RawMessage("null")}
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

// newHash is for a stream that the record will hold the digest of.
func (a *audit) newHash() hash.Hash {
	if a == nil {
		return nil
	}
	return sha256.New()
}

// recorded reports whether anybody asked for a record or a report.
func (c *call) recorded() bool { return c.audit != nil || c.report != nil }

// record builds what every event has in common. What is left out where only a
// report was asked for has no place in one.
func (c *call) record(event string, o *outcome, v verdict) map[string]any {
	c.finished = time.Now()
	effective, enforced := map[string]any{}, map[string]string{}
	values := c.enforcements()
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
		"finished_at":      c.finished.UTC().Format(time.RFC3339Nano),
		"duration_ms":      c.finished.Sub(c.start).Milliseconds(),
		"queue_ms":         c.queued.Milliseconds(),
		"spawned":          o.started(),
		"status":           v.status,
		"returncode":       v.returncode,
		"reason":           v.reason,
		"limit":            nil,
		"cpu_ms":           (o.usage.user + o.usage.system).Milliseconds(),
		"max_rss_bytes":    o.usage.peak,
		"leftovers":        len(o.leftovers),
		"artifact_count":   0,
		"artifact_bytes":   0,
		"artifact_hashes":  []any{},
	}
	if v.limit != "" {
		r["limit"] = v.limit
	}
	for name, s := range map[string]*capture{"stdout": c.stdout, "stderr": c.stderr} {
		r[name+"_bytes"] = s.written
		if s.hash != nil {
			r[name+"_sha256"] = hex.EncodeToString(s.hash.Sum(nil))
		}
	}
	if c.audit != nil {
		r["audit_extra"] = c.audit.extra
	}
	return r
}

const eventProcess = "process_execution"

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
