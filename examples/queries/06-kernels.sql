-- Which kernels take the time? Covers only the iterations in which kernels were recorded.
with by_name as (
    select name, count(*) as n, sum(dur_ns) as ns from kernels where iteration is not null group by all
)
select name, n, n / (select count(*) from iterations where kernels > 0) as a_step, ns / n / 1e3 as mean_us, ns / 1e6 as ms,
       ns / sum(ns) over () as share
from by_name order by ns desc limit 30;
