//! The rule that puts [`CarryExec`] in the place of windows that have only `locf`.

use std::sync::Arc;

use datafusion::error::Result;
use datafusion::physical_expr::expressions::Column;
use datafusion::physical_expr::window::{StandardWindowExpr, WindowExpr};
use datafusion::physical_expr::{PhysicalExpr, PhysicalSortExpr};
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::windows::{BoundedWindowAggExec, WindowUDFExpr};

use super::Locf;
use super::exec::CarryExec;
use super::spec::{Order, Spec};

/// Returns a [`CarryExec`] for a window that has only `locf`, or `None`.
pub(crate) fn replace(plan: &Arc<dyn ExecutionPlan>) -> Result<Option<Arc<dyn ExecutionPlan>>> {
    let window = plan.downcast_ref::<BoundedWindowAggExec>();
    let Some((window, spec)) = window.and_then(|window| Some((window, of(window.window_expr())?))) else {
        return Ok(None);
    };
    Ok(Some(Arc::new(CarryExec::new(Arc::new(spec), Arc::clone(window.input()))?)))
}

fn index(of: &Arc<dyn PhysicalExpr>) -> Option<usize> {
    of.downcast_ref::<Column>().map(Column::index)
}

/// Returns the specification of a window that has only `locf`. All of its functions have the same keys and order.
fn of(window: &[Arc<dyn WindowExpr>]) -> Option<Spec> {
    let first = window.first()?;
    let value = |of: &Arc<dyn WindowExpr>| {
        let of: &StandardWindowExpr = of.as_any().downcast_ref()?;
        let call: &WindowUDFExpr = of.get_standard_func_expr().as_any().downcast_ref()?;
        let [value] = call.args() else { return None };
        call.fun().inner().downcast_ref::<Locf>()?;
        Some((index(value)?, of.name().to_string()))
    };
    let order = |of: &PhysicalSortExpr| {
        let (column, options) = (index(&of.expr)?, of.options);
        Some(Order { column, is_descending: options.descending, is_null_first: options.nulls_first })
    };
    Some(Spec {
        keys: first.partition_by().iter().map(index).collect::<Option<_>>()?,
        order: first.order_by().iter().map(order).collect::<Option<_>>()?,
        values: window.iter().map(value).collect::<Option<_>>()?,
    })
}
