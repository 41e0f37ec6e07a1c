"""Tests gpu-check's own functions, with nsys exports written by hand: python3 -m unittest discover -s scripts/gpu_check
-t scripts"""
import os
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
import unittest

sys.dont_write_bytecode = True
from gpu_check import calls, child, nsys, record, throughput  # noqa: E402
from gpu_check.checks import grid_sizes, timeless  # noqa: E402
from gpu_check.expect import (GRAPH_LAUNCH, READ, RESET, STREAM_WAIT, Rule, described, differences,  # noqa: E402
                              found, from_whole_run, known, not_in_a_row, runs, steady_rule)
from gpu_check.inside_python import read_torch_trace, unlike_truth  # noqa: E402
from gpu_check.kernels import PAIRS, drifts, is_lasting, is_same_time, short  # noqa: E402
from gpu_check.metrics import GpuMetrics  # noqa: E402
from gpu_check.plan import all_checks  # noqa: E402
from gpu_check.programs import Program, all_programs  # noqa: E402
from gpu_check.record_file import Record, spans  # noqa: E402
from gpu_check.trace import Trace, plain  # noqa: E402

SCHEMA = """
CREATE TABLE StringIds (id INTEGER PRIMARY KEY, value TEXT);
CREATE TABLE CUPTI_ACTIVITY_KIND_RUNTIME (start INT, end INT, eventClass INT, globalTid INT, correlationId INT, nameId INT);
CREATE TABLE CUPTI_ACTIVITY_KIND_MEMCPY (start INT, end INT, copyKind INT, correlationId INT);
CREATE TABLE CUPTI_ACTIVITY_KIND_GRAPH_TRACE (start INT, end INT, correlationId INT, graphId INT);
CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (start INT, end INT, correlationId INT, gridX INT, graphNodeId INT);
CREATE TABLE NVTX_EVENTS (start INT, end INT, eventType INT, text TEXT, textId INT, domainId INT, globalTid INT);
"""
OURS, THEIRS = 1, 2


class Export:
    """An artificial nsys export of a loop. A step takes 100 ns and has a graph launch, a kernel launch, a mark and a
    wait."""

    def __init__(self, path):
        self.db = sqlite3.connect(path)
        self.db.executescript(SCHEMA)
        self.strings, self.correlation = {}, 0
        self.nvtx(0, None, 75, "tllmprof", None, OURS)
        self.nvtx(0, None, 75, None, self.string("truth"), THEIRS)

    def insert(self, table, *values):
        self.db.execute(f"INSERT INTO {table} VALUES ({', '.join('?' * len(values))})", values)

    def nvtx(self, start, end, kind, text, text_id, domain, process=1):
        self.insert("NVTX_EVENTS", start, end, kind, text, text_id, domain, process << 24 | 7)

    def string(self, text):
        if text not in self.strings:
            self.strings[text] = len(self.strings) + 1
            self.insert("StringIds", self.strings[text], text)
        return self.strings[text]

    def call(self, start, end, name, thread=7):
        self.correlation += 1
        self.insert("CUPTI_ACTIVITY_KIND_RUNTIME", start, end, 0, thread, self.correlation, self.string(name))
        return self.correlation

    def mark(self, at, n):
        self.nvtx(at, None, 34, f"truth {n}", None, THEIRS)

    def step(self, n, node=False, launch=True):
        t = 100 * n + 1000
        self.call(t + 10, t + 20, "cudaGraphLaunch_ptsz_v10000") if launch else None
        inner = self.call(t + 12, t + 18, "cuGraphLaunch_ptsz") if launch else self.correlation + 10**6
        if node:
            for _ in range(3):
                self.insert("CUPTI_ACTIVITY_KIND_KERNEL", t, t, inner, 1, 77)
        else:
            self.insert("CUPTI_ACTIVITY_KIND_GRAPH_TRACE", t, t, inner, 1)
        eager = self.call(t + 30, t + 40, "cudaLaunchKernel_v7000")
        self.insert("CUPTI_ACTIVITY_KIND_KERNEL", t, t, eager, n + 1, None)
        self.mark(t + 50, n)
        self.call(t + 60, t + 70, "cudaStreamSynchronize_v3020")

    def iteration(self, n, end=True):
        t = 100 * n + 1005
        self.nvtx(t, t + 90 if end else None, 60, f"iteration {n}", None, OURS)

    def capture(self):
        self.nvtx(0, 10**6, 60, None, self.string("capture"), OURS)

    def trace(self):
        self.db.commit()
        return Trace(self.db.execute("PRAGMA database_list").fetchone()[2])


