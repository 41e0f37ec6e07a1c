"""Reads the contents of an nsys capture from its SQLite export."""
import re
import sqlite3
from collections import Counter
from dataclasses import dataclass

# Names of equal calls, without version suffixes and per-thread-stream forms.
KINDS = {
    "graph launch": ("cudaGraphLaunch", "cuGraphLaunch"),
    "kernel launch": ("cudaLaunchKernel", "cuLaunchKernel", "cudaLaunchKernelExC", "cuLaunchKernelEx",
                      "cudaLaunchCooperativeKernel", "cuLaunchCooperativeKernel"),
    "stream wait": ("cudaStreamSynchronize", "cuStreamSynchronize"),
    "event wait": ("cudaEventSynchronize", "cuEventSynchronize"),
    # The kind is taken from the call's name, and not from the copy's record, because nsys lacks
    # some of these records (246 copies of JAX, while XLA tries out its kernels).
    "read": ("cuMemcpyDtoHAsync",),
    "asynchronous copy": ("cudaMemcpyAsync", "cuMemcpyAsync"),
}
KIND_OF = {name: kind for kind, names in KINDS.items() for name in names}
DEVICE_TO_HOST = 2  # CUPTI_ACTIVITY_MEMCPY_KIND_DTOH
NVTX_MARK, NVTX_DOMAIN = 34, 75  # event types; ranges have 59 (push/pop) and 60 (start/end)
NVTX_RANGES = (59, 60)


def plain(name):
    """Returns the plain name: cudaGraphLaunch_ptsz_v10000 -> cudaGraphLaunch, cuMemcpyDtoHAsync_v2 ->
    cuMemcpyDtoHAsync."""
    return re.sub(r"(_ptsz|_ptds|_v\d+)*$", "", name).lstrip("_")


def process(thread):
    """Returns the process of a globalTid: all bits but those of the thread's number."""
    return None if thread is None else thread >> 24


@dataclass(frozen=True)
class Call:
    start: int
    end: int
    kind: str
    thread: int


@dataclass(frozen=True)
class Range:
    start: int
    end: object  # None: the range never ended
    text: str


class Trace:
    """The contents of a capture. calls: the program's own calls of a known kind, by start. marks: (ns, N). ranges:
    those of our domain. steps: N of each range `step N` that the program opens itself. graphs: executions of whole
    graphs on the GPU. grids: number of blocks in x of each kernel that ran outside a graph."""

    def __init__(self, path):
        with sqlite3.connect(f"file:{path}?mode=ro", uri=True) as self._db:
            # A text may be from the process's environment, in any encoding.
            self._db.text_factory = lambda text: text.decode(errors="replace")
            self._tables = {name for (name,) in self._db.execute("SELECT name FROM sqlite_master")}
            self._strings = dict(self._rows("StringIds", "id", "value"))
            self.calls = self._calls()
            self.threads = {thread: self._strings.get(name) for thread, name in
                            self._rows("ThreadNames", "globalTid", "nameId")}
            self.marks, self.ranges, self.steps = self._nvtx()
            self.graphs, self.grids = self._gpu()
        self._db.close()

    def _rows(self, table, *columns):
        """Returns these columns of a table. A missing column is None, and a missing table has no rows."""
        if table not in self._tables:
            return []
        there = {row[1] for row in self._db.execute(f"PRAGMA table_info({table})")}
        wanted = ", ".join(column if column in there else "NULL" for column in columns)
        return self._db.execute(f"SELECT {wanted} FROM {table}").fetchall()

    def _calls(self):
        reads = {correlation for correlation, kind in
                 self._rows("CUPTI_ACTIVITY_KIND_MEMCPY", "correlationId", "copyKind") if kind == DEVICE_TO_HOST}
        rows = []
        for table in ("CUPTI_ACTIVITY_KIND_RUNTIME", "CUPTI_ACTIVITY_KIND_DRIVER"):
            rows += self._rows(table, "start", "end", "globalTid", "nameId", "correlationId")
        # A runtime call encloses the driver call that it makes. Both together are one call of the program.
        rows.sort(key=lambda row: (row[0], -row[1]))
        calls, enclosing = [], {}
        for start, end, thread, name, correlation in rows:
            if end <= enclosing.get(thread, -1):
                continue
            enclosing[thread] = end
            kind = KIND_OF.get(plain(self._strings.get(name, "")))
            if kind == "asynchronous copy":
                kind = "read" if correlation in reads else None
            if kind:
                calls.append(Call(start, end, kind, thread))
        return calls

    def _nvtx(self):
        rows = self._rows("NVTX_EVENTS", "start", "end", "eventType", "text", "textId", "domainId", "globalTid")
        # Each process numbers its domains from 1.
        domains = {(domain, process(thread)): text or self._strings.get(text_id)
                   for _, _, kind, text, text_id, domain, thread in rows if kind == NVTX_DOMAIN}
        marks, ranges, steps = [], [], []
        for start, end, kind, text, text_id, domain, thread in rows:
            text, of = text or self._strings.get(text_id) or "", domains.get((domain, process(thread)))
            # If a capture begins after a domain was created, the report may lack the domain's name.
            if kind == NVTX_MARK and of in ("truth", None):
                found = re.fullmatch(r"truth (-?\d+)", text)
                if found:
                    marks.append((start, int(found.group(1))))
            elif kind in NVTX_RANGES and text.startswith("step "):
                steps.append(int(text.split()[1]))
            elif kind in NVTX_RANGES and of in ("tllmprof", None):
                ranges.append(Range(start, end, text))
        return sorted(marks), sorted(ranges, key=lambda r: r.start), sorted(steps)

    def _gpu(self):
        # With --cuda-graph-trace=graph, nsys has one record for a whole graph. With =node, it has a
        # record for each kernel of the graph, with the correlation id of the graph's launch.
        graphs = [correlation for (correlation,) in self._rows("CUPTI_ACTIVITY_KIND_GRAPH_TRACE", "correlationId")]
        in_graph, grids = set(), []
        for correlation, grid, node in self._rows("CUPTI_ACTIVITY_KIND_KERNEL", "correlationId", "gridX", "graphNodeId"):
            if node:
                in_graph.add(correlation)
            else:
                grids.append(grid)
        return len(graphs) + len(in_graph - set(graphs)), sorted(grids)

    def count(self, kind):
        return sum(call.kind == kind for call in self.calls)

    def by_thread(self, kind):
        """Returns the number that each thread made, in words; nothing if one thread made all."""
        made = Counter(call.thread for call in self.calls if call.kind == kind)
        if len(made) < 2:
            return ""
        return ", ".join(f"{n} by {self.threads.get(thread) or thread}" for thread, n in made.most_common())
