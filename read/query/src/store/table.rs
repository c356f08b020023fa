//! A table of a store: files of Parquet.

use std::collections::{BTreeSet, HashMap};
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
use datafusion::physical_plan::empty::EmptyExec;
use datafusion::physical_plan::{ExecutionPlan, Partitioning};
use object_store::path::Path;

use super::pair_exec::by_host_and_time;
use crate::push::{self, Pushed};

/// More files of a class that overlap in time are not read at once.
const RUNS_MAX: usize = 16;

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
    /// What is not in it, one line each.
    left_out: BTreeSet<String>,
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
        left_out: BTreeSet<String>,
    ) -> StoreTable {
        StoreTable {
            root,
            schema: super::with_parts(schema, parts),
            parts,
            time,
            files,
            left_out,
            was_read: AtomicBool::new(false),
        }
    }

    pub(crate) fn files(&self) -> &[StoredFile] {
        &self.files
    }

    /// What is not in it, one line each.
    pub(crate) fn left_out(&self) -> &BTreeSet<String> {
        &self.left_out
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
            } else if push::is_about(filter, self.parts) && !kept.is_empty() {
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

    /// A scan of some of the files.
    pub(crate) fn plan<'f>(
        &self,
        state: &dyn Session,
        files: impl IntoIterator<Item = &'f StoredFile>,
        projection: Option<&Vec<usize>>,
        limit: Option<usize>,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        self.was_read.store(true, Ordering::Relaxed);
        let files: Vec<&StoredFile> = files.into_iter().collect();
        if files.is_empty() {
            return empty(self.schema.table_schema(), projection);
        }
        let all = FileGroup::new(files.iter().map(|file| self.partitioned(file)).collect());
        let scan = self.scan_of(all.split_files(state.config().target_partitions()), &files);
        let scan = scan.with_limit(limit).with_projection_indices(projection.cloned())?;
        Ok(DataSourceExec::from_data_source(scan.build()))
    }

    /// Scans of the files of these hosts, a partition for each of `parts`: rows in the order of hosts and times. Each has files of a host that follow one
    /// another; what overlaps them is in the next one. `is_read`: columns.
    pub(crate) fn in_order(
        &self,
        parts: &[Vec<Option<&str>>],
        is_read: &dyn Fn(&str) -> bool,
    ) -> Result<Vec<Arc<dyn ExecutionPlan>>> {
        let schema = self.schema.table_schema();
        let by_host = self.files_by_host();
        let runs_of = |host: &Option<&str>| runs(by_host.get(host).cloned().unwrap_or_default());
        let of_parts: Vec<Vec<Vec<_>>> = parts.iter().map(|hosts| hosts.iter().map(runs_of).collect()).collect();
        let count = of_parts.iter().flatten().map(Vec::len).max().unwrap_or(0);
        // So many files are not open at a time: their rows are sorted.
        let is_sorted = count <= RUNS_MAX;
        let projection: Vec<usize> =
            (0..schema.fields().len()).filter(|index| is_read(schema.field(*index).name())).collect();
        let order = by_host_and_time(schema.index_of("host")?, schema.index_of("time")?);
        let scan = |at: usize| -> Result<Arc<dyn ExecutionPlan>> {
            let files_of = |hosts: &Vec<Vec<Vec<_>>>| -> Vec<&StoredFile> {
                let all = hosts.iter().flat_map(|runs| if is_sorted { runs.get(at..=at) } else { Some(&runs[..]) });
                all.flatten().flatten().copied().collect()
            };
            let files: Vec<Vec<&StoredFile>> = of_parts.iter().map(files_of).collect();
            let scan = self.scan_by_partition(&files)?;
            let scan = scan.with_output_ordering(if is_sorted { vec![order.clone()] } else { Vec::new() });
            Ok(DataSourceExec::from_data_source(scan.with_projection_indices(Some(projection.clone()))?.build()))
        };
        (0..if is_sorted { count } else { 1 }).map(scan).collect()
    }

    /// A scan of the files of these hosts, a partition for each of `parts`; `None`: there are none.
    pub(crate) fn by_parts(&self, parts: &[Vec<Option<&str>>]) -> Result<Option<Arc<dyn ExecutionPlan>>> {
        let by_host = self.files_by_host();
        let files_of = |host: &Option<&str>| by_host.get(host).cloned().unwrap_or_default();
        let files: Vec<Vec<&StoredFile>> =
            parts.iter().map(|hosts| hosts.iter().flat_map(files_of).collect()).collect();
        if files.iter().all(Vec::is_empty) {
            return Ok(None);
        }
        Ok(Some(DataSourceExec::from_data_source(self.scan_by_partition(&files)?.build())))
    }

    fn files_by_host(&self) -> HashMap<Option<&str>, Vec<&StoredFile>> {
        let mut by_host: HashMap<_, Vec<_>> = HashMap::new();
        for file in &self.files {
            by_host.entry(file.host.as_deref()).or_default().push(file);
        }
        by_host
    }

    /// A scan whose partitions have these files and no others: without a word, files are divided anew, and whoever is done takes those of another.
    fn scan_by_partition(&self, files: &[Vec<&StoredFile>]) -> Result<FileScanConfigBuilder> {
        let time = self.time.map(|name| self.schema.table_schema().index_of(name)).transpose()?;
        // That files follow one another is believed by what is known of them.
        let one = |file: &&StoredFile| match time {
            Some(time) => self.partitioned(file).with_statistics(Arc::new(self.times(file, time))),
            None => self.partitioned(file),
        };
        let groups = files.iter().map(|files| FileGroup::new(files.iter().map(one).collect())).collect();
        let partitions = Partitioning::UnknownPartitioning(files.len());
        Ok(self.scan_of(groups, &files.concat()).with_output_partitioning(Some(partitions)))
    }

    fn scan_of(&self, groups: Vec<FileGroup>, files: &[&StoredFile]) -> FileScanConfigBuilder {
        let mut statistics = Statistics::new_unknown(self.schema.table_schema());
        statistics.num_rows = Precision::Exact(files.iter().map(|file| file.rows as usize).sum());
        let source = Arc::new(ParquetSource::new(self.schema.clone()));
        let scan = FileScanConfigBuilder::new(self.root.clone(), source);
        scan.with_file_groups(groups).with_statistics(statistics)
    }

    fn partitioned(&self, file: &StoredFile) -> PartitionedFile {
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
    }

    /// What the manifest says of a file's times, which are the column of this index.
    fn times(&self, file: &StoredFile, time: usize) -> Statistics {
        let mut statistics = Statistics::new_unknown(self.schema.file_schema());
        let zone = Some("UTC".into());
        let value = |ns: Option<i64>| match ns {
            Some(ns) => Precision::Exact(ScalarValue::TimestampNanosecond(Some(ns), zone.clone())),
            None => Precision::Absent,
        };
        statistics.column_statistics[time].min_value = value(file.begin_ns);
        statistics.column_statistics[time].max_value = value(file.end_ns);
        statistics
    }
}

