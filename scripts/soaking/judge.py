"""Decides if a series of readings of a resource, such as a process's memory, grows.

A leak grows all the time. Other memory is allocated early or in jumps. So the first half of a run is left out, and a
series counts as growing only if a line fitted to it rises both in the third and in the last quarter of the run."""
import math
from dataclasses import dataclass

# Minimum number of readings in a quarter of a run. With fewer readings, no growth is computed.
LEAST = 5


@dataclass
class Growth:
    # Growth in the third and in the last quarter of a run, in the unit of the readings. Both are
    # lower bounds: the rise of the fitted line minus two standard errors (see `rise`).
    third: float
    last: float

    def exceeds(self, bound):
        """Returns True if both quarters grow by more than half of `bound`."""
        return min(self.third, self.last) > bound / 2


def rise(points):
    """Fits a line through (time, reading). Returns its rise from the first to the last point, minus two standard
    errors, or 0 if that is negative."""
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
    """Subtracts a second series from the first, at the times of the first: (time, difference). Uses the latest reading
    of the second series. Both are in order of time."""
    over, at = [], 0
    for time, reading in points:
        while at + 1 < len(others) and others[at + 1][0] <= time:
            at += 1
        over.append((time, reading - others[at][1]))
    return over


def blur(points):
    """Returns the maximum error of `difference` if the second series grows: `points` is this series, and the error
    is its growth between two readings."""
    longest = max((after[0] - before[0] for before, after in zip(points, points[1:])), default=0.0)
    whole = points[-1][0] - points[0][0]
    return max(0.0, rise(points)) / whole * longest if whole > 0 else 0.0
