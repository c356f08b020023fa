-- threads: how many events, from when until when, on how many CPUs
select process, pid, tid, count(*) as events, count(distinct cpu) as cpus, min(time) as first, max(time) as last /*+, host*/
from events
group by process, pid, tid /*+, host*/
order by events desc, pid, tid /*+, host*/
limit 50
