-- how long each file was open (io-by-file: how long its reads and writes took), by the path with which it was opened
-- rows: 20
-- needs: libc:open
-- needs: libc:openat
-- needs: libc:fopen
-- needs: libc:close
-- A file that is open when the trace ends, or that was opened before it, is not among them.
with opened as (
    select time, pid, fd, path /*+, host*/ from "libc:open"
    union all
    select time, pid, fd, path /*+, host*/ from "libc:openat"
    union all
    select time, pid, fd, path /*+, host*/ from "libc:fopen"
)
select process, pairs.pid, path as file,
       count(*) as opens,
       duration_text(max(duration_ns)) as longest,
       duration_text(sum(duration_ns)) as total,
       sum(duration_ns) as total_ns /*+, pairs.host*/
from pairs
join opened on time = begin_time and opened.pid = pairs.pid and split_part(key, ', ', 2) = fd::text /*+ and opened.host = pairs.host*/
where name = 'libc:file open'
group by 1, 2, 3 /*+, pairs.host*/
order by total_ns desc, file, pairs.pid /*+, pairs.host*/
