-- mutexes that several threads take: how often, how long threads wait for them, how long they hold them
-- rows: 20
-- needs: libc:mutex_lock_begin
-- needs: libc:mutex_lock
-- needs: libc:mutex_unlock
-- A thread that waits for a condition (pthread_cond_wait) does not hold the mutex meanwhile: each time that it takes it again counts as a lock.
-- `mutex-waits` tells which thread held a mutex while another waited.
with slices as (
    select process, pid, tid, coalesce(thread, process) || ' (' || tid || ')' as thread, split_part(key, ', ', 3) as lock, name = 'libc:mutex wait' as is_wait, duration_ns /*+, host*/
    from pairs
    where name in ('libc:mutex wait', 'libc:mutex held')
)
select process, pid, to_hex(lock::bigint) as mutex,
       count(*) filter (where not is_wait) as locks,
       count(distinct tid) as threads,
       count(*) filter (where is_wait) as waits,
       duration_text(sum(duration_ns) filter (where is_wait)) as waited,
       duration_text(quantile(duration_ns, 0.99) filter (where is_wait)) as p99_wait,
       duration_text(max(duration_ns) filter (where is_wait)) as longest_wait,
       first_value(thread order by duration_ns desc, tid) filter (where is_wait) as longest_waiter,
       duration_text(sum(duration_ns) filter (where not is_wait)) as held,
       duration_text(max(duration_ns) filter (where not is_wait)) as longest_hold,
       first_value(thread order by duration_ns desc, tid) filter (where not is_wait) as longest_holder /*+, host*/
from slices
group by process, pid, lock /*+, host*/
having count(distinct tid) > 1
order by coalesce(sum(duration_ns) filter (where is_wait), 0) desc, locks desc, pid, mutex /*+, host*/
