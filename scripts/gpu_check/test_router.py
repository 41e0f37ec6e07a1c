"""Tests how gpu-check judges models with experts. The records and the experts' loads are written by hand."""
import sys
import unittest
from collections import Counter
from types import SimpleNamespace

sys.dont_write_bytecode = True
from gpu_check import router, router_ranks  # noqa: E402


class RoutedKernels(unittest.TestCase):
    GATE, OTHER = "_Z8nvjet_tsPf", "_Z4gemmPf"

    def judged(self, learned, perfect, gate=("nvjet_ts(float*)",), inner=None, **more):
        last = router.FIRST + router.INNER - 1
        records = [SimpleNamespace(inner=inner or [(router.FIRST, last)], of=[[]], refused=[], dropped=0,
                                   counts=lambda window, found=found: Counter(found)) for found in (learned, perfect)]
        return router.judge_kernels(*records, list(gate), 2, **more)

    def setUp(self):
        self.counts = {self.GATE: 2 * router.INNER, self.OTHER: 5 * router.INNER, "_Z4sortPf": 9}

    def test_all_of_the_learned_runs_products_are_in_the_balanced_one(self):
        got, wrong = self.judged(self.counts, {**self.counts, "_Z5wherePf": 3})
        self.assertEqual(wrong, [])
        self.assertIn("7 kernels of products a step learned, 7 balanced", got)
        self.assertIn("nvjet_ts", got)
        self.assertIn(": 2 and 2 a step in 2 layers", got)

    def test_a_gate_that_was_left_out_is_seen(self):
        _, wrong = self.judged(self.counts, {self.OTHER: 9 * router.INNER})
        self.assertEqual(len(wrong), 2, wrong)
        _, wrong = self.judged(self.counts, {**self.counts, self.GATE: 2 * router.INNER - 1})
        self.assertEqual(len(wrong), 2, wrong)

    def test_a_gate_that_is_not_found_is_wrong_unless_it_was_compiled(self):
        for is_compiled in (False, True):
            _, wrong = self.judged(self.counts, self.counts, gate=["gemv"], is_compiled=is_compiled)
            self.assertEqual(len(wrong), 0 if is_compiled else 1, wrong)

    def test_another_window_and_no_products_are_wrong(self):
        self.assertEqual(len(self.judged(self.counts, self.counts, inner=[(router.FIRST + 1, router.LAST)])[1]), 1)
        self.assertEqual(len(self.judged({"_Z4sortPf": 9}, {"_Z4sortPf": 9}, is_compiled=True)[1]), 1)


class RoutedProof(unittest.TestCase):
    SAID = ("tllmprof: output is intentionally wrong: the routers are replaced\n"
            "tllmprof: perfect router: 4 layers, 28 calls (those in replayed graphs not counted)%s\nbye\n")

    def test_all_layers_proved_is_right(self):
        self.assertEqual(router.judge_proof(self.SAID % "", 4), ("4 layers, all proved", []))

    def test_layers_that_are_not_proved_or_left_or_missing_are_wrong(self):
        got, wrong = router.judge_proof(self.SAID % ", 4 not proved", 4)
        self.assertEqual((got, len(wrong)), ("4 layers, 4 not proved", 1))
        self.assertEqual(len(router.judge_proof(self.SAID % ", 1 not proved, 2 never called", 4)[1]), 1)
        self.assertEqual(len(router.judge_proof(self.SAID % "", 5)[1]), 1)
        self.assertEqual(len(router.judge_proof("bye\n", 4)[1]), 1)
        refused = "tllmprof: A.gate 3 keeps its learned router: 9 of 99 experts\n"
        self.assertEqual(len(router.judge_proof(refused + self.SAID % ", 1 left as they were", 4)[1]), 2)


class RoutedPaceTest(unittest.TestCase):
    def judged(self, own=(100.0, 120.0), **more):
        comparison = {"measures": [{"name": "iterations a second", "base": 100.0, "other": 120.0}], "verdict": "faster",
                      "text": "faster by 20.0 %", "change": {"relative": 0.2, "interval": [0.19, 0.21]},
                      "routing": {"significant": True}, **more}
        return router.judge_pace(comparison, own, 64)

    def test_a_verdict_with_an_interval_and_the_programs_own_rates_is_right(self):
        got, wrong = self.judged()
        self.assertEqual(wrong, [])
        self.assertIn("+20.0% [+19.0%, +21.0%]; faster by 20.0 %; routing imbalance is significant", got)
        self.assertEqual(self.judged((102.5, 117.0))[1], [])

    def test_another_clock_no_interval_and_no_verdict_are_wrong(self):
        for more in ({"own": (105.0, 120.0)}, {"change": {"relative": 0.2, "interval": None}}, {"change": None},
                     {"verdict": "too few"}, {"routing": None}, {"measures": []}):
            self.assertTrue(self.judged(**more)[1], more)

    def test_the_programs_clock_leaves_the_opening_of_the_window_out(self):
        begins = [0.01 * n + (5.0 if n > router.STEADY else 0.0) for n in range(router.STEADY_STEPS)]
        self.assertAlmostEqual(router.own_rate(begins), 100)


