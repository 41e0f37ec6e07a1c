"""Tests how gpu-check judges the verdicts of `tllmprof hang`. The verdicts are written by hand."""
import json
import os
import subprocess
import sys
import tempfile
import unittest

sys.dont_write_bytecode = True
from gpu_check import hang  # noqa: E402


def answer(kind="not-entered", said="stuck", text="rank 1 did not enter all_reduce #50: sleeps, in hold_up (hang.py:26)", ranks=2):
    return {"verdict": {"kind": kind, "answer": said, "text": text}, "ranks": [{}] * ranks}


class Judged(unittest.TestCase):
    def wrong(self, fault, took_s=1.5, **more):
        return hang.judge(fault, answer(**more), took_s)[1]

    def test_the_planted_fault_is_right(self):
        self.assertEqual(self.wrong("sleep"), [])
        self.assertEqual(self.wrong("none", kind="moves", text="steps or collectives advance: slow, not stuck"), [])

    def test_another_kind_another_function_and_a_late_answer_are_wrong(self):
        self.assertEqual(len(self.wrong("sleep", kind="gpu")), 1)
        self.assertEqual(len(self.wrong("sleep", text="rank 0")), 1)
        self.assertEqual(len(self.wrong("sleep", took_s=6)), 1)
        self.assertEqual(hang.judge("sleep", None, 1)[1], ["no verdict"])

    def test_an_answer_counts_once_all_ranks_are_there(self):
        self.assertTrue(hang.is_final("sleep", answer(), 2))
        self.assertFalse(hang.is_final("sleep", answer(ranks=1), 2))
        self.assertFalse(hang.is_final("sleep", answer(kind="moves", said="not-stuck"), 2))
        self.assertTrue(hang.is_final("none", answer(kind="moves", said="not-stuck"), 2))
        self.assertFalse(hang.is_final("none", None, 2))

    def test_a_wrong_verdict_leaves_its_evidence(self):
        sleeper = subprocess.Popen(["sleep", "60"])
        try:
            with tempfile.TemporaryDirectory() as folder:
                base = os.path.join(folder, "hang-2-ranks-host")
                hang.keep(base, answer(kind="gpu"), 1.5, [sleeper.pid, 2**22 + 1])
                with open(base + ".json") as file:
                    kept = json.load(file)
                self.assertEqual(sorted(os.listdir(folder)), ["hang-2-ranks-host-rank-0.maps", "hang-2-ranks-host.json"])
        finally:
            sleeper.kill()
            sleeper.wait()
        self.assertEqual(kept["answer"]["verdict"]["kind"], "gpu")
        self.assertEqual([len(of_rank) for of_rank in kept["threads"]], [1, 0])
        self.assertEqual(kept["threads"][0][0]["id"], sleeper.pid)


if __name__ == "__main__":
    unittest.main()
