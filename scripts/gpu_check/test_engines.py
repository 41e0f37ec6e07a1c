"""Tests how gpu-check compares an engine's runs with and without the library (engines.py). The tests need neither a
GPU nor an engine."""
import os
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

from engines.drivers.driver import ROW  # noqa: E402
from gpu_check import engines  # noqa: E402
from gpu_check.kernels import Report  # noqa: E402

SILENT = lambda text: None  # noqa: E731


def process(windows, outside, batch=lambda n: None):
    listed = [dict(first=first, iterations=[dict(n=n, batch=batch(n), cut=False) for n in numbers]) for first, numbers in windows]
    return dict(outside=dict(iterations=outside), inside=dict(iterations=sum(len(numbers) for _, numbers in windows)), windows=listed)


def row(at, requests=4, tokens=4, prefill=0):
    return (at * 1000, at * 500, requests, tokens, prefill, -1)


class Windows(unittest.TestCase):
    def test_all_iterations_of_each_window_are_wanted_once(self):
        self.assertEqual(engines.wrong_windows(process([(2, [2, 3, 4])], 7), [(2, 4)], 10), [])
        self.assertEqual(len(engines.wrong_windows(process([(2, [2, 4])], 8), [(2, 4)], 10)), 1)
        self.assertEqual(len(engines.wrong_windows(process([(2, [2, 3, 3])], 7), [(2, 4)], 10)), 1)
        self.assertEqual(len(engines.wrong_windows(process([], 10), [(2, 4)], 10)), 1)

    def test_iterations_are_counted_by_the_line_at_exit_where_there_is_one(self):
        held = process([(2, [2, 3, 4])], 7)
        self.assertEqual(engines.counted(held, "x\ntllmprof: window 2-4 captured: 12 iterations by auto\n"), 12)
        self.assertEqual(engines.counted(held), 10)

    def test_the_end_of_the_program_cuts_windows_short(self):
        self.assertEqual(engines.wrong_windows(process([(8, [8, 9])], 8), [(8, 20), (30, 40)], 10), [])


class Split(unittest.TestCase):
    def split(self, parts, prompts=(), wrong=()):
        """Returns errors in a split window whose parts have these iterations. `prompts`: iterations whose batches are
        prompts. `wrong`: iterations that are marked wrongly as meeting the condition or not."""
        held = process(parts, 0, lambda n: dict(requests=16, phase="prefill" if n in prompts else "decode"))
        for window in held["windows"]:
            for one in window["iterations"]:
                one["qualifies"] = (one["n"] not in prompts) != (one["n"] in wrong)
        return held

    def test_iterations_that_qualify_are_counted_over_all_parts(self):
        self.assertEqual(engines.unlike_split(self.split([(5, [5, 6, 7]), (9, [9, 10])], {6}), 5, 4), [])
        self.assertEqual(len(engines.unlike_split(self.split([(5, [5, 6]), (9, [9])]), 5, 4)), 1)
        self.assertEqual(len(engines.unlike_split(self.split([(5, [5, 6]), (9, [9])]), 6, 3)), 1)

    def test_wrong_marks_and_a_window_in_one_piece_are_wrong(self):
        self.assertEqual(len(engines.unlike_split(self.split([(5, [5, 6]), (9, [9])], wrong={6}), 5, 3)), 1)
        self.assertEqual(len(engines.unlike_split(self.split([(5, [5, 6, 7])]), 5, 3)), 1)


class Facts(unittest.TestCase):
    def setUp(self):
        self.rows = [row(at, tokens=at) for at in range(20)]

    def test_iterations_are_compared_with_the_rows_that_agree_best(self):
        held = process([(5, [5, 6, 7])], 17, lambda n: dict(requests=4, tokens=n - 2, prefill_tokens=0))
        self.assertEqual(engines.unlike_facts(held, self.rows), (3, 0, 2))

    def test_another_batch_and_none_are_unlike(self):
        held = process([(5, [5, 6, 7])], 17, lambda n: dict(requests=4, tokens=99 if n == 6 else n, prefill_tokens=0))
        self.assertEqual(engines.unlike_facts(held, self.rows), (3, 1, 0))
        self.assertEqual(engines.unlike_facts(process([(5, [5, 6, 7])], 17), self.rows)[1], 3)


