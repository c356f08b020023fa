-- the most frequent event classes, by process
-- rows: 20
select class, process, pid, count(*) as events /*+, host*/
from events
group by class, process, pid /*+, host*/
order by events desc, class, pid /*+, host*/
