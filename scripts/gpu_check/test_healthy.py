"""Tests how gpu-check judges three minutes of load (healthy.py). The tests need no GPU."""
import os
import sys
import unittest

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
from gpu_check import healthy  # noqa: E402


def process(energy, *windows):
    """A report's process. Each window: (start, end) in ns."""
    return {"gpu_state": [{"energy_j": energy}], "unix_minus_monotonic_ns": 10**9,
            "windows": [{"iterations": [{"start_ns": start, "dur_ns": end - start}]} for start, end in windows]}


class Samples(unittest.TestCase):
    def test_lines_that_are_not_samples_are_left_out(self):
        (first, watts), (second, more) = healthy.samples_in(["2026/12/01 10:00:00.100, 100.5", "2026/12/01 10:00:00.200, [N/A]",
                                                             "2026/12/01 10:00:00.300, 300", "2026/12/01 10:0"])
        self.assertEqual((watts, more), (100.5, 300))
        self.assertAlmostEqual(second - first, 0.2, places=4)


class Joules(unittest.TestCase):
    def test_power_is_integrated_between_samples(self):
        samples = [(0.0, 100), (0.1, 200), (0.2, 300)]
        self.assertAlmostEqual(healthy.joules(samples, 0, 0.2), 40)
        self.assertAlmostEqual(healthy.joules(samples, 0.05, 0.1), 8.75)

    def test_a_gap_among_the_samples_leaves_the_energy_unknown(self):
        self.assertIsNone(healthy.joules([(0.0, 100), (0.1, 100), (2.0, 100)], 0, 1))
        self.assertIsNone(healthy.joules([], 0, 1))


class Energy(unittest.TestCase):
    samples = [(1 + at / 10, 500) for at in range(40)]

    def test_energy_within_a_twentieth_is_as_wanted(self):
        text, ok = healthy.judge_energy(process(1020, (0, 10**9), (2 * 10**9, 3 * 10**9)), self.samples)
        self.assertEqual((text, ok), ("1020 J in 2.0 s, 1000 J by the power draw: +2.0%", True))
        self.assertFalse(healthy.judge_energy(process(1060, (0, 10**9), (2 * 10**9, 3 * 10**9)), self.samples)[1])

    def test_energy_that_was_not_measured_is_wrong(self):
        self.assertFalse(healthy.judge_energy(process(None, (0, 10**9)), self.samples)[1])
        self.assertEqual(healthy.judge_energy(process(500, (0, 10**9), (5 * 10**9, 6 * 10**9)), self.samples),
                         ("500 J in 2.0 s; the power draw is not known in 1 of 2 windows", False))


class Findings(unittest.TestCase):
    def test_a_finding_that_nothing_planted_is_wrong(self):
        launches = {"rule": "launch-bound", "verdict": "yes", "evidence": "700 launches"}
        shared = {"rule": "shared-gpu", "verdict": "yes", "evidence": "5 %"}
        self.assertEqual(healthy.judge_findings([launches, dict(shared, verdict="no")]), ("launch-bound: 700 launches", True))
        self.assertEqual(healthy.judge_findings([launches, shared]), ("launch-bound: 700 launches; shared-gpu: 5 %", False))


if __name__ == "__main__":
    unittest.main()
