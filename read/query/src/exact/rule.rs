//! The rule that makes integer operators return exact results.

use std::sync::Arc;

use datafusion::arrow::datatypes::DataType;
use datafusion::common::config::ConfigOptions;
use datafusion::common::tree_node::{Transformed, TransformedResult, TreeNode};
use datafusion::common::{DFSchema, ScalarValue};
use datafusion::error::Result;
use datafusion::logical_expr::expr::InList;
use datafusion::logical_expr::expr_rewriter::NamePreserver;
use datafusion::logical_expr::utils::merge_schema;
use datafusion::logical_expr::{BinaryExpr, Expr, ExprSchemable, LogicalPlan, Operator, cast, lit};
use datafusion::optimizer::AnalyzerRule;
use datafusion::optimizer::analyzer::Analyzer;

use super::WIDE;
use super::operators::Checked;

/// Returns DataFusion's rules, with our own before them: it sets the types from which DataFusion's rules derive others.
pub(crate) fn analyzer_rules() -> Vec<Arc<dyn AnalyzerRule + Send + Sync>> {
    let own: Arc<dyn AnalyzerRule + Send + Sync> = Arc::new(ExactIntegers);
    std::iter::once(own).chain(Analyzer::new().rules).collect()
}

#[derive(Debug)]
struct ExactIntegers;

impl AnalyzerRule for ExactIntegers {
    fn analyze(&self, plan: LogicalPlan, _: &ConfigOptions) -> Result<LogicalPlan> {
        plan.transform_up_with_subqueries(of_plan).data()
    }

    fn name(&self) -> &str {
        "exact_integers"
    }
}

fn of_plan(plan: LogicalPlan) -> Result<Transformed<LogicalPlan>> {
    let mut schema = merge_schema(&plan.inputs());
    if let LogicalPlan::TableScan(scan) = &plan {
        schema.merge(&DFSchema::try_from_qualified_schema(scan.table_name.clone(), &scan.source.schema())?);
    }
    // Columns keep their names.
    let names = NamePreserver::new(&plan);
    plan.map_expressions(|expr| {
        let name = names.save(&expr);
        let changed = expr.transform_up(|expr| of_expression(expr, &schema))?;
        Ok(changed.update_data(|expr| name.restore(expr)))
    })?
    .map_data(LogicalPlan::recompute_schema)
}

fn of_expression(expr: Expr, schema: &DFSchema) -> Result<Transformed<Expr>> {
    Ok(match expr {
        Expr::BinaryExpr(BinaryExpr { left, op, right }) => {
            match (Integer::of(&left, schema), Integer::of(&right, schema)) {
                (Some(a), Some(b)) => binary(*left, a, op, *right, b),
                _ => Transformed::no(Expr::BinaryExpr(BinaryExpr { left, op, right })),
            }
        }
        Expr::Negative(of) => match Integer::of(&of, schema) {
            Some(Integer::Small { .. }) => Transformed::yes(Expr::Negative(Box::new(cast(*of, DataType::Int64)))),
            Some(Integer::Signed) => Transformed::yes(call(Checked::Negate, vec![cast(*of, DataType::Int64)])),
            // DataFusion itself refuses to negate unsigned numbers.
            Some(Integer::Unsigned) | None => Transformed::no(Expr::Negative(of)),
        },
        // `in` compares bits, by which -0 is not 0. Adding 0 turns -0 into 0.
        Expr::InList(InList { expr, list, negated }) if expr.get_type(schema).is_ok_and(|of| of.is_floating()) => {
            let list = list.into_iter().map(without_sign).collect();
            Transformed::yes(Expr::InList(InList { expr: Box::new(without_sign(*expr)), list, negated }))
        }
        other => Transformed::no(other),
    })
}

/// Returns the expression with -0 turned into 0.
fn without_sign(expr: Expr) -> Expr {
    match expr {
        Expr::Literal(ScalarValue::Float64(Some(value)), of) => {
            Expr::Literal(ScalarValue::Float64(Some(value + 0.0)), of)
        }
        other => other + lit(0.0),
    }
}

/// Range of an integer expression.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Integer {
    /// At most 32 bits.
    Small {
        is_signed: bool,
    },
    /// 64 bits.
    Signed,
    Unsigned,
}

impl Integer {
    fn of(expr: &Expr, schema: &DFSchema) -> Option<Integer> {
        // Literals have type `Int64` whatever their value.
        if let Expr::Literal(ScalarValue::Int64(Some(value)), _) = expr
            && i32::try_from(*value).is_ok()
        {
            return Some(Integer::Small { is_signed: true });
        }
        match expr.get_type(schema).ok()? {
            DataType::Int8 | DataType::Int16 | DataType::Int32 => Some(Integer::Small { is_signed: true }),
            DataType::UInt8 | DataType::UInt16 | DataType::UInt32 => Some(Integer::Small { is_signed: false }),
            DataType::Int64 => Some(Integer::Signed),
            DataType::UInt64 => Some(Integer::Unsigned),
            _ => None,
        }
    }
}

fn call(operator: Checked, arguments: Vec<Expr>) -> Expr {
    operator.function().call(arguments)
}

fn binary(left: Expr, a: Integer, op: Operator, right: Expr, b: Integer) -> Transformed<Expr> {
    let is_unsigned = a == Integer::Unsigned || b == Integer::Unsigned;
    let checked = match op {
        Operator::Plus => Checked::Add,
        Operator::Minus => Checked::Subtract,
        Operator::Multiply => Checked::Multiply,
        Operator::BitwiseShiftLeft | Operator::BitwiseShiftRight => {
            let of = if a == Integer::Unsigned { DataType::UInt64 } else { DataType::Int64 };
            let checked = if op == Operator::BitwiseShiftLeft { Checked::ShiftLeft } else { Checked::ShiftRight };
            return Transformed::yes(call(checked, vec![cast(left, of), cast(right, DataType::Int64)]));
        }
        _ => {
            let expr = BinaryExpr { left: Box::new(left), op, right: Box::new(right) };
            return Transformed::no(Expr::BinaryExpr(expr));
        }
    };
    let plain = |of: DataType| {
        let expr =
            BinaryExpr { left: Box::new(cast(left.clone(), of.clone())), op, right: Box::new(cast(right.clone(), of)) };
        Expr::BinaryExpr(expr)
    };
    Transformed::yes(match (a, b) {
        _ if is_unsigned => plain(WIDE),
        // The product of two unsigned 32-bit numbers needs all 64 bits.
        (Integer::Small { is_signed: false }, Integer::Small { is_signed: false }) if op == Operator::Multiply => {
            plain(DataType::UInt64)
        }
        (Integer::Small { .. }, Integer::Small { .. }) => plain(DataType::Int64),
        _ => call(checked, vec![cast(left, DataType::Int64), cast(right, DataType::Int64)]),
    })
}
