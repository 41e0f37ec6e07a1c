"""Tests how gpu-check judges comparisons with planted changes and between equal runs (pairs.py). The tests need no
GPU."""
import os
import sys
import unittest

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

from gpu_check import pairs  # noqa: E402
from gpu_check.kernels import Report  # noqa: E402


def compared(text="slower by 2.0 %", *causes):
    return dict(text=text, why=dict(causes=[dict(kind=kind, name=name, what=what, ns=40000) for kind, name, what in causes]))


SLOWER = "slower by 2.0 %"
FOUND = {
    "host": compared(SLOWER, ("idle", "code between calls", "longer"), ("kernel", "gemm", "the same")),
    "kernel": compared(SLOWER, ("kernel", "attention", "slower")),
    "launches": compared(SLOWER, ("kernel", "sample", "more often"), ("idle", "launching", "more often")),
    "layer": compared(SLOWER, ("layer", "layer 3", "slower"), ("layer", "others of layer *", "the same")),
}


class Runner:
    """Replaces pairs.Runner without running anything: each comparison finds the planted change, and equal runs are
    equal. `otherwise`: {change: another result of its comparison}."""

    def __init__(self, otherwise=None):
        self.found, self.sides = FOUND | {"none": compared("equal within 2 %")} | (otherwise or {}), []

    def record(self, number, change):
        return number, change

    def compare(self, base, other):
        self.sides.append((base, other))
        return self.found[other[0][1]]


class Pairs(unittest.TestCase):
    def wrong(self, runner, **given):
        lines = []
        pairs.check(runner, Report("x", lines.append), **given)
        return [line for line in lines if line.endswith("**NO**")]

    def test_runs_of_all_sides_take_turns(self):
        order = pairs.schedule()
        self.assertEqual({one: order.count(one) for one in set(order)}, {"none": 44, **{change: pairs.CHANGED_SIDE for change in pairs.CHANGES}})
        for change in pairs.CHANGES:
            [(base, other)] = pairs.sides_of(order, change)
            self.assertEqual([order[at] for at in base + other], ["none"] * pairs.CHANGED_SIDE + [change] * pairs.CHANGED_SIDE)
            self.assertEqual(len(set(base)), pairs.CHANGED_SIDE)
            turns = [number for pair in zip(base, other) for number in pair]
            self.assertEqual(turns, sorted(turns))

    def test_several_comparisons_of_a_change_overlap(self):
        order = pairs.schedule(comparisons=25)
        self.assertEqual({order.count(one) for one in pairs.CHANGES}, {30})
        self.assertEqual(order.count("none"), 120)
        sides = pairs.sides_of(order, "host")
        self.assertEqual(len(sides), 25)
        self.assertEqual([other[1:] for _, other in sides[:-1]], [other[:-1] for _, other in sides[1:]])
        for base, other in sides:
            self.assertEqual([order[at] for at in base + other], ["none"] * pairs.CHANGED_SIDE + ["host"] * pairs.CHANGED_SIDE)

    def test_one_comparison_of_twenty_may_miss_the_change(self):
        class Misses(Runner):
            """Misses the change in the comparisons that begin with the first `count` runs with the change "host"."""

            def __init__(self, count):
                super().__init__()
                order = pairs.schedule(comparisons=20)
                self.missed = [at for at, change in enumerate(order) if change == "host"][:count]

            def compare(self, base, other):
                if other[0][0] in self.missed:
                    return compared("cannot tell: 1.0 %")
                return super().compare(base, other)

        self.assertEqual(self.wrong(Misses(1), comparisons=20), [])
        [line] = self.wrong(Misses(2), comparisons=20)
        self.assertIn("18 of 20", line)

    def test_pairs_of_equal_runs(self):
        found = pairs.equal_pairs(44)
        self.assertEqual((len(found), found[0], found[-1]), (20, ([0, 2, 4], [1, 3, 5]), ([38, 40, 42], [39, 41, 43])))
        self.assertTrue(all(not set(a) & set(b) for a, b in found))
        self.assertEqual(pairs.equal_pairs(5), [])

    def test_what_is_found_and_named_is_as_wanted(self):
        runner = Runner()
        self.assertEqual(self.wrong(runner), [])
        self.assertEqual(len(runner.sides), 24)
        numbers = [len({number for number, _ in base + other}) for base, other in runner.sides]
        self.assertEqual(numbers, [2 * pairs.A_SIDE] * 20 + [2 * pairs.CHANGED_SIDE] * 4)

    def test_an_alarm_of_equal_runs_is_wrong(self):
        self.assertEqual(len(self.wrong(Runner({"none": compared("faster by 1.0 %")}))), 1)

    def test_a_change_that_is_not_found_or_has_another_name_is_wrong(self):
        for change in pairs.CHANGES:
            self.assertEqual(len(self.wrong(Runner({change: dict(FOUND[change], text="cannot tell: 1.0 %")}))), 1, change)
            self.assertEqual(len(self.wrong(Runner({change: compared()}))), 1, change)
            other = next(one for one in pairs.CHANGES if one != change)
            self.assertEqual(len(self.wrong(Runner({change: FOUND[other]}))), 1, change)

    def test_no_run_starts_when_the_time_is_over(self):
        self.assertEqual(len(self.wrong(Runner(), budget=-1)), 1)


if __name__ == "__main__":
    unittest.main()
