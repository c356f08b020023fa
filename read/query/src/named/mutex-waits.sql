-- waits for mutexes: which thread waited, how long, and which thread held the mutex when the wait began
-- rows: 20
-- needs: libc:mutex_lock_begin
-- needs: libc:mutex_lock
-- Names of threads are their last ones, or those of their processes. A holder of 0: the mutex was given back at this moment, or glibc does not know the thread.
with begun as (
    select time, pid, tid, owner as holder /*+, host*/ from "libc:mutex_lock_begin"
), names as (
    select pid, tid, max(coalesce(thread, process)) as thread /*+, host*/
    from pairs where name in ('libc:mutex wait', 'libc:mutex held')
    group by pid, tid /*+, host*/
)
select process, pairs.pid, to_hex(split_part(key, ', ', 3)::bigint) as mutex,
       pairs.tid as waiter, coalesce(pairs.thread, process) as waiter_name, holder as holder, names.thread as holder_name,
       count(*) as waits,
       duration_text(sum(duration_ns)) as waited,
       duration_text(max(duration_ns)) as longest,
       sum(duration_ns) as waited_ns /*+, pairs.host*/
from pairs
join begun on time = begin_time and begun.pid = pairs.pid and begun.tid = pairs.tid /*+ and begun.host = pairs.host*/
left join names on names.pid = pairs.pid and names.tid = holder /*+ and names.host = pairs.host*/
where name = 'libc:mutex wait'
group by 1, 2, 3, 4, 5, 6, 7 /*+, pairs.host*/
order by waited_ns desc, pairs.pid, mutex, waiter, holder /*+, pairs.host*/
