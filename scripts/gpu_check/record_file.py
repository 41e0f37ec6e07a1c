"""Reads tllmprof's records with the tllmprof command: the exported time line, and the report (docs/export.md,
docs/report-json.md)."""
import json
from collections import Counter, defaultdict

from . import child, nsys


def output_of(command, *words, folder=None):
    """Runs `tllmprof WORDS…` in this folder. Returns the JSON that it prints."""
    ended = child.run([command, *words], child.variables(), folder=folder)
    if ended.status != 0:
        raise nsys.Failed(f"tllmprof {words[0]}: {ended.why()}")
    return json.loads(ended.out)


def process_of(command, path):
    """Returns the first process in the report of this record."""
    return output_of(command, "report", "--json", path)["processes"][0]


def events(command, path):
    """Returns all events in the time line of a record. Events with a duration get `start` and `ns`, in
    nanoseconds."""
    found = output_of(command, "export", path, "--to", "chrome", "-o", "-")["traceEvents"]
    for event in found:
        if event["ph"] == "X":
            event["start"], event["ns"] = round(event["ts"] * 1000), round(event["dur"] * 1000)
    return found


class Record:
    """The contents of a record. kernels: (launch, ns, name) in the order of their start. inner: (first, last)
    iteration of each kernel window, in which kernels are recorded. of: for each kernel window, the kernels that
    began after it opened and before the next one did. refused: the library's message if it could not record kernels.
    dropped: number of lost events."""

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
                         # if the recording of kernels never ended, the event's name ends with "-"
                         and not event["name"].endswith("-"))
        self.kernels = [(launch, ns, name) for _, launch, ns, name in kernels]
        self.inner = [tuple(int(edge) for edge in name.removeprefix("window ").split("-")) for _, name in windows]
        edges = [start for start, _ in windows] + [float("inf")]
        self.of = [[(launch, ns, name) for at, launch, ns, name in kernels if opened <= at < following]
                   for opened, following in zip(edges, edges[1:])]

    def counts(self, window):
        return Counter(name for _, _, name in self.of[window])


def spans(found):
    """Returns the GPU's work in a time line's events, by iteration: {iteration: [(duration in ns, True if the
    window's end cut it)]}."""
    of = defaultdict(list)
    for event in found:
        if event.get("cat") == "gpu":
            of[event["args"]["iteration"]].append((event["ns"], bool(event["args"].get("cut"))))
    return of
