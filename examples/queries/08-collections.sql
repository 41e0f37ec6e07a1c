-- What do Python's garbage collections cost? Shows each generation, with the number of iterations that contain a collection.
select run, rank, name as generation, count(*) as collections, sum(dur_ns) / 1e6 as ms, max(dur_ns) / 1e6 as longest_ms,
       count(distinct iteration) as iterations_hit, sum(value) as collected
from events where kind = 'gc'
group by all order by ms desc;
