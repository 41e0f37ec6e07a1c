"""Tests how gpu-check judges requested captures (captures.py) and the ledger of causes (ledger.py). The tests need
no GPU."""
import os
import sys
import unittest

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

from gpu_check import captures, ledger  # noqa: E402
from gpu_check.captures import MANY, SOON, STEPS, Captured  # noqa: E402


def found(late=1):
    return [Captured(n, n + 5, n + 5 + late, n + 4 + late + STEPS) for n in range(0, MANY * 100, 100)]


def record(of, dropped=0):
    return dict(dropped=dropped, windows=[dict(first=one.first, iterations=[dict(n=n) for n in range(one.first, one.last + 1)]) for one in of])


class Captures(unittest.TestCase):
    def ok(self, of, process):
        return captures.judge(of, process, 1)[1]

    def test_all_windows_hold_what_was_named(self):
        self.assertTrue(self.ok(found(), record(found())))
        self.assertFalse(self.ok(found()[1:], record(found()[1:])))
        self.assertFalse(self.ok(found(), record(found()[1:])))
        self.assertFalse(self.ok(found(), record(found(), dropped=1)))
        self.assertTrue(self.ok(found(SOON), record(found(SOON))))
        self.assertFalse(self.ok(found(SOON + 1), record(found(SOON + 1))))

    def test_a_window_that_lacks_an_iteration_or_has_one_more(self):
        process = record(found())
        process["windows"][3]["iterations"].pop()
        self.assertFalse(self.ok(found(), process))
        process = record(found())
        process["windows"][3]["iterations"].append(dict(n=399))
        self.assertFalse(self.ok(found(), process))

    def test_refusals_are_shown(self):
        refused = [*found()[:-1], Captured(1, 1, 0, 0, "a window is open")]
        text, ok = captures.judge(refused, record(refused[:-1]), 1)
        self.assertIn("a window is open", text)
        self.assertFalse(ok)

    def test_how_steps_at_the_ends_of_windows_are_delayed(self):
        rows, at = [(0,)], 0
        for n in range(2, 202):
            at += 7000 if n == 27 else 1100 if 28 <= n < 28 + captures.AROUND else 1000
            rows.append((at,))
        delay, ratios = captures.steps_around(rows, [Captured(20, 21, 22, 26)], 2)
        self.assertEqual(delay, 6000)
        self.assertEqual(ratios, [1.1])
        # The second window comes right after the first, so neither has steps outside windows on both sides, and
        # neither gives a ratio.
        _, ratios = captures.steps_around(rows, [Captured(20, 21, 22, 26), Captured(27, 28, 29, 33)], 2)
        self.assertEqual(ratios, [])
        self.assertEqual(captures.steps_around(rows, [Captured(n, n, n, n + 4) for n in range(5, 200, 6)], 2)[1], [])

    def test_what_is_left_behind_a_window(self):
        spread = [one / 1000 for one in range(990, 1011)]
        self.assertTrue(captures.judge_behind([1 + one / 100_000 for one in range(100)])[1])
        self.assertFalse(captures.judge_behind([1.01 * one for one in spread])[1])
        self.assertIsNone(captures.judge_behind([1.004 * one for one in spread])[1])
        self.assertIsNone(captures.judge_behind([1.0] * 9)[1])


class Ledger(unittest.TestCase):
    def ok(self, host, gpu):
        rows = lambda share: [dict(cause="launching", share=1 - share), dict(cause="idle: unknown", share=share)]  # noqa: E731
        return ledger.judge(dict(ledger=dict(host=rows(host), gpu=rows(gpu))))[1]

    def test_a_tenth_of_the_host_and_a_twentieth_of_the_gpu(self):
        self.assertTrue(self.ok(0.1, 0.05))
        self.assertFalse(self.ok(0.11, 0.05))
        self.assertFalse(self.ok(0.1, 0.06))
        self.assertIsNone(ledger.judge(dict(ledger=dict(host=[], gpu=[])))[1])


if __name__ == "__main__":
    unittest.main()
