-- Did it become faster? Compares each rank's median between all pairs of runs. `tllmprof compare` also says how certain a difference is.
with by_rank as (
    select run, rank, median(dur_ns) as p50 from iterations where qualifies group by all
)
select base.run as base, other.run as other, rank, base.p50 / 1e6 as base_ms, other.p50 / 1e6 as other_ms,
       other.p50 / base.p50 - 1 as change
from by_rank as base join by_rank as other using (rank) where base.run < other.run
order by rank, base, other;
