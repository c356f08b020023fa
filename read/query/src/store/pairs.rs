//! The table function `pairs('BEGIN', 'END', 'KEY')` for a store. Pairs are found host by host, as for traces.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use async_trait::async_trait;
use datafusion::arrow::array::{RecordBatch, StringArray};
use datafusion::arrow::datatypes::{FieldRef, SchemaRef};
use datafusion::catalog::{Session, TableFunctionArgs, TableFunctionImpl, TableProvider};
use datafusion::error::{DataFusionError, Result};
use datafusion::logical_expr::{Expr, TableProviderFilterPushDown, TableType};
use datafusion::physical_plan::ExecutionPlan;
use dormouse_abi::class::matches;
use dormouse_store::pairs::KeyKind;

use super::pair_exec::{Input, PairExec, Spec, schema};
use super::table::empty;
use super::{COMMON, Stored};
use crate::fault::{nearest, quoted};
use crate::pairs::Asked;
use crate::push;

/// The table function.
#[derive(Debug)]
pub(crate) struct StoredPairs(pub &'static Stored);

impl TableFunctionImpl for StoredPairs {
    fn call_with_args(&self, args: TableFunctionArgs<'_, '_>) -> Result<Arc<dyn TableProvider>> {
        Ok(Arc::new(PairsOf::new(self.0, &Asked::of(args.exprs())?)?))
    }
}

/// The table that it returns.
#[derive(Debug)]
struct PairsOf {
    store: &'static Stored,
    name: String,
    /// Names of classes, whether their events are begins, and whether they are ends.
    classes: Vec<(&'static str, bool, bool)>,
    keys: Vec<(String, KeyKind)>,
    schema: SchemaRef,
}

impl PairsOf {
    fn new(store: &'static Stored, asked: &Asked) -> Result<PairsOf> {
        for pattern in [&asked.begin, &asked.end] {
            if !store.classes().any(|name| matches(pattern, name)) {
                let near = nearest(pattern, store.classes());
                return Err(DataFusionError::Plan(format!("pairs: no event class matches '{pattern}'{near}")));
            }
        }
        let roles = store.classes().map(|name| (name, matches(&asked.begin, name), matches(&asked.end, name)));
        let classes: Vec<_> = roles.filter(|(_, begins, ends)| *begins || *ends).collect();
        let own = ["pid".to_string(), "tid".to_string()];
        let names = if asked.key.is_empty() { &own[..] } else { &asked.key };
        let kind = |name: &String| -> Result<(String, KeyKind)> {
            let is_there = |class: &str| store.columns_of(class).any(|field| field.name() == name);
            if !asked.key.is_empty() && !store.classes().any(is_there) {
                let all = store.columns();
                let near = nearest(name, all.iter().map(String::as_str));
                return Err(DataFusionError::Plan(format!("pairs: there is no column {}{near}", quoted(name))));
            }
            let fields =
                classes.iter().flat_map(|(class, ..)| store.columns_of(class)).filter(|field| field.name() == name);
            let kinds = fields.map(|field| KeyKind::of(name, field.data_type()));
            let kinds = kinds.collect::<Result<Vec<_>, _>>().map_err(|error| DataFusionError::Plan(error.0))?;
            // Keys of different kinds are compared as text.
            let first = kinds.first().copied().unwrap_or(KeyKind::Text);
            Ok((name.clone(), if kinds.iter().all(|kind| *kind == first) { first } else { KeyKind::Text }))
        };
        let keys = names.iter().map(kind).collect::<Result<_>>()?;
        let name = format!("{}..{}", asked.begin, asked.end);
        let shared = if asked.key.is_empty() { shared_fields(store, &classes) } else { Vec::new() };
        if !shared.is_empty() {
            // Traces are read once more to find the key; a store would have to be fetched whole.
            return Err(DataFusionError::Plan(format!(
                "pairs: begins and ends of {name} can be on different threads, and no key is looked for in a store; name the fields that belong together, \
                 pairs('{}', '{}', 'FIELD,…'), of {}; 'pid,tid' pairs by thread",
                asked.begin,
                asked.end,
                shared.join(", ")
            )));
        }
        Ok(PairsOf { store, name, classes, keys, schema: schema() })
    }

    /// Returns the hosts that have events of the classes and satisfy the conditions, each with its number of rows.
    fn hosts(&self, filters: &[Expr], state: &dyn Session) -> Result<Vec<(Option<&'static str>, u64)>> {
        let mut rows: BTreeMap<Option<&str>, u64> = BTreeMap::new();
        let tables = self.classes.iter().filter_map(|(class, ..)| self.store.classes.get(*class));
        for file in tables.flat_map(|table| table.files()) {
            *rows.entry(file.host.as_deref()).or_default() += file.rows;
        }
        let mut hosts: Vec<(Option<&str>, u64)> = rows.into_iter().collect();
        for filter in filters {
            let names: StringArray = hosts.iter().map(|(name, _)| *name).collect();
            let batch = RecordBatch::try_from_iter_with_nullable([("host", Arc::new(names) as _, true)])?;
            let mut is_true = push::is_true(filter, &batch, state)?.into_iter();
            hosts.retain(|_| is_true.next().unwrap_or(true));
        }
        Ok(hosts)
    }
}

/// Returns the names of fields that all these classes have and that can be a key.
fn shared_fields<'s>(store: &'s Stored, classes: &[(&'static str, bool, bool)]) -> Vec<&'s str> {
    let is_field = |field: &&FieldRef| {
        !COMMON.contains(&field.name().as_str()) && KeyKind::of(field.name(), field.data_type()).is_ok()
    };
    let fields = |class: &str| -> BTreeSet<&'s str> {
        store.columns_of(class).filter(is_field).map(|field| field.name().as_str()).collect()
    };
    let of_all = classes.iter().map(|(class, ..)| fields(class)).reduce(|all, of| &all & &of);
    of_all.into_iter().flatten().collect()
}

/// Divides hosts into at most `count` parts with similar numbers of rows: each host, the largest first, goes to the
/// part with the fewest rows. The hosts of a part are sorted by name, with no name last.
fn parts(mut hosts: Vec<(Option<&str>, u64)>, count: usize) -> Vec<Vec<Option<&str>>> {
    hosts.sort_by_key(|(_, rows)| std::cmp::Reverse(*rows));
    let mut parts = vec![(0, Vec::new()); hosts.len().min(count).max(1)];
    for (name, of_host) in hosts {
        if let Some((rows, part)) = parts.iter_mut().min_by_key(|(rows, _)| *rows) {
            *rows += of_host;
            part.push(name);
        }
    }
    let mut parts: Vec<Vec<Option<&str>>> = parts.into_iter().map(|(_, part)| part).collect();
    parts.iter_mut().for_each(|part| part.sort_by_key(|name| (name.is_none(), *name)));
    parts
}

#[async_trait]
impl TableProvider for PairsOf {
    fn schema(&self) -> SchemaRef {
        Arc::clone(&self.schema)
    }

    fn table_type(&self) -> TableType {
        TableType::View
    }

    fn supports_filters_pushdown(&self, filters: &[&Expr]) -> Result<Vec<TableProviderFilterPushDown>> {
        let of = |filter: &&Expr| match push::is_about(filter, &["host"]) {
            true => TableProviderFilterPushDown::Exact,
            false => TableProviderFilterPushDown::Unsupported,
        };
        Ok(filters.iter().map(of).collect())
    }

    async fn scan(
        &self,
        state: &dyn Session,
        projection: Option<&Vec<usize>>,
        filters: &[Expr],
        _: Option<usize>,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        let columns = projection.cloned().unwrap_or_else(|| (0..self.schema.fields().len()).collect());
        let parts = parts(self.hosts(filters, state)?, state.config().target_partitions());
        let (mut inputs, mut children) = (Vec::new(), Vec::new());
        for (class, begins, ends) in &self.classes {
            let Some(table) = self.store.classes.get(*class) else { continue };
            // Needed are the host, the time, the key and, for begins, the output columns.
            let is_told =
                |name: &str| COMMON.contains(&name) && columns.iter().any(|at| self.schema.field(*at).name() == name);
            let is_read = |name: &str| {
                ["host", "time"].contains(&name)
                    || self.keys.iter().any(|(key, _)| key == name)
                    || *begins && is_told(name)
            };
            let scans = table.in_order(&parts, &is_read)?;
            inputs.extend(scans.iter().map(|_| Input { begins: *begins, ends: *ends }));
            children.extend(scans);
        }
        if children.is_empty() {
            return empty(&self.schema, Some(&columns));
        }
        let losses = self.store.tables.get("losses").map(|table| table.by_parts(&parts)).transpose()?.flatten();
        children.extend(losses);
        let spec = Spec { name: self.name.clone(), columns, keys: self.keys.clone(), inputs };
        Ok(Arc::new(PairExec::new(Arc::new(spec), children)?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_are_distributed_to_partitions_by_their_rows() {
        let hosts = || vec![(None, 5), (Some("c"), 3), (Some("b"), 4), (Some("a"), 1)];
        assert_eq!(parts(hosts(), 2), [vec![Some("a"), None], vec![Some("b"), Some("c")]]);
        assert_eq!(parts(hosts(), 9).len(), 4);
        assert_eq!(parts(Vec::new(), 2), [Vec::<Option<&str>>::new()]);
    }
}
