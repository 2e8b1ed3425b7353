#!/bin/sh
# Check the types and run the tests, in two processes at once: test.sh PYTHON [pytest arguments].
# Tests of Ray wait for actors most of the time, so the others fill the gaps. Whichever process is done first takes parts
# that go with either (BESIDE_RAY in tests/conftest.py), so that both end together, whatever is added to one of them.
# What mypy and the tests of Ray print follows at the end.
set -u

python=$1
shift
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

types_and_ray() {
    wrong=0
    "$python" -m mypy || wrong=1
    all_of ray "$@" || wrong=1
    return "$wrong"
}

# all_of MARKS [pytest arguments]
all_of() {
    marks=$1
    shift
    failed=0
    "$python" -m pytest -m "$marks" "$@" || failed=1
    for part in test_resume_test.py trackers doctor; do
        # Only one process can make it.
        mkdir "$work/$part" 2>/dev/null || continue
        "$python" -m pytest -m beside_ray "tests/$part" "$@" || failed=1
    done
    return "$failed"
}

types_and_ray "$@" >"$work/log" 2>&1 &
ray=$!
trap 'kill "$ray" $(pgrep -P "$ray") 2>/dev/null; exit 130' INT TERM
all_of "not ray and not beside_ray" "$@"
others=$?
wait "$ray"
status=$?
cat "$work/log"
[ "$others" -eq 0 ] && [ "$status" -eq 0 ]
