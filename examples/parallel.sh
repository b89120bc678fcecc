#!/bin/sh
# Each job is a call of its own, with limits of its own.
set -eu

# xargs passes on that one failed, as 123.
seq 4 | xargs -P 2 -I{} pyplaypen run --limit wall_seconds=10 -- echo "xargs {}"

# parallel keeps the output of each job together, and its exit code in the log.
parallel -j 2 --joblog jobs.log pyplaypen run --limit wall_seconds={} -- sleep 1.5 ::: 0.2 20 || echo "$? of them failed"
cut -f 7 jobs.log | sort
