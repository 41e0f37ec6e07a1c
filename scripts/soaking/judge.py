"""Decides if a series of readings grows.

A leak grows all the time. Memory that is kept permanently is allocated early, and an allocator grows in jumps. So the
first half of a run is left out. A series grows if a line fitted to each of the last two quarters rises in both.
"""
import math
from dataclasses import dataclass

# Minimum number of memory readings in a quarter of a run.
LEAST = 5


@dataclass
class Growth:
    # minimum growth in the third quarter of the run; `last` is the growth in the last quarter
    third: float
    last: float

    def exceeds(self, bound):
        """Returns True if the growth is more than `bound` in half of the run."""
        return min(self.third, self.last) > bound / 2


def rise(points):
    """Returns the rise of a line fitted through (time, reading), from the first to the last point, minus two standard
    errors."""
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
    """Returns the difference between a series and another one at the times of the first. Both are in order of time."""
    over, at = [], 0
    for time, reading in points:
        while at + 1 < len(others) and others[at + 1][0] <= time:
            at += 1
        over.append((time, reading - others[at][1]))
    return over


def blur(points):
    """Returns the maximum error of a difference to a growing series: its growth between two of its readings."""
    longest = max((after[0] - before[0] for before, after in zip(points, points[1:])), default=0.0)
    whole = points[-1][0] - points[0][0]
    return max(0.0, rise(points)) / whole * longest if whole > 0 else 0.0
