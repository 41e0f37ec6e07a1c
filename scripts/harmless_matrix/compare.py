"""Compares a run with runs without the library. Parts that vary among the latter may vary in the same way, and nothing
else may. A line that they all have must be there, and a line that none of them has must not."""
import difflib
import re
from collections import Counter

# An address may be written without 0x.
HEX = r"(?:0x[0-9a-fA-F]+|\b[0-9a-f]{8,}\b)"
TOKEN = re.compile(HEX + r"|[A-Za-z]+|\d+|\s+|.")
NUMBER = re.compile(HEX + r"|\d+(?:\.\d+)?")
SHOWN, LONGEST = 12, 200


def masked(line):
    return NUMBER.sub("#", line)


def class_of(tokens):
    """Returns a pattern for tokens that differ among the runs."""
    for pattern in (r"\d+", HEX, r"[A-Za-z]+", r"\s+"):
        if all(re.fullmatch(pattern, token) for token in tokens):
            return pattern
    return None


def pattern_of(lines):
    """Returns a pattern for one line that varies between runs; None if the runs have too little in common."""
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
    """The lines of one stream in the runs without the library."""

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
                    # Without the library, the line does not even have the same form in all runs, so any line is
                    # accepted.
                    self.is_free = True

    @property
    def varies(self):
        return any(lines != self.baselines[0] for lines in self.baselines)

    def rest(self, lines):
        """Returns the lines beyond those that all runs have."""
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
        """Returns an error if the lines have another order. Lines must keep their order if they keep it in all runs
        without the library."""
        def fixed(lines):
            return [line for line in lines if line in self.common and lines.count(line) == 1]
        if sum(map(len, self.baselines)) > 20000:
            return []
        orders = [fixed(baseline) for baseline in self.baselines]
        if any(order != orders[0] for order in orders) or fixed(lines) == orders[0]:
            return []
        return ["the same lines in another order"]


def differences(baselines, seen):
    """Returns the differences: [(stream, line)]. Each run is {stream: [line]}."""
    found = []
    for stream in sorted(set(seen).union(*baselines)):
        expected = Expected([run.get(stream, []) for run in baselines])
        found += [(stream, line) for line in expected.differences(seen.get(stream, []))]
    return found


def varying(baselines):
    """Returns the streams that are not the same in all runs."""
    return [stream for stream in baselines[0]
            if Expected([run.get(stream, []) for run in baselines]).varies]


def brief(found):
    """Returns a few of the lines, for a report."""
    lines = [f"{stream}: {line}"[:LONGEST] for stream, line in found]
    return lines[:SHOWN] + ([f"and {len(lines) - SHOWN} more"] if len(lines) > SHOWN else [])