class ExportCase(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.export = Export(os.path.join(self.folder.name, "x.sqlite"))

    def tearDown(self):
        self.export.db.close()
        self.folder.cleanup()


class WindowTest(ExportCase):
    def window(self, first, last, steps=None, **more):
        self.export.capture()
        for n in range(first, last + 1):
            self.export.iteration(n)
        for n in steps if steps is not None else range(first, last + 1):
            self.export.step(n, **more)
        return self.export.trace()

    def test_names(self):
        for name in ("cudaGraphLaunch", "cudaGraphLaunch_v10000", "cudaGraphLaunch_ptsz_v10000"):
            self.assertEqual(plain(name), "cudaGraphLaunch")
        self.assertEqual(plain("cuMemcpyDtoHAsync_v2_ptsz"), "cuMemcpyDtoHAsync")
        self.assertEqual(plain("__cudaLaunchKernel_v13000"), "cudaLaunchKernel")

    def test_the_right_window_has_no_differences(self):
        for node in (False, True):
            with self.subTest(node=node):
                self.tearDown(), self.setUp()
                trace = self.window(100, 150, node=node)
                self.assertEqual(trace.count("graph launch"), 51, "a runtime call and its driver call are one")
                self.assertEqual(differences(trace, known(100, 150, grids=True)), [])
                self.assertIn("iterations 100–150", found(trace, ["graph launch"]))

    def test_one_step_too_many_or_too_few_is_seen(self):
        wrong = differences(self.window(100, 150, range(100, 152)), known(100, 150, grids=True))
        self.assertTrue(any("marks 100–151" in w for w in wrong), wrong)
        self.assertTrue(any("52 graph launches, not 51" in w for w in wrong), wrong)
        self.assertTrue(any("kernels of steps 100–151" in w for w in wrong), wrong)
        self.tearDown(), self.setUp()
        wrong = differences(self.window(100, 150, range(101, 151)), known(100, 150))
        self.assertTrue(any("50 graphs run" in w for w in wrong), wrong)

    def test_ranges_that_lack_or_never_end_are_seen(self):
        self.export.iteration(150, end=False)
        wrong = differences(self.window(100, 149, range(100, 151)), known(100, 150))
        self.assertTrue(any("without an end" in w for w in wrong), wrong)
        self.tearDown(), self.setUp()
        wrong = differences(self.window(100, 149, range(100, 151)), known(100, 150))
        self.assertTrue(any("iteration ranges 100–149, not 100–150" in w for w in wrong), wrong)

    def test_ranges_of_other_domains_are_not_ours(self):
        self.export.nvtx(1, 2, 59, "iteration 5", None, THEIRS)
        self.assertEqual(self.export.trace().ranges, [])

    def test_each_process_has_its_own_numbers_of_domains(self):
        self.export.nvtx(0, None, 75, "CCCL", None, OURS, process=2)
        self.export.nvtx(1, 2, 59, "iteration 4", None, OURS)
        self.export.nvtx(1, 2, 59, "iteration 5", None, OURS, process=2)
        self.assertEqual([one.text for one in self.export.trace().ranges], ["iteration 4"])

    def test_a_launch_entered_before_the_profiler_may_lack_its_record_and_nothing_else(self):
        self.export.step(100, launch=False)
        trace = self.window(100, 150, range(101, 151))
        self.assertEqual(differences(trace, known(100, 150, grids=True), ("graph launch",)), [])
        self.assertEqual(len(differences(trace, known(100, 150, grids=True))), 1)

    def test_the_drain_of_a_thread_of_our_own_is_none_of_the_programs_waits(self):
        for n, name in enumerate(("cuCtxSetCurrent", "cuCtxSynchronize", "cuProfilerStop")):
            self.export.call(90000 + n * 10, 90005 + n * 10, name, thread=8)
        self.assertEqual(differences(self.window(100, 150), known(100, 150, grids=True)), [])

    def test_a_difference_says_which_thread_made_how_many(self):
        self.export.db.execute("CREATE TABLE ThreadNames (nameId INT, priority INT, globalTid INT)")
        self.export.insert("ThreadNames", self.export.string("worker"), 0, 8)
        self.export.call(90000, 90005, "cudaStreamSynchronize_v3020", thread=8)
        wrong = differences(self.window(100, 150), known(100, 150))
        self.assertEqual(wrong, ["52 stream waits, not 51: 51 by 7, 1 by worker"])

    def test_a_window_to_the_end_holds_the_waits_after_the_last_step(self):
        self.export.call(90000, 90005, "cudaStreamSynchronize_v3020")
        trace = self.window(100, 150)
        self.assertEqual(differences(trace, known(100, 150, waits_after=1)), [])
        self.assertNotEqual(differences(trace, known(100, 150)), [])

    def test_steps_in_a_row_may_begin_anywhere_and_lack_nothing(self):
        trace = self.window(100, 150)
        self.assertEqual(not_in_a_row(trace, "kernel launch", 51), [])
        self.assertEqual(not_in_a_row(trace, "kernel launch", 50), ["marks 100–150, not 50 in a row"])
        self.export.call(100 * 120 + 1001, 100 * 120 + 1002, "cudaLaunchKernel")
        self.assertEqual(not_in_a_row(self.export.trace(), "kernel launch", 51),
                         ["2 kernel launches before mark 120, not 1"])
        self.tearDown(), self.setUp()
        self.assertEqual(not_in_a_row(self.window(100, 101, (100, 102)), "kernel launch", 2),
                         ["marks 100, 102, not 2 in a row"])
        self.tearDown(), self.setUp()
        self.assertEqual(not_in_a_row(self.export.trace(), "kernel launch", 2), ["marks none, not 2 in a row"])

    def test_only_device_to_host_copies_are_reads(self):
        for kind in (1, 2, 8):
            self.export.insert("CUPTI_ACTIVITY_KIND_MEMCPY", 0, 1, kind, self.export.call(kind * 10, kind * 10 + 5,
                                                                                          "cudaMemcpyAsync_v3020"))
        self.assertEqual(self.export.trace().count("read"), 1)

    def test_a_read_by_name_needs_no_record_of_a_copy(self):
        self.export.call(10, 15, "cuMemcpyDtoHAsync_v2")
        self.assertEqual(self.export.trace().count("read"), 1)

    def test_an_export_without_gpu_tables_and_with_text_of_any_encoding_can_be_read(self):
        for table in ("RUNTIME", "MEMCPY", "GRAPH_TRACE", "KERNEL"):
            self.export.db.execute(f"DROP TABLE CUPTI_ACTIVITY_KIND_{table}")
        self.export.mark(5, 1)
        self.export.db.execute("INSERT INTO StringIds VALUES (1000, CAST(x'41ff42' AS TEXT))")
        trace = self.export.trace()
        self.assertEqual((trace.calls, trace.graphs, trace.marks), ([], 0, [(5, 1)]))


class WholeRunTest(ExportCase):
    """Tests the expected contents computed from a whole run. The program makes two waits per step, and five waits
    before the first step, like a generate() that warms up first."""

    def setUp(self):
        super().setUp()
        self.export.call(1, 2, "cudaStreamSynchronize_v3020")
        self.export.mark(10, RESET)
        for k in range(5):
            self.export.call(20 + k * 10, 25 + k * 10, "cudaStreamSynchronize_v3020")
        for n in range(40):
            t = 1000 + n * 100
            self.export.mark(t, n)
            self.export.call(t + 10, t + 12, "cudaLaunchKernel_v7000")
            self.export.call(t + 20, t + 30, "cudaStreamSynchronize_v3020")
            self.export.call(t + 40, t + 42, "cudaLaunchKernel_v7000")
            self.export.call(t + 50, t + 60, "cudaStreamSynchronize_v3020")

    def test_the_rule_is_the_call_that_every_step_makes_equally_often(self):
        trace = self.export.trace()
        rule = steady_rule(trace, [GRAPH_LAUNCH, READ, STREAM_WAIT], 5, 30)
        self.assertEqual(rule.text, "cudaStreamSynchronize/2")
        self.assertIsNone(steady_rule(trace, [GRAPH_LAUNCH, READ], 5, 30))
        self.assertIsNone(steady_rule(trace, [STREAM_WAIT], 5, 60), "the run has no such steps")

    def test_a_window_of_waits_begins_where_the_wait_before_it_returns(self):
        trace = self.export.trace()
        rule = steady_rule(trace, [STREAM_WAIT], 5, 30)
        expected = from_whole_run(trace, rule, 10, 12)
        # The rule counts an iteration at every second wait, so 20 waits have ended when iteration 10 begins: five
        # before the first step, two in each of steps 0 to 6, and one in step 7.
        self.assertEqual(expected.marks, [8, 9, 10])
        self.assertEqual(expected.calls, {"graph launch": 0, "kernel launch": 6, "stream wait": 6})
        self.assertIsNone(from_whole_run(trace, rule, 10, 500))

    def test_a_window_of_launches_begins_where_the_launch_is_entered(self):
        expected = from_whole_run(self.export.trace(), Rule("cudaLaunchKernel", "kernel launch", True, 2), 10, 12)
        self.assertEqual(expected.marks, [11, 12, 13], "a mark comes before its step's first launch")
        self.assertEqual(expected.calls["kernel launch"], 6)
        self.assertEqual(expected.graphs, 0)


class WordsTest(unittest.TestCase):
    def test_runs(self):
        self.assertEqual(runs([]), "none")
        self.assertEqual(runs([1, 2, 3, 7, 9, 10]), "1–3, 7, 9–10")

    def test_what_is_wanted_says_the_counts(self):
        self.assertEqual(described(known(100, 150)),
                         "iterations 100–150, 51 graph launches, 51 stream waits, 51 kernel launches, marks 100–150")

    def test_grid_sizes_of_ncu(self):
        text = ('==PROF== Connected to process 1\n"ID","Process ID","Kernel Name","launch__grid_size"\n'
                '"","","",""\n"0","1","tick","11"\n"1","1","tick","1,012"\n')
        self.assertEqual(grid_sizes(text), [11, 1012])
        self.assertEqual(grid_sizes("==ERROR== none"), [])

    def test_speeds_are_no_output(self):
        self.assertEqual(timeless("a\nengine: 12.3 steps/s on x\nb"), "a\nb")

    def test_every_check_has_its_own_name(self):
        names = [check.name for check in all_checks(all_programs("", {}))]
        self.assertEqual(len(names), len(set(names)))


class ReportsTest(unittest.TestCase):
    def test_a_check_reads_its_own_reports_and_no_other(self):
        with tempfile.TemporaryDirectory() as folder:
            first, second = nsys.report_base(folder, "loop"), nsys.report_base(folder, "loop 4 graphs")
            with open(second + ".nsys-rep", "w"):
                pass
            self.assertEqual(nsys.read("nsys", first, child.Ended(0, "", ""), expect=False), [])
            nsys.report_base(folder, "loop 4 graphs")
            self.assertEqual(nsys.read("nsys", second, child.Ended(0, "", ""), expect=False), [], "an old run's")


    def test_no_check_is_called_like_a_file_of_a_program(self):
        with tempfile.TemporaryDirectory() as folder:
            built = os.path.join(folder, "bin")
            os.mkdir(built)
            table = all_programs(built, {})
            for name in ("engine", "loop-static", "libtruth.so"):
                with open(os.path.join(built, name), "w"):
                    pass
            for check in all_checks(table):
                nsys.report_base(folder, check.name)
            self.assertTrue(os.path.isfile(table["engine"].command[0]))


class ChildTest(unittest.TestCase):
    def test_a_child_that_hangs_is_ended_with_its_children(self):
        ended = child.run(["sh", "-c", "echo begun; sleep 60 & sleep 60"], child.variables(), seconds=4)
        self.assertEqual((ended.status, ended.out), ("time-out", "begun\n"))

    def test_variables_that_steer_the_shim_are_not_inherited(self):
        os.environ["TLLMPROF_STEP"] = "x"
        try:
            self.assertNotIn("TLLMPROF_STEP", child.variables())
            self.assertEqual(child.variables(TLLMPROF_STEP="y", RANK=1)["RANK"], "1")
        finally:
            del os.environ["TLLMPROF_STEP"]


class NoShim:
    variables = preloaded = staticmethod(child.variables)


class ThroughputTest(unittest.TestCase):
    def test_four_ways_in_turn(self):
        blocks = os.path.join(os.path.dirname(os.path.abspath(__file__)), "programs")
        program = Program("steps", "none", (
            sys.executable, "-c", f"import sys; sys.path.insert(0, {blocks!r}); import blocks; "
                                  "print('graph 12.5 us'); blocks.serve(lambda: sum(range(100)))"))
        speeds, graph_us = throughput.measure(throughput.Loop(program, "tiny", "a sum", starts=2), NoShim, 4, 0.01)
        self.assertEqual([speed.way for speed in speeds], [way for way, _ in throughput.WAYS])
        self.assertTrue(all(speed.steps_a_second > 0 for speed in speeds))
        self.assertEqual(graph_us, 12.5)

    def test_a_program_that_ends_is_reported(self):
        gone = Program("gone", "none", (sys.executable, "-c", "pass"))
        loops = throughput.loops({"loop-static": gone, "torch_graph": gone})
        lines = list(throughput.table(loops, NoShim, 2, 0.01))
        self.assertEqual(sum("failed: it ended" in line for line in lines), 4)

    def test_a_ratio_is_to_the_blocks_of_its_own_round(self):
        self.assertEqual(throughput.ratios([[100, 200], [300, 200], [100, 300], [400, 100]]),
                         [[1, 1], [3, 1], [0.5, 1.5], [2, 0.5]])

    def test_no_way_always_runs_in_the_same_ones_wake(self):
        places, wakes = set(), []
        for order in throughput.ORDERS:
            places |= set(enumerate(order))
            wakes += zip(order, order[1:])
        self.assertEqual((len(places), len(set(wakes)), len(wakes)), (16, 12, 12))


class CallsTest(unittest.TestCase):
    def test_every_row_of_the_shim_has_one_without_it(self):
        rows = calls.cases(calls.load_bench(), "libtllmprof.so")
        self.assertEqual([row.call for row in rows if row.preload], ["launch", "wait", "step", "step"])
        for row in rows:
            if row.preload:
                self.assertEqual((row.base.preload, row.base.door, row.base.call), (None, row.door, row.call))


class Inside(unittest.TestCase):
    def test_a_trace_is_held_against_what_the_program_wrote_down(self):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "e.sqlite")
            export = Export(path)
            truth = {"collected": {"1": [0, 2]}, "called": {"0": {"a.b": 2}, "1": {"a.b": 1, "c": 1}}}
            for n in (0, 1, 2):
                export.mark(1000 * n, n)
            for at, text in ((10, "a.b"), (20, "a.b"), (30, "GIL hold"), (1010, "Python GC gen0"), (1020, "c"),
                             (1030, "Python GC gen2"), (1040, "a.b")):
                export.nvtx(at, at + 5, 59, text, None, OURS)
            export.db.commit()
            wrong, counts = unlike_truth(Trace(path), truth, 0, 1)
            self.assertEqual(wrong, [])
            self.assertEqual(counts, {"collections": 2, "module ranges": 4, "GIL ranges": 1})
            truth["collected"]["0"] = [1]
            truth["called"]["1"]["c"] = 2
            wrong, _ = unlike_truth(Trace(path), truth, 0, 1)
            self.assertEqual(len(wrong), 2, wrong)

    def test_torch_traces(self):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "t.json")
            with open(path, "w") as file:
                file.write('{"traceEvents": [{"cat": "user_annotation", "name": "step 4"}, {"cat": "kernel", "name": "k"},'
                           ' {"cat": "gpu_user_annotation", "name": "step 9"}, {"name": "x"}]}')
            self.assertEqual(read_torch_trace(path), ([4], 1))


