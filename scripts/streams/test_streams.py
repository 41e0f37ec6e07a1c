"""Tests the recorder's marks and the packing of streams: python3 -m unittest discover -s scripts/streams -t
scripts"""
import glob
import gzip
import os
import subprocess
import sys
import tempfile
import unittest

sys.dont_write_bytecode = True
from streams import pack, record  # noqa: E402

MARKS = """
import ctypes, os, threading
mark = ctypes.CDLL(None).tllmprof_mark
for i in range(40):
    if i % 2:
        mark(i)
    else:
        thread = threading.Thread(target=mark, args=(i,))
        thread.start()
        thread.join()
if os.fork() == 0:
    mark(99)
    os._exit(0)
os.wait()
os._exit(7)
"""


def rows(content):
    return gzip.decompress(content).decode().split("\n")[:-1]


class Packing(unittest.TestCase):
    def pack(self, lines, most=10**6):
        with tempfile.NamedTemporaryFile("w", suffix=".csv") as file:
            file.write("\n".join([pack.HEADER, *lines, ""]))
            file.flush()
            return pack.pack(file.name, most)

    def test_handles_are_renamed_by_kind_and_sizes_are_kept(self):
        packed = self.pack([
            "0,0,launch,0x7f10,0x0", "5,0,launch_ex,0x7f20,0xa0", "9,0,launch,0x7f10,0xa0", "10,0,mark,0,",
            "11,1,event_record,0xa0,0xa0", "12,1,stream_wait_event,0xb0,0xa0", "13,1,memcpy_dtoh_async,64,0xb0",
            "14,1,stream_sync,0xb0,", "15,1,ctx_sync,,", "16,1,graph_launch,0xc0,0x0"])
        self.assertEqual(rows(packed.content), [
            pack.HEADER, "0,0,launch,f0,0", "5,0,launch_ex,f1,s0", "9,0,launch,f0,s0", "10,0,mark,0,",
            "11,1,event_record,e0,s0", "12,1,stream_wait_event,s1,e0", "13,1,memcpy_dtoh_async,64,s1",
            "14,1,stream_sync,s1,", "15,1,ctx_sync,,", "16,1,graph_launch,g0,0"])
        self.assertEqual((packed.calls, packed.iterations, packed.cut), (9, 1, False))

    def test_a_long_stream_is_cut_before_an_iteration(self):
        lines = []
        for i in range(2000):
            lines.append(f"{i * 7919},0,mark,{i},")
            lines += [f"{i * 7919 + j * j},0,launch,0x{i * j % 97:x}1,0x0" for j in range(9)]
        packed = self.pack(lines, most=20_000)
        self.assertLessEqual(len(packed.content), 20_000)
        self.assertTrue(packed.cut)
        kept = rows(packed.content)[1:]
        self.assertEqual(len(kept), packed.iterations * 10)
        self.assertGreater(packed.iterations, 100)


class Recorder(unittest.TestCase):
    def test_threads_are_merged_and_each_process_writes_its_own(self):
        with tempfile.TemporaryDirectory() as folder:
            variables = dict(os.environ, LD_PRELOAD=record.build_recorder(folder), STREAM_OUT=f"{folder}/%p.csv")
            done = subprocess.run([sys.executable, "-c", MARKS], env=variables, timeout=60)
            self.assertEqual(done.returncode, 7)
            streams = []
            for path in glob.glob(f"{folder}/*.csv"):
                with open(path) as file:
                    streams.append([line.split(",") for line in file.read().split()[1:]])
            child, parent = sorted(streams, key=len)
            self.assertEqual([row[2:4] for row in child], [["mark", "99"]])
            self.assertEqual([row[3] for row in parent], [str(i) for i in range(40)])
            self.assertEqual(len({row[1] for row in parent[1::2]}), 1)
            times = [int(row[0]) for row in parent]
            self.assertEqual(times, sorted(times))


if __name__ == "__main__":
    unittest.main()
