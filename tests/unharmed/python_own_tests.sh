# CPython's own tests of what a preloaded library can break; each single test must come to the same result.
# Those of LONG_TESTS are run nightly; tests/python_hosts runs test_gc in several Pythons.
for python in "$(python3 -c 'import sys; print(sys.executable)')" /usr/bin/python3; do
    "$python" -c 'import test.test_gc' 2> /dev/null && break
done || { echo "skipped: no Python here has its own tests (Debian: libpython3-testsuite)"; exit 77; }
ulimit -c 0
for name in test_ctypes test_fork1 ${LONG_TESTS:-}; do
    "$python" -m test -v "$name" > log 2>&1
    echo "$name: $?"
    # Times, and what children write between a test and its result, are no results.
    grep -oE '(^| )\.\.\. (ok|FAIL|ERROR|skipped.*|expected failure|unexpected success)$' log | sort | uniq -c
    grep -E '^(FAIL|ERROR):' log | sort
    grep -oE '^(Ran [0-9]+ tests|OK|FAILED).*' log | sed 's/ in [0-9.]*s//'
done
