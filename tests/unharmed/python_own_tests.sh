# Runs CPython's own tests of features that a preloaded library can break. With the library, each
# test must have the same result as without it. LONG_TESTS is only set in nightly runs.
# tests/python_hosts runs test_gc in several Pythons.
for python in "$(python3 -c 'import sys; print(sys.executable)')" /usr/bin/python3; do
    "$python" -c 'import test.test_gc' 2> /dev/null && break
done || { echo "skipped: no Python here has its own tests (Debian: libpython3-testsuite)"; exit 77; }
ulimit -c 0
for name in test_ctypes test_fork1 ${LONG_TESTS:-}; do
    "$python" -m test -v "$name" > log 2>&1
    echo "$name: $?"
    # Only the results are compared. Times vary, and so does output of child processes between a test and its
    # result.
    grep -oE '(^| )\.\.\. (ok|FAIL|ERROR|skipped.*|expected failure|unexpected success)$' log | sort | uniq -c
    grep -E '^(FAIL|ERROR):' log | sort
    grep -oE '^(Ran [0-9]+ tests|OK|FAILED).*' log | sed 's/ in [0-9.]*s//'
done
