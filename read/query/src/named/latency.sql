-- durations of all pairs by name: count, median, 99th percentile, longest, sum
-- Names are those of the table pairs: X for X_begin and X_end, system calls, held locks, open files.
select name,
       count(*) as count,
       duration_text(quantile(duration_ns, 0.5)) as p50,
       duration_text(quantile(duration_ns, 0.99)) as p99,
       duration_text(max(duration_ns)) as longest,
       duration_text(sum(duration_ns)) as total
from pairs
group by name
order by sum(duration_ns) desc, name
