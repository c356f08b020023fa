//! A table of a store, made of Parquet files.

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

/// Maximum number of runs of a host that are read at once. If there are more, the rows are sorted instead.
const RUNS_MAX: usize = 16;

/// A file, and the facts in its path and manifest.
#[derive(Debug, Clone)]
pub(crate) struct StoredFile {
    pub path: Path,
    pub size_bytes: u64,
    pub rows: u64,
    /// Least and greatest time in the file, in nanoseconds since the epoch.
    pub begin_ns: Option<i64>,
    pub end_ns: Option<i64>,
    pub host: Option<String>,
    pub day: Option<String>,
    pub class: Option<String>,
}

impl StoredFile {
    /// Returns the value of a column that directories are named by.
    fn part(&self, name: &str) -> Option<&str> {
        match name {
            "host" => self.host.as_deref(),
            "day" => self.day.as_deref(),
            _ => self.class.as_deref(),
        }
    }
}

/// A table of a store.
#[derive(Debug)]
pub(crate) struct StoreTable {
    root: ObjectStoreUrl,
    schema: TableSchema,
    /// Columns that directories are named by.
    parts: &'static [&'static str],
    /// Column whose least and greatest values are in manifests.
    time: Option<&'static str>,
    files: Vec<StoredFile>,
    /// Omissions from the table, one line each.
    left_out: BTreeSet<String>,
    was_read: AtomicBool,
}

impl StoreTable {
    /// Creates a table. `schema` has the columns in the files.
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

    /// Returns the omissions from the table, one line each.
    pub(crate) fn left_out(&self) -> &BTreeSet<String> {
        &self.left_out
    }

    /// Whether it was read since the last call.
    pub(crate) fn take_read(&self) -> bool {
        // Relaxed: no other memory depends on it.
        self.was_read.swap(false, Ordering::Relaxed)
    }

    /// Returns the columns in the files.
    pub(crate) fn fields(&self) -> impl Iterator<Item = &FieldRef> {
        self.schema.file_schema().fields().iter()
    }

    /// Returns the files that can have rows for which all conditions are true.
    pub(crate) fn kept(&self, filters: &[Expr], state: &dyn Session) -> Result<Vec<&StoredFile>> {
        let mut kept: Vec<&StoredFile> = self.files.iter().collect();
        for filter in filters {
            if self.is_of_time(filter) {
                match push::time(filter) {
                    // A file without times can have any.
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

    /// Returns a scan of some of the files.
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

    /// Returns scans with a partition for each of `parts`, which has hosts, and with rows sorted by host and time. The
    /// files of a host in one scan do not overlap in time; overlapping files are in the next scan. `is_read` chooses
    /// columns.
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
        // With more runs, too many files would be open: one scan has them all, and its rows are sorted.
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

    /// Returns a scan of these hosts' files with a partition for each of `parts`, or `None` if there are no files.
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

    /// Returns a scan whose partitions read exactly these files. Without a stated partitioning, DataFusion divides the
    /// files anew, and an idle partition takes files of another.
    fn scan_by_partition(&self, files: &[Vec<&StoredFile>]) -> Result<FileScanConfigBuilder> {
        let time = self.time.map(|name| self.schema.table_schema().index_of(name)).transpose()?;
        // From these statistics, DataFusion concludes that files do not overlap.
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
            // Not needed: files never change.
            last_modified: Default::default(),
            size: file.size_bytes,
            e_tag: None,
            version: None,
        })
        .with_partition_values(parts.collect())
    }

    /// Returns the statistics of a file's times according to its manifest. `time` is the index of their column.
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

/// Divides files into runs. A file that overlaps the last one of a run goes to another run, so each run is sorted by
/// time.
fn runs(mut files: Vec<&StoredFile>) -> Vec<Vec<&StoredFile>> {
    // A file without times is a run of its own.
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

// The choice of files answers conditions on the columns that directories are named by.
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

/// Returns a plan without rows.
pub(super) fn empty(schema: &SchemaRef, projection: Option<&Vec<usize>>) -> Result<Arc<dyn ExecutionPlan>> {
    let schema = projection.map_or_else(|| Ok(Arc::clone(schema)), |these| schema.project(these).map(Arc::new))?;
    Ok(Arc::new(EmptyExec::new(schema)))
}
