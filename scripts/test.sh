#!/bin/sh
# Check the types and run the tests, in two processes at once: test.sh PYTHON [pytest arguments].
# Tests of Ray wait for actors most of the time, so the others fill the gaps. Whichever process is done first takes parts
# that go with either (BESIDE_RAY in tests/conftest.py), so that both end together, whatever is added to one of them.
# What the process of Ray prints follows at the end.
set -u

python=$1
shift
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# all_of MARKS [pytest arguments]
all_of() {
    marks=$1
    shift
    failed=0
    "$python" -m pytest -m "$marks" "$@" || failed=1
    for part in test_resume_test.py types trackers doctor; do
        # Only one process can make it.
        mkdir "$work/$part" 2>/dev/null || continue
        if [ "$part" = types ]; then
            "$python" -m mypy || failed=1
        else
            "$python" -m pytest -m beside_ray "tests/$part" "$@" || failed=1
        fi
    done
    return "$failed"
}

all_of ray "$@" >"$work/log" 2>&1 &
ray=$!
trap 'kill "$ray" $(pgrep -P "$ray") 2>/dev/null; exit 130' INT TERM
all_of "not ray and not beside_ray" "$@"
others=$?
wait "$ray"
status=$?
cat "$work/log"
[ "$others" -eq 0 ] && [ "$status" -eq 0 ]
