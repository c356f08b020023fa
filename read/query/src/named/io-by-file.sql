-- bytes and calls of read and write for each file, by the path that its descriptor was opened with
-- needs: libc:open
-- needs: libc:openat
-- needs: libc:read
-- needs: libc:write
-- needs: libc:close
-- A descriptor that was opened before the trace, or by means that are not traced, has no path.
with calls as (
    select time, process, pid, fd, path, 'open' as call, 0 as bytes /*+, host*/ from "libc:open" where fd >= 0
    union all
    select time, process, pid, fd, path, 'open', 0 /*+, host*/ from "libc:openat" where fd >= 0
    union all
    select time, process, pid, fd, null, 'read', greatest(result, 0) /*+, host*/ from "libc:read"
    union all
    select time, process, pid, fd, null, 'write', greatest(result, 0) /*+, host*/ from "libc:write"
    union all
    select time, process, pid, fd, '', 'close', 0 /*+, host*/ from "libc:close" where result = 0
), known as (
    select process, pid, fd, call, bytes, locf(path) over (partition by pid, fd /*+, host*/ order by time) as path /*+, host*/
    from calls
)
select process, pid, coalesce(nullif(path, ''), 'descriptor ' || fd) as file,
       count(*) filter (where call = 'read') as reads,
       sum(bytes) filter (where call = 'read') as bytes_read,
       count(*) filter (where call = 'write') as writes,
       sum(bytes) filter (where call = 'write') as bytes_written /*+, host*/
from known
where call in ('read', 'write')
group by 1, 2, 3 /*+, host*/
order by sum(bytes) desc, file, pid /*+, host*/
limit 20