class RoutedRanks(unittest.TestCase):
    """Tests the loads of experts over two ranks. The model has one layer of four experts, two on each rank."""

    LEARNED = {"own": ([5, 1, 1, 1], [2, 2, 3, 1]), "same": ([3, 1, 0, 0], [0, 0, 4, 2])}
    BALANCED = {"own": ([3, 2, 2, 1], [1, 2, 2, 3]), "same": ([3, 2, 0, 0], [0, 0, 3, 2])}

    def steps(self, how, loads, logits=1.0):
        gpus = router_ranks.on_gpus(router_ranks.together(loads[how]))
        return [{"loads": [of], "here": [here], "logits": logits} for of, here in zip(loads[how], gpus)]

    def truths(self, how):
        outside, inside = self.steps(how, self.LEARNED), self.steps(how, self.BALANCED, 2.0)
        return [{"warm": outside[rank], "steps": [
            inside[rank] if router_ranks.FIRST <= n <= router_ranks.LAST else outside[rank]
            for n in range(router_ranks.STEPS)]} for rank in range(2)]

    def test_a_window_as_wanted(self):
        for how in ("own", "same"):
            self.assertEqual(router_ranks.judge_window(how, self.truths(how)), [])

    def test_uneven_loads_and_gpus_and_results_are_seen(self):
        for how in ("own", "same"):
            learned, balanced = self.steps(how, self.LEARNED), self.steps(how, self.BALANCED)
            self.assertEqual(len(router_ranks.judge_step(how, learned, True)), 1)
            self.assertEqual(len(router_ranks.judge_step(how, balanced, False)), 1)
            balanced[0]["here"][0] += 1
            self.assertEqual(len(router_ranks.judge_step(how, balanced, True)), 2)
        balanced = self.steps("same", self.BALANCED)
        balanced[1]["logits"] = 9.0
        self.assertEqual(len(router_ranks.judge_step("same", balanced, True)), 1)
        truths = self.truths("own")
        truths[1]["steps"][router_ranks.LAST]["logits"] = 1.0
        self.assertEqual(len(router_ranks.judge_window("own", truths)), 1)

    def test_rows_that_begin_alike_on_ranks_with_their_own_tokens_are_seen(self):
        loads = {"own": ([3, 2, 3, 2], [3, 2, 3, 2])}
        self.assertEqual(len(router_ranks.judge_step("own", self.steps("own", loads), True)), 1)

    def test_the_report_is_held_against_what_was_counted(self):
        for how in ("own", "same"):
            truths = self.truths(how)
            loads = router_ranks.learned(how, truths)
            times = 1 + router_ranks.STEPS - (router_ranks.LAST + 1 - router_ranks.FIRST)
            wanted = self.LEARNED["own"] if how == "own" else [[3, 1, 4, 2]] * 2
            self.assertEqual(loads, [[[n * times for n in of]] for of in wanted])
            processes = [{"rank": rank, "routing": {"layers": [
                {"experts": of, "gpus": [{"gpus": 2, "max_of_mean": router_ranks.of_mean(router_ranks.on_gpus(of))}]}
                for of in loads[rank]]}} for rank in range(2)]
            mean = router_ranks.of_mean(router_ranks.on_gpus(router_ranks.together([of[0] for of in loads])))
            text = f"learned router   expert   2 GPUs\n  mean of 1 layers   9.99   {mean:.2f}\n"
            self.assertEqual(router_ranks.judge_report(how, truths, {"processes": processes}, text)[1], [])
            self.assertEqual(len(router_ranks.judge_report(how, truths, {"processes": processes}, "2 GPUs")[1]), 1)
            processes[1]["routing"]["layers"][0]["experts"] = [1, 2, 3, 4]
            processes[0]["routing"] = None
            self.assertEqual(len(router_ranks.judge_report(how, truths, {"processes": processes}, text)[1]), 2)


if __name__ == "__main__":
    unittest.main()
