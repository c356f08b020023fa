//! The table `events` of a store, with all classes.
//!
//! Without its column `fields`, it is one scan of the columns that all classes have. With it, it is a union of scans,
//! one for each class, whose fields become JSON.

use std::collections::BTreeMap;
use std::sync::Arc;

use async_trait::async_trait;
use datafusion::arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use datafusion::catalog::{Session, TableProvider};
use datafusion::common::ScalarValue;
use datafusion::error::{DataFusionError, Result};
use datafusion::logical_expr::{Expr, TableProviderFilterPushDown, TableType};
use datafusion::physical_expr::expressions::{Column, Literal};
use datafusion::physical_expr::{PhysicalExpr, ScalarFunctionExpr};
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::projection::ProjectionExec;
use datafusion::physical_plan::union::UnionExec;

use super::COMMON;
use super::table::{StoreTable, StoredFile, empty};
use crate::functions;

/// Columns, in the order of the traces' table, followed by those that only a store has.
const COLUMNS: [&str; 10] = ["time", "class", "process", "pid", "tid", "thread", "cpu", FIELDS, "host", "day"];
const FIELDS: &str = "fields";

/// The table `events`.
#[derive(Debug)]
pub(crate) struct StoreEvents {
    /// Table of the columns that all classes have.
    common: Arc<StoreTable>,
    classes: BTreeMap<String, Arc<StoreTable>>,
    schema: SchemaRef,
}

impl StoreEvents {
    pub(crate) fn new(common: Arc<StoreTable>, classes: BTreeMap<String, Arc<StoreTable>>) -> StoreEvents {
        let known = common.schema();
        let field = |name: &&str| match known.column_with_name(name) {
            Some((_, field)) => field.clone(),
            None => Field::new(*name, DataType::Utf8, true),
        };
        StoreEvents { common, classes, schema: Arc::new(Schema::new(COLUMNS.iter().map(field).collect::<Vec<_>>())) }
    }

    /// Returns a scan of one class, with these columns of the table.
    fn of_class(
        &self,
        state: &dyn Session,
        class: &str,
        files: &[&StoredFile],
        names: &[&str],
    ) -> Result<Arc<dyn ExecutionPlan>> {
        let table = self.classes.get(class);
        let table = table.ok_or_else(|| DataFusionError::Internal(format!("there is no class {class}")))?;
        let own: Vec<String> =
            table.fields().map(|field| field.name().clone()).filter(|name| !COMMON.contains(&name.as_str())).collect();
        let read = table.plan(state, files.iter().copied(), None, None)?;
        let schema = read.schema();
        let column =
            |name: &str| -> Result<Arc<dyn PhysicalExpr>> { Ok(Arc::new(Column::new_with_schema(name, &schema)?)) };
        let text = |text: &str| Arc::new(Literal::new(ScalarValue::Utf8(Some(text.into())))) as Arc<dyn PhysicalExpr>;
        let expression = |name: &&str| -> Result<(Arc<dyn PhysicalExpr>, String)> {
            let of = match *name {
                "class" => text(class),
                FIELDS => {
                    let mut arguments = vec![text(&serde_json::json!(own).to_string())];
                    for name in &own {
                        arguments.push(column(name)?);
                    }
                    let options = Arc::new(state.config_options().clone());
                    Arc::new(ScalarFunctionExpr::try_new(functions::fields_json(), arguments, &schema, options)?)
                }
                // A class of another tracer that lacks the column.
                name if schema.column_with_name(name).is_none() => {
                    let of = self.schema.field_with_name(name)?.data_type();
                    Arc::new(Literal::new(ScalarValue::try_new_null(of)?))
                }
                name => column(name)?,
            };
            Ok((of, name.to_string()))
        };
        let expressions = names.iter().map(expression).collect::<Result<Vec<_>>>()?;
        Ok(Arc::new(ProjectionExec::try_new(expressions, read)?))
    }
}

#[async_trait]
impl TableProvider for StoreEvents {
    fn schema(&self) -> SchemaRef {
        Arc::clone(&self.schema)
    }

    fn table_type(&self) -> TableType {
        TableType::Base
    }

    fn supports_filters_pushdown(&self, filters: &[&Expr]) -> Result<Vec<TableProviderFilterPushDown>> {
        self.common.supports_filters_pushdown(filters)
    }

    async fn scan(
        &self,
        state: &dyn Session,
        projection: Option<&Vec<usize>>,
        filters: &[Expr],
        limit: Option<usize>,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        let kept = self.common.kept(filters, state)?;
        let names: Vec<&str> = match projection {
            Some(these) => these.iter().map(|index| COLUMNS[*index]).collect(),
            None => COLUMNS.to_vec(),
        };
        if !names.contains(&FIELDS) {
            let schema = self.common.schema();
            let these = names.iter().map(|name| schema.index_of(name)).collect::<Result<Vec<_>, _>>()?;
            return self.common.plan(state, kept, Some(&these), limit);
        }
        let mut by_class: BTreeMap<&str, Vec<&StoredFile>> = BTreeMap::new();
        for file in kept {
            by_class.entry(file.class.as_deref().unwrap_or_default()).or_default().push(file);
        }
        let plans = by_class.iter().map(|(class, files)| self.of_class(state, class, files, &names));
        let mut plans = plans.collect::<Result<Vec<_>>>()?;
        match plans.len() {
            0 => empty(&self.schema, projection),
            1 => Ok(plans.remove(0)),
            _ => UnionExec::try_new(plans),
        }
    }
}
