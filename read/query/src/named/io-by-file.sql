-- calls, bytes and time of read and write for each file, by the path with which its descriptor was opened; most time first
-- rows: 20
-- needs: libc:open
-- needs: libc:openat
-- needs: libc:fopen
-- needs: libc:freopen
-- needs: libc:read
-- needs: libc:write
-- needs: libc:close
-- needs: libc:fclose
-- needs: libc:close_range
-- needs: libc:dup
-- needs: libc:pipe
-- needs: libc:socket
-- needs: libc:socketpair
-- needs: libc:accept
-- needs: libc:fork_begin
-- needs: libc:fork_child
-- Descriptors 0, 1 and 2 are the standard streams until the process opens them anew. A forked child has the descriptors of its parent. One that was
-- not opened in the trace, or not by a call that is traced, has no path.
with calls as (
    select time, process, pid, null as first, null as last, fd, null as oldfd, path, '' as call, 0 as bytes, null as call_ns, null as number, null as parent /*+, host*/ from "libc:open"
    union all
    select time, process, pid, null as first, null as last, fd, null as oldfd, path, '' as call, 0 as bytes, null as call_ns, null as number, null as parent /*+, host*/ from "libc:openat"
    union all
    select time, process, pid, null as first, null as last, fd, null as oldfd, path, '' as call, 0 as bytes, null as call_ns, null as number, null as parent /*+, host*/ from "libc:fopen"
    union all
    -- Without a path, the same file with another mode.
    select time, process, pid, oldfd as first, oldfd as last, fd, case when path = '' then oldfd end as oldfd, nullif(path, '') as path, '' as call, 0 as bytes, null as call_ns, null as number, null as parent /*+, host*/ from "libc:freopen"
    union all
    select time, process, pid, null as first, null as last, fd, null as oldfd, null as path, 'read' as call, greatest(result, 0) as bytes, duration_ns as call_ns, null as number, null as parent /*+, host*/ from "libc:read"
    union all
    select time, process, pid, null as first, null as last, fd, null as oldfd, null as path, 'write' as call, greatest(result, 0) as bytes, duration_ns as call_ns, null as number, null as parent /*+, host*/ from "libc:write"
    union all
    -- Only EBADF leaves a descriptor as it was.
    select time, process, pid, case when result <> -9 then fd end as first, fd as last, null as fd, null as oldfd, null as path, '' as call, 0 as bytes, null as call_ns, null as number, null as parent /*+, host*/ from "libc:close"
    union all
    select time, process, pid, fd as first, fd as last, null as fd, null as oldfd, null as path, '' as call, 0 as bytes, null as call_ns, null as number, null as parent /*+, host*/ from "libc:fclose"
    union all
    -- CLOSE_RANGE_CLOEXEC (4) closes nothing yet.
    select time, process, pid, case when result = 0 and (flags & 4) = 0 then first end as first, last, null as fd, null as oldfd, null as path, '' as call, 0 as bytes, null as call_ns, null as number, null as parent /*+, host*/
    from "libc:close_range"
    union all
    select time, process, pid, null as first, null as last, fd, oldfd, null as path, '' as call, 0 as bytes, null as call_ns, null as number, null as parent /*+, host*/ from "libc:dup"
    union all
    select time, process, pid, null as first, null as last, read_fd as fd, null as oldfd, '' as path, '' as call, 0 as bytes, null as call_ns, null as number, null as parent /*+, host*/ from "libc:pipe"
    union all
    select time, process, pid, null as first, null as last, write_fd as fd, null as oldfd, '' as path, '' as call, 0 as bytes, null as call_ns, null as number, null as parent /*+, host*/ from "libc:pipe"
    union all
    select time, process, pid, null as first, null as last, fd, null as oldfd, '' as path, '' as call, 0 as bytes, null as call_ns, null as number, null as parent /*+, host*/ from "libc:socket"
    union all
    select time, process, pid, null as first, null as last, fd, null as oldfd, '' as path, '' as call, 0 as bytes, null as call_ns, null as number, null as parent /*+, host*/ from "libc:socketpair"
    union all
    select time, process, pid, null as first, null as last, other_fd as fd, null as oldfd, '' as path, '' as call, 0 as bytes, null as call_ns, null as number, null as parent /*+, host*/ from "libc:socketpair"
    union all
    select time, process, pid, null as first, null as last, fd, null as oldfd, '' as path, '' as call, 0 as bytes, null as call_ns, null as number, null as parent /*+, host*/ from "libc:accept"
    union all
    select time, process, pid, null as first, null as last, null as fd, null as oldfd, null as path, '' as call, 0 as bytes, null as call_ns, number, null as parent /*+, host*/ from "libc:fork_begin"
    union all
    select time, process, pid, null as first, null as last, null as fd, null as oldfd, null as path, '' as call, 0 as bytes, null as call_ns, number, parent /*+, host*/ from "libc:fork_child"
), known as (
    select process, pid, fd, call, bytes, call_ns,
           descriptor_path(first, last, fd, oldfd, path, pid, number, parent) over (/*+ partition by host*/ order by time) as path /*+, host*/
    from calls
)
select process, pid,
       case path when '' then 'descriptor ' || fd || ' (pipe or socket)'
                 else coalesce(path, 'descriptor ' || fd || ' (opening not traced)') end as file,
       count(*) filter (where call = 'read') as reads,
       sum(bytes) filter (where call = 'read') as bytes_read,
       count(*) filter (where call = 'write') as writes,
       sum(bytes) filter (where call = 'write') as bytes_written,
       duration_text(sum(call_ns)) as took,
       sum(call_ns) as took_ns /*+, host*/
from known
where call in ('read', 'write')
group by 1, 2, 3 /*+, host*/
order by took_ns desc, file, pid /*+, host*/
