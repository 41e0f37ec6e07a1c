"""Reads an nsys capture from its SQLite export: calls, marks, ranges, graphs and kernels."""
import re
import sqlite3
from collections import Counter
from dataclasses import dataclass

# The kinds of calls, each with the names of the calls of that kind. The names are without version suffixes and
# suffixes of per-thread streams.
KINDS = {
    "graph launch": ("cudaGraphLaunch", "cuGraphLaunch"),
    "kernel launch": ("cudaLaunchKernel", "cuLaunchKernel", "cudaLaunchKernelExC", "cuLaunchKernelEx",
                      "cudaLaunchCooperativeKernel", "cuLaunchCooperativeKernel"),
    "stream wait": ("cudaStreamSynchronize", "cuStreamSynchronize"),
    "event wait": ("cudaEventSynchronize", "cuEventSynchronize"),
    # This call always reads from the GPU, so nsys's record of the copy is not needed. nsys lacks some of these records.
    # (For JAX, nsys lacked 246 records, from the time when XLA tries out its kernels.) A call of cudaMemcpyAsync counts
    # as a read if nsys has a record of a copy from the GPU.
    "read": ("cuMemcpyDtoHAsync",),
    "asynchronous copy": ("cudaMemcpyAsync", "cuMemcpyAsync"),
}
KIND_OF = {name: kind for kind, names in KINDS.items() for name in names}
DEVICE_TO_HOST = 2  # CUPTI_ACTIVITY_MEMCPY_KIND_DTOH
NVTX_MARK, NVTX_DOMAIN = 34, 75  # types of events in nsys's table: a mark, and the creation of a domain
NVTX_RANGES = (59, 60)


def plain(name):
    """Returns a call's name without suffixes: cudaGraphLaunch_ptsz_v10000 -> cudaGraphLaunch, cuMemcpyDtoHAsync_v2
    -> cuMemcpyDtoHAsync."""
    return re.sub(r"(_ptsz|_ptds|_v\d+)*$", "", name).lstrip("_")


def process(thread):
    """Returns the process of one of nsys's globalTid numbers, whose lower 24 bits are the thread."""
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
    end: object  # None if the range never ended
    text: str


class Trace:
    """The contents of a capture. calls: the program's own calls whose kind is in KINDS, by start. marks: (ns, N) of
    the marks "truth N". ranges: the ranges of tllmprof's NVTX domain. steps: N of each range `step N` that the
    program itself opens. graphs: number of whole graphs that the GPU ran. grids: the number of blocks in x of each
    kernel that ran outside a graph."""

    def __init__(self, path):
        with sqlite3.connect(f"file:{path}?mode=ro", uri=True) as self._db:
            # A text may come from the environment of the recorded process, in any encoding.
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
        """Returns these columns of a table's rows. A column that the table lacks is None. A table that the export
        lacks has no rows."""
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
        # If a driver call is made by a runtime call, both together count as one call of the program.
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
        # Domain numbers are only unique within a process, so the process is part of the key.
        domains = {(domain, process(thread)): text or self._strings.get(text_id)
                   for _, _, kind, text, text_id, domain, thread in rows if kind == NVTX_DOMAIN}
        marks, ranges, steps = [], [], []
        for start, end, kind, text, text_id, domain, thread in rows:
            text, of = text or self._strings.get(text_id) or "", domains.get((domain, process(thread)))
            # If a capture begins after a domain was created, the export may lack the domain's name.
            # So marks and ranges whose domain has no name are also taken for those of the wanted
            # domain.
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
        # With --cuda-graph-trace=graph, nsys writes one record for a whole graph. With =node, it writes a record
        # for each kernel of the graph, all with the correlation id of the graph's launch.
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
        """Describes how many calls of this kind each thread made. Returns an empty text if one thread made all."""
        made = Counter(call.thread for call in self.calls if call.kind == kind)
        if len(made) < 2:
            return ""
        return ", ".join(f"{n} by {self.threads.get(thread) or thread}" for thread, n in made.most_common())
