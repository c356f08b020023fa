-- memory that was allocated but not freed in the trace, by process and size
-- rows: 20
-- needs: libc:malloc
-- needs: libc:calloc
-- needs: libc:realloc
-- needs: libc:free
-- Of each address the last call counts. What is in use when the trace ends is among them, and what was freed by means that are not traced.
with calls as (
    select time, process, pid, ptr, size /*+, host*/ from "libc:malloc"
    union all
    select time, process, pid, ptr, count * size /*+, host*/ from "libc:calloc"
    union all
    select time, process, pid, ptr, size /*+, host*/ from "libc:realloc"
    union all
    select time, process, pid, old, null /*+, host*/ from "libc:realloc"
    union all
    select time, process, pid, ptr, null /*+, host*/ from "libc:free"
), last as (
    select process, pid, size, ptr,
           row_number() over (partition by pid, ptr /*+, host*/ order by time desc, size desc nulls last) as number /*+, host*/
    from calls
    where ptr <> 0
)
select process, pid, size, count(*) as blocks, sum(size) as bytes /*+, host*/
from last
where number = 1 and size is not null
group by process, pid, size /*+, host*/
order by bytes desc, pid, size /*+, host*/
