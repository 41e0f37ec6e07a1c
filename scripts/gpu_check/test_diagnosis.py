"""Tests the table of planted causes (diagnosis.py), nsys's busy time of a GPU (busy.py), and the archive of records
(records.py). The tests need no GPU."""
import gzip
import os
import sys
import tarfile
import tempfile
import unittest
from types import SimpleNamespace
from unittest import mock

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

from gpu_check import busy, child, diagnosis, records  # noqa: E402
from gpu_check.kernels import Report  # noqa: E402


def finding(rule, kind="cause", verdict="yes", loss=0.5):
    return dict(rule=rule, kind=kind, verdict=verdict, loss=loss, evidence="held most by tokenise")


class Planted(unittest.TestCase):
    def test_the_table_has_what_its_programs_are(self):
        with open(diagnosis.TABLE) as text:
            table = diagnosis.planted_in(text.read())
        self.assertGreaterEqual(len([one for one in table if one.finds != diagnosis.NONE]), 20)
        for one in table:
            self.assertTrue(os.path.exists(os.path.join(diagnosis.FOLDER, one.program[0])), one)
        gil = next(one for one in table if one.finds == "gil")
        self.assertEqual((gil.says, gil.options), ("held most by tokenise", ("--gc", "--gil")))

    def test_the_cause_has_to_be_the_only_one(self):
        planted = SimpleNamespace(finds="gil", says="tokenise")
        symptom, no = finding("low", "symptom"), finding("gc", verdict="no")
        self.assertIsNone(diagnosis.judge(planted, [finding("gil"), symptom, no]))
        self.assertIn("not gil alone", diagnosis.judge(planted, [finding("gil"), finding("gc")]))
        self.assertIn("not gil alone", diagnosis.judge(planted, [no]))
        self.assertIn("gained", diagnosis.judge(planted, [finding("gil", loss=None)]))
        planted.says = "python3"
        self.assertIn("lacks", diagnosis.judge(planted, [finding("gil")]))
        healthy = SimpleNamespace(finds="-", says="")
        self.assertIsNone(diagnosis.judge(healthy, [symptom, no]))
        self.assertIsNotNone(diagnosis.judge(healthy, [finding("gc")]))


class Busy(unittest.TestCase):
    def test_work_counts_once_and_only_within_its_step(self):
        work = busy.union([(5, 10), (0, 3), (8, 12), (20, 40)])
        self.assertEqual(work, [[0, 3], [5, 12], [20, 40]])
        self.assertEqual(busy.busy_of([(2, 10), (10, 25), (25, 30), (50, 60)], work), [(6, 8), (7, 15), (5, 5), (0, 10)])

    def test_three_per_cent_are_allowed(self):
        said = []
        report = Report(busy.NAME, said.append)
        for other in (1029, 1040, 0):
            busy.compare(report, "loop", [(1000, 5000)], [(other, 6000)])
        self.assertEqual((report.right, report.wrong), (1, 2), said)


class Records(unittest.TestCase):
    def test_a_smaller_window_where_a_record_is_too_large(self):
        sizes = []

        def run(settings):
            sizes.append(settings["TLLM_PROFILE_START_STOP"])
            with open(settings["TLLMPROF_TRACE"].replace("%p", "7"), "wb") as record:
                record.write(os.urandom(records.LARGEST * 2 if len(sizes) == 1 else 1000))
            return child.Ended(0, "", "")

        process = dict(inside=dict(iterations=20), outside=dict(iterations=1), rule="auto", kernel_window=None,
                       ledger=dict(host=[dict(cause="unknown", share=0.04), dict(cause="launching", share=0.96)], gpu=[]))
        with tempfile.TemporaryDirectory() as folder, mock.patch.object(records.engines, "process_of", lambda *_: process), \
                mock.patch.object(records, "of_loops", lambda bench: [("loop", run)]):
            out = os.path.join(folder, "out.tar")
            lines, right, wrong = records.table(SimpleNamespace(folder=folder, command=None, shim="lib"), folder, lambda text: None, [], out)
            with tarfile.open(out) as archive:
                self.assertEqual(archive.getnames(), ["loop.tllmprof.gz"])
                self.assertEqual(len(gzip.decompress(archive.extractfile("loop.tllmprof.gz").read())), 1000)
        self.assertEqual((right, wrong, sizes), (2, 0, ["300-319", "300-309"]), lines)


if __name__ == "__main__":
    unittest.main()
