package main

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"testing"
)

func BenchmarkLimits(b *testing.B) {
	for b.Loop() {
		l := defaultLimits()
		if err := l.setList("wall_seconds=1.5, memory_bytes=512MiB,process_count=1_000"); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkQuickRun(b *testing.B) {
	for b.Loop() {
		if _, ok := quickRun([]string{"--limit", "wall_seconds=5", "--json", "--child-uid=5000"}); !ok {
			b.Fatal("left to kong")
		}
	}
}

func BenchmarkKongRun(b *testing.B) {
	for b.Loop() {
		var flags cli
		parser, err := newParser(&flags)
		if err != nil {
			b.Fatal(err)
		}
		if _, err := parser.Parse([]string{"run", "--limit", "wall_seconds=5", "--json", "--child-uid=5000"}); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkCapture is a stream of 64 MiB through a limit of 64 KiB, as read.
func BenchmarkCapture(b *testing.B) {
	chunk := bytes.Repeat([]byte("line of text 16\n"), 4096)
	const chunks = 1024
	b.SetBytes(chunks * int64(len(chunk)))
	for b.Loop() {
		c := &capture{limit: 64 << 10, emit: func([]byte) {}}
		for range chunks {
			c.write(chunk)
		}
		c.close()
	}
}

func BenchmarkFrame(b *testing.B) {
	body := fmt.Sprintf(`{"status":"ok","return_value":[%s1]}`, bytes.Repeat([]byte("1234567890,"), 50_000))
	data := []byte(runnerHello + fmt.Sprintf("%s%d\n%s", frameHeader, len(body), body))
	b.SetBytes(int64(len(data)))
	for b.Loop() {
		r := &frameReader{limit: 2_000_000}
		r.write(data)
		if _, err := r.frame(); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkScanArtifacts is a workspace of 10,000 files in 100 directories.
func BenchmarkScanArtifacts(b *testing.B) {
	dir := b.TempDir()
	for i := range 100 {
		sub := filepath.Join(dir, fmt.Sprint(i))
		if err := os.Mkdir(sub, 0o700); err != nil {
			b.Fatal(err)
		}
		for j := range 100 {
			if err := os.WriteFile(filepath.Join(sub, fmt.Sprint(j)), nil, 0o600); err != nil {
				b.Fatal(err)
			}
		}
	}
	fd, err := openDirAt(-1, dir)
	if err != nil {
		b.Fatal(err)
	}
	l := defaultLimits()
	l.value[artifactCount] = 20_000
	for b.Loop() {
		if list, err := scanArtifacts(fd, "runs", -1, l); err != nil || len(list) != 10_000 {
			b.Fatal(len(list), err)
		}
	}
}
