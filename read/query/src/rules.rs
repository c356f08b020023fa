//! The rules that transform a physical plan: DataFusion's, with Dormouse's before and after them.

use std::sync::Arc;

use datafusion::common::tree_node::{Transformed, TransformedResult, TreeNode};
use datafusion::config::ConfigOptions;
use datafusion::error::Result;
use datafusion::physical_optimizer::PhysicalOptimizerRule;
use datafusion::physical_optimizer::optimizer::PhysicalOptimizer;
use datafusion::physical_plan::ExecutionPlan;

use crate::{carried, count, together};

type AnyRule = Arc<dyn PhysicalOptimizerRule + Send + Sync>;
/// Function that returns a replacement for an operator and its inputs, if it has one.
type Replace = fn(&Arc<dyn ExecutionPlan>) -> Result<Option<Arc<dyn ExecutionPlan>>>;

/// A rule that replaces operators.
#[derive(Debug)]
struct Rule {
    name: &'static str,
    replace: Replace,
}

/// These operators require an order of rows, which DataFusion's rules then establish.
const BEFORE: [Rule; 1] = [Rule { name: "carry_by_key", replace: carried::replace }];
/// These rules inspect what DataFusion's rules have left to be read.
const BEHIND: [Rule; 2] = [
    Rule { name: "count_where_it_is_read", replace: count::replace },
    Rule { name: "read_together", replace: together::replace },
];

/// Returns all rules, in their order.
pub(crate) fn all() -> Vec<AnyRule> {
    let own = |rule| Arc::new(rule) as AnyRule;
    let before = BEFORE.into_iter().map(own);
    before.chain(PhysicalOptimizer::new().rules).chain(BEHIND.into_iter().map(own)).collect()
}

impl PhysicalOptimizerRule for Rule {
    fn optimize(&self, plan: Arc<dyn ExecutionPlan>, _: &ConfigOptions) -> Result<Arc<dyn ExecutionPlan>> {
        plan.transform_up(|plan| {
            Ok(match (self.replace)(&plan)? {
                Some(other) => Transformed::yes(other),
                None => Transformed::no(plan),
            })
        })
        .data()
    }

    fn name(&self) -> &str {
        self.name
    }

    fn schema_check(&self) -> bool {
        true
    }
}
