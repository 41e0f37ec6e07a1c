"""Tests how gpu-check judges reports about late ranks. The reports are written by hand."""
import sys
import unittest

sys.dont_write_bytecode = True
from gpu_check import arrivals  # noqa: E402


class Judged(unittest.TestCase):
    def report(self, cause="GC", last=1, late=100_000_000, split=1000, verdict="yes", notes=(), detail=None):
        process = {"kernels": [{"short_name": "ncclDevKernel_AllReduce_Sum_f32_RING_LL", "total_ns": 1000},
                               {"short_name": "spin_kernel", "total_ns": 7}],
                   "collectives": [{"wait_ns": split - 30, "transfer_ns": 10, "unmatched_ns": 20}]}
        rank = {"last": 0, "late_ns": 0, "iteration_ns": 6_000_000, "causes": []}
        causes = [{"cause": cause, "detail": detail}]
        return {"processes": [{**process, "rank": 0}, {**process, "rank": 1}],
                "collectives": {"verdict": "arrival-skew", "wait_share": 0.8, "transfer_share": 0.1, "notes": list(notes),
                                "ranks": [rank, {**rank, "last": 20, "late_ns": late, "causes": causes}],
                                "iterations": [{"last": last}] * 20},
                "findings": [{"rule": "arrival-skew", "verdict": verdict, "evidence": "rank 1 comes last"}]}

    def wrong(self, planted, **more):
        return arrivals.judge(planted, self.report(**more))[1]

    def test_the_late_rank_with_its_cause_is_right(self):
        self.assertEqual(self.wrong("gc"), [])
        self.assertEqual(self.wrong("kernels", cause="GPU work", detail="the same kernels took longer"), [])
        self.assertEqual(self.wrong("tokens", cause="GPU work", detail="4.00 times the tokens of the median rank"), [])
        self.assertEqual(len(self.wrong("tokens", cause="GPU work", detail="the same kernels took longer")), 1)

    def test_each_thing_that_is_not_so_is_seen(self):
        for more in ({"cause": "launching"}, {"last": None}, {"split": 900}, {"verdict": "no"}, {"notes": ["left out"]}):
            self.assertEqual(len(self.wrong("gc", **more)), 2 if "split" in more else 1, more)

    def test_where_none_is_late_none_may_be_named(self):
        self.assertEqual(self.wrong("none", late=10_000), [])
        self.assertEqual(len(self.wrong("none")), 1)

    def test_each_pair_has_a_communicator_that_both_know(self):
        def report(*pairs):
            made = [[dict(id="all", rank=rank, size=len(pairs)), dict(id=pair, rank=rank % 2, size=2)] for rank, pair in enumerate(pairs)]
            return {"processes": [dict(rank=rank, communicators=of, collectives=[dict(matched=5)]) for rank, of in enumerate(made)]}

        self.assertEqual(arrivals.judge_splits(report("a", "a", "b", "b")), ("2 pairs, each known by both ranks; 20 collectives matched", True))
        self.assertTrue(arrivals.judge_splits(report("a", "a"))[1])
        for wrong in (("a", "b", "c", "c"), ("a", "a", "a", "a"), ("a", "a", None, None), ("all", "all")):
            self.assertFalse(arrivals.judge_splits(report(*wrong))[1], wrong)
        lacking = report("a", "a")
        lacking["processes"][1]["communicators"].pop()
        self.assertIn("rank 1 is in", arrivals.judge_splits(lacking)[0])

    def test_no_collectives_are_wrong(self):
        self.assertEqual(arrivals.judge("gc", {"collectives": None})[1], ["no collectives"])


class Waiting(unittest.TestCase):
    def test_ranks_wait_for_the_last_of_each_collective(self):
        late = [(100 * n + 40, 100 * n + 60) for n in range(200)]
        early = [(100 * n, 100 * n + 60) for n in range(200)]
        share, median, many = arrivals.waiting([early, late])
        self.assertEqual((share, median, many), (0.5, 40, 200))

    def test_a_rank_may_lack_some_at_its_ends(self):
        early, late = ([(100 * n * (n + 9), 100 * n * (n + 9) + 60 - 20 * rank) for n in range(200)] for rank in range(2))
        late = [(start + 40, end + 20) for start, end in late]
        for mine, theirs in ((early[5:], late), (early, late[5:]), (early[:-3], late)):
            share, _, many = arrivals.waiting([mine, theirs])
            self.assertEqual((round(share, 3), many), (0.5, min(len(mine), len(theirs))))


if __name__ == "__main__":
    unittest.main()
