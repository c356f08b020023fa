//! Integers in the text of a query that do not fit in 64 bits.

use std::ops::ControlFlow;

use datafusion::sql::parser::Statement;
use datafusion::sql::sqlparser::ast::{
    CastKind, DataType, ExactNumberInfo, Expr, UnaryOperator, Value, visit_expressions_mut,
};

use super::DIGITS_MAX;

/// Rewrites them as decimals. DataFusion would make them floating-point numbers, which equal their neighbours. Numbers
/// with more digits than a decimal has are left as they are: every 64-bit integer is on the same side of them.
pub(crate) fn with_decimals(statement: &mut Statement) {
    match statement {
        Statement::Statement(statement) => {
            let _: ControlFlow<()> = visit_expressions_mut(statement.as_mut(), |expr| {
                widen(expr);
                ControlFlow::Continue(())
            });
        }
        Statement::Explain(explain) => with_decimals(&mut explain.statement),
        _ => {}
    }
}

fn widen(expr: &mut Expr) {
    match expr {
        // A magnitude that fits in an unsigned 64-bit integer, but whose negation fits in no signed one.
        Expr::UnaryOp { op: UnaryOperator::Minus, expr: of }
            if digits(of).is_some_and(|digits| digits.parse::<u64>().is_ok_and(|n| n > i64::MIN.unsigned_abs())) =>
        {
            to_decimal(of);
        }
        _ if digits(expr).is_some_and(|digits| digits.parse::<u64>().is_err()) => to_decimal(expr),
        _ => {}
    }
}

/// Returns the digits of an integer literal, if they fit in a decimal.
fn digits(expr: &Expr) -> Option<String> {
    let Expr::Value(value) = expr else { return None };
    let Value::Number(text, _) = &value.value else { return None };
    let text = text.replace('_', "");
    let is_whole = text.bytes().all(|byte| byte.is_ascii_digit());
    (is_whole && text.trim_start_matches('0').len() <= usize::from(DIGITS_MAX)).then_some(text)
}

fn to_decimal(expr: &mut Expr) {
    let (Some(digits), Expr::Value(value)) = (digits(expr), &expr) else { return };
    let text = value.span;
    *expr = Expr::Cast {
        kind: CastKind::Cast,
        expr: Box::new(Expr::Value(Value::SingleQuotedString(digits).with_span(text))),
        data_type: DataType::Decimal(ExactNumberInfo::PrecisionAndScale(u64::from(DIGITS_MAX), 0)),
        array: false,
        format: None,
    };
}
