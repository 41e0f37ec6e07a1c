-- What does a step ask of CUDA? Counts the calls per step by name, in the iterations of all windows.
with steps as (
    select run, rank, count(*) as steps from iterations group by all
), by_name as (
    select run, rank, name, kind, count(*) as n, sum(dur_ns) as ns from calls where iteration is not null group by all
)
select run, rank, name, kind, n / steps as a_step, ns / n / 1e3 as mean_us, ns / 1e6 as ms
from by_name join steps using (run, rank) order by run, rank, ns desc limit 50;
