-- sizes of allocated memory, rounded up to powers of two, by process
-- needs: libc:malloc
select process, pid, power(2, ceil(log2(greatest(size, 1))))::bigint as up_to, count(*) as calls, sum(size) as bytes /*+, host*/
from "libc:malloc"
group by 1, 2, 3 /*+, host*/
order by pid, up_to, process /*+, host*/
