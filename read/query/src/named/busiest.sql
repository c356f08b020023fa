-- which event classes come most often in which process
select class, process, pid, count(*) as events
from events
group by class, process, pid
order by events desc, class, pid
limit 20
