-- The slowest iterations, and what is known of each: its batch, the GPU's time, waits, collections.
select run, rank, n, dur_ns / 1e6 as ms, phase, requests, tokens, gpu_ns / 1e6 as gpu_ms, wait_ns / 1e6 as wait_ms,
       gc_ns / 1e6 as gc_ms, gil_wait_ns / 1e6 as gil_ms, delayed_ns / 1e6 as delayed_ms, kernels > 0 as kernels_recorded
from iterations where qualifies
order by dur_ns desc limit 20;
