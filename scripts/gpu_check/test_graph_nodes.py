"""Tests the rules by which CUPTI may number graph nodes (graph_nodes.py). The tests need no GPU."""
import os
import sys
import unittest

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

from gpu_check import graph_nodes  # noqa: E402

CHILD = """made root/1 0 kernel k0 ?0:0
made root/1 1 kernel k1 ?0:0
made root 0 kernel k2 7:0
made root 1 child root/1 7:1
made root 2 kernel k3 7:2
exec 9
"""
# Output for nested graphs: k4 is in a graph inside the first of two child graphs, and k5 is in the second child
# graph.
DEEP = CHILD.replace("exec 9\n", """made root 3 child root/3 7:3
made root/1 2 child root/1/2 ?0:0
made root/1/2 0 kernel k4 ?0:0
made root/3 0 kernel k5 ?0:0
exec 9
""")


def ran(**numbers):
    return "".join(f"ran {name} 4 9 {number}\n" for name, number in numbers.items())


class Numbers(unittest.TestCase):
    def fits(self, text):
        made, execs, kernels = graph_nodes.parse(text)
        self.assertEqual(execs, ["9"])
        return graph_nodes.fitting(made, kernels)

    def test_each_rule_differs_from_the_others(self):
        deep, own, order, inside, without, levels = graph_nodes.RULES
        for rules, numbers in (([own], dict(k0=0, k1=1, k2=0, k3=2)), ([order], dict(k0=0, k1=1, k2=2, k3=4)),
                               ([inside], dict(k2=0, k0=2, k1=3, k3=4)), ([without], dict(k2=0, k0=1, k1=2, k3=3)),
                               ([deep, levels], dict(k2=0, k3=2, k0=3, k1=4))):
            self.assertEqual(self.fits(CHILD + ran(**numbers)), rules)
        for rule, numbers in ((levels, dict(k2=0, k3=2, k0=4, k1=5, k4=8, k5=7)), (deep, dict(k2=0, k3=2, k0=4, k1=5, k4=7, k5=8))):
            self.assertEqual(self.fits(DEEP + ran(**numbers)), [rule])
        self.assertEqual(self.fits(CHILD + ran(k0=5, k1=6, k2=7, k3=8)), [])
        self.assertEqual(self.fits(CHILD), [], "nothing ran")

    def test_captured_kernels_have_the_order_of_their_launches(self):
        text = "made root 0 type0 - ?0:0\nmade root 1 type3 - ?0:0\nmade root 2 type0 - ?0:0\nexec 9\n"
        self.assertIn("its place in its own graph", self.fits(text + ran(k4=0, k10=2, stop=1)))
        self.assertEqual(self.fits(text + ran(k4=0, k10=1)), [])

    def test_threads_have_graphs_of_their_own(self):
        text = "made root0 0 kernel k0 ?0:0\nexec 9\nmade root1 0 kernel k40 ?0:0\n"
        self.assertIn("its place in its own graph", self.fits(text + ran(k0=0, k40=0)))


if __name__ == "__main__":
    unittest.main()
