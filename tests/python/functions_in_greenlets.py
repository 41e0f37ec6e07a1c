"""Two greenlets whose marked calls overlap without nesting. Prints the times at which each call began, was about to
return, and had returned."""
import time

import greenlet

hub = greenlet.getcurrent()
now = time.monotonic_ns


def short():
    times = [now()]
    hub.switch()
    times.append(now())
    return times


def long():
    times = [now()]
    hub.switch()
    hub.switch()
    times.append(now())
    return times


def run(function, number, found):
    times = function()
    found.append((number, times[0], times[1], now()))


for round in range(21):
    found = []
    one = greenlet.greenlet(lambda: run(short, 0, found))
    two = greenlet.greenlet(lambda: run(long, 1, found))
    one.switch()
    two.switch()
    one.switch()  # the call of `short` ends while that of `long`, which began later, is still open
    two.switch()
    two.switch()
    assert one.dead and two.dead
    if round > 0:
        for line in found:
            print("times", *line)
