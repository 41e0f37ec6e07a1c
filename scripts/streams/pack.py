"""Makes a stream file (test data for the learner) from the output of recorder.c: replaces handles by small numbers
and compresses the file."""
import gzip
import io
from dataclasses import dataclass

# For each call: the types of its handles in the fields `arg` and `stream`, as letters (f: function, g: graph, s:
# stream, e: event). None: the field has no handle. Calls that are not listed have no handles in these fields.
HANDLES = {
    "launch": "fs", "launch_ex": "fs", "launch_cooperative": "fs", "graph_launch": "gs", "event_record": "es",
    "stream_wait_event": "se", "event_query": "e", "event_sync": "e", "event_sync_end": "e", "stream_sync": "s",
    "stream_sync_end": "s", "begin_capture": "s", "end_capture": "s", "memcpy_async": (None, "s"),
    "memcpy_htod_async": (None, "s"), "memcpy_dtoh_async": (None, "s"), "memcpy_htod": (None, "s"),
    "memcpy_dtoh": (None, "s"),
}
HEADER = "t_ns,thread,call,arg,stream"


@dataclass
class Packed:
    content: bytes
    calls: int
    iterations: int
    cut: bool


def renamed(lines):
    names = {}
    for line in lines:
        fields = line.rstrip("\n").split(",")
        for at, letter in enumerate(HANDLES.get(fields[2], ()), start=3):
            handle = fields[at]
            if letter is None or not handle.startswith("0x"):
                continue
            if handle == "0x0":
                fields[at] = "0"
            else:
                of_letter = names.setdefault(letter, {})
                fields[at] = f"{letter}{of_letter.setdefault(handle, len(of_letter)):x}"
        yield ",".join(fields)


def zipped(rows):
    out = io.BytesIO()
    with gzip.GzipFile(fileobj=out, mode="wb", compresslevel=9, mtime=0) as file:
        file.write("\n".join([HEADER, *rows, ""]).encode())
    return out.getvalue()


def pack(path, most_bytes):
    """Packs a stream. If the compressed stream is larger than `most_bytes`, cuts it at the start of an
    iteration."""
    with open(path) as file:
        next(file)
        rows = list(renamed(file))
    content, cut = zipped(rows), False
    while len(content) > most_bytes:
        cut = True
        keep = int(len(rows) * most_bytes / len(content) * 0.97)
        while keep > 0 and ",mark," not in rows[keep]:
            keep -= 1
        rows = rows[:keep]
        content = zipped(rows)
    iterations = sum(",mark," in row for row in rows)
    return Packed(content, len(rows) - iterations, iterations, cut)
