"""rank.py NUMBER RANKS FAULT: a rank that makes steps with a collective. In step 20, the fault happens in rank 2:

gil    the main thread waits for the GIL, while another thread sleeps and holds the GIL
queue  the main thread waits for room in a queue from which no thread takes anything
"""

import ctypes
import os
import queue
import sys
import threading

nccl = ctypes.CDLL("libnccl.so.2")
cuda = ctypes.CDLL("libcudart.so.12")
UniqueId = ctypes.c_char * 128


class Identifier(ctypes.Structure):
    _fields_ = [("internal", UniqueId)]


def hold_gil():
    """Sleeps in a C function that is called through PyDLL, so the thread keeps the GIL."""
    ctypes.PyDLL(None).pause()


def start_holder():
    threading.Thread(target=hold_gil, name="holder").start()


def pass_on():
    results = queue.Queue(1)
    while True:
        results.put(None)


FAULTS = {"gil": start_holder, "queue": pass_on}


def step(comm):
    nccl.ncclAllReduce(None, None, ctypes.c_size_t(1024), 7, 0, comm, None)
    cuda.cudaStreamSynchronize(None)


def main():
    rank, ranks = int(sys.argv[1]), int(sys.argv[2])
    cuda.cudaFree(None)
    cuda.cudaStreamSynchronize(None)
    comm = ctypes.c_void_p()
    # The ranks of each run share a file, so its inode number makes the identifier of the communicator unique.
    inode = os.stat(os.environ["HANG_SHARED"]).st_ino
    identifier = Identifier()
    ctypes.memmove(ctypes.addressof(identifier) + 8, inode.to_bytes(8, "little"), 8)
    nccl.ncclCommInitRank(ctypes.byref(comm), ranks, identifier, rank)
    for number in range(100000):
        if number == 20 and rank == 2:
            FAULTS[sys.argv[3]]()
        step(comm)


main()
