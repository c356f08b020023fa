//! Stores of traces: Parquet files in a directory or an object store, and manifests that name them.
//!
//! ```text
//!   manifests ─▶ Stored: files by table and class ─▶ StoreTable.scan(filters) ─▶ files that can match ─▶ Parquet (DataFusion)
//!                                                      host, day, class, min and max time         statistics of groups and pages
//! ```
//! A file that no manifest names is ignored. Tables have the columns of the traces' tables, followed by `host` and
//! `day`. Where a chunk lacks a column of its class, the column is null.

mod events;
mod pair_exec;
mod pairs;
mod schemas;
mod table;

use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use anyhow::{Result, bail};
use datafusion::arrow::array::{ArrayRef, RecordBatch, StringArray};
use datafusion::arrow::datatypes::{DataType, Field, FieldRef, Schema, SchemaRef, TimeUnit};
use datafusion::catalog::{MemTable, TableProvider};
use datafusion::datasource::object_store::ObjectStoreUrl;
use datafusion::datasource::table_schema::TableSchema;
use datafusion::error::DataFusionError;
use datafusion::execution::context::SessionContext;
use dormouse_store::layout::NO_VALUE;
use dormouse_store::manifest::TABLES as KNOWN;
use dormouse_store::{FileOf, Manifest, Store};

use events::StoreEvents;
pub(crate) use pair_exec::{PairExec, Spec as PairSpec};
pub(crate) use pairs::StoredPairs;
use table::{StoreTable, StoredFile};

/// Columns that every class has, in addition to its fields.
const COMMON: [&str; 6] = ["time", "cpu", "pid", "tid", "process", "thread"];
/// Columns that directories are named by, for each kind of table.
const OF_CLASS: [&str; 2] = ["host", "day"];
const OF_EVENTS: [&str; 3] = ["host", "day", "class"];
const OF_FACTS: [&str; 1] = ["host"];
/// Tables with their own files: name, directory columns, column of times.
const TABLES: [(&str, &[&str], Option<&str>); 4] = [
    ("pairs", &OF_CLASS, Some("begin_time")),
    ("processes", &OF_FACTS, None),
    ("losses", &OF_FACTS, None),
    ("totals", &OF_FACTS, None),
];

/// An open store.
#[derive(Debug)]
pub(crate) struct Stored {
    store: Store,
    /// Address under which the object store is registered.
    root: ObjectStoreUrl,
    classes: BTreeMap<String, Arc<StoreTable>>,
    /// Tables by name, other than those of events.
    tables: BTreeMap<&'static str, Arc<StoreTable>>,
    events: Arc<StoreEvents>,
}

/// Name of a table and, for events, of the class.
type Key = (String, Option<String>);

fn key(table: &str, class: Option<&str>) -> Key {
    (table.to_string(), class.map(String::from))
}

/// Schemas of chunks by table, without duplicates.
#[derive(Default)]
struct Schemas(HashMap<Key, HashMap<String, SchemaRef>>);

impl Schemas {
    fn add(&mut self, manifest: &Manifest, table: &str, class: Option<&str>) -> Result<()> {
        let text = match class {
            Some(class) => manifest.classes.iter().find(|of| of.name == class).map(|of| &of.schema),
            None => manifest.tables.get(table),
        };
        let known = self.0.entry(key(table, class)).or_default();
        let text = text.cloned().unwrap_or_default();
        if let Entry::Vacant(new) = known.entry(text) {
            new.insert(manifest.schema(table, class)?);
        }
        Ok(())
    }

    fn of(&self, table: &str, class: Option<&str>) -> Vec<&SchemaRef> {
        let known = self.0.get(&key(table, class));
        // The fixed order keeps the order of columns stable.
        let sorted: BTreeMap<&String, &SchemaRef> = known.into_iter().flatten().collect();
        sorted.into_values().collect()
    }
}

impl Stored {
    /// Reads all manifests.
    ///
    /// # Errors
    /// There are none, or one cannot be read.
    pub(crate) async fn open(place: &str) -> Result<Stored> {
        let store = Store::open(place)?;
        let manifests = store.manifests().await?;
        if manifests.is_empty() {
            bail!("{place} has no manifests, so it is not a store of traces; `dormouse ship` makes one");
        }
        let root = ObjectStoreUrl::parse(match store.url.scheme() {
            "file" => "file://",
            _ => &store.url[..url::Position::BeforePath],
        })?;
        let mut files: HashMap<Key, Vec<StoredFile>> = HashMap::new();
        let mut schemas = Schemas::default();
        for manifest in &manifests {
            // Classes without files are included.
            for class in &manifest.classes {
                schemas.add(manifest, "events", Some(&class.name))?;
            }
            for table in manifest.tables.keys() {
                schemas.add(manifest, table, None)?;
            }
            for file in &manifest.files {
                if !KNOWN.contains(&file.table.as_str()) {
                    bail!("{place} has a table {}, which this version does not know", file.table);
                }
                let class = file.class.as_deref();
                files.entry(key(&file.table, class)).or_default().push(stored(&store, manifest, file));
            }
        }
        let sum = |of: fn(&Manifest) -> u64| manifests.iter().map(of).sum::<u64>();
        let unpaired = [
            (
                sum(|one| one.unpaired.across_losses),
                "pairs are left out: events may have been lost between begin and end",
            ),
            (sum(|one| one.unpaired.not_followed), "begins are left out: too many were open at once"),
        ];
        let mut of = |table: &str, class: Option<&str>, parts, time| -> Result<Arc<StoreTable>> {
            let files = files.remove(&key(table, class)).unwrap_or_default();
            // Chunks of an earlier version lack columns that named queries use.
            let own = (table == "pairs").then(dormouse_store::pairs::schema);
            let (schema, unfit) = schemas::of(schemas.of(table, class).into_iter().chain(&own));
            let name = class.unwrap_or(table);
            let lines = unfit.iter().map(|column| {
                format!("the column {column} of {name} is left out: its types in different chunks have no common type")
            });
            let unpaired = unpaired.iter().filter(|(count, _)| table == "pairs" && *count > 0);
            let left_out = lines.chain(unpaired.map(|(count, what)| format!("{count} {what}"))).collect();
            Ok(Arc::new(StoreTable::new(root.clone(), schema, parts, time, files, left_out)))
        };
        let names: BTreeSet<&str> =
            manifests.iter().flat_map(|one| &one.classes).map(|class| class.name.as_str()).collect();
        let mut classes = BTreeMap::new();
        for name in names {
            classes.insert(name.to_string(), of("events", Some(name), &OF_CLASS, Some("time"))?);
        }
        let mut tables = BTreeMap::new();
        for (name, parts, time) in TABLES {
            tables.insert(name, of(name, None, parts, time)?);
        }
        let all = classes.values().flat_map(|table| table.files().iter().cloned()).collect();
        let common = StoreTable::new(root.clone(), common(), &OF_EVENTS, Some("time"), all, BTreeSet::new());
        let events = Arc::new(StoreEvents::new(Arc::new(common), classes.clone()));
        Ok(Stored { store, root, classes, tables, events })
    }

