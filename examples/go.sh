#!/bin/sh
# A Go program needs about 700 MiB of address space; the default has room for it.
CGO_ENABLED=0 go build -o hello hello.go
exec pyplaypen run --limit memory_bytes=1GiB --limit process_count=16 -- ./hello
