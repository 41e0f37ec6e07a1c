"""Tests how gpu-check compares the reports of three recorders (sources.py). The tests need no GPU."""
import os
import sys
import unittest
from types import SimpleNamespace

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

from gpu_check import sources  # noqa: E402
from gpu_check.kernels import Report  # noqa: E402

COUNT = 4


def reported(steps=COUNT, kernels=(("void ns::add<float>(int)", 8), ("gemm", 4)), busy=1000, lacks=()):
    iterations = [dict(gpu_busy_ns=busy) for _ in range(steps)]
    other = dict(inside=None, kernels=[], windows=[], recorded_by=None, refused=[])
    return dict(processes=[other, dict(
        inside=dict(iterations=steps), windows=[dict(iterations=iterations)], recorded_by=dict(lacks=list(lacks)), refused=[],
        kernels=[dict(name=name, count=count) for name, count in kernels])])


class Recorders:
    """Replaces sources.Recorders without running anything. `reports`: {file: report} for files whose report differs
    from the expected one. `counts`: numbers of kernels in a comparison."""

    def __init__(self, reports=None, counts=((2, 2), (1, 1)), status=0, text="warned: the trace has no GPU work\n"):
        self.reports, self.counts, self.status, self.text = reports or {}, counts, status, text

    def by_tllmprof(self, _steps, name):
        return [f"{name}.tllmprof"]

    def by_nsys(self, _steps, name, is_range=True):
        return [f"{name}.sqlite", f"{name}.nsys-rep"]

    def by_profiler(self, _steps, name):
        return [f"{name}.json", f"{name}.json.gz"]

    def tllmprof(self, *_words):
        return SimpleNamespace(status=self.status, out=self.text)

    def json(self, verb, _, *paths):
        if verb == "compare":
            return dict(text="equal", kernels=[dict(name=f"k{n}", counts=list(counts)) for n, counts in enumerate(self.counts)])
        return self.reports.get(paths[0], reported())


class Sources(unittest.TestCase):
    STEPS = sources.Steps(10, COUNT, None, {})

    def wrong(self, recorders, check=sources.check_loop):
        """Makes the check with these recorders. Returns the lines of the failed checks."""
        lines = []
        check(recorders, Report("x", lines.append), "loop", self.STEPS)
        self.assertGreater(len(lines), 1)
        return [line for line in lines if line.endswith("**NO**")]

    def test_the_same_of_all_is_as_wanted(self):
        self.assertEqual(self.STEPS.window, "10-13")
        self.assertEqual(self.wrong(Recorders()), [])

    def test_what_one_recorder_has_otherwise_is_found(self):
        for file in ("loop-1.tllmprof", "loop-0.sqlite", "loop-0.json"):
            for other, what in ((reported(steps=3), "steps"), (reported(kernels=(("gemm", 4),)), "kernels"),
                                (reported(kernels=(("gemm", 5), ("ns::add", 8))), "kernels"), (reported(busy=None), "busy")):
                wrong = self.wrong(Recorders({file: other}))
                self.assertTrue(any(f"loop: {what}" in line for line in wrong), (file, wrong))
        slower = {f"loop-{turn}.sqlite": reported(busy=1040) for turn in range(sources.ROUNDS)}
        slower |= {f"loop-{turn}.nsys-rep": reported(busy=1040) for turn in range(sources.ROUNDS)}
        self.assertEqual(len(self.wrong(Recorders(slower))), 1)

    def test_names_are_compared_as_each_recorder_writes_them(self):
        names = (("ns::add<(int)4>(T1)", 8), ("gemm", 4))
        self.assertEqual(self.wrong(Recorders({"loop-0.json": reported(kernels=names), "loop-0.json.gz": reported(kernels=names)})), [])

    def test_another_form_of_a_trace_has_the_same_report(self):
        last = sources.ROUNDS - 1
        self.assertEqual(len(self.wrong(Recorders({f"loop-{last}.nsys-rep": reported(steps=3)}))), 1)
        self.assertEqual(len(self.wrong(Recorders({f"loop-{last}.json.gz": reported(steps=3)}))), 1)

    def test_kernels_that_are_new_or_gone(self):
        self.assertEqual(len(self.wrong(Recorders(counts=((2, 2), (0, 1))))), 3)
        self.assertEqual(len(self.wrong(Recorders(counts=()))), 3)

    def test_a_trace_without_gpu_work_is_said_to_be_so(self):
        none = reported(kernels=(), busy=None, lacks=("gpu",))
        files = {"loop.sqlite": none, "loop.json": none}
        self.assertEqual(self.wrong(Recorders(files), sources.check_cpu), [])
        self.assertEqual(len(self.wrong(Recorders(files, status=1), sources.check_cpu)), 2)
        self.assertEqual(len(self.wrong(Recorders(files, text=""), sources.check_cpu)), 2)
        self.assertEqual(len(self.wrong(Recorders(files | {"loop.json": reported()}), sources.check_cpu)), 1)

    def test_a_fault_of_one_kind_does_not_lose_the_others(self):
        report = Report("x", lambda line: None)
        sources.check_all(report, SimpleNamespace(), ("eager", "cpu"))
        self.assertEqual((report.wrong, report.right), (2, 0))


if __name__ == "__main__":
    unittest.main()
