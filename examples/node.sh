#!/bin/sh
# Node reserves address space for its heap, and starts several threads.
exec pyplaypen run --limit memory_bytes=2GiB --limit process_count=24 -- node -e 'console.log("node", [1, 2, 3].map((n) => n * n))'
