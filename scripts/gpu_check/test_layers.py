"""Tests how gpu-check judges the layers in a report (layers.py). The tests need no GPU."""
import os
import sys
import unittest
from collections import Counter

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

from gpu_check import layers  # noqa: E402


def process(rows, unknown=0):
    found = [dict(name=name, kernels=kernels * layers.TAKEN) for name, kernels in rows.items()]
    return dict(layers=found, layers_unknown=[dict(kernels=unknown, why="it is")] if unknown else [])


class Layers(unittest.TestCase):
    def test_each_layer_has_its_own_kernels(self):
        right = layers.SAMPLE | layers.GRAPH
        self.assertIsNone(layers.judge("chain", process(right)))
        self.assertIn("not {", layers.judge("chain", process(right | {"model/layers.2": 4, "model/layers.3": 3})))
        self.assertIsNotNone(layers.judge("chain", process(right, 5)))

    def test_a_layers_own_kernels_are_in_it(self):
        def kernel(name, **scope):
            return dict(cat="kernel", name=name, args=scope)

        right = [kernel("_Z8of_layerILi3EEvPj", scope="model/layers.3"), kernel("void of_layer<0>(unsigned int*)", scope="child/layers.0"),
                 kernel("_Z9of_samplePj", scope="sample"), kernel("_Z8of_layerILi1EEvPj"), dict(cat="iteration", name="1", args={})]
        self.assertEqual(layers.judge_markers(right), (2, 2))
        self.assertEqual(layers.judge_markers([*right, kernel("_Z8of_layerILi2EEvPj", scope="model/layers.12")]), (3, 2))

    def test_times_in_a_graph_are_within_what_two_runs_differ_by(self):
        queued = {f"model/{one}": 1000 for one in range(20)}
        again = {scope: 1000 + 5 * number for number, scope in enumerate(queued)}
        for ns, wanted in ((1050, True), (990, False), (1110, False)):
            times = {"eager": queued, "graph": queued, layers.QUEUED: queued, layers.AGAIN: again, layers.QUEUED_GRAPH: dict.fromkeys(queued, ns)}
            self.assertEqual(layers.judge_spread(times)[1], wanted)

    def test_copies_may_be_kernels_of_the_driver(self):
        between = layers.SAMPLE | layers.GRAPH | {"model": 5}
        self.assertIsNone(layers.judge("copies", process(between)))
        self.assertIsNotNone(layers.judge("chain", process(between)))
        self.assertIsNotNone(layers.judge("copies", process(layers.SAMPLE | layers.GRAPH, 5)))

    def test_a_graph_in_a_graph_has_layers_of_its_own(self):
        inner = {f"child/layers.{layer}": layer + 1 for layer in range(5)}
        self.assertIsNone(layers.judge("child", process(layers.SAMPLE | layers.GRAPH | inner)))
        self.assertIsNotNone(layers.judge("child", process(layers.SAMPLE | layers.GRAPH)))

    def test_a_graph_that_is_changed_is_not_known(self):
        inside = 2 * 15 * layers.TAKEN
        self.assertIsNone(layers.judge("swapped", process(layers.SAMPLE, inside)))
        self.assertIsNotNone(layers.judge("swapped", process(layers.SAMPLE | layers.GRAPH)))

    def test_blocks_are_the_layers(self):
        def process(found, partly):
            return dict(blocks=dict(block_ns=[1] * found, partly=partly, kernels=["k"] * 12, iterations=3, of=4))

        for found, partly, count, whole, ok in ((8, None, 8, 8, True), (3, 7, 4, 3, True), (3, None, 4, 3, False), (4, None, 8, 8, False), (7, 9, 8, 8, False)):
            self.assertIs(layers.judge_blocks(process(found, partly), count, whole)[1], ok)
        self.assertFalse(layers.judge_blocks(dict(blocks=None), 8, 8)[1])

    def test_the_part_of_the_time_that_has_a_module(self):
        row = lambda name, kernels, ns: dict(name=name, kernels=kernels, gpu_ns=ns)  # noqa: E731
        process = dict(kernel_window=dict(iterations=4), layers=[row("Model/a", 8, 90), row("Model", 4, 4), row("", 4, 1)], layers_unknown=[dict(gpu_ns=5)])
        self.assertEqual(layers.in_modules(process, "/"), ({"Model/a": 2}, 0.9))
        self.assertEqual(layers.in_modules(process), ({"Model/a": 2, "Model": 1}, 0.94))

    def test_modules_of_a_compiled_model_are_those_of_the_eager_one(self):
        self.assertEqual(layers.single("M/l.(0 + 1.norm)"), ["M/l.0", "M/l.1.norm"])
        eager = {"M/l.0.norm": 1, "M/l.1.norm": 1, "M/head": 1}
        self.assertIsNone(layers.unlike_eager(eager, {"M/l.(0 + 1.norm)": 2, "M/head": 1, "M/l.(0.norm + 3 more)": 1}))
        self.assertEqual(layers.unlike_eager(eager, {"M/l.(0 + 2.norm)": 2, "M/tail": 1}), "2 are no modules: ['M/l.2.norm', 'M/tail']")

    def test_modules_with_other_kernels_in_a_graph(self):
        kernel = lambda scope, name: dict(cat="kernel", name=name, args=dict(scope=scope))  # noqa: E731
        eager = layers.kernels_in_modules([kernel("a", "k")] * 40 + [kernel("b", "k")] * 20 + [dict(cat="gpu", name="k")])
        graph = [kernel("b", "k")] * 20 + [kernel("a", "k")] * 40
        self.assertIsNone(layers.unlike(eager, layers.kernels_in_modules(graph + [kernel("b", "memcpy32_post")] * 20 + [kernel("b", "memcpy128")])))
        self.assertIn("b, k: 1 a step eagerly, 2 in the graph", layers.unlike(eager, layers.kernels_in_modules(graph + [kernel("b", "k")] * 20)))
        self.assertIn("b, other: 0 a step eagerly, 1 in the graph", layers.unlike(eager, layers.kernels_in_modules(graph + [kernel("b", "other")] * 20)))

    def test_times_of_modules_are_medians_of_steps(self):
        def line(**ns):
            steps = [dict(cat="iteration", start=1000 * n) for n in range(3)]
            return steps + [dict(cat="kernel", name="k", start=1000 * n + 5, ns=ns[scope] + 100 * (n == 2), args=dict(scope=scope))
                            for n in range(3) for scope in ns for _ in range(2)]

        eager, graph = (layers.times_in_modules(line(**of)) for of in (dict(a=10, b=20), dict(a=10, b=21)))
        self.assertEqual(eager, dict(a=20, b=40))
        self.assertEqual(layers.spread(eager, graph), "1.025 (1.000–1.050)")
        copy = dict(cat="kernel", name="memcpy128_post", start=1005, ns=100, args=dict(scope="b"))
        self.assertEqual(layers.times_in_modules([*line(a=10, b=20), copy, copy]), eager)

    def test_times_in_a_graph_are_those_that_nsys_has(self):
        ours = (dict(a=10.0, b=20.0), 31.0, 30.0)
        self.assertEqual(layers.judge_times(ours, (dict(a=10.0, b=20.2), 31.1, 30.0)), (
            "a module takes 0.995 (0.990–1.000) of its time by nsys; all kernels take 1.033 of their time eagerly, by nsys 1.037", True))
        self.assertFalse(layers.judge_times(ours, (dict(a=20.0, b=40.0), 31.0, 30.0))[1])
        self.assertFalse(layers.judge_times(ours, (dict(a=10.0, b=20.0), 31.0, 31.0))[1])

    def test_an_engine_may_launch_others_in_graphs(self):
        eager = Counter({("m/a", "k"): 40, ("m/a", "set"): 20, ("", "k"): 3})
        graph = Counter({("m/a", "k"): 40, ("m/a", "combine"): 20, ("", "k"): 3})
        self.assertEqual(layers.judge_engine(eager, graph), (
            "2.15 kernels a step in the same scopes; 2 kernels are not launched equally often: combine, set", True))
        moved = Counter({("m/b", "k"): 40, ("", "k"): 3})
        self.assertIn("m/a, k: 2 a step eagerly, 0 in the graph", layers.judge_engine(eager, moved)[0])
        self.assertFalse(layers.judge_engine(eager, moved)[1])


if __name__ == "__main__":
    unittest.main()