class Cost(unittest.TestCase):
    def test_only_steps_that_are_alike_are_compared(self):
        at, rows = 0, []
        for n in range(200):
            rows.append((at, at // 2, 4, 400 if n == 120 else 4, 0, -1))
            at += 90000 if n == 150 else 3000 if 100 <= n < 160 else 2000
        self.assertEqual(engines.inside_and_outside(rows, [(100, 160)], 0), (3000, 2000))

    def test_nothing_is_said_of_no_steps(self):
        self.assertIsNone(engines.inside_and_outside([], [(1, 2)], 0))


class Outputs(unittest.TestCase):
    def judged(self, plain, armed, again=None):
        made = [engines.Made(None, {"ROUND": [dict(outputs=outputs) for outputs in rounds]}, []) for rounds in (plain, armed)]
        report = Report("test", SILENT)
        engines.check_outputs(report, "x", *made, lambda: engines.Made(None, {"ROUND": [dict(outputs=outputs) for outputs in again or plain]}, []))
        return report.right, report.wrong

    def test_the_same_are_right_and_others_wrong_where_the_plain_run_repeats_itself(self):
        self.assertEqual(self.judged([["a", "b"]] * 3, [["a", "b"]] * 3), (1, 0))
        self.assertEqual(self.judged([["a", "b"]] * 3, [["a", "c"]] * 3), (0, 1))

    def test_nothing_is_judged_by_a_plain_run_that_does_not(self):
        self.assertEqual(self.judged([["a"], ["a"], ["b"]], [["a"], ["a"], ["a"]]), (0, 0))
        self.assertEqual(self.judged([["a"]] * 3, [["b"], ["a"], ["a"]], again=[["c"], ["a"], ["a"]]), (0, 0))

    def test_no_output_is_wrong(self):
        self.assertEqual(self.judged([], []), (0, 1))


class Driver(unittest.TestCase):
    def test_rows_of_the_process_with_the_most_steps_and_lines_of_a_driver_are_read(self):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "truth")
            drivers = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "engines", "drivers")
            script = "import sys, driver; s = driver.Steps(); [s.add(4, 8, 2) for _ in range(int(sys.argv[1]))]; driver.say('UP', a=1)"
            for steps in ("3", "5"):
                out = subprocess.run([sys.executable, "-c", script, steps], env=dict(os.environ, TRUTH_FILE=path, PYTHONPATH=drivers),
                                     check=True, capture_output=True, text=True).stdout
            self.assertEqual([one[2:] for one in engines.rows_of(path)], [(4, 8, 2, -1)] * 5)
            self.assertEqual(engines.said_in("noise\n" + out), {"UP": [dict(a=1)]})
            with open(path + ".1", "wb") as file:  # the last row is incomplete
                file.write(ROW.pack(*row(1)) * 7 + b"\0" * 10)
            self.assertEqual(len(engines.rows_of(path)), 7)

    def test_the_hooks_count_what_the_engine_runs(self):
        with tempfile.TemporaryDirectory() as folder:
            package = os.path.join(folder, "vllm", "v1", "executor")
            os.makedirs(package)
            with open(os.path.join(package, "uniproc_executor.py"), "w") as file:
                file.write("class UniProcExecutor:\n    def execute_model(self, output, non_block=False):\n        return non_block\n")
            truth = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "engines", "drivers", "truth")
            script = """
from types import SimpleNamespace as S
from vllm.v1.executor.uniproc_executor import UniProcExecutor
new = S(req_id="a", prompt_token_ids=[1] * 10, num_computed_tokens=0)
run = UniProcExecutor().execute_model
for tokens, new in ((6, [new]), (5, []), (1, [])):
    given = S(total_num_scheduled_tokens=tokens, num_scheduled_tokens={"a": tokens}, scheduled_new_reqs=new)
    assert run(given, non_block=True) is True
assert run(S(total_num_scheduled_tokens=0)) is False
"""
            path = os.path.join(folder, "truth")
            subprocess.run([sys.executable, "-c", script], check=True,
                           env=dict(os.environ, TRUTH_FILE=path, PYTHONPATH=f"{truth}:{folder}"))
            self.assertEqual([one[2:] for one in engines.rows_of(path)], [(1, 6, 6, -1), (1, 5, 4, -1), (1, 1, 0, -1)])


if __name__ == "__main__":
    unittest.main()
