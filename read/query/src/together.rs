//! Reads the tables of a trace in a union in one pass.
//!
//! ```text
//!   before                          after the rule
//!   UnionExec                       TraceExec: together
//!     ProjectionExec                  one pass over the streams: each event goes to the branch of its class, whose
//!       TraceExec: libc:read          expressions are computed batch by batch
//!     ProjectionExec
//!       TraceExec: libc:write
//! ```
//! Branches are left as they are if they filter the rows they have read, or read a class of another branch.

use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};

use datafusion::arrow::array::{RecordBatch, RecordBatchOptions};
use datafusion::arrow::datatypes::SchemaRef;
use datafusion::arrow::error::ArrowError;
use datafusion::error::{DataFusionError, Result};
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_plan::projection::ProjectionExec;
use datafusion::physical_plan::union::UnionExec;
use datafusion::physical_plan::{ExecutionPlan, ExecutionPlanProperties};
use dormouse_columns::{Damage, Together};
use dormouse_ctf::stream::ChosenOf;

use crate::leaf::{Leaf, Work, undivided};
use crate::scan::{Rows, Scan};

/// Maximum number of branches that are read together. Each thread has a batch for each.
const BRANCHES_MAX: usize = 16;

/// Returns a plan that reads branches of a union together, or `None`.
pub(crate) fn replace(plan: &Arc<dyn ExecutionPlan>) -> Result<Option<Arc<dyn ExecutionPlan>>> {
    let Some(union) = plan.downcast_ref::<UnionExec>() else { return Ok(None) };
    let (mut branches, mut others, mut partitions) = (Vec::new(), Vec::new(), 1);
    for input in union.inputs() {
        match Branch::of(input).filter(|_| branches.len() < BRANCHES_MAX) {
            Some(branch) => {
                branches.push(branch);
                let scans = branches.iter().map(|branch: &Branch| branch.scan.as_ref());
                if are_together(scans) {
                    partitions = partitions.max(input.output_partitioning().partition_count());
                    continue;
                }
                branches.pop();
                others.push(Arc::clone(input));
            }
            None => others.push(Arc::clone(input)),
        }
    }
    if branches.len() < 2 {
        return Ok(None);
    }
    let read: Arc<dyn ExecutionPlan> = Arc::new(leaf(branches, union.schema(), partitions));
    if others.is_empty() {
        return Ok(Some(read));
    }
    others.push(read);
    UnionExec::try_new(others).map(Some)
}

/// Whether one pass can read the rows of all scans.
fn are_together<'s>(scans: impl Iterator<Item = &'s Scan> + Clone) -> bool {
    let Some(first) = scans.clone().next() else { return false };
    let is_same = |scan: &Scan| {
        std::ptr::eq(scan.traces, first.traces) && scan.streams == first.streams && scan.limit == usize::MAX
    };
    scans.clone().all(is_same) && Together::new(scans.map(|scan| &scan.layout).collect()).is_some()
}

fn leaf(branches: Vec<Branch>, schema: SchemaRef, partitions: usize) -> Leaf {
    let about: Vec<&str> = branches.iter().map(|branch| branch.scan.about.as_str()).collect();
    let about = format!("TraceExec: together [{}]", about.join("; "));
    Leaf::new(about, Arc::clone(&schema), partitions, Arc::new(Branches { branches, schema }))
}

/// A scan, and the projections of its columns.
struct Branch {
    scan: Arc<Scan>,
    /// Expressions and schemas of the projections, the innermost first.
    projections: Vec<(Vec<Arc<dyn PhysicalExpr>>, SchemaRef)>,
}

impl Branch {
    fn of(plan: &Arc<dyn ExecutionPlan>) -> Option<Branch> {
        let plan = undivided(plan);
        if let Some(leaf) = plan.downcast_ref::<Leaf>() {
            let Rows(scan) = leaf.work()?;
            return Some(Branch { scan: Arc::clone(scan), projections: Vec::new() });
        }
        let projection = plan.downcast_ref::<ProjectionExec>()?;
        let mut branch = Branch::of(projection.input())?;
        let expressions = projection.expr().iter().map(|of| Arc::clone(&of.expr));
        branch.projections.push((expressions.collect(), projection.schema()));
        Some(branch)
    }

    /// Projects a batch of the scan's layout to the union's columns.
    fn output(&self, batch: &RecordBatch, schema: &SchemaRef) -> Result<RecordBatch> {
        // A batch can have rows but no columns.
        let rows = RecordBatchOptions::new().with_row_count(Some(batch.num_rows()));
        let mut batch = self.scan.reordered(batch)?;
        for (expressions, schema) in &self.projections {
            let column = |of: &Arc<dyn PhysicalExpr>| of.evaluate(&batch)?.into_array(batch.num_rows());
            let columns = expressions.iter().map(column).collect::<Result<Vec<_>>>()?;
            batch = RecordBatch::try_new_with_options(Arc::clone(schema), columns, &rows)?;
        }
        // The union's schema can have nullable columns where the branch has none.
        Ok(RecordBatch::try_new_with_options(Arc::clone(schema), batch.columns().to_vec(), &rows)?)
    }
}

/// Work that returns the events of several scans as rows of their union.
struct Branches {
    branches: Vec<Branch>,
    schema: SchemaRef,
}

impl Work for Branches {
    fn run(&self, _: usize, run: usize, give: &mut dyn FnMut(RecordBatch) -> bool) -> Result<()> {
        let together = Together::new(self.branches.iter().map(|branch| &branch.scan.layout).collect());
        let (Some(together), Some(first)) = (together, self.branches.first()) else {
            return Err(DataFusionError::Internal("these are not read together".into()));
        };
        let scan = &first.scan;
        let parts = scan.parts(run);
        let mut rows = together.rows(together.needs_writers().then(|| scan.traces.files.writers()));
        let mut given = |found: Result<(usize, RecordBatch), ArrowError>| {
            let (branch, batch) = found?;
            Ok::<_, DataFusionError>(give(self.branches[branch].output(&batch, &self.schema)?))
        };
        loop {
            let part = parts.lock().unwrap_or_else(PoisonError::into_inner).next();
            let Some(part) = part else { break };
            let (size_bytes, mut damage) = (part.reader.rest_bytes(), Damage::default());
            let mut stream = ChosenOf::new(part.reader, together.choice(part.trace));
            while let Some(found) = rows.next(&mut stream, &mut damage) {
                if !given(found)? {
                    return Ok(());
                }
            }
            scan.traces.note(&damage);
            scan.traces.read_bytes.fetch_add(size_bytes, Ordering::Relaxed);
        }
        while let Some(found) = rows.rest() {
            if !given(found)? {
                break;
            }
        }
        Ok(())
    }
}
