-- How does the time of a step depend on its batch? Groups steps by phase, and by the number of tokens in powers of two.
select phase, 2 ** floor(log2(tokens)) as tokens_from, count(*) as iterations, median(dur_ns) / 1e6 as p50_ms,
       sum(tokens) / (sum(dur_ns) / 1e9) as tokens_per_second
from iterations where qualifies and tokens > 0
group by all order by phase, tokens_from;