class MetricsTest(unittest.TestCase):
    def judged(self, mean, samples, metric="SM busy", device=0):
        one = {"device": device, "metric": metric, "unit": "%", "mean": mean, "max": mean, "samples": samples}
        windows = [{"iterations": [{"dur_ns": 10**8}] * 25}]
        check = GpuMetrics(Program("load", "none", ("load",)), "busy", 50, 100.5)
        return check.judge({"processes": [{"windows": windows, "gpu_metrics": [one]}]})

    def test_a_share_is_held_against_what_the_load_makes(self):
        self.assertEqual(self.judged(98.2, 24), ("SM busy 98.2 %", []))
        for mean, samples, more in ((12, 24, {}), (101, 24, {}), (98, 11, {}), (98, 24, {"metric": "GPU busy"}),
                                    (98, 24, {"device": 1})):
            self.assertEqual(len(self.judged(mean, samples, **more)[1]), 1)


class GpuTimeTest(unittest.TestCase):
    def test_a_time_may_be_longer_by_the_launch_alone(self):
        for launch, near, far in ((0, (99100, 100900), (98900, 101100)), (5000, (99100, 105900), (98900, 106100))):
            for median in near:
                self.assertTrue(record.is_near(median, 100000, launch), (launch, median))
            for median in far:
                self.assertFalse(record.is_near(median, 100000, launch), (launch, median))
        self.assertFalse(record.is_near(0, 0, 0))


