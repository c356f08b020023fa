-- the ten longest pairs, with thread, key and begin
select duration_text(duration_ns) as took, name, process, pid, tid, key, begin_time /*+, host*/
from pairs
order by duration_ns desc, begin_time, pid, tid, name, key /*+, host*/
limit 10
