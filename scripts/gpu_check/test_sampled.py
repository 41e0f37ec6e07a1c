"""Tests how gpu-check measures the time that samples of kernels cost (sampled.py)."""
import sys
import unittest

sys.dont_write_bytecode = True
from gpu_check import sampled  # noqa: E402


class Steps(unittest.TestCase):
    def steps(self, behind=1000):
        """Returns durations of steps in ns, 1 us each, with three samples 10 000 steps apart. A sample has one step
        of 100 us, and then 19 steps of 2 us. After the last sample, steps take `behind` ns."""
        sample = [100_000] + [2000] * 19
        return [1000] * 5000 + 2 * (sample + [1000] * 9980) + sample + [behind] * 5000

    def test_lost_is_what_slow_steps_take_more(self):
        self.assertEqual(sampled.lost(self.steps()), 3 * (99_000 + 19 * 1000))
        self.assertEqual(sampled.lost([1000, 1010, 1000]), 0)

    def test_steps_behind_a_sample_are_compared_with_those_before_it(self):
        self.assertEqual(sampled.between(self.steps(), 10_000), [1.0, 1.0])
        self.assertEqual(sampled.between(self.steps(behind=1010), 10_000), [1.0, 1.01])
        self.assertEqual(sampled.between(self.steps()[:9000], 10_000), [])


if __name__ == "__main__":
    unittest.main()
