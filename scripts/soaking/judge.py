"""Whether a series of readings grows.

A leak grows all the time; what is kept for good is taken early, and an allocator takes more in jumps. So the first half of a
run is left out, and a series grows if it does so in both of the last quarters, by a line fitted to each.
"""
import math
from dataclasses import dataclass

# Minimum number of readings in a quarter.
LEAST = 5


@dataclass
class Growth:
    third: float  # growth in the third quarter of the run, at least; `last` is that of the last quarter
    last: float

    def exceeds(self, bound):
        """Whether it is more than `bound` in half of the run."""
        return min(self.third, self.last) > bound / 2


def rise(points):
    """By how much a line through (time, reading) rises from the first to the last, less two standard errors."""
    count = len(points)
    if count < LEAST:
        return 0.0
    mean_time = sum(time for time, _ in points) / count
    mean = sum(reading for _, reading in points) / count
    square = sum((time - mean_time) ** 2 for time, _ in points)
    slope = sum((time - mean_time) * (reading - mean) for time, reading in points) / square
    residue = sum((reading - mean - slope * (time - mean_time)) ** 2 for time, reading in points)
    error = math.sqrt(residue / (count - 2) / square)
    span = points[-1][0] - points[0][0]
    return max(0.0, slope - 2 * error) * span


def growth(points):
    begin, end = points[0][0], points[-1][0]
    half, three_quarters = begin + (end - begin) / 2, begin + (end - begin) * 3 / 4
    return Growth(rise([point for point in points if half <= point[0] < three_quarters]),
                  rise([point for point in points if point[0] >= three_quarters]))


def difference(points, others):
    """What a series has over another one, at the times of the first; both are in order of time."""
    over, at = [], 0
    for time, reading in points:
        while at + 1 < len(others) and others[at + 1][0] <= time:
            at += 1
        over.append((time, reading - others[at][1]))
    return over


def blur(points):
    """How far off a difference to a growing series may be: what it grows by between two of its readings, at most."""
    longest = max((after[0] - before[0] for before, after in zip(points, points[1:])), default=0.0)
    whole = points[-1][0] - points[0][0]
    return max(0.0, rise(points)) / whole * longest if whole > 0 else 0.0
