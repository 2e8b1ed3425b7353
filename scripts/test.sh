#!/bin/sh
# Run the tests in two processes at once: test.sh PYTHON [pytest arguments].
# Tests of Ray wait for actors most of the time, so the others fill the gaps, and some of these run in Ray's process
# (tests/conftest.py), so that both end together; what it prints follows at the end.
set -u

python=$1
shift
log=$(mktemp)
trap 'rm -f "$log"' EXIT

"$python" -m pytest -m "ray or beside_ray" "$@" >"$log" 2>&1 &
ray=$!
trap 'kill "$ray" 2>/dev/null; rm -f "$log"; exit 130' INT TERM
"$python" -m pytest -m "not ray and not beside_ray" "$@"
others=$?
wait "$ray"
status=$?
cat "$log"
[ "$others" -eq 0 ] && [ "$status" -eq 0 ]
