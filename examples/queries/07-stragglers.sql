-- Who keeps the others waiting? Shows how often each rank was the slowest in iterations that several ranks have, and by how much.
with shared as (
    select run, n, rank, dur_ns, max(dur_ns) over step as slowest, min(dur_ns) over step as fastest, count(*) over step as ranks
    from iterations where qualifies
    window step as (partition by run, n)
)
select run, rank, count(*) filter (dur_ns = slowest and slowest > fastest) as slowest_in, count(*) as shared,
       avg(dur_ns - fastest) / 1e3 as behind_the_fastest_us
from shared where ranks > 1
group by all order by run, slowest_in desc;
