-- number of events of each class in each second
select time_bucket('1s', time) as second, class, count(*) as events
from events
group by 1, 2
order by 1, 3 desc, 2
