"""Tests the table of programs for the first report, and how gpu-check judges the report (first.py). The tests need
no GPU."""
import json
import os
import re
import sys
import tempfile
import unittest
from types import SimpleNamespace
from unittest import mock

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

from gpu_check import child, first, reader  # noqa: E402

MS = 1_000_000
ROW = "polling | loops.py | host-blocked gil | poll_scheduler; usleep | 1 12 | torch gpus=2 seconds=16"


def planted(finds="host-blocked", names="", multiples="1"):
    return first.planted_in(f"name | loops.py | {finds} | {names} | {multiples} |")[0]


def process(iterations=50, of_ms=10, begin_ms=1000, gpu_ms=4, **more):
    each = [dict(n=n, start_ns=(begin_ms + n * of_ms) * MS, dur_ns=of_ms * MS, gpu_ns=gpu_ms * MS) for n in range(iterations)]
    return dict(pid=7, rule="auto", rule_why="a wait", windows=[dict(iterations=each)], **more)


def finding(rule="host-blocked", kind="cause", verdict="yes", loss=0.5, evidence="asleep in poll_scheduler", **more):
    return dict(rule=rule, kind=kind, verdict=verdict, loss=loss, evidence=evidence, advice="", **more)


def began(each_ms=10.0, count=300, begin_ms=0):
    return [int((begin_ms + n * each_ms) * MS) + 1000 for n in range(count)]


BRIEF = """what stands out, and how much of the time it costs
  host-blocked (costs 41.0 %): asleep in poll_scheduler
    → have that done a step ahead
    id host-blocked, confidence high; more: tllmprof report --finding host-blocked run.tllmprof
"""


class Reader(unittest.TestCase):
    def read(self, brief, found):
        answers = {"brief": brief, "finding": json.dumps({"id": "host-blocked", "rows": [], **found})}

        def call(tools, tool, **arguments):
            tools.calls += 1
            tools.characters += len(answers[tool])
            return answers[tool]

        with mock.patch.object(reader.Tools, "__init__", lambda tools, *_: vars(tools).update(calls=0, characters=0)), \
                mock.patch.object(reader.Tools, "call", call), mock.patch.object(reader.Tools, "end"):
            return reader.read("tllmprof", "folder")

    def test_it_names_the_first_finding(self):
        said = self.read(BRIEF, finding())
        self.assertEqual((said["cause"], said["calls"]), ("host-blocked", 2))
        self.assertEqual(first.reader_faults(planted(names="poll_scheduler"), said), [])
        self.assertEqual(len(first.reader_faults(planted(names="fill_batch"), said)), 1)
        self.assertEqual(len(first.reader_faults(planted("gil"), said)), 1)

    def test_it_names_nothing_where_nothing_stands_out(self):
        self.assertEqual(self.read("nothing stands out\n", {})["cause"], "")
        self.assertEqual(self.read(BRIEF, finding(kind="symptom"))["cause"], "")

    def test_its_limits(self):
        self.assertEqual(reader.faults({"calls": 3, "characters": 16_000}), [])
        self.assertEqual(len(reader.faults({"calls": 4, "characters": 16_001})), 2)


class Table(unittest.TestCase):
    def test_a_row(self):
        one, = first.planted_in(f"# words\n\n{ROW}\n")
        self.assertEqual(one, first.Planted("polling", "loops.py", ("host-blocked", "gil"), ("poll_scheduler", "usleep"), (1, 12),
                                            ("torch",), 2, 16))
        with self.assertRaises(ValueError):
            first.planted_in(ROW.replace("gpus", "cards"))

    def test_each_row_is_a_program_and_each_program_has_a_row(self):
        table = first.table_of_programs()
        self.assertEqual(len({one.name for one in table}), len(table))
        there = set()
        for file in os.listdir(first.FOLDER):
            pattern = r"PROGRAM\((native_\w+)\)" if file.endswith(".cu") else r"^@program\ndef (\w+)"
            with open(os.path.join(first.FOLDER, file)) as source:
                there |= {(name, file) for name in re.findall(pattern, source.read(), re.M)}
        self.assertEqual({(one.name, one.file) for one in table}, there)
        slow = [one for one in table if one.finds not in ((first.HEALTHY,), (first.IDLE,))]
        self.assertGreaterEqual(len(slow), 34)

    def test_the_rules_are_the_reports(self):
        with open(os.path.join(first.FOLDER, *[".."] * 4, "docs", "diagnosis.md")) as page:
            rules = set(re.findall(r"^\| `([\w-]+)` \|", page.read(), re.M))
        self.assertLessEqual({rule for one in first.table_of_programs() for rule in one.finds}, rules | {first.HEALTHY, first.IDLE})

    def test_only(self):
        self.assertEqual(first.parts([]), [])
        self.assertEqual(first.parts(["diagnosis"]), [])
        self.assertEqual(first.parts(["first"])[0].names, [])
        self.assertEqual(first.parts(["first: polling", "first: masks"])[0].names, ["polling", "masks"])
        self.assertEqual(first.parts(["first: polling", "first"])[0].names, [])
        self.assertEqual([one.name for one in first.table_of_programs(["polling"])], ["polling"])
        self.assertEqual([one.name for one in first.table_of_programs(["pollin", "matmuls"])], ["native_polling", "polling", "matmuls"])


