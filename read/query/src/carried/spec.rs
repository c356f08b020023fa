//! Specification of the carried columns.

use std::sync::Arc;

use datafusion::arrow::datatypes::{Field, Schema, SchemaRef};
use serde::{Deserialize, Serialize};

/// The columns to carry, their keys and the order of rows. Columns are numbered as in the child.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Spec {
    pub keys: Vec<usize>,
    pub order: Vec<Order>,
    /// Carried columns and the names of the results.
    pub values: Vec<(usize, String)>,
}

/// A column by which the rows are sorted.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Order {
    pub column: usize,
    pub is_descending: bool,
    pub is_null_first: bool,
}

impl Spec {
    pub(super) fn columns(&self) -> impl Iterator<Item = usize> {
        let values = self.values.iter().map(|(column, _)| *column);
        self.keys.iter().copied().chain(self.order.iter().map(|order| order.column)).chain(values)
    }

    pub(super) fn schema(&self, input: &Schema) -> SchemaRef {
        let value = |(column, name): &(usize, String)| {
            Arc::new(Field::new(name, input.field(*column).data_type().clone(), true))
        };
        let fields = input.fields().iter().cloned().chain(self.values.iter().map(value));
        Arc::new(Schema::new_with_metadata(fields.collect::<Vec<_>>(), input.metadata().clone()))
    }
}
