"""Reads the resources that a process uses, from files in /proc."""
import os
from dataclasses import dataclass


@dataclass(frozen=True)
class Kind:
    name: str
    unit: str
    bound: int  # maximum growth in the second half of a run; more growth counts as a leak


# Kinds of resources, with units and bounds. glibc's malloc keeps up to 128 KiB of freed memory at the end of a heap,
# so growth by twice that is not a leak. While a window opens or closes, a process may have one more descriptor,
# thread or mapping.
MEMORY = Kind("anonymous memory", " KiB", 256)
RESIDENT = Kind("resident memory", " KiB", 256)
DESCRIPTORS = Kind("descriptors", "", 2)
THREADS = Kind("threads", "", 2)
MAPPINGS = Kind("mappings", "", 8)
KINDS = (MEMORY, RESIDENT, DESCRIPTORS, THREADS, MAPPINGS)


def mappings(pid):
    """Returns [(path, {name: KiB})] for the memory mappings of a process, from /proc/PID/smaps."""
    found = []
    with open(f"/proc/{pid}/smaps", errors="replace") as smaps:
        for line in smaps:
            first, *rest = line.split(maxsplit=5)
            if not first.endswith(":"):
                found.append((rest[4].rstrip("\n") if len(rest) > 4 else "", {}))
            elif rest[1:] == ["kB"]:
                found[-1][1][first[:-1]] = int(rest[0])
    return found


def is_record(path):
    """Returns True if the path is that of a record. Records are mapped, so their pages would count as the process's
    memory, but their sizes are watched separately."""
    return path.removesuffix(" (deleted)").endswith(".tllmprof")


def unreclaimable(path, count):
    """Returns the resident memory of a mapping in KiB, without unchanged pages of a file. The kernel may drop those at any
    time, and a program gets them as its code and tables are first used, which may be late on a busy machine."""
    clean = count.get("Shared_Clean", 0) + count.get("Private_Clean", 0) if path.startswith("/") else 0
    return count["Rss"] - clean


def read(pid):
    """Returns {kind: reading} for a process, or None if the process has ended or is ending. A process that is ending has
    closed its descriptors, and its memory is being freed, before it counts as ended."""
    try:
        mapped = mappings(pid)
        descriptors = len(os.listdir(f"/proc/{pid}/fd"))
        # Memory that several processes share is counted in full. The proportional share (PSS) would change whenever
        # another process starts or ends.
        counts = [(path, count) for path, count in mapped if not is_record(path)]
        return {
            MEMORY: sum(count["Anonymous"] for _, count in counts),
            RESIDENT: sum(unreclaimable(path, count) for path, count in counts),
            DESCRIPTORS: descriptors,
            THREADS: len(os.listdir(f"/proc/{pid}/task")),
            MAPPINGS: len(mapped),
        } if mapped and descriptors else None
    except (OSError, KeyError):
        return None


def disk(path):
    """Returns the bytes that a file takes on the disk, or its size if that is larger because the file has holes."""
    status = os.stat(path)
    return max(status.st_size, status.st_blocks * 512)