class RecordTest(unittest.TestCase):
    def test_work_is_that_of_the_iteration_that_it_begins_in(self):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "e.sqlite")
            export = Export(path)
            for n in range(3):
                export.iteration(n)  # adds the range `iteration n`, from 100 n + 1005 to 100 n + 1095
                at = 100 * n + 1010
                export.insert("CUPTI_ACTIVITY_KIND_GRAPH_TRACE", at, at + 20, n, 1)
                export.insert("CUPTI_ACTIVITY_KIND_KERNEL", at + 30, at + 40 + n, n, 1, None)
            export.insert("CUPTI_ACTIVITY_KIND_KERNEL", 1, 9, 7, 1, None)  # a kernel before all iterations
            export.db.commit()
            by_nsys = record.truth(path)
        self.assertEqual({n: (one.extent, one.busy, one.after_launch) for n, one in by_nsys.items()},
                         {0: (40, 30, 5), 1: (41, 31, 5), 2: (42, 32, 5)})

    def test_what_overlaps_counts_once(self):
        self.assertEqual(record.covered([(0, 10), (5, 12), (6, 7), (20, 21)]), 13)

    def test_a_record_is_held_against_nsys(self):
        by_nsys = {n: record.Truth(1000, 900, 5, ()) for n in range(4)}

        def recorded(times, lost=0, gpus=("a GPU",)):
            return record.Recorded(dict(enumerate(times)), lost, 0, list(gpus), {}, {}, 0.0)

        self.assertEqual(record.unlike(by_nsys, recorded([1009] * 4), range(4)), [])
        self.assertEqual(record.unlike(by_nsys, recorded([1011] * 4), range(4)), ["the medians differ"])
        self.assertEqual(record.unlike(by_nsys, recorded([1000, None, 1000, 1000], 1, ()), range(5)),
                         ["nsys has no work in 4", "no GPU time for 2 steps, [1, 4]", "1 GPU times lost",
                          "the record names no GPU"])

    def test_iterations_are_held_against_the_programs_own_times(self):
        began = [100 * n for n in range(20)]
        iterations = [(n, 100 * n + 250, 100 * n + 350) for n in range(5, 9)]
        wrong, got = record.unlike_steps(iterations, began, range(5, 9))
        self.assertEqual((wrong, got[:50]), ([], "4 iterations, steps 8 to 11, one in each; 0.00 ms "[:50]))
        self.assertTrue(record.unlike_steps(iterations, began, range(5, 10))[0])
        self.assertTrue(record.unlike_steps(iterations, began[:10] + began[11:], range(5, 9))[0])
        longer = [(n, 210 * n, 210 * n + 100) for n in range(5, 9)]
        self.assertTrue(record.unlike_steps(longer, began, range(5, 9))[0])


