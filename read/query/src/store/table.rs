//! A table of a store: files of Parquet.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use async_trait::async_trait;
use datafusion::arrow::array::{ArrayRef, RecordBatch, StringArray};
use datafusion::arrow::datatypes::{FieldRef, SchemaRef};
use datafusion::catalog::{Session, TableProvider};
use datafusion::common::stats::Precision;
use datafusion::common::{ScalarValue, Statistics};
use datafusion::datasource::listing::PartitionedFile;
use datafusion::datasource::object_store::ObjectStoreUrl;
use datafusion::datasource::physical_plan::{FileGroup, FileScanConfigBuilder, ParquetSource};
use datafusion::datasource::source::DataSourceExec;
use datafusion::datasource::table_schema::TableSchema;
use datafusion::error::Result;
use datafusion::logical_expr::{Expr, TableProviderFilterPushDown, TableType};
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::empty::EmptyExec;
use object_store::path::Path;

use crate::push::{self, Pushed};

/// A file with what its place and its manifest say of it.
#[derive(Debug, Clone)]
pub(crate) struct StoredFile {
    pub path: Path,
    pub size_bytes: u64,
    pub rows: u64,
    /// The least and the greatest time in it.
    pub begin_ns: Option<i64>,
    pub end_ns: Option<i64>,
    pub host: Option<String>,
    pub day: Option<String>,
    pub class: Option<String>,
}

impl StoredFile {
    /// What its directories say.
    fn part(&self, name: &str) -> Option<&str> {
        match name {
            "host" => self.host.as_deref(),
            "day" => self.day.as_deref(),
            _ => self.class.as_deref(),
        }
    }
}

/// The table.
#[derive(Debug)]
pub(crate) struct StoreTable {
    root: ObjectStoreUrl,
    schema: TableSchema,
    /// The columns that directories are named by.
    parts: &'static [&'static str],
    /// The column of the times that manifests tell.
    time: Option<&'static str>,
    files: Vec<StoredFile>,
    was_read: AtomicBool,
}

impl StoreTable {
    /// `schema`: what is in the files.
    pub(crate) fn new(
        root: ObjectStoreUrl,
        schema: SchemaRef,
        parts: &'static [&'static str],
        time: Option<&'static str>,
        files: Vec<StoredFile>,
    ) -> StoreTable {
        StoreTable {
            root,
            schema: super::with_parts(schema, parts),
            parts,
            time,
            files,
            was_read: AtomicBool::new(false),
        }
    }

    pub(crate) fn files(&self) -> &[StoredFile] {
        &self.files
    }

    /// Whether it was read since this was asked before.
    pub(crate) fn take_read(&self) -> bool {
        // No other memory depends on it.
        self.was_read.swap(false, Ordering::Relaxed)
    }

    /// The columns that are in the files.
    pub(crate) fn fields(&self) -> impl Iterator<Item = &FieldRef> {
        self.schema.file_schema().fields().iter()
    }

    /// The files in which rows can be of which all conditions are true.
    pub(crate) fn kept(&self, filters: &[Expr], state: &dyn Session) -> Result<Vec<&StoredFile>> {
        let mut kept: Vec<&StoredFile> = self.files.iter().collect();
        for filter in filters {
            if self.is_of_time(filter) {
                match push::time(filter) {
                    // A file that tells no times can have any.
                    Some(Pushed::Since(ns)) => kept.retain(|file| file.end_ns.is_none_or(|end_ns| end_ns >= ns)),
                    Some(Pushed::Until(ns)) => kept.retain(|file| file.begin_ns.is_none_or(|begin_ns| begin_ns < ns)),
                    _ => {}
                }
            } else if self.is_of_parts(filter) && !kept.is_empty() {
                let column = |name: &&'static str| {
                    let values: StringArray = kept.iter().map(|file| file.part(name)).collect();
                    (*name, Arc::new(values) as ArrayRef, true)
                };
                let rows = RecordBatch::try_from_iter_with_nullable(self.parts.iter().map(column))?;
                let mut is_true = push::is_true(filter, &rows, state)?.into_iter();
                kept.retain(|_| is_true.next().unwrap_or(true));
            }
        }
        Ok(kept)
    }

    fn is_of_time(&self, filter: &Expr) -> bool {
        let columns = filter.column_refs();
        !columns.is_empty() && columns.iter().all(|column| Some(column.name.as_str()) == self.time)
    }

    fn is_of_parts(&self, filter: &Expr) -> bool {
        let columns = filter.column_refs();
        let is_part = |name: &str| self.parts.contains(&name);
        !columns.is_empty()
            && columns.iter().all(|column| is_part(&column.name))
            && !filter.is_volatile()
            && push::is_plain(filter)
    }

    /// A scan of some of the files.
    pub(crate) fn plan<'f>(
        &self,
        state: &dyn Session,
        files: impl IntoIterator<Item = &'f StoredFile>,
        projection: Option<&Vec<usize>>,
        limit: Option<usize>,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        let files: Vec<&StoredFile> = files.into_iter().collect();
        let schema = self.schema.table_schema();
        if files.is_empty() {
            return empty(schema, projection);
        }
        let mut statistics = Statistics::new_unknown(schema);
        statistics.num_rows = Precision::Exact(files.iter().map(|file| file.rows as usize).sum());
        let one = |file: &&StoredFile| {
            let parts = self.parts.iter().map(|name| ScalarValue::Utf8(file.part(name).map(String::from)));
            PartitionedFile::new_from_meta(object_store::ObjectMeta {
                location: file.path.clone(),
                // A file stays as it is.
                last_modified: Default::default(),
                size: file.size_bytes,
                e_tag: None,
                version: None,
            })
            .with_partition_values(parts.collect())
        };
        let groups = FileGroup::new(files.iter().map(one).collect()).split_files(state.config().target_partitions());
        let source = Arc::new(ParquetSource::new(self.schema.clone()));
        let config = FileScanConfigBuilder::new(self.root.clone(), source)
            .with_file_groups(groups)
            .with_statistics(statistics)
            .with_limit(limit)
            .with_projection_indices(projection.cloned())?;
        Ok(DataSourceExec::from_data_source(config.build()))
    }
}

// Conditions on what directories are named by are answered by the choice of files.
#[async_trait]
impl TableProvider for StoreTable {
    fn schema(&self) -> SchemaRef {
        Arc::clone(self.schema.table_schema())
    }

    fn table_type(&self) -> TableType {
        TableType::Base
    }

    fn supports_filters_pushdown(&self, filters: &[&Expr]) -> Result<Vec<TableProviderFilterPushDown>> {
        let of = |filter: &&Expr| match self.is_of_parts(filter) {
            true => TableProviderFilterPushDown::Exact,
            false => TableProviderFilterPushDown::Inexact,
        };
        Ok(filters.iter().map(of).collect())
    }

    async fn scan(
        &self,
        state: &dyn Session,
        projection: Option<&Vec<usize>>,
        filters: &[Expr],
        limit: Option<usize>,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        self.was_read.store(true, Ordering::Relaxed);
        self.plan(state, self.kept(filters, state)?, projection, limit)
    }
}

/// No rows.
pub(super) fn empty(schema: &SchemaRef, projection: Option<&Vec<usize>>) -> Result<Arc<dyn ExecutionPlan>> {
    let schema = projection.map_or_else(|| Ok(Arc::clone(schema)), |these| schema.project(these).map(Arc::new))?;
    Ok(Arc::new(EmptyExec::new(schema)))
}
