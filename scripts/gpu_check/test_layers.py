"""Tests of what is wanted of layers, which need no GPU."""
import os
import sys
import unittest

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

    def test_a_graph_in_a_graph_is_not_known(self):
        inside = 2 * 15 * layers.TAKEN
        self.assertIsNone(layers.judge("child", process(layers.SAMPLE, inside)))
        self.assertIsNotNone(layers.judge("child", process(layers.SAMPLE | layers.GRAPH)))


if __name__ == "__main__":
    unittest.main()
