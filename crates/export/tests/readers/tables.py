"""Prints the contents of the tables of an export as DuckDB reads them, as JSON: tables.py FOLDER

The queries are those that docs/export.md recommends.
"""

import json
import os
import sys

import duckdb

folder = sys.argv[1]
database = duckdb.connect()
for table in os.listdir(folder):
    files = f"{folder}/{table}/**/*.parquet"
    database.execute(f"create view {table} as from read_parquet('{files}', hive_partitioning=true)")


def rows(sql):
    answer = database.execute(sql)
    names = [column[0] for column in answer.description]
    return [dict(zip(names, row)) for row in answer.fetchall()]


# These functions return SQL. `number` and `yes` are for one argument of an event: the result is a text such as
# `bytes=4` or `cut=true`, or null if the event does not have the argument. `args` joins such texts into one, in the
# order in which they are given.
args = lambda *all: "concat_ws(' ', " + ", ".join(all) + ")"
number = lambda name: f"'{name}=' || {name}"
yes = lambda name: f"case when {name} then '{name}=true' end"

seen = rows(f"""
    select host, 'windows' as track, 'window ' || first || '-' || last as name, 'window' as category, start_ns,
           dur_ns, {args(yes("cut"))} as args from windows where kind = 'window'
    union all by name
    select host, 'kernels taken' as track, 'window ' || first || '-' || last as name, 'window' as category, start_ns,
           dur_ns, {args(yes("cut"))} as args from windows where kind = 'kernels'
    union all by name
    select host, 'iterations' as track, 'iteration ' || n as name, 'iteration' as category, start_ns, dur_ns,
           {args(yes("cut"), "'iteration=' || n")} as args from iterations
    union all by name
    select host, threads.name as track, calls.name, 'cuda' as category, start_ns, dur_ns,
           {args(yes("capturing"), yes("cut"), yes("failed"), number("iteration"),
                 "'stream=' || nullif(stream, 0)")} as args
    from calls join threads using (host, rank, pid, thread)
    union all by name
    select host,
           case when kind like 'GIL%' then 'GIL, ' || threads.name
                when kind = 'range start/end' then 'NVTX start/end, ' || threads.name
                else threads.name end as track,
           case when kind = 'GIL forced' then 'GIL given up on demand'
                when kind = 'dropped' then 'events dropped'
                when kind = 'gc' then 'Python GC ' || events.name
                else coalesce(events.name, kind) end as name,
           case when kind like 'GIL%' then 'gil' when kind = 'function' then 'python'
                when kind in ('gc', 'dropped') then kind else 'nvtx' end as category,
           start_ns, dur_ns,
           {args("case kind when 'gc' then 'collected=' || value end", yes("cut"), number("domain"),
                 "case kind when 'dropped' then 'events=' || value end", yes("failed"), number("iteration"))} as args
    from events join threads using (host, rank, pid, thread)
    union all by name
    select host, 'samples, ' || threads.name as track,
           case kind when 'rejected' then kind when 'no python' then 'in no Python function' else function end ||
           case when kind <> 'rejected' and state <> 'running' then ', ' || state else '' end as name,
           'sample' as category, start_ns, null::bigint as dur_ns, {args(number("iteration"))} as args
    from samples join threads using (host, rank, pid, thread)
    union all by name
    select host, 'GPU ' || device || ' stream ' || stream || ' iterations' as track, 'iteration ' || iteration as name,
           'gpu' as category, start_ns, dur_ns, {args(number("iteration"))} as args from gpu_spans
    union all by name
    select host, 'GPU ' || device || ' stream ' || stream as track, name, 'kernel' as category, start_ns, dur_ns,
           {args(number("correlation"), number("iteration"), number("scope"))} as args from kernels
    union all by name
    select host, 'GPU ' || device || ' stream ' || stream as track,
           case kind when 'memset' then kind else 'memcpy ' || kind end as name,
           case kind when 'memset' then kind else 'memcpy' end as category, start_ns, dur_ns,
           {args(number("bytes"), number("iteration"))} as args from copies
""")
json.dump({
    "seen": seen,
    "metrics": rows("select host, pid, device, metric, unit, start_ns, dur_ns, value from metrics order by all"),
    "experts": rows("from experts"),
    "ledger": sorted((list(row.values()) for row in rows(
        "select pid, first, last, side, kind, cause, time_ns, round(share * 1e9)::bigint as share from ledger")), key=lambda row: json.dumps(row, separators=(",", ":"))),
    "stacks": rows("select stack, count(*) as samples from samples where kind = 'python' group by all order by samples desc, stack"),
    "processes": rows("from processes order by all"),
    "iterations": rows("from iterations order by all"),
    "kinds": rows("select name, kind, count(*) as calls from calls group by all order by all"),
    # Shows that these columns are whole numbers and booleans, not text.
    "types": rows("select typeof(start_ns) as start, typeof(failed) as failed, typeof(rank) as rank from calls limit 1"),
}, sys.stdout)
