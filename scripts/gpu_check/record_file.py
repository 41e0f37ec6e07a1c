"""Reads a built-in record with the command: its exported time line and its report (docs/export.md,
docs/report-json.md)."""
import json
from collections import Counter, defaultdict

from . import child, nsys


def output_of(command, *words, folder=None):
    """Returns the JSON that `tllmprof WORDS…` prints in this folder."""
    ended = child.run([command, *words], child.variables(), folder=folder)
    if ended.status != 0:
        raise nsys.Failed(f"tllmprof {words[0]}: {ended.why()}")
    return json.loads(ended.out)


def process_of(command, path):
    """Returns the record's process in `tllmprof report`."""
    return output_of(command, "report", "--json", path)["processes"][0]


def events(command, path):
    """Returns the events of a record's time line that have a duration, with `start` and `ns` in nanoseconds, and all
    other events."""
    found = output_of(command, "export", path, "--to", "chrome", "-o", "-")["traceEvents"]
    for event in found:
        if event["ph"] == "X":
            event["start"], event["ns"] = round(event["ts"] * 1000), round(event["dur"] * 1000)
    return found


class Record:
    """The contents of a record. kernels: (launch, ns, name), by their begin. inner: (first, last) iterations of each
    kernel window. of: the kernels that began from a kernel window's opening until the next one. refused: what the
    library logged as impossible. dropped: number of events."""

    def __init__(self, command, path):
        process = process_of(command, path)
        self.refused, self.dropped = process["refused"], process["dropped"]
        self.read(events(command, path))

    def read(self, found):
        tracks = {event["tid"]: event["args"]["name"] for event in found if event["name"] == "thread_name"}
        kernels = sorted((event["start"], event["args"].get("correlation", 0), event["ns"], event["name"])
                         for event in found if event.get("cat") == "kernel")
        windows = sorted((event["start"], event["name"]) for event in found
                         if event.get("cat") == "window" and tracks[event["tid"]] == "kernels taken"
                         and not event["name"].endswith("-"))  # such a window never closed
        self.kernels = [(launch, ns, name) for _, launch, ns, name in kernels]
        self.inner = [tuple(int(edge) for edge in name.removeprefix("window ").split("-")) for _, name in windows]
        edges = [start for start, _ in windows] + [float("inf")]
        self.of = [[(launch, ns, name) for at, launch, ns, name in kernels if opened <= at < following]
                   for opened, following in zip(edges, edges[1:])]

    def counts(self, window):
        return Counter(name for _, _, name in self.of[window])


def spans(found):
    """Returns {iteration: [(ns, cut)]} of the GPU's work, from a time line's events."""
    of = defaultdict(list)
    for event in found:
        if event.get("cat") == "gpu":
            of[event["args"]["iteration"]].append((event["ns"], bool(event["args"].get("cut"))))
    return of
