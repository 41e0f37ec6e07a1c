"""Tests how gpu-check judges the windows of many ranks. The reports are written by hand."""
import sys
import unittest

sys.dont_write_bytecode = True
from gpu_check import eight  # noqa: E402


def process(rank, *windows, steps=50):
    return {"rank": rank, "windows": [{"first": first, "last": first + steps - 1, "iterations": [{"n": n} for n in range(first, first + steps)]}
                                      for first in windows]}


class Windows(unittest.TestCase):
    def judged(self, processes, size=(2, 1), captures=2):
        return eight.unlike_windows(processes, size, captures)

    def test_the_same_windows_in_all_ranks_are_right(self):
        self.assertEqual(self.judged([process(0, 100, 300), process(1, 100, 300)]), (2, []))

    def test_replicas_have_windows_of_their_own(self):
        both = [process(0, 100, 300), process(1, 100, 300), process(2, 90, 310), process(3, 90, 310)]
        self.assertEqual(self.judged(both, (2, 2)), (4, []))

    def test_other_windows_fewer_windows_and_a_missing_rank_are_wrong(self):
        self.assertTrue(self.judged([process(0, 100, 300), process(1, 100, 301)])[1])
        self.assertTrue(self.judged([process(0, 100), process(1, 100)])[1])
        self.assertTrue(self.judged([process(0, 100, 300)])[1])
        self.assertTrue(self.judged([process(0, 100, 300, steps=49), process(1, 100, 300, steps=49)])[1])

    def test_the_sizes_are_those_that_fit(self):
        self.assertEqual(eight.sizes(8), [(4, 1), (8, 1), (4, 2)])
        self.assertEqual(eight.sizes(4), [(4, 1), (2, 2)])
        self.assertEqual(eight.sizes(2), [(2, 1)])

    def test_only_its_own_name_chooses_a_part(self):
        self.assertEqual(eight.parts(["eight"]), list(eight.PARTS))
        self.assertEqual(eight.parts(["eight: speed"]), ["speed"])
        self.assertEqual(eight.parts(["height", "captures"]), [])


if __name__ == "__main__":
    unittest.main()
