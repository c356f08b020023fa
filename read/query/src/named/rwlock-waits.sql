-- waits for read-write locks: which thread waited, how long, and which thread had locked it for writing when the wait began
-- rows: 20
-- needs: libc:rwlock_rdlock_begin
-- needs: libc:rwlock_rdlock
-- needs: libc:rwlock_wrlock_begin
-- needs: libc:rwlock_wrlock
-- A writer of 0: readers held the lock.
with begun as (
    select time, pid, tid, writer as holder, 'read' as access /*+, host*/ from "libc:rwlock_rdlock_begin"
    union all
    select time, pid, tid, writer, 'write' /*+, host*/ from "libc:rwlock_wrlock_begin"
)
select process, pairs.pid, to_hex(split_part(key, ', ', 3)::bigint) as rwlock, pairs.tid as waiter, access, holder as writer,
       count(*) as waits,
       duration_text(sum(duration_ns)) as waited,
       duration_text(max(duration_ns)) as longest,
       sum(duration_ns) as waited_ns /*+, pairs.host*/
from pairs
join begun on time = begin_time and begun.pid = pairs.pid and begun.tid = pairs.tid /*+ and begun.host = pairs.host*/
where name = 'libc:rwlock wait'
group by 1, 2, 3, 4, 5, 6 /*+, pairs.host*/
order by waited_ns desc, pairs.pid, rwlock, waiter, writer /*+, pairs.host*/
