//! The rules that change a plan before it is run: DataFusion's, and ours before and behind them.

use std::sync::Arc;

use datafusion::common::tree_node::{Transformed, TransformedResult, TreeNode};
use datafusion::config::ConfigOptions;
use datafusion::error::Result;
use datafusion::physical_optimizer::PhysicalOptimizerRule;
use datafusion::physical_optimizer::optimizer::PhysicalOptimizer;
use datafusion::physical_plan::ExecutionPlan;

use crate::{carried, count, together};

type AnyRule = Arc<dyn PhysicalOptimizerRule + Send + Sync>;
/// What comes in the place of an operator and of what is below it, if anything does.
type Replace = fn(&Arc<dyn ExecutionPlan>) -> Result<Option<Arc<dyn ExecutionPlan>>>;

/// Puts other operators in the place of some.
#[derive(Debug)]
struct Rule {
    name: &'static str,
    replace: Replace,
}

/// These operators need an order of rows, which DataFusion's rules give them.
const BEFORE: [Rule; 1] = [Rule { name: "carry_by_key", replace: carried::replace }];
/// These look for what DataFusion's rules leave to be read.
const BEHIND: [Rule; 2] = [
    Rule { name: "count_where_it_is_read", replace: count::replace },
    Rule { name: "read_together", replace: together::replace },
];

/// All of them, in their order.
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
