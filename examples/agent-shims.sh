#!/bin/sh
# agent-shims.sh COMMAND...: runs an agent's harness so that what it calls by one
# of these names is bounded, without a change to the harness.
set -eu
shims=$(mktemp -d)
trap 'rm -rf "$shims"' EXIT
for name in python3 node make sleep; do
	ln -s "$(command -v pyplaypen)" "$shims/$name"
done
PYPLAYPEN_LIMITS=${PYPLAYPEN_LIMITS:-wall_seconds=60,cpu_seconds=30,memory_bytes=2GiB}
if pyplaypen enforcement --check process_count 2>/dev/null; then
	PYPLAYPEN_LIMITS=$PYPLAYPEN_LIMITS,process_count=64
fi
export PYPLAYPEN_LIMITS
PATH=$shims:$PATH "$@"
