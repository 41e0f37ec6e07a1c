"""Tests how gpu-check judges the routers of real engines. The engines' rows and outputs are written by hand."""
import sys
import unittest

sys.dont_write_bytecode = True
from gpu_check import engine_router  # noqa: E402
from gpu_check.engine_router import FIRST, LAST  # noqa: E402


def row(apart, tokens=16):
    return (0, 0, tokens, tokens, 0, apart)


class Loads(unittest.TestCase):
    def setUp(self):
        self.perfect = dict.fromkeys(range(5, 200), 1)
        self.window = {n: 1 if FIRST <= n <= LAST else 7 for n in range(5, 200)}

    def judged(self):
        return engine_router.judge_loads(self.perfect, self.window)

    def test_steps_of_a_token_and_those_that_were_not_counted_are_left_out(self):
        self.assertEqual(engine_router.loads([row(5), row(1, tokens=1), row(-1), row(2)], 2), {2: 5, 5: 2})

    def test_loads_that_are_even_where_they_are_to_be_are_right(self):
        got, wrong = self.judged()
        self.assertEqual(wrong, [])
        self.assertIn("at most 1 apart in 195 steps, 1 in the window's 41; outside 7", got)

    def test_uneven_loads_inside_and_even_ones_outside_are_wrong(self):
        self.perfect[150] = self.window[FIRST] = 2
        self.window[LAST + 1] = 1
        self.assertEqual(len(self.judged()[1]), 3)

    def test_steps_that_are_missing_are_wrong(self):
        del self.window[LAST]
        self.assertEqual(len(self.judged()[1]), 1)
        self.perfect, self.window = {}, {}
        self.assertEqual(len(self.judged()[1]), 1)


class Outputs(unittest.TestCase):
    PLAIN = [["a", "b"]] * 3

    def judged(self, window, learned=PLAIN):
        return engine_router.judge_outputs(self.PLAIN, learned, window)[1]

    def test_only_the_windows_round_may_be_another(self):
        self.assertIs(self.judged([["x", "b"], ["a", "b"], ["a", "b"]]), True)
        self.assertIs(self.judged([["x", "b"], ["a", "b"], ["a", "x"]]), False)

    def test_a_window_without_a_round_after_it_is_wrong(self):
        self.assertIs(self.judged(self.PLAIN), True)
        self.assertIs(self.judged([]), False)

    def test_nothing_is_said_where_the_engine_does_not_repeat_itself(self):
        self.assertIsNone(self.judged([["x", "y"], ["a", "z"], ["a", "b"]], [["a", "c"]] * 3))


if __name__ == "__main__":
    unittest.main()
