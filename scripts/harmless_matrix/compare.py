"""Compares a run with several runs without the library. If a part varies among the latter, it may vary in the same
way. Everything else must be equal: a line that all runs without the library have must be there, and a line that none
of them has must not."""
import difflib
import re
from collections import Counter

# Matches an address in hexadecimal. Some programs write it without 0x.
HEX = r"(?:0x[0-9a-fA-F]+|\b[0-9a-f]{8,}\b)"
TOKEN = re.compile(HEX + r"|[A-Za-z]+|\d+|\s+|.")
NUMBER = re.compile(HEX + r"|\d+(?:\.\d+)?")
SHOWN, LONGEST = 12, 200


def masked(line):
    return NUMBER.sub("#", line)


def class_of(tokens):
    """Returns the class of tokens (as a pattern) to which all these tokens belong, which stand at the same place of
    a line in different runs."""
    for pattern in (r"\d+", HEX, r"[A-Za-z]+", r"\s+"):
        if all(re.fullmatch(pattern, token) for token in tokens):
            return pattern
    return None


def pattern_of(lines):
    """Returns a pattern that matches these lines, which are the same line in different runs. Returns None if the
    lines have too little in common."""
    rows = [TOKEN.findall(line) for line in lines]
    if len({len(row) for row in rows}) != 1:
        return None
    parts = []
    for column in zip(*rows):
        part = re.escape(column[0]) if len(set(column)) == 1 else class_of(column)
        if part is None:
            return None
        parts.append(part)
    return "".join(parts)


class Expected:
    """The lines that a stream, such as standard output, may have, from the runs without the library."""

    def __init__(self, baselines):
        self.baselines = [list(lines) for lines in baselines]
        counts = [Counter(lines) for lines in self.baselines]
        self.common = counts[0].copy()
        for count in counts[1:]:
            self.common &= count
        rests = [self.rest(lines) for lines in self.baselines]
        self.kinds = {masked(line) for rest in rests for line in rest}
        self.lengths = {len(rest) for rest in rests}
        self.patterns, self.is_free = set(), False
        if len(self.lengths) == 1:
            for lines in zip(*rests):
                pattern = pattern_of(lines)
                if pattern:
                    self.patterns.add(pattern)
                elif len({masked(line) for line in lines}) > 1:
                    # Even with its numbers masked, this line differs between runs without the library, so any line is
                    # accepted.
                    self.is_free = True

    @property
    def varies(self):
        return any(lines != self.baselines[0] for lines in self.baselines)

    def rest(self, lines):
        """Returns the lines that remain if the lines common to all runs without the library are removed."""
        left, rest = self.common.copy(), []
        for line in lines:
            if left[line]:
                left[line] -= 1
            else:
                rest.append(line)
        return rest

    def differences(self, lines):
        lines = list(lines)
        if lines in self.baselines:
            return []
        if not self.varies:
            changed = difflib.unified_diff(self.baselines[0], lines, "without", "with", n=0, lineterm="")
            return list(changed)[2:]
        missing = self.common - Counter(lines)
        found = [f"-{line}" for line in missing.elements()]
        rest = self.rest(lines)
        for line in rest:
            is_known = self.is_free or masked(line) in self.kinds or \
                any(re.fullmatch(pattern, line) for pattern in self.patterns)
            if not is_known:
                found.append(f"+{line}")
        if not found and len(self.lengths) == 1 and len(rest) not in self.lengths:
            found.append(f"{len(rest)} lines of those that vary instead of {min(self.lengths)}")
        if not found and not missing:
            found = self.order(lines)
        return found

    def order(self, lines):
        """Checks the order of the lines that keep their order in all runs without the library. Returns an error if
        it differs."""
        def fixed(lines):
            return [line for line in lines if line in self.common and lines.count(line) == 1]
        if sum(map(len, self.baselines)) > 20000:
            return []
        orders = [fixed(baseline) for baseline in self.baselines]
        if any(order != orders[0] for order in orders) or fixed(lines) == orders[0]:
            return []
        return ["the same lines in another order"]


def differences(baselines, seen):
    """Compares a run with the runs without the library. Each run is {stream: [line]}. Returns [(stream, line)] with
    the differences."""
    found = []
    for stream in sorted(set(seen).union(*baselines)):
        expected = Expected([run.get(stream, []) for run in baselines])
        found += [(stream, line) for line in expected.differences(seen.get(stream, []))]
    return found


def varying(baselines):
    """Returns the names of the streams that vary among the runs without the library."""
    return [stream for stream in baselines[0]
            if Expected([run.get(stream, []) for run in baselines]).varies]


def brief(found):
    """Returns the first few differences as text, for a report."""
    lines = [f"{stream}: {line}"[:LONGEST] for stream, line in found]
    return lines[:SHOWN] + ([f"and {len(lines) - SHOWN} more"] if len(lines) > SHOWN else [])
