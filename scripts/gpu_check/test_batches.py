"""Tests how gpu-check judges the findings about batches and graphs (batches.py). The tests need neither a GPU nor vLLM."""
import os
import sys
import unittest

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
from gpu_check import batches  # noqa: E402


def finding(rule, verdict="yes"):
    return {"rule": rule, "verdict": verdict, "evidence": f"of {rule}"}


class Judged(unittest.TestCase):
    def test_the_planted_finding_is_as_wanted_wherever_it_comes(self):
        text, ok = batches.judged([finding("launch-bound"), finding("eager-fallback")], "eager-fallback")
        self.assertTrue(ok)
        self.assertEqual(text, "finding 2 of 2; launch-bound, eager-fallback: of eager-fallback")

    def test_a_finding_that_does_not_hold_is_shown_with_its_evidence(self):
        text, ok = batches.judged([finding("launch-bound"), finding("graph-padding", "no")], "graph-padding")
        self.assertFalse(ok)
        self.assertEqual(text, "no such finding; launch-bound: of graph-padding")

    def test_the_other_finding_is_wrong(self):
        self.assertFalse(batches.judged([finding("eager-fallback"), finding("graph-padding")], "graph-padding")[1])

    def test_without_a_plant_neither_may_be_found(self):
        self.assertEqual(batches.judged([finding("launch-bound")], None), ("no such finding; launch-bound", True))
        self.assertFalse(batches.judged([finding("graph-padding")], None)[1])


if __name__ == "__main__":
    unittest.main()