    /// Returns the omissions from the tables that were read since the last call, one line each.
    pub(crate) fn take_damage(&self) -> BTreeSet<String> {
        let tables = self.tables.values().chain(self.classes.values());
        tables.filter(|table| table.take_read()).flat_map(|table| table.left_out().clone()).collect()
    }

    /// Returns the names of all event classes, in alphabetical order.
    pub(crate) fn classes(&self) -> impl Iterator<Item = &str> {
        self.classes.keys().map(String::as_str)
    }

    /// Returns the columns of a class.
    fn columns_of(&self, class: &str) -> impl Iterator<Item = &FieldRef> {
        self.classes.get(class).into_iter().flat_map(|table| table.fields())
    }

    /// Returns the names of all columns.
    pub(crate) fn columns(&self) -> Vec<String> {
        let schemas = self.classes.values().map(|table| table.schema());
        let names: BTreeSet<String> = schemas
            .flat_map(|schema| schema.fields().iter().map(|field| field.name().clone()).collect::<Vec<_>>())
            .collect();
        names.into_iter().collect()
    }

    pub(crate) fn table(&self, name: &str) -> datafusion::error::Result<Arc<dyn TableProvider>> {
        if let Some(table) = self.classes.get(name).or_else(|| self.tables.get(name)) {
            return Ok(Arc::clone(table) as Arc<dyn TableProvider>);
        }
        match name {
            "events" => Ok(Arc::clone(&self.events) as Arc<dyn TableProvider>),
            "classes" => self.of_classes(),
            _ => Err(DataFusionError::Internal(format!("there is no table {name}"))),
        }
    }

    /// Registers the object store with a context, under its address.
    pub(crate) fn register(&self, context: &SessionContext) {
        context.runtime_env().register_object_store(self.root.as_ref(), Arc::clone(&self.store.objects));
    }

    /// Returns a table with a row for each class and its columns.
    fn of_classes(&self) -> datafusion::error::Result<Arc<dyn TableProvider>> {
        let fields = |table: &Arc<StoreTable>| {
            let own = table.fields().filter(|field| !COMMON.contains(&field.name().as_str()));
            own.map(|field| format!("{} {}", field.name(), field.data_type())).collect::<Vec<_>>().join(", ")
        };
        let columns: [ArrayRef; 2] = [
            Arc::new(self.classes.keys().map(Some).collect::<StringArray>()),
            Arc::new(self.classes.values().map(|table| Some(fields(table))).collect::<StringArray>()),
        ];
        let batch = RecordBatch::try_from_iter_with_nullable(
            ["class", "fields"].into_iter().zip(columns).map(|(name, column)| (name, column, true)),
        )?;
        Ok(Arc::new(MemTable::try_new(batch.schema(), vec![vec![batch]])?))
    }
}

/// Returns the columns that every class has.
fn common() -> SchemaRef {
    let number = |name: &str| Field::new(name, DataType::UInt32, true);
    Arc::new(Schema::new(vec![
        Field::new("time", DataType::Timestamp(TimeUnit::Nanosecond, Some("UTC".into())), true),
        number("cpu"),
        number("pid"),
        number("tid"),
        Field::new("process", DataType::Utf8, true),
        Field::new("thread", DataType::Utf8, true),
    ]))
}

/// Returns the description of a manifest's file, with its full path.
fn stored(store: &Store, manifest: &Manifest, file: &FileOf) -> StoredFile {
    let value = |text: &String| Some(text.clone()).filter(|text| text != NO_VALUE);
    StoredFile {
        path: store.key(&file.path),
        size_bytes: file.size_bytes,
        rows: file.rows,
        begin_ns: file.begin_ns,
        end_ns: file.end_ns,
        host: value(&manifest.host),
        day: file.day.as_ref().and_then(value),
        class: file.class.clone(),
    }
}

/// Returns the schema of a table with the columns that its directories are named by.
fn with_parts(schema: SchemaRef, parts: &[&str]) -> TableSchema {
    let fields = parts.iter().map(|name| Arc::new(Field::new(*name, DataType::Utf8, true)));
    TableSchema::builder(schema).with_table_partition_cols(fields.collect::<Vec<_>>()).build()
}
