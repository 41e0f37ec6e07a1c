"""Finds the commands in a Markdown page of the documentation."""
import re
from dataclasses import dataclass, field

FENCE = re.compile(r"^(`{3,})([^\n`]*)\n(.*?)^\1[ \t]*$", re.M | re.S)
# Matches text that looks like a command of this project, in a block whose commands are not run.
COMMAND = re.compile(r"^(?:\$ |(?:eval |[A-Z_]+=\S+ )*(?:tllmprof (?!:)|scripts/|cargo ))", re.M)


class Unmarked(Exception):
    """A page has a command in a block whose commands are not run."""


@dataclass
class Block:
    page: str
    line: int
    needs: str  # requirement of the block: "" (none), "gpu", "repo" or "needs=NAME"
    commands: list = field(default_factory=list)  # (command, expected lines of output)


def blocks(page, text):
    """Returns the blocks with commands, in order."""
    found = []
    for match in FENCE.finditer(text):
        language, _, needs = match[2].strip().partition(" ")
        line = text.count("\n", 0, match.start()) + 1
        if language != "console":
            # A block of the language `text` is allowed to show a command together with its output.
            if language != "text" and (wrong := COMMAND.search(match[3])):
                raise Unmarked(f"{page}:{line}: {wrong[0].strip()!r} is a command in a block that is not run (wanted: console)")
            continue
        if needs not in ("", "gpu", "repo") and not needs.startswith("needs="):
            raise Unmarked(f"{page}:{line}: {needs!r} marks nothing (wanted: gpu, repo or needs=NAME)")
        found.append(Block(page, line, needs, list(commands(match[3]))))
        if not found[-1].commands:
            raise Unmarked(f"{page}:{line}: no line begins with '$ '")
    return found


def commands(body):
    """Yields each command of a block, with the lines after it: (command, lines)."""
    command, shown = None, []
    for line in body.splitlines():
        if line.startswith("$ "):
            if command is not None:
                yield command, shown
            command, shown = line[2:], []
        elif command is not None and command.endswith("\\"):
            command += "\n" + line
        elif command is not None:
            shown.append(line)
    if command is not None:
        yield command, shown


def handled(needs, on_gpu):
    """Returns the action for a block's commands: run them ("run"), check only their options ("options"), or check
    only that they exist ("there")."""
    if needs == "repo":
        return "there"
    # A block with `needs=NAME` needs something that this script does not provide, such as a running server. A block
    # with `gpu` needs a GPU. If a block cannot run here, only the options of its commands are checked.
    return "options" if needs.startswith("needs=") or needs == "gpu" and not on_gpu else "run"


def options_of(command):
    """Yields harmless commands with the same options as `command`. They fail if tllmprof does not know an
    option."""
    for inside in re.findall(r"\$\((tllmprof [^()]*)\)", command):
        yield inside
    if found := re.match(r"tllmprof (?:run|env) (?:.*? )?-- ", command, re.S):
        # `true` replaces the program, because every machine has it. `true` makes no CUDA calls, so no window opens.
        yield found[0] + "true"
    elif command.startswith("tllmprof "):
        yield command + " --help"


def shape(line):
    """Returns a line without the parts that differ from run to run: numbers and units of time."""
    return re.sub(r"\s+", " ", re.sub(r"\b(ns|us|µs|ms|s)\b", "T", re.sub(r"\d+(\.\d+)?", "N", line))).strip()


def missing(shown, printed):
    """Returns the lines of tllmprof that the page shows but the command did not print."""
    there = {shape(line) for line in printed.splitlines()}
    return [line for line in shown if line.startswith("tllmprof: ") and shape(line) not in there]