class Records(unittest.TestCase):
    def event(self, cat, name, start, ns, tid=1, **args):
        return {"ph": "X", "cat": cat, "name": name, "tid": tid, "start": start, "ns": ns, "args": args}

    def test_kernels_are_read_by_window(self):
        track = {"ph": "M", "name": "thread_name", "tid": 2, "args": {"name": "kernels taken"}}
        windows = {"ph": "M", "name": "thread_name", "tid": 3, "args": {"name": "windows"}}
        record = Record.__new__(Record)
        record.read([track, windows, self.event("kernel", "g_1", 210, 900, correlation=2), self.event("window", "window 5-6", 100, 50, 2),
                     self.event("window", "window 5-9", 90, 50, 3), self.event("kernel", "f_1", 110, 800, correlation=1),
                     self.event("kernel", "f_1", 120, 25), self.event("window", "window 9-9", 200, 20, 2),
                     self.event("window", "window 20-", 300, 1, 2)])
        self.assertEqual(record.inner, [(5, 6), (9, 9)])
        self.assertEqual([dict(record.counts(0)), dict(record.counts(1))], [{"f_1": 2}, {"g_1": 1}])
        self.assertEqual(record.kernels, [(1, 800, "f_1"), (0, 25, "f_1"), (2, 900, "g_1")])

    def test_spans_are_read_by_iteration(self):
        found = [self.event("gpu", "iteration 7", 5, 1000, iteration=7), self.event("gpu", "iteration 8", 9, 33, iteration=8, cut=True),
                 self.event("kernel", "f", 1, 1)]
        self.assertEqual(spans(found), {7: [(1000, False)], 8: [(33, True)]})

    def test_names_are_compared_without_what_tools_write_differently(self):
        self.assertEqual(short("void at::native::f<4, g<(int)2>>(int, h)"), "at::native::f")
        self.assertEqual(short("at::cuda::(anonymous namespace)::spin(long)"), "at::cuda::spin")
        self.assertEqual(short("plain"), "plain")

    def test_a_cost_lasts_if_every_pair_of_runs_shows_more_than_the_machines_drift(self):
        slower, noisy = ((0.02, 0.01), (-0.002, 0.001)), ((0.2, 0.15), (0.18, 0.14))
        self.assertTrue(is_lasting([slower, slower]))
        self.assertFalse(is_lasting([slower, noisy]))
        self.assertFalse(is_lasting([((0.004, 0.05), (0, 0))]))
        self.assertEqual(drifts(iter([slower, noisy, slower]).__next__), [slower, noisy])
        self.assertEqual(drifts(lambda: slower), [slower] * PAIRS)

    def test_times_may_differ_by_two_ticks_a_kernel(self):
        self.assertTrue(is_same_time(864_000, 812_000, 1000))
        self.assertFalse(is_same_time(880_000, 812_000, 1000))
        self.assertTrue(is_same_time(14_000_000, 14_200_000, 1000))
        self.assertFalse(is_same_time(14_000_000, 14_400_000, 1000))


def is_running(number):
    """Returns True if the process exists and has not ended. A process that has ended (a zombie) still has a folder in
    /proc until its parent waits for it."""
    try:
        with open(f"/proc/{number}/stat") as stat:
            return stat.read().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


class Ends(unittest.TestCase):
    def test_who_ends_the_check_ends_what_it_runs(self):
        script = ("import sys; sys.path.insert(0, %r); from gpu_check import child; child.end_with_us(); "
                  "child.run(['sh', '-c', 'echo $$ > pid; exec sleep 100'], child.variables(), 90)")
        with tempfile.TemporaryDirectory() as folder:
            scripts = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
            check = subprocess.Popen([sys.executable, "-B", "-c", script % scripts], cwd=folder)
            pid, until = os.path.join(folder, "pid"), time.monotonic() + 120
            while not (os.path.exists(pid) and os.path.getsize(pid)) and time.monotonic() < until:
                time.sleep(0.05)
            with open(pid) as file:
                number = int(file.read())
            check.terminate()
            self.assertEqual(check.wait(120), 128 + signal.SIGTERM)
            while is_running(number) and time.monotonic() < until:
                time.sleep(0.05)
            self.assertFalse(is_running(number))


if __name__ == "__main__":
    unittest.main()