/// Files that overlap the one before in time are in another run, so that each is in the order of time.
fn runs(mut files: Vec<&StoredFile>) -> Vec<Vec<&StoredFile>> {
    // What tells no times is a run of its own.
    files.sort_by_key(|file| (file.begin_ns, file.end_ns));
    let mut runs: Vec<Vec<&StoredFile>> = Vec::new();
    for file in files {
        let fits = |run: &&mut Vec<&StoredFile>| {
            let last = run.last().and_then(|last| last.end_ns);
            last.zip(file.begin_ns).is_some_and(|(end_ns, begin_ns)| end_ns < begin_ns)
        };
        match runs.iter_mut().find(fits) {
            Some(run) => run.push(file),
            None => runs.push(vec![file]),
        }
    }
    runs
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
        let of = |filter: &&Expr| match push::is_about(filter, self.parts) {
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
        self.plan(state, self.kept(filters, state)?, projection, limit)
    }
}

/// No rows.
pub(super) fn empty(schema: &SchemaRef, projection: Option<&Vec<usize>>) -> Result<Arc<dyn ExecutionPlan>> {
    let schema = projection.map_or_else(|| Ok(Arc::clone(schema)), |these| schema.project(these).map(Arc::new))?;
    Ok(Arc::new(EmptyExec::new(schema)))
}
