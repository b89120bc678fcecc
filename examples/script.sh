#!/usr/bin/env bash
# In a shell script the exit code is the command's own, so that set -e and
# pipefail see what they would see without pyplaypen.
set -eo pipefail

bounded() { pyplaypen run --limit wall_seconds=10 "$@"; }

# Stdin is empty unless it is passed on: the loop keeps its input.
printf '%s\n' one two three | while read -r name; do
	bounded -- sh -c 'cat; echo "got $0"' "$name"
done

# In a pipeline, let stdin through. A cut output does not stop the command.
seq 1000 | bounded --stdin -- grep -c 7
seq 100000 | bounded --stdin --limit stdout_bytes=24 -- cat | wc -c

# A failure is the pipeline's; 124 tells the timeout from it.
if ! bounded -- sh -c 'exit 3' | cat; then echo "failed"; fi
code=0
bounded --limit wall_seconds=2 -- sleep 60 || code=$?
[ "$code" = 124 ] && echo "too slow"

bounded -- false
echo "not reached"
