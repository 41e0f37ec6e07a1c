"""Tests how gpu-check judges the cost of windows (inside.py) and of the library while its window is far off
(armed.py). The times are written by hand."""
import sys
import unittest

sys.dont_write_bytecode = True
from gpu_check import armed, inside  # noqa: E402


class Inside(unittest.TestCase):
    TURNS = 3

    def began(self, ns):
        """Returns the time when each step began, if step n takes `ns(n)` nanoseconds."""
        began = [0]
        for n in range(inside.FIRST + 2 * inside.SPAN * self.TURNS + inside.SPAN):
            began.append(began[-1] + ns(n))
        return began

    @staticmethod
    def is_inside(n):
        return any(first <= n <= last for first, last in inside.windows(Inside.TURNS))

    def test_each_span_has_its_median_without_its_edges(self):
        edges = {edge for first, last in inside.windows(self.TURNS) for edge in (first, last, last + 1)}
        began = self.began(lambda n: 90000 if n in edges else 1100 if self.is_inside(n) else 1000)
        self.assertEqual(inside.durations(began, self.TURNS), ([1100] * 3, [1000] * 4))

    def test_a_slow_drift_is_no_cost(self):
        got, ok = inside.judge([1000 + 10 * n for n in range(60)], [995 + 10 * n for n in range(61)])
        self.assertIs(ok, True, got)
        self.assertIn(": 1.0000 (1.0000–1.0000)", got)

    def test_the_interval_decides(self):
        self.assertIs(inside.judge([1030] * 60, [1000] * 61)[1], False)
        self.assertIs(inside.judge([1015] * 60, [1000] * 61)[1], True)
        self.assertIsNone(inside.judge([1000, 1040] * 30, [1000] * 61)[1])


class Armed(unittest.TestCase):
    def test_a_start_is_one_value(self):
        start = [[1000, 1000], [1000, 1000], [1250, 1250], [1000, 1000]]
        self.assertEqual(armed.of_starts([start, start]), [[1, 1], [0.8, 0.8], [1, 1]])

    def test_the_interval_over_the_starts_decides(self):
        self.assertIs(armed.judge([0.9995, 1.0005, 1, 1])[1], True)
        self.assertIs(armed.judge([0.99, 0.991, 0.99])[1], False)
        self.assertIsNone(armed.judge([0.99, 1.01, 1])[1])
        self.assertIs(armed.judge_steps([1, 0.999, 1.001] * 7, [1.0005, 0.9995, 1.0] * 7)[1], True)
        self.assertIs(armed.judge_steps([0.99, 0.991, 0.989] * 7, [1.0005, 0.9995, 1.0] * 7)[1], False)
        mean, least, most = armed.interval([1.0, 1.2])
        self.assertAlmostEqual(mean, 1.1)
        self.assertAlmostEqual(most - mean, 12.706 * 0.1, 3)
        self.assertAlmostEqual(mean - least, most - mean)


if __name__ == "__main__":
    unittest.main()
