"""Tests how gpu-check judges `tllmprof attach`: the windows, Python's data in the record, and the speed
afterwards."""
import itertools
import os
import signal
import subprocess
import sys
import time
import unittest

sys.dont_write_bytecode = True
from gpu_check import attach  # noqa: E402


class Judged(unittest.TestCase):
    def process(self, windows=attach.TIMES, first=100, dropped=0):
        held = [dict(iterations=[dict(n=n) for n in range(first + 100 * at, first + 100 * at + attach.STEPS)]) for at in range(windows)]
        return dict(windows=held, dropped=dropped)

    def test_windows_are_whole_and_as_many_as_were_asked_for(self):
        self.assertIsNone(attach.judge(self.process()))
        self.assertEqual(attach.judge(self.process(windows=19)), "19 windows, not 20")
        self.assertEqual(attach.judge(self.process(dropped=3)), "3 dropped")
        torn = self.process()
        torn["windows"][4]["iterations"].pop(7)
        self.assertIn("a window holds [500, 501, 502]… (49), not 50 in a row", attach.judge(torn))

    def test_what_is_missing_of_python_is_named(self):
        there = dict(stacks=dict(counts=dict(samples=5)), gil_handoffs=0, gil_hold=dict(count=7))
        self.assertIsNone(attach.unlike_python(there))
        self.assertEqual(attach.unlike_python(dict(there, stacks=None)), "not in the record: stacks")
        self.assertEqual(attach.unlike_python(dict(stacks=dict(counts=dict(samples=0)), gil_handoffs=0, gil_hold=dict(count=0))),
                         "not in the record: stacks, the GIL")

    def test_steps_afterwards_are_those_before_or_the_interval_says_nothing(self):
        before = [100.0] * 20
        self.assertEqual(attach.judge_speed(before, [100.0] * 20)[1], True)
        self.assertEqual(attach.judge_speed(before, [99.0] * 20)[1], False)
        self.assertIsNone(attach.judge_speed(before, [98.0, 101.0] * 10)[1])
        self.assertIsNone(attach.judge_speed([99.0, 101.0] * 10, before)[1])

    def test_what_changes_by_itself_changes_a_twin_too(self):
        before, after = [100.0] * 40, [99.0] * 40
        self.assertEqual(attach.judge_twins((before, after), (before, after)), ("afterwards 1.0000 (1.0000–1.0000) of 100 steps/s", True))
        self.assertEqual(attach.judge_twins((before, after), (before, before))[1], False)

    def test_blocks_are_run_in_turn_until_the_interval_is_narrow(self):
        class Program:
            def __init__(self, *rates):
                self.rates = itertools.cycle(rates)

            def median_rate(self, _seconds):
                return next(self.rates)

        steady, noisy = Program(100.0), Program(95.0, 99.0, 101.0, 105.0, 97.0, 103.0)
        self.assertEqual([len(one) for one in attach.speeds_of(steady, steady)], [attach.FEWEST_ROUNDS] * 2)
        self.assertEqual([len(one) for one in attach.speeds_of(noisy, steady)], [attach.MOST_ROUNDS] * 2)

    def test_an_engine_has_cores_of_its_own(self):
        whole = os.sched_getaffinity(0)
        if len(whole) < 2:
            self.skipTest("one core")
        with subprocess.Popen(["sh", "-c", "sleep 60 & wait"]) as shell:
            try:
                while len(attach.with_children(shell.pid)) < 2:
                    time.sleep(0.01)
                _, engine = attach.with_children(shell.pid)
                attach.on_cores_of_its_own(engine, shell.pid)
                halves = [os.sched_getaffinity(pid) for pid in (engine, shell.pid)]
                self.assertEqual((halves[0] | halves[1], halves[0] & halves[1]), (whole, set()))
            finally:
                os.kill(engine, signal.SIGKILL)

    def test_an_engines_steps_are_those_with_the_commonest_batch_within_a_span(self):
        shapes = [(16, 16, 0)] * 4 + [(16, 80, 64)] + [(16, 16, 0)] * 3
        rows = [(1000 * at, 0, *shape, -1) for at, shape in enumerate(shapes)]
        self.assertEqual(attach.rates_in(rows, -1, 10_000), [1e6] * 5)
        self.assertEqual(attach.rates_in(rows, 0, 7000), [1e6] * 3)

    def test_spans_are_of_whole_ones(self):
        self.assertEqual(attach.of_spans([1.0] * attach.SPAN + [2.0] * attach.SPAN + [3.0]), [1.0, 2.0])


if __name__ == "__main__":
    unittest.main()