class Window(unittest.TestCase):
    def faults(self, multiples, of_process, steps):
        return first.window_faults(planted(multiples=multiples), steps, of_process)[1]

    def test_it_holds_the_programs_steps(self):
        self.assertEqual(self.faults("1", process(), began()), [])
        self.assertIn("2.00 of its steps", self.faults("1", process(), began(5, 600))[0])
        self.assertIn("0.50 of its steps", self.faults("1", process(), began(20, 150))[0])
        self.assertIn("0.00 of its steps", self.faults("1", process(), began(10, 50))[0])

    def test_a_multiple_is_exact(self):
        self.assertEqual(self.faults("1 4", process(), began(2.5, 1200)), [])
        self.assertIn("3.32 of its steps", self.faults("1 4", process(), began(3, 1200))[0])

    def test_the_edges_of_a_short_window(self):
        self.assertEqual(self.faults("1", process(iterations=5, of_ms=500), began(500, 20, begin_ms=400)), [])
        self.assertTrue(self.faults("1", process(iterations=5, of_ms=500), began(250, 40)))

    def test_between_two_windows_nothing_counts(self):
        two = process(iterations=10)
        two["windows"] += process(iterations=10, begin_ms=2000)["windows"]
        self.assertEqual(self.faults("1", two, began()), [])

    def test_its_steps_are_the_steady_ones(self):
        warm_up = [n * 30 * MS for n in range(80)]
        steady = [warm_up[-1] + 30 * MS + n * 10 * MS for n in range(800)]
        self.assertIn("its steps take 30.000 ms", self.faults("1", process(of_ms=30, begin_ms=0), warm_up + steady)[0])

    def test_no_window(self):
        self.assertIn("no window: auto: a wait", self.faults("1", process(iterations=0), began())[0])


class Finding(unittest.TestCase):
    def test_the_first_one_names_the_cause(self):
        one = planted("host-blocked gil", "poll_scheduler; usleep")
        self.assertEqual(first.finding_faults(one, [finding(verdict="no"), finding(), finding("gc")]), [])
        self.assertEqual(first.finding_faults(one, [finding(evidence="asleep", where="usleep")]), [])
        self.assertEqual(first.finding_faults(one, [finding("gc"), finding()]), ["found gc first"])
        self.assertEqual(first.finding_faults(one, [finding(evidence="asleep")]), ["does not name poll_scheduler or usleep"])
        self.assertEqual(first.finding_faults(one, [finding(verdict="unknown")]), ["nothing found"])

    def test_healthy_and_idle(self):
        note, symptom = finding("no-requests", "note"), finding("low-gpu-utilisation", "symptom")
        self.assertEqual(first.finding_faults(planted("healthy"), [symptom, note, finding(verdict="no")]), [])
        self.assertEqual(first.finding_faults(planted("healthy"), [note, finding("gc")]), ["gc, although healthy"])
        self.assertEqual(first.finding_faults(planted("idle"), [note]), [])
        self.assertEqual(first.finding_faults(planted("idle"), [symptom]), ["low-gpu-utilisation, although idle"])


