//! A union of tables of a trace, read in one pass.
//!
//! ```text
//!   before                          behind the rule
//!   UnionExec                       TraceExec: together
//!     ProjectionExec                  one pass over the streams: each event goes to the branch of its class, whose
//!       TraceExec: libc:read          expressions are computed batch by batch
//!     ProjectionExec
//!       TraceExec: libc:write
//! ```
//! Branches that filter what they have read, or that read a class of another branch, stay as they are.

use std::sync::Arc;

use datafusion::arrow::array::RecordBatch;
use datafusion::arrow::datatypes::SchemaRef;
use datafusion::common::tree_node::{Transformed, TransformedResult, TreeNode};
use datafusion::config::ConfigOptions;
use datafusion::error::Result;
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_optimizer::PhysicalOptimizerRule;
use datafusion::physical_plan::projection::ProjectionExec;
use datafusion::physical_plan::union::UnionExec;
use datafusion::physical_plan::{ExecutionPlan, ExecutionPlanProperties};

use crate::count::undivided;
use crate::leaf::Leaf;
use crate::scan::Scan;

/// Branches that are read together; each thread has a batch for each.
const BRANCHES_MAX: usize = 8;

/// Reads branches of a union together.
#[derive(Debug)]
pub(crate) struct TogetherRule;

impl PhysicalOptimizerRule for TogetherRule {
    fn optimize(&self, plan: Arc<dyn ExecutionPlan>, _: &ConfigOptions) -> Result<Arc<dyn ExecutionPlan>> {
        plan.transform_up(|plan| {
            Ok(match plan.downcast_ref::<UnionExec>().map(together).transpose()?.flatten() {
                Some(together) => Transformed::yes(together),
                None => Transformed::no(plan),
            })
        })
        .data()
    }

    fn name(&self) -> &str {
        "read_together"
    }

    fn schema_check(&self) -> bool {
        true
    }
}

fn together(union: &UnionExec) -> Result<Option<Arc<dyn ExecutionPlan>>> {
    let (mut branches, mut others, mut partitions) = (Vec::new(), Vec::new(), 1);
    for input in union.inputs() {
        match Branch::of(input).filter(|_| branches.len() < BRANCHES_MAX) {
            Some(branch) => {
                branches.push(branch);
                let scans = branches.iter().map(|branch| branch.scan.as_ref());
                if Scan::are_together(scans) {
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
    let leaf: Arc<dyn ExecutionPlan> = Arc::new(Leaf::together(branches, union.schema(), partitions));
    if others.is_empty() {
        return Ok(Some(leaf));
    }
    others.push(leaf);
    UnionExec::try_new(others).map(Some)
}

/// A scan, and what is made of its columns.
pub(crate) struct Branch {
    pub scan: Arc<Scan>,
    /// The innermost first.
    projections: Vec<(Vec<Arc<dyn PhysicalExpr>>, SchemaRef)>,
}

impl Branch {
    fn of(plan: &Arc<dyn ExecutionPlan>) -> Option<Branch> {
        let plan = undivided(plan);
        if let Some(leaf) = plan.downcast_ref::<Leaf>() {
            return Some(Branch { scan: Arc::clone(leaf.scan()?), projections: Vec::new() });
        }
        let projection = plan.downcast_ref::<ProjectionExec>()?;
        let mut branch = Branch::of(projection.input())?;
        let expressions = projection.expr().iter().map(|of| Arc::clone(&of.expr));
        branch.projections.push((expressions.collect(), projection.schema()));
        Some(branch)
    }

    /// Rows of the scan's layout as those of the union.
    pub(crate) fn output(&self, batch: &RecordBatch, schema: &SchemaRef) -> Result<RecordBatch> {
        let mut batch = self.scan.reordered(batch)?;
        for (expressions, schema) in &self.projections {
            let column = |of: &Arc<dyn PhysicalExpr>| of.evaluate(&batch)?.into_array(batch.num_rows());
            let columns = expressions.iter().map(column).collect::<Result<Vec<_>>>()?;
            batch = RecordBatch::try_new(Arc::clone(schema), columns)?;
        }
        // Columns can be null in others.
        Ok(RecordBatch::try_new(Arc::clone(schema), batch.columns().to_vec())?)
    }
}
