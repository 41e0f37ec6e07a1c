-- Which ranks are slow? Durations of the iterations that count (`qualifies`), by process, with the slowest median first.
select run, host, rank, pid, count(*) as iterations, median(dur_ns) / 1e6 as p50_ms, quantile_disc(dur_ns, 0.99) / 1e6 as p99_ms
from iterations where qualifies
group by all order by p50_ms desc limit 50;
