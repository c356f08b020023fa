//! The common columns of a table whose files were written at different times.

use std::collections::BTreeSet;
use std::sync::Arc;

use datafusion::arrow::datatypes::{DataType, Field, Schema, SchemaRef};

/// Returns the columns of all schemas, and the names of the columns that are left out because no type holds all of
/// their types.
pub(crate) fn of<'s>(schemas: impl IntoIterator<Item = &'s SchemaRef>) -> (SchemaRef, BTreeSet<String>) {
    let (mut all, mut left_out) = (Vec::new(), BTreeSet::new());
    for schema in schemas {
        left_out.extend(add(&mut all, schema));
    }
    all.retain(|field| !left_out.contains(field.name()));
    (Arc::new(Schema::new(all)), left_out)
}

/// Adds the columns of one schema, and returns the names of those that do not fit.
fn add(all: &mut Vec<Field>, schema: &Schema) -> Vec<String> {
    let mut unfit = Vec::new();
    for field in schema.fields() {
        let Some(known) = all.iter_mut().find(|known| known.name() == field.name()) else {
            // A file that lacks the column has null there.
            all.push(field.as_ref().clone().with_nullable(true));
            continue;
        };
        match wider(known.data_type(), field.data_type()) {
            Some(both) => *known = known.clone().with_data_type(both),
            None => unfit.push(field.name().clone()),
        }
    }
    unfit
}

/// Returns the smallest type that holds the values of both.
fn wider(a: &DataType, b: &DataType) -> Option<DataType> {
    use DataType::{Decimal128, Dictionary, Float32, Float64};
    use DataType::{Int8, Int16, Int32, Int64, UInt8, UInt16, UInt32, UInt64, Utf8};
    const SIGNED: [DataType; 4] = [Int8, Int16, Int32, Int64];
    const UNSIGNED: [DataType; 4] = [UInt8, UInt16, UInt32, UInt64];
    if a == b {
        return Some(a.clone());
    }
    let at = |types: &[DataType], one: &DataType| types.iter().position(|of| of == one);
    match (at(&SIGNED, a), at(&SIGNED, b), at(&UNSIGNED, a), at(&UNSIGNED, b)) {
        (Some(a), Some(b), ..) => return Some(SIGNED[a.max(b)].clone()),
        (.., Some(a), Some(b)) => return Some(UNSIGNED[a.max(b)].clone()),
        // No signed type holds all unsigned 64-bit numbers. Traces use the same decimal in this case.
        (Some(signed), _, _, Some(unsigned)) | (_, Some(signed), Some(unsigned), _) => {
            return Some(SIGNED.get(signed.max(unsigned + 1)).cloned().unwrap_or(Decimal128(20, 0)));
        }
        _ => {}
    }
    let is_text = |one: &DataType| match one {
        Utf8 => true,
        Dictionary(_, values) => **values == Utf8,
        _ => false,
    };
    // Types whose values have one textual form.
    let is_plain = |one: &DataType| one.is_numeric() || *one == DataType::Boolean || is_text(one);
    match (a, b) {
        (Float32, Float64) | (Float64, Float32) => Some(Float64),
        (wide @ Decimal128(20, 0), other) | (other, wide @ Decimal128(20, 0)) if other.is_integer() => {
            Some(wide.clone())
        }
        // A number in one program and a text in another become texts.
        _ if is_plain(a) && is_plain(b) => Some(Utf8),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_of_all_chunks_are_unified() {
        let schema = |fields: &[(&str, DataType)]| {
            Arc::new(Schema::new(
                fields.iter().map(|(name, of)| Field::new(*name, of.clone(), false)).collect::<Vec<_>>(),
            ))
        };
        let labels = DataType::Dictionary(Box::new(DataType::Int32), Box::new(DataType::Utf8));
        let list = DataType::new_list(DataType::UInt8, true);
        let chunks = [
            schema(&[("a", DataType::UInt8), ("b", DataType::Utf8), ("f", DataType::Float32), ("w", DataType::UInt64)]),
            schema(&[("a", DataType::Int16), ("c", DataType::Int64), ("f", DataType::Float64), ("w", DataType::Int8)]),
            schema(&[("a", DataType::UInt32), ("b", labels), ("l", list), ("w", DataType::UInt32)]),
            schema(&[("c", DataType::Utf8), ("l", DataType::UInt8)]),
        ];
        let (all, left_out) = of(&chunks);
        let found: Vec<_> =
            all.fields().iter().map(|field| (field.name().as_str(), field.data_type().clone())).collect();
        let expected = [
            ("a", DataType::Int64),
            ("b", DataType::Utf8),
            ("f", DataType::Float64),
            ("w", DataType::Decimal128(20, 0)),
            ("c", DataType::Utf8),
        ];
        assert_eq!(found, expected);
        assert!(all.fields().iter().all(|field| field.is_nullable()));
        assert_eq!(left_out.iter().collect::<Vec<_>>(), ["l"]);
    }
}
