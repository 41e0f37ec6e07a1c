-- Why has the GPU nothing to do? Shows what the host does while the GPU is idle, with its share of the GPU's time.
with causes as (
    select run, kind, cause, sum(time_ns) as ns from ledger where side = 'gpu' group by all
), shares as (
    select *, ns / sum(ns) over (partition by run) as share from causes
)
select run, cause, ns / 1e6 as ms, share from shares where kind = 'idle' order by run, ns desc limit 50;
