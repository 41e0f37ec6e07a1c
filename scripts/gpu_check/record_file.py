"""The built-in record (docs/format.md), as far as the GPU's work goes."""
import struct
from collections import Counter

HEADER, CHUNK, EVENT = 65536, 65536, 24
STRING, INFO, WINDOW, DROPPED, KERNEL, COPY, SET, KERNEL_WINDOW = 3, 4, 8, 17, 18, 19, 20, 21
REFUSED = 8


class Record:
    """kernels: (launch, ns, name) in the order of the record. inner: (first, last) iterations of each kernel window, and
    `of`: the kernels that began in each. refused: what the library said it would not do."""

    def __init__(self, path):
        with open(path, "rb") as file:
            data = file.read()
        self.strings, self.kernels, self.copies, self.sets, self.dropped = {}, [], Counter(), 0, 0
        edges, started, refused = [], [], []
        for at in range(HEADER, len(data) - 64, CHUNK):
            magic, _, _, used = struct.unpack_from("<IIII", data, at)
            if magic != 0x4B434C54:
                continue
            at, end = at + 64, at + 64 + used
            while at + EVENT <= min(end, len(data)):
                start, ticks, kind, flags, code, value = struct.unpack_from("<QIBBHQ", data, at)
                at += EVENT
                duration = ticks << (flags & 63)
                if kind == STRING:
                    self.strings[value & 0xFFFFFFFF] = data[at:at + code].decode(errors="replace")
                    at += -(-code // EVENT) * EVENT
                elif kind == KERNEL:
                    started.append((start, value >> 32, duration, value & 0xFFFFFFFF))
                elif kind == COPY:
                    self.copies[value >> 60] += 1
                elif kind == SET:
                    self.sets += 1
                elif kind == DROPPED:
                    self.dropped += value
                elif kind == KERNEL_WINDOW:
                    edges.append((start, code, value))
                elif kind == INFO and code == REFUSED:
                    refused.append(value)
        self.refused = [self.strings.get(text, "?") for text in refused]
        named = [(start, launch, ns, self.strings.get(name, "?")) for start, launch, ns, name in sorted(started)]
        self.kernels = [(launch, ns, name) for _, launch, ns, name in named]
        self.inner, self.of = [], []
        edges.sort()
        for (opened, kind, first), (_, closing, last) in zip(edges, edges[1:]):
            if (kind, closing) == (0, 1):
                following = min((at for at, other, _ in edges if other == 0 and at > opened), default=1 << 64)
                self.inner.append((first, last))
                self.of.append([(launch, ns, name) for at, launch, ns, name in named if opened <= at < following])

    def counts(self, window):
        return Counter(name for _, _, name in self.of[window])
