"""Tests of answers.py."""
import unittest
from unittest import mock

from . import answers
from .kernels import Report


def iteration(n, busy=None):
    return dict(n=n, dur_ns=1000, gpu_busy_ns=busy)


def report(iterations, unknown=0.0):
    ledger = dict(host=[dict(cause="launching", share=1 - unknown), dict(cause="unknown", share=unknown)], gpu=[])
    process = dict(rule="auto", windows=[dict(iterations=iterations)], ledger=ledger)
    empty = dict(rule="", windows=[], ledger=None)
    return dict(processes=[empty, process], findings=[dict(rule="gc", evidence="1", verdict="yes"), dict(rule="gil", evidence="2", verdict="no")])


class Answers(unittest.TestCase):
    def judged(self, answer, theirs=(500, 1100)):
        """Makes the check with this report of a run and these times by nsys. Returns (the check's rows, the window
        that nsys was asked for)."""
        bench, asked = mock.Mock(command="tllmprof"), []
        checked = Report("answers", lambda line: None)

        def by_nsys(window):
            asked.append(window)
            return theirs

        with mock.patch.object(answers, "output_of", lambda *words, folder: answer):
            answers.check(bench, checked, "engine", "folder", by_nsys)
        return checked, asked

    def test_the_same_iterations_are_compared(self):
        steps = [iteration(n) for n in range(7)] + [iteration(n, 505) for n in range(7, 12)]
        checked, asked = self.judged(report(steps))
        self.assertEqual((asked, checked.wrong), ([(7, 11)], 0))
        self.assertIn("gc: 1", checked.lines[1])
        self.assertNotIn("gil", checked.lines[1])

    def test_what_differs_or_has_no_cause_is_wrong(self):
        steps = [iteration(n, 505) for n in range(5)]
        self.assertEqual(self.judged(report(steps), (600, 1100))[0].wrong, 1)
        self.assertEqual(self.judged(report(steps, unknown=0.2))[0].wrong, 1)
        self.assertEqual(self.judged(report([iteration(0)]))[0].wrong, 1)
        self.assertEqual(self.judged(report([]))[0].wrong, 1)
        self.assertEqual(self.judged(dict(processes=[], findings=[]))[0].wrong, 1)


if __name__ == "__main__":
    unittest.main()
