"""Tests that the right commands are found in a page, and that misplaced commands are errors."""
import unittest

from .blocks import Unmarked, blocks, handled, missing, options_of

PAGE = """# A page

```console
$ tllmprof run \\
    -- ./server
tllmprof: window 1-2 closed: 2 iterations in 3.1 ms
$ tllmprof report
```

```console needs=vllm
$ tllmprof run -- vllm serve MODEL
```

```text
$ tllmprof demo
```
"""


class Blocks(unittest.TestCase):
    def test_commands_of_a_page(self):
        run, other = blocks("a.md", PAGE)
        self.assertEqual(run.commands, [
            ("tllmprof run \\\n    -- ./server", ["tllmprof: window 1-2 closed: 2 iterations in 3.1 ms"]),
            ("tllmprof report", [])])
        self.assertEqual((run.line, run.needs, other.needs), (3, "", "needs=vllm"))

    def test_a_command_that_nobody_runs(self):
        for block in ("```\ntllmprof run -- x\n```\n", "```sh\nTLLMPROF_STEP=auto tllmprof run -- x\n```\n",
                      "```console later\n$ tllmprof run -- x\n```\n", "```console\ntllmprof run -- x\n```\n",
                      "```\nscripts/test\n```\n", "```\n$ ls\n```\n"):
            with self.assertRaises(Unmarked, msg=block):
                blocks("a.md", block)
        self.assertEqual(blocks("a.md", "```\ntllmprof: a line of a log\n```\n"), [])

    def test_lines_are_compared_by_their_shape(self):
        shown = ["tllmprof: window 5-9 closed: 5 iterations in 3.1 ms", "anything"]
        self.assertEqual(missing(shown, "x\ntllmprof: window 7-8 closed: 2 iterations in 900 us\n"), [])
        self.assertEqual(missing(shown, "tllmprof: window 7-8 opened\n"), shown[:1])

    def test_what_is_done_with_commands(self):
        marks = ("", "gpu", "needs=vllm", "repo")
        self.assertEqual([handled(mark, False) for mark in marks], ["run", "options", "options", "there"])
        self.assertEqual([handled(mark, True) for mark in marks], ["run", "run", "options", "there"])

    def test_options_of_what_cannot_run(self):
        for command, wanted in (
                ("tllmprof run --gc -- vllm serve MODEL", ["tllmprof run --gc -- true"]),
                ("eval srun -N 2 \"$(tllmprof env --format slurm)\" ./server", ["tllmprof env --format slurm"]),
                ("tllmprof capture --all -o x/", ["tllmprof capture --all -o x/ --help"]),
                ("kubectl rollout undo deployment NAME", [])):
            self.assertEqual([*options_of(command)], wanted)
