//! The rule that replaces an aggregation by counting.

use std::sync::Arc;

use datafusion::arrow::datatypes::Field;
use datafusion::datasource::physical_plan::{FileSource, ParquetSource};
use datafusion::datasource::source::DataSourceExec;
use datafusion::error::Result;
use datafusion::physical_expr::expressions::Column;
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::aggregates::{AggregateExec, AggregateMode};

use super::exec::CountExec;
use super::spec::Spec;
use super::trace::Counted;
use crate::leaf::{Leaf, undivided};
use crate::scan::Rows;

/// Returns a plan that only counts, for an aggregation that does nothing else, or `None`.
pub(crate) fn replace(plan: &Arc<dyn ExecutionPlan>) -> Result<Option<Arc<dyn ExecutionPlan>>> {
    let Some(aggregate) = plan.downcast_ref::<AggregateExec>() else { return Ok(None) };
    let is_whole = matches!(aggregate.mode(), AggregateMode::Single | AggregateMode::SinglePartitioned);
    if (!is_whole && *aggregate.mode() != AggregateMode::Partial) || aggregate.limit_options().is_some() {
        return Ok(None);
    }
    let Some(by_reader) = of_reader(aggregate)? else { return Ok(None) };
    let groups = Arc::new(aggregate.group_expr().clone());
    let again = |mode, groups, input| {
        let count = aggregate.aggr_expr().to_vec();
        AggregateExec::try_new(mode, groups, count, vec![None], input, aggregate.input_schema())
    };
    let expected = again(AggregateMode::Partial, Arc::clone(&groups), Arc::clone(aggregate.input()))?.schema();
    let is_so = |(a, b): (&Arc<Field>, &Arc<Field>)| a.name() == b.name() && a.data_type() == b.data_type();
    let found = by_reader.schema();
    if found.fields().len() != expected.fields().len() || !found.fields().iter().zip(expected.fields()).all(is_so) {
        return Ok(None);
    }
    if !is_whole {
        return Ok(Some(by_reader));
    }
    Ok(Some(Arc::new(again(AggregateMode::Final, Arc::new(groups.as_final()), by_reader)?)))
}

/// Returns the operator that replaces a partial aggregation and its input.
fn of_reader(aggregate: &AggregateExec) -> Result<Option<Arc<dyn ExecutionPlan>>> {
    let input = undivided(aggregate.input());
    if let Some(leaf) = input.downcast_ref::<Leaf>() {
        let Some(Rows(scan)) = leaf.work() else { return Ok(None) };
        let spec = Spec::of(aggregate, |column| Some(column) == scan.class_column);
        let is_whole = scan.classes.is_some() && scan.limit == usize::MAX;
        let Some(spec) = spec.filter(|_| is_whole) else { return Ok(None) };
        let about = format!("TraceExec: {}, {spec}", scan.about);
        let (schema, scan) = (spec.schema(), Arc::clone(scan));
        return Ok(Some(Arc::new(Leaf::new(about, schema, leaf.partitions(), Arc::new(Counted { scan, spec })))));
    }
    // Columns made from directory names have the same value in all rows of a file, and therefore of a batch.
    let source = input.downcast_ref::<DataSourceExec>();
    let Some((config, source)) = source.and_then(|source| source.downcast_to_file_source::<ParquetSource>()) else {
        return Ok(None);
    };
    let in_files = config.file_schema().fields().len();
    let is_part = |column: usize| match source.projection().map(|all| all.as_ref()[column].expr.downcast_ref()) {
        Some(of) => of.is_some_and(|of: &Column| of.index() >= in_files),
        None => column >= in_files,
    };
    Ok(Spec::of(aggregate, is_part).map(|spec| Arc::new(CountExec::new(Arc::new(spec), Arc::clone(input))) as _))
}
