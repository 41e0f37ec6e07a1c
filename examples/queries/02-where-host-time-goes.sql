-- Where does the time of the host go? The causes of all windows, with their part of the run's time.
with causes as (
    select run, kind, cause, sum(time_ns) as ns from ledger where side = 'host' group by all
)
select run, kind, cause, ns / 1e6 as ms, ns / sum(ns) over (partition by run) as share
from causes order by run, ns desc limit 50;
