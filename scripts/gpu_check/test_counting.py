"""Tests how gpu-check judges the steps that the rule `auto` counts. The tests need no GPU."""
import ast
import os
import sys
import time
import unittest
from unittest import mock

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

from gpu_check import child, counting  # noqa: E402

MS = 1_000_000


def window(first, count, each_ms=10):
    return dict(iterations=[dict(n=n, start_ns=n * each_ms * MS, dur_ns=each_ms * MS) for n in range(first, first + count)])


def report(*windows, outside=10):
    return dict(processes=[dict(pid=7, rule_why="a wait", windows=list(windows), outside=dict(iterations=outside))])


def ended(each_ms=10, count=1000, status=0, err=""):
    began = [int(n * each_ms * MS) + 1000 for n in range(count)]
    return child.Ended(status, f'said\n{{"pid": 7, "began": {began}}}\n', err)


class Judged(unittest.TestCase):
    TWO = counting.Counted("jax", "file", (), ((100, 149), (200, 249)))
    DEFAULT = counting.Counted("generate", "file", ())

    def faults(self, counted, of_process, of_program=None):
        return counting.judge(counted, of_program or ended(), of_process)[1]

    def test_each_iteration_holds_one_step(self):
        text, faults = counting.judge(self.TWO, ended(), report(window(100, 50), window(200, 50)))
        self.assertEqual(faults, [])
        self.assertIn("100 iterations in 2 windows, 100 steps, one step each in 1.000; in all 110 iterations recorded, 1000 steps", text)

    def test_two_steps_or_half_a_step_an_iteration_are_wrong(self):
        for each_ms, share in ((5, "0.000"), (20, "0.500")):
            self.assertIn(f"one step each in {share}", self.faults(self.DEFAULT, report(window(100, 50)), ended(each_ms))[0])

    def test_a_window_that_lost_iterations_or_did_not_open_is_wrong(self):
        short = report(window(100, 50), window(200, 28))
        self.assertIn("windows of [28, 50] iterations", self.faults(self.TWO, short)[0])
        self.assertIn("windows of [50] iterations: 1; 2 of 50 wanted", self.faults(self.TWO, report(window(100, 50)))[0])
        self.assertEqual(self.faults(self.DEFAULT, report(window(100, 17))), [])
        gap = report(window(100, 50))
        del gap["processes"][0]["windows"][0]["iterations"][20]
        self.assertIn("window 100-149 has 49 iterations", self.faults(self.DEFAULT, gap)[0])

    def test_without_windows_or_steps_it_is_wrong(self):
        self.assertEqual(self.faults(self.DEFAULT, report()), ["no window opened"])
        self.assertEqual(self.faults(self.DEFAULT, None), ["no process in the report"])
        self.assertEqual(self.faults(self.DEFAULT, report(window(100, 50)), ended(status=1)), ["the program failed"])
        self.assertEqual(self.faults(self.DEFAULT, report(window(100, 50)), child.Ended(0, "said", "")), ["the program failed"])


class Programs(unittest.TestCase):
    def test_each_start_of_jax_has_twenty_windows_that_its_steps_reach(self):
        jax = [one for one in counting.chosen(["jax"])[0]]
        self.assertEqual(len(jax), 5)
        self.assertEqual(counting.chosen(["jax"])[1], [])
        for one in jax:
            self.assertEqual([last - first + 1 for first, last in one.windows], [50] * 20)
            self.assertGreater(int(one.words[1]), one.windows[-1][1] + 100)
        self.assertTrue(jax[0].options[1].startswith("400-449,480-529,"))

    def test_each_python_program_is_in_the_file(self):
        with open(os.path.join(counting.FOLDER, counting.PYTHON)) as source:
            functions = {one.name for one in ast.parse(source.read()).body if isinstance(one, ast.FunctionDef)}
        named = {one.words[0] for queue in counting.queues() for one in queue if one.file == counting.PYTHON}
        self.assertLessEqual(named, functions)
        self.assertTrue(os.path.exists(os.path.join(counting.FOLDER, counting.NATIVE)))

    def test_what_is_missing_is_left_out_and_what_fails_is_wrong(self):
        runner = counting.Runner("tllmprof", None, "/nowhere", time.monotonic() + 100)
        with mock.patch.object(counting.host, "has_module", return_value=False):
            self.assertEqual(runner.guarded(counting.chosen(["generate"])[1][0]), ("no transformers", None))
        with mock.patch.object(counting, "build", return_value="no nvcc"):
            self.assertEqual(runner.guarded(counting.chosen(["recapture"])[1][0]), ("not built: no nvcc", ["not built"]))
        with mock.patch.object(counting, "build", return_value=None):
            late = counting.Runner("tllmprof", None, "/nowhere", time.monotonic())
            self.assertEqual(late.guarded(counting.chosen(["recapture"])[1][0]), ("no time left", None))
        with mock.patch.object(counting, "build", side_effect=OSError("full")):
            self.assertEqual(runner.guarded(counting.chosen(["recapture"])[1][0])[1], ["failed"])

    def test_all_end_in_time(self):
        self.assertLessEqual(counting.BUDGET + counting.REPORTS, 150)


if __name__ == "__main__":
    unittest.main()
