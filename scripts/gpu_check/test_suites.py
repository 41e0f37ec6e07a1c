"""Tests how gpu-check compares the results of test suites with and without the library (suites.py). The tests need
neither a GPU nor the suites."""
import importlib.util
import os
import sys
import tempfile
import types
import unittest

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
from gpu_check import suites  # noqa: E402


class Played(suites.Suite):
    """A suite that runs nothing. Its results are given in the order of its runs: without the library, with the
    library, and so on in turn."""

    def __init__(self, *runs):
        super().__init__("played", "", None)
        self.given = iter(runs)

    def run(self, is_armed):
        return next(self.given)


class Judged(unittest.TestCase):
    def test_the_same_outcome_is_as_wanted_though_a_test_fails_both_ways(self):
        text, ok = suites.judged(Played({"a": "passed", "b": "failed"}, {"a": "passed", "b": "failed"}))
        self.assertTrue(ok)
        self.assertEqual(text, "2 run: 1 passed, 1 failed, 0 skipped without the library; 0 different")

    def test_what_differs_each_time_is_a_difference(self):
        bad = ({"a": "passed", "b": "passed"}, {"a": "passed", "b": "failed"})
        text, ok = suites.judged(Played(*bad, *bad, *bad))
        self.assertFalse(ok)
        self.assertIn("1 different: b: passed, with the library failed", text)

    def test_a_test_that_is_not_run_with_the_library_is_a_difference(self):
        bad = ({"a": "passed", "b": "passed"}, {"a": "passed"})
        text, ok = suites.judged(Played(*bad, *bad, *bad))
        self.assertFalse(ok)
        self.assertIn("b: passed, with the library not run", text)

    def test_what_differs_once_is_named(self):
        good = {"a": "passed"}
        text, ok = suites.judged(Played(good, {"a": "failed"}, good, good))
        self.assertTrue(ok)
        self.assertIn("1 different at first and not when run again: a: passed, with the library failed", text)

    def test_a_suite_in_which_nothing_passes_shows_nothing(self):
        self.assertFalse(suites.judged(Played({"the whole suite": "status 4"}, {"the whole suite": "status 4"}))[1])

    def test_what_is_missing_is_left_out(self):
        suite = Played()
        suite.prepare = lambda: "no tests"
        self.assertEqual(suites.judged(suite), ("left out: no tests", None))


class Runs(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name
        self.bench = types.SimpleNamespace(folder=self.folder, shim="")

    def test_outcomes_of_a_junit_file(self):
        path = os.path.join(self.folder, "report.xml")
        with open(path, "w") as file:
            file.write('<testsuites><testsuite><testcase classname="t.m.C" file="t/m.py" name="a"/><testcase classname="t.m" '
                       'file="t/m.py" name="b[1]"><failure message="1&#10; 2"/></testcase><testcase classname="t.m.C.D" '
                       'file="t/m.py" name="c"><skipped/></testcase></testsuite></testsuites>')
        self.assertEqual(suites.outcomes(path), ({"t/m.py::C::a": "passed", "t/m.py::b[1]": "failed",
                                                  "t/m.py::C::D::c": "skipped"}, {"t/m.py::b[1]": "1 2"}))

    def test_pytest_runs_again_what_differed_each_test_by_itself(self):
        with open(os.path.join(self.folder, "test_it.py"), "w") as file:
            file.write("import os\nclass TestIt:\n    def test_a(self): assert 'TLLMPROF_STEP' not in os.environ, 'armed'\n"
                       "    def test_b(self): pass\n")
        if importlib.util.find_spec("pytest") is None or importlib.util.find_spec("xdist") is None:
            self.skipTest("no pytest with xdist")
        suite = suites.Pytest("tests", self.folder, self.bench, sys.executable, ["test_it.py"], 2, "os")
        self.assertIsNone(suite.prepare())
        text, ok = suites.judged(suite)
        self.assertFalse(ok)
        self.assertIn("3 run: 3 passed", text)
        self.assertIn("1 different: test_it.py::TestIt::test_a: passed, with the library failed (AssertionError: armed", text)

    def test_programs_pass_by_their_status_and_see_whether_they_are_armed(self):
        def build(_, __):
            return {"well": (["true"], None), "armed": (["sh", "-c", 'test -n "$TLLMPROF_STEP"'], None)}, ["unbuilt"]

        suite = suites.Programs("programs", self.folder, self.bench, build)
        self.assertIsNone(suite.prepare())
        self.assertEqual(suite.run(False), {"well": "passed", "armed": "status 1"})
        self.assertEqual(suite.run(True), {"well": "passed", "armed": "passed"})
        text, ok = suites.judged(suite)
        self.assertFalse(ok)
        self.assertIn("1 cannot be built: unbuilt; 1 different: armed: status 1, with the library passed", text)

    def test_by_run_the_command_starts_the_tests_and_sets_no_features(self):
        self.bench.command = os.path.join(self.folder, "tllmprof")
        with open(self.bench.command, "w") as file:
            file.write('#!/bin/sh\n[ "$1 $2 $4" = "run --trace --" ] || exit 9\nshift 4\nBY_RUN=1 exec "$@"\n')
        os.chmod(self.bench.command, 0o755)

        def build(_, __):
            return {"by run": (["sh", "-c", 'test -n "$BY_RUN"'], None), "armed": (["sh", "-c", 'test -n "$TLLMPROF_STEP"'], None)}, []

        suite = suites.Programs("programs", self.folder, self.bench, build)
        suite.by_run = True
        self.assertIsNone(suite.prepare())
        self.assertEqual(suite.run(False), {"by run": "status 1", "armed": "status 1"})
        self.assertEqual(suite.run(True), {"by run": "passed", "armed": "status 1"})


if __name__ == "__main__":
    unittest.main()
