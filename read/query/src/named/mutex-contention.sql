-- mutexes that several threads take: how often, how long they are held, how often the taker changes
-- needs: libc:mutex_lock
-- needs: libc:mutex_unlock
-- Who waits for a condition (pthread_cond_wait) does not hold the mutex meanwhile: each time that it takes it again counts as a lock.
-- Calls are traced when they return, so how long a thread waited is not in the trace. `handovers` counts locks that came after one of another
-- thread; `soon` those of them that came within 50 microseconds of the unlock before, which is when a thread has probably waited.
with held as (
    select process, pid, key, tid, begin_time, end_time, duration_ns,
           lag(tid) over (partition by pid, key /*+, host*/ order by begin_time) as tid_before,
           lag(end_time) over (partition by pid, key /*+, host*/ order by begin_time) as end_before /*+, host*/
    from pairs
    where name = 'libc:mutex held'
)
select process, pid, to_hex(split_part(key, ', ', 2)::bigint) as mutex,
       count(*) as locks,
       count(distinct tid) as threads,
       count(*) filter (where tid <> tid_before) as handovers,
       count(*) filter (where tid <> tid_before and begin_time - end_before < interval '50 microseconds') as soon,
       duration_text(sum(duration_ns)) as held,
       duration_text(quantile(duration_ns, 0.99)) as p99,
       duration_text(max(duration_ns)) as longest /*+, host*/
from held
group by 1, 2, 3 /*+, host*/
having count(distinct tid) > 1
order by soon desc, handovers desc, locks desc, pid, mutex /*+, host*/
limit 20
