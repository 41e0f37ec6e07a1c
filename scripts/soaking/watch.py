"""What a process holds, read from outside."""
import os
from dataclasses import dataclass


@dataclass(frozen=True)
class Kind:
    name: str
    unit: str
    bound: int  # by which it may grow in the second half of a run


# glibc's malloc keeps up to 128 KiB of freed memory at the end of a heap: two of these are no leak. The rest is counted,
# and one more comes and goes while a window is switched.
MEMORY = Kind("anonymous memory", " KiB", 256)
RESIDENT = Kind("resident memory", " KiB", 256)
DESCRIPTORS = Kind("descriptors", "", 2)
THREADS = Kind("threads", "", 2)
MAPPINGS = Kind("mappings", "", 8)
KINDS = (MEMORY, RESIDENT, DESCRIPTORS, THREADS, MAPPINGS)


def fields(path):
    with open(path) as file:
        return {line.split(":")[0]: line.split()[1] for line in file if line.count(":") == 1 and len(line.split()) > 1}


def read(pid):
    """A reading of each kind; None where the process is gone."""
    try:
        rollup = fields(f"/proc/{pid}/smaps_rollup")
        with open(f"/proc/{pid}/maps", "rb") as maps:
            mappings = maps.read().count(b"\n")
        return {
            MEMORY: int(rollup["Pss_Anon"]),
            RESIDENT: int(rollup["Pss"]),
            DESCRIPTORS: len(os.listdir(f"/proc/{pid}/fd")),
            THREADS: len(os.listdir(f"/proc/{pid}/task")),
            MAPPINGS: mappings,
        }
    except (OSError, KeyError):
        return None


def disk(path):
    """Bytes that a file takes, or would if it had no holes."""
    status = os.stat(path)
    return max(status.st_size, status.st_blocks * 512)
