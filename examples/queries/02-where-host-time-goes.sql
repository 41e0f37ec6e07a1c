-- Where does the time of the host go? Shows the causes in all windows, with their share of the host's time in the run.
with causes as (
    select run, kind, cause, sum(time_ns) as ns from ledger where side = 'host' group by all
)
select run, kind, cause, ns / 1e6 as ms, ns / sum(ns) over (partition by run) as share
from causes order by run, ns desc limit 50;
