"""Tests that gpu-check reports if another profiler gets other results with the library, and if the library does not
give CUPTI up to it."""
import os
import tempfile
import unittest

from . import child, consumers
from .kernels import Report

GIVES_WAY = f"echo 'tllmprof: {consumers.YIELDED}' >&2"


class Bench:
    command = "false"

    def __init__(self, folder):
        self.folder = folder

    def variables(self, **more):
        return child.variables(**more)

    def shimmed(self, window, rule, **more):
        return self.variables(TLLM_PROFILE_START_STOP=window, TLLMPROF_STEP=rule, **more)


class Compared(unittest.TestCase):
    def rows(self, script, line):
        report = Report("consumers", lambda text: None)
        with tempfile.TemporaryDirectory() as folder:
            self.assertFalse(os.listdir(folder))
            consumers.compare(Bench(folder), report, "a profiler", ["sh", "-c", script], line)
        return report.right, report.wrong

    def test_the_same_and_made_way_for(self):
        self.assertEqual(self.rows(f"echo 24; {GIVES_WAY}", consumers.YIELDED), (1, 0))

    def test_no_way_made(self):
        self.assertEqual(self.rows("echo 24", consumers.YIELDED), (0, 1))
        self.assertEqual(self.rows("echo 24", None), (1, 0))

    def test_fewer_kernels_with_the_library(self):
        self.assertEqual(self.rows("echo ${TLLMPROF_KERNELS:-24}", None), (0, 1))

    def test_a_program_that_fails(self):
        self.assertEqual(self.rows("exit 1", None), (0, 1))


class Reported(unittest.TestCase):
    def test_a_part_that_fails_keeps_the_rows_of_the_others(self):
        said = []
        report = Report("consumers", said.append)
        self.assertEqual(report.guarded(lambda bench, report, more: (report.check("a", more, True), 7)[1], None, "b"), 7)
        self.assertIsNone(report.guarded(lambda bench, report: 1 / 0, None))
        page, right, wrong = report.page("## Title")
        self.assertEqual((right, wrong), (1, 1))
        self.assertEqual(page[:2] + page[5:6], ["", "## Title", "| a | b | yes |"])
        self.assertTrue(said[0].startswith("consumers: a: b"), said)