class Contradictions(unittest.TestCase):
    def test_busy_shares(self):
        self.assertEqual(first.contradictions(process(), []), [])
        self.assertEqual(first.contradictions(process(gpu_busy_share=None), []), [])
        self.assertEqual(first.contradictions(process(inside=dict(gpu_busy_share=0.4)), [finding()]), [])
        self.assertIn("has work in 0.400", first.contradictions(process(gpu_span_share=0.4, gpu_busy_share=0.5), [])[0])
        self.assertIn("busy 1.200", first.contradictions(process(gpu_ms=20, gpu_busy_share=1.2), [])[0])
        self.assertIn("0.500 is lost to host-blocked",
                      first.contradictions(process(gpu_ms=9, inside=dict(gpu_busy_share=0.9)), [finding()])[0])

    def test_a_host_activity_costs_nothing_while_the_gpu_works(self):
        busy = process(gpu_busy_share=0.9, gpus=[dict(busy_ns=90, kernel_ns=90), dict(busy_ns=None, kernel_ns=None)])
        for rule in (*first.OF_IDLE_GPU, *first.OF_COPIES):
            self.assertEqual(first.contradictions(busy, [finding(rule, loss=0.14)]), [])
            self.assertIn(f"0.300 is lost to {rule}", first.contradictions(busy, [finding(rule, loss=0.3)])[0])
            self.assertEqual(first.contradictions(busy, [finding(rule, verdict="no", loss=0.3)]), [])
        self.assertEqual(first.contradictions(busy, [finding("serial-streams", loss=0.3)]), [])

    def test_the_gpu_may_be_busy_with_the_copies_that_cost_time(self):
        copies = process(gpu_busy_share=0.9, gpus=[dict(busy_ns=90, kernel_ns=50)])
        self.assertEqual(first.contradictions(copies, [finding("long-copies")]), [])
        self.assertEqual(len(first.contradictions(copies, [finding("long-copies", loss=0.6)])), 1)
        self.assertEqual(len(first.contradictions(copies, [finding("small-copies")])), 1)

    def test_losses_and_order(self):
        self.assertIn("losses", first.contradictions(process(), [finding(loss=0.7), finding("gc", loss=0.6)])[0])
        self.assertEqual(first.contradictions(process(), [finding(loss=0.7), finding("gc", verdict="no", loss=0.6)]), [])
        turned = process()
        turned["windows"][0]["iterations"].reverse()
        self.assertIn("order", first.contradictions(turned, [])[0])


class Runs(unittest.TestCase):
    OUT = "words\n" + json.dumps(dict(pid=7, began=began())) + "\n"

    def test_a_run(self):
        other = process(iterations=80, of_ms=1) | dict(pid=8)
        report = dict(processes=[other, process()], findings=[finding()])
        row = first.judge(planted(names="poll_scheduler"), child.Ended(0, self.OUT, ""), report)
        self.assertEqual(row.faults, [])
        self.assertEqual(row.line(), "name | ok | 300 steps; window: 50 iterations of 10.000 ms, 50 steps; "
                                     "first: host-blocked: asleep in poll_scheduler; wanted: host-blocked: poll_scheduler")

    def test_a_run_that_says_nothing(self):
        report = dict(processes=[process()], findings=[])
        self.assertIn("status 1: no GPU", first.judge(planted(), child.Ended(1, "", "no GPU\n"), report).faults[0])
        self.assertIn("time-out", first.judge(planted("healthy"), child.Ended("time-out", self.OUT, ""), report).faults[0])
        for none in (None, dict(processes=[], findings=[])):
            self.assertEqual(first.judge(planted(), child.Ended(0, self.OUT, ""), none).faults, ["no process in the report"])
        self.assertIsNone(first.own_steps('{"began": [1\n{}\n'))

    def test_no_program_starts_when_the_time_is_over(self):
        table = first.planted_in("a | x.py | healthy | | 1 |\nb | x.py | healthy | | 1 | gpus=2\nc | x.py | healthy | | 1 | no_such_module")
        lines = []
        with tempfile.TemporaryDirectory() as folder:
            runner = first.Runner("tllmprof", None, folder)
            with mock.patch.object(first.Runner, "run", lambda self, one: first.Row(one.name, [])):
                rows, left_out = first.run_all(runner, table, 100, lines.append)
                self.assertEqual([row.name for row in rows], ["a"])
                self.assertEqual(left_out, dict(b="2 GPUs wanted, 1 there", c="no no_such_module"))
                self.assertEqual(first.run_all(runner, table[:1], 0, lines.append), ([], dict(a="no time left")))
        self.assertEqual(len(lines), 1)

    def test_a_part_of_the_page(self):
        rows = dict(native_polling=[], polling=["found gc first"])
        with tempfile.TemporaryDirectory() as folder, \
                mock.patch.object(first.Runner, "missing", lambda self, one: None), \
                mock.patch.object(first.Runner, "run", lambda self, one: first.Row(one.name, rows[one.name])):
            bench = SimpleNamespace(command="tllmprof", shim="lib", folder=folder, gpus=1)
            lines, right, wrong = first.Part(["pollin"]).table(bench, None, lambda text: None)
        self.assertEqual((right, wrong), (1, 1), lines)


if __name__ == "__main__":
    unittest.main()
