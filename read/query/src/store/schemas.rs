//! The columns of a table whose files were written at different times.

use std::sync::Arc;

use anyhow::{Result, bail};
use datafusion::arrow::datatypes::{DataType, Field, Schema, SchemaRef};

/// The columns of all of them.
///
/// # Errors
/// Two have a column of one name and of types that nothing holds.
pub(crate) fn of<'s>(schemas: impl IntoIterator<Item = &'s SchemaRef>, name: &str) -> Result<SchemaRef> {
    let mut all: Vec<Field> = Vec::new();
    for schema in schemas {
        add(&mut all, schema, name)?;
    }
    Ok(Arc::new(Schema::new(all)))
}

/// Adds the columns of one.
fn add(all: &mut Vec<Field>, schema: &Schema, name: &str) -> Result<()> {
    for field in schema.fields() {
        let Some(known) = all.iter_mut().find(|known| known.name() == field.name()) else {
            // A file that lacks it has null there.
            all.push(field.as_ref().clone().with_nullable(true));
            continue;
        };
        let Some(both) = wider(known.data_type(), field.data_type()) else {
            bail!(
                "the column {} of {name} is {} in one chunk and {} in another, which no type holds",
                field.name(),
                known.data_type(),
                field.data_type()
            );
        };
        *known = known.clone().with_data_type(both);
    }
    Ok(())
}

/// The smallest type that holds what both hold.
fn wider(a: &DataType, b: &DataType) -> Option<DataType> {
    use DataType::{Dictionary, Float32, Float64, Int8, Int16, Int32, Int64, UInt8, UInt16, UInt32, UInt64, Utf8};
    const SIGNED: [DataType; 4] = [Int8, Int16, Int32, Int64];
    const UNSIGNED: [DataType; 4] = [UInt8, UInt16, UInt32, UInt64];
    if a == b {
        return Some(a.clone());
    }
    let at = |types: &[DataType], one: &DataType| types.iter().position(|of| of == one);
    match (at(&SIGNED, a), at(&SIGNED, b), at(&UNSIGNED, a), at(&UNSIGNED, b)) {
        (Some(a), Some(b), ..) => return Some(SIGNED[a.max(b)].clone()),
        (.., Some(a), Some(b)) => return Some(UNSIGNED[a.max(b)].clone()),
        // Of an unsigned number of 64 bits no signed one holds all.
        (Some(signed), _, _, Some(unsigned)) | (_, Some(signed), Some(unsigned), _) => {
            return SIGNED.get(signed.max(unsigned + 1)).cloned();
        }
        _ => {}
    }
    let is_text = |one: &DataType| match one {
        Utf8 => true,
        Dictionary(_, values) => **values == Utf8,
        _ => false,
    };
    match (a, b) {
        (Float32, Float64) | (Float64, Float32) => Some(Float64),
        _ if is_text(a) && is_text(b) => Some(Utf8),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_of_chunks_are_brought_together() {
        let schema = |fields: &[(&str, DataType)]| {
            Schema::new(fields.iter().map(|(name, of)| Field::new(*name, of.clone(), false)).collect::<Vec<_>>())
        };
        let labels = DataType::Dictionary(Box::new(DataType::Int32), Box::new(DataType::Utf8));
        let mut all = Vec::new();
        let chunks = [
            schema(&[("a", DataType::UInt8), ("b", DataType::Utf8), ("f", DataType::Float32)]),
            schema(&[("a", DataType::Int16), ("c", DataType::Int64), ("f", DataType::Float64)]),
            schema(&[("a", DataType::UInt32), ("b", labels)]),
        ];
        chunks.iter().for_each(|schema| add(&mut all, schema, "p:e").unwrap());
        let found: Vec<_> = all.iter().map(|field| (field.name().as_str(), field.data_type().clone())).collect();
        let expected =
            [("a", DataType::Int64), ("b", DataType::Utf8), ("f", DataType::Float64), ("c", DataType::Int64)];
        assert_eq!(found, expected);
        assert!(all.iter().all(Field::is_nullable));
        let wrong = add(&mut all, &schema(&[("b", DataType::Int8)]), "p:e").unwrap_err().to_string();
        assert_eq!(wrong, "the column b of p:e is Utf8 in one chunk and Int8 in another, which no type holds");
        assert_eq!(wider(&DataType::UInt64, &DataType::Int8), None);
    }
}
