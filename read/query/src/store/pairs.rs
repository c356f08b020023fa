//! `pairs('BEGIN', 'END', 'KEY')` of a store, as a query that is worked on host by host and key by key.
//!
//! As of traces, an end belongs to the last begin of its host and key that has no end yet. Said of rows instead of a stack: the level of an event is how
//! many begins are open with it, and of one level a begin and its end follow one another.

use std::sync::Arc;

use datafusion::arrow::datatypes::DataType;
use datafusion::catalog::view::ViewTable;
use datafusion::catalog::{TableFunctionArgs, TableFunctionImpl, TableProvider};
use datafusion::error::{DataFusionError, Result};
use datafusion::execution::context::SessionState;
use dormouse_abi::class::matches;
use futures::FutureExt;

use super::Stored;
use crate::fault::{nearest, quoted};
use crate::pairs::{Asked, no_key};

/// The function.
#[derive(Debug)]
pub(crate) struct StoredPairs(pub &'static Stored);

impl TableFunctionImpl for StoredPairs {
    fn call_with_args(&self, args: TableFunctionArgs<'_, '_>) -> Result<Arc<dyn TableProvider>> {
        let sql = self.sql(&Asked::of(args.exprs())?)?;
        let state = args.session().as_any().downcast_ref::<SessionState>();
        // Its tables are known, so that nothing is waited for.
        let plan = state.and_then(|state| state.create_logical_plan(&sql).now_or_never());
        let plan = plan.ok_or_else(|| DataFusionError::Internal("pairs: there is no plan".into()))??;
        Ok(Arc::new(ViewTable::new(plan, None)))
    }
}

impl StoredPairs {
    fn sql(&self, asked: &Asked) -> Result<String> {
        let begins = self.events(&asked.begin, 1, &asked.key)?;
        let ends = self.events(&asked.end, -1, &asked.key)?;
        let all = begins.into_iter().chain(ends).collect::<Vec<_>>().join(" union all ");
        let name = format!("{}..{}", asked.begin, asked.end).replace('\'', "''");
        let by_time = "order by time, step desc";
        Ok(format!(
            "with event as ({all}), \
             counted as (select *, sum(step) over (partition by host, key {by_time} rows unbounded preceding) as depth from event), \
             lowest as (select *, least(0, coalesce(min(depth) over (partition by host, key {by_time} \
                 rows between unbounded preceding and 1 preceding), 0)) as low from counted), \
             levelled as (select *, depth - low + case when step < 0 then 1 else 0 end as level from lowest), \
             followed as (select host, key, time, step, lag(step) over one as step_before, lag(time) over one as begin_time, \
                 lag(process) over one as process, lag(pid) over one as pid, lag(tid) over one as tid, lag(cpu) over one as cpu \
                 from levelled where level > 0 window one as (partition by host, key, level {by_time})), \
             pair as (select * from followed where step < 0 and step_before > 0), \
             lost as (select host, coalesce(begin_time, end_time) as begin_time, end_time from losses where kind = 'place') \
             select '{name}' as name, begin_time, time as end_time, time::bigint - begin_time::bigint as duration_ns, process, pid, tid, cpu, \
                 key, host from pair where not exists (select 1 from lost where lost.host = pair.host and lost.begin_time < pair.time \
                 and (lost.end_time is null or lost.end_time >= pair.begin_time))"
        ))
    }

    /// The events of classes like this one: `step` is 1 of begins, -1 of ends.
    fn events(&self, pattern: &str, step: i32, key: &[String]) -> Result<Vec<String>> {
        let store = self.0;
        let found: Vec<&str> = store.classes().filter(|name| matches(pattern, name)).collect();
        if found.is_empty() {
            let near = nearest(pattern, store.classes());
            return Err(DataFusionError::Plan(format!("pairs: no event class matches '{pattern}'{near}")));
        }
        let own = ["pid".to_string(), "tid".to_string()];
        let names = if key.is_empty() { &own[..] } else { key };
        for name in key {
            let has = |class: &&str| store.columns_of(class).any(|field| field.name() == name);
            if !store.classes().any(|class| has(&class)) {
                let all = store.columns();
                let near = nearest(name, all.iter().map(String::as_str));
                return Err(DataFusionError::Plan(format!("pairs: there is no column {}{near}", quoted(name))));
            }
        }
        let one = |class: &str| -> Result<String> {
            let mut parts = Vec::new();
            for name in names {
                match store.columns_of(class).find(|field| field.name() == name) {
                    Some(field) if field.data_type().is_nested() || *field.data_type() == DataType::Binary => {
                        return Err(no_key(name, field.data_type()));
                    }
                    Some(_) => parts.push(format!("coalesce(\"{}\"::text, '')", name.replace('"', "\"\""))),
                    None => parts.push("''".into()),
                }
            }
            let key = parts.join(" || ', ' || ");
            Ok(format!(
                "select time, process, pid, tid, cpu, host, {key} as key, {step} as step from {} where time is not null",
                quoted(class)
            ))
        };
        found.into_iter().map(one).collect()
    }
}
