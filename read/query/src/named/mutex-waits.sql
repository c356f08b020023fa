-- waits for mutexes: which thread waited, how long, and which thread held the mutex when the wait began
-- rows: 20
-- needs: libc:mutex_lock_begin
-- needs: libc:mutex_lock
-- A holder of 0: the mutex was given back at this moment, or glibc does not know the thread.
with begun as (
    select time, pid, tid, owner as holder /*+, host*/ from "libc:mutex_lock_begin"
)
select process, pairs.pid, to_hex(split_part(key, ', ', 3)::bigint) as mutex, pairs.tid as waiter, holder as holder,
       count(*) as waits,
       duration_text(sum(duration_ns)) as waited,
       duration_text(max(duration_ns)) as longest,
       sum(duration_ns) as waited_ns /*+, pairs.host*/
from pairs
join begun on time = begin_time and begun.pid = pairs.pid and begun.tid = pairs.tid /*+ and begun.host = pairs.host*/
where name = 'libc:mutex wait'
group by 1, 2, 3, 4, 5 /*+, pairs.host*/
order by waited_ns desc, pairs.pid, mutex, waiter, holder /*+, pairs.host*/
