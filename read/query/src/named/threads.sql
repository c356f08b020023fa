-- number of events of each thread, its first and last event, and its CPUs
-- rows: 50
select process, pid, tid, thread, count(*) as events, count(distinct cpu) as cpus, min(time) as first, max(time) as last /*+, host*/
from events
group by process, pid, tid, thread /*+, host*/
order by events desc, pid, tid /*+, host*/
