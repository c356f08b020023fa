-- how long each thing takes that begins and ends: count, middle, 99th percentile, longest, sum
-- Things are the names of the table pairs: X of X_begin and X_end, system calls, locks that are held, files that are open.
select name,
       count(*) as count,
       duration_text(quantile(duration_ns, 0.5)) as p50,
       duration_text(quantile(duration_ns, 0.99)) as p99,
       duration_text(max(duration_ns)) as longest,
       duration_text(sum(duration_ns)) as total
from pairs
group by name
order by sum(duration_ns) desc, name
