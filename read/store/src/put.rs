//! Puts a trace into a store, as a chunk.
//!
//! ```text
//!   manifest exists ─▶ nothing to do
//!   otherwise: trace ─▶ events (one pass), pairs (one pass for each key), counts ─▶ files ─▶ all written ─▶ manifest, unless it exists
//! ```
//! A process that is killed before the manifest is written leaves files that no manifest names. The next process that
//! puts the trace makes the same files and accepts those that exist.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use arrow_array::RecordBatch;
use bytes::Bytes;
use dormouse_columns::{ByClass, Damage, Split};
use dormouse_ctf::model::EnvValue;
use dormouse_ctf::{ClassRef, Stats, TraceRef};
use dormouse_reader::TraceFiles;
use tokio::runtime::Handle;

use crate::error::{Error, Failed, Result};
use crate::files::{Files, Format, Of, by_day, renamed};
use crate::layout::NO_VALUE;
use crate::manifest::{ClassOf, FORMAT, Manifest, Unpaired, encoded};
use crate::place::Store;
use crate::sort::Sorter;
use crate::{facts, pairs};

/// Number of bytes of the hash that make up a chunk's key.
const KEY_BYTES: usize = 12;

/// Options for putting a trace.
#[derive(Debug, Clone, Default)]
pub struct Options {
    /// Name of the host, in place of the one in the trace.
    pub host: Option<String>,
    /// Memory for rows that are not written yet, in bytes.
    pub memory_bytes: usize,
    /// Format of the output.
    pub format: Format,
}

/// Progress of a put, and a flag that cancels it.
#[derive(Debug, Default)]
pub struct Watch {
    /// If set, the put ends with an error.
    pub is_over: AtomicBool,
    /// Number of events that have been written.
    pub done: AtomicU64,
    /// Total number of events; 0 before it is known.
    pub all: AtomicU64,
}

/// Result of a put.
#[derive(Debug)]
pub struct Put {
    /// Manifest of the chunk.
    pub manifest: Manifest,
    /// Whether this put has written the manifest. False: the chunk was already in the store.
    pub is_new: bool,
    /// Problems of the trace, one line each.
    pub warnings: Vec<String>,
    /// Whether events were lost while the trace was recorded.
    pub has_lost: bool,
}

/// Host of a trace, and key of its chunk.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Identity {
    /// Name of the host.
    pub host: String,
    /// Key of the chunk.
    pub chunk: String,
}

/// Returns the host that a trace names in its environment.
fn host_of(trace: TraceRef<'_>) -> String {
    if let Some(own) = trace.own() {
        return own.options.hostname.clone();
    }
    let found = trace.env().iter().find(|(name, _)| name == "hostname").map(|(_, value)| value);
    match found {
        Some(EnvValue::Text(name)) if !name.is_empty() => name.clone(),
        _ => NO_VALUE.into(),
    }
}

impl Identity {
    /// Returns the identity of a trace. The key is a hash of its UUID, and of the names, lengths and edges of its
    /// streams. It does not depend on the trace's path. `host`: name of the host, in place of the one in the trace.
    ///
    /// # Errors
    /// The trace cannot be read.
    pub fn of(files: &TraceFiles, host: Option<&str>) -> Result<Identity> {
        let mut hash = ring::digest::Context::new(&ring::digest::SHA256);
        let mut put = |bytes: &[u8]| {
            hash.update(&(bytes.len() as u64).to_le_bytes());
            hash.update(bytes);
        };
        for trace in files.described() {
            put(trace.class.uuid.as_ref().map_or(&[], |uuid| uuid.as_slice()));
        }
        files.show_edges(&mut put).failed(|| "cannot read the trace".into())?;
        let chunk = hash.finish().as_ref()[..KEY_BYTES].iter().map(|byte| format!("{byte:02x}")).collect();
        let host = host.map(str::to_owned).or_else(|| files.traces().next().map(host_of));
        Ok(Identity { host: host.unwrap_or_else(|| NO_VALUE.into()), chunk })
    }

    /// Returns the manifest if the chunk is in the store.
    ///
    /// # Errors
    /// The store cannot be read.
    pub async fn manifest(&self, store: &Store) -> Result<Option<Manifest>> {
        let path = Manifest::path_of(&self.host, &self.chunk);
        let bytes = store.get(&path).await?;
        bytes.map(|bytes| Manifest::decode(bytes, &path)).transpose()
    }
}

/// Puts a trace into the store, unless it is there. `files` holds this trace only; `name` is its name. Meanwhile the
/// runtime's threads upload complete files.
///
/// # Errors
/// The trace cannot be read, the store cannot be written, or the put was cancelled.
pub fn put(
    store: &Store,
    runtime: &Handle,
    files: &TraceFiles,
    name: &str,
    options: &Options,
    watch: &Watch,
) -> Result<Put> {
    let identity = Identity::of(files, options.host.as_deref())?;
    let known = if options.format == Format::Parquet { runtime.block_on(identity.manifest(store))? } else { None };
    if let Some(manifest) = known {
        return Ok(Put { manifest, is_new: false, warnings: Vec::new(), has_lost: false });
    }
    let stats = files.stats();
    watch.all.store(stats.events, Ordering::Relaxed);
    watch.done.store(0, Ordering::Relaxed);
    let Identity { host, chunk } = &identity;
    // Half is for row groups and a quarter for sorting pairs; the rest is for uploads.
    let objects = Files::new(store, runtime, options.format, (host, chunk), options.memory_bytes / 2)?;
    let mut making = Making { files, watch, objects, stats: &stats, classes: Vec::new(), tables: BTreeMap::new() };
    let (events, damage) = making.events()?;
    let mut unpaired = Unpaired::default();
    if options.format == Format::Parquet {
        unpaired = making.pairs(options.memory_bytes / 4)?;
        making.facts(&unpaired)?;
    }
    let Making { objects, classes, tables, .. } = making;
    let mut warnings = stats.warnings.clone();
    if events != stats.events && damage.count == 0 {
        warnings.push(format!("{} events were counted, and {events} read", stats.events));
    }
    let uuid = files.described().first().and_then(|trace| trace.class.uuid);
    let manifest = Manifest {
        format: FORMAT,
        writer: format!("dormouse {}", env!("CARGO_PKG_VERSION")),
        host: host.clone(),
        chunk: chunk.clone(),
        name: name.into(),
        trace: uuid.map(|uuid| uuid.iter().map(|byte| format!("{byte:02x}")).collect()),
        begin_ns: stats.span.as_ref().map(|span| span.begin_ns),
        end_ns: stats.span.as_ref().map(|span| span.end_ns),
        events,
        unpaired,
        files: objects.finish()?,
        classes,
        tables,
    };
    let mut is_new = true;
    if options.format == Format::Parquet {
        let text = serde_json::to_vec_pretty(&manifest).failed(|| "cannot write a manifest".into())?;
        let path = Manifest::path_of(host, chunk);
        is_new = runtime.block_on(store.put_new(&path, Bytes::from(text)))?;
    }
    Ok(Put { manifest, is_new, warnings, has_lost: stats.events_lost > 0 })
}

/// A chunk that is being made.
struct Making<'m> {
    files: &'m TraceFiles,
    watch: &'m Watch,
    objects: Files<'m>,
    stats: &'m Stats,
    classes: Vec<ClassOf>,
    tables: BTreeMap<String, String>,
}

impl Making<'_> {
    fn is_wanted(&self) -> Result<()> {
        // Relaxed: the flag publishes no other data.
        if self.watch.is_over.load(Ordering::Relaxed) { Err(Error("interrupted".into())) } else { Ok(()) }
    }

    /// Writes all events, except those of state classes. Returns their number and the damage of the streams.
    fn events(&mut self) -> Result<(u64, Damage)> {
        let reading = || "cannot read the trace".into();
        let traces: Vec<TraceRef<'_>> = self.files.traces().collect();
        let state: Vec<&str> = traces
            .iter()
            .flat_map(|trace| ClassRef::all(*trace))
            .filter(ClassRef::is_state)
            .map(|class| class.class.full_name.as_str())
            .collect();
        let busy = self.stats.classes.iter().map(|class| class.name.clone());
        let mut names: Vec<String> = busy.filter(|name| !state.contains(&name.as_str())).collect();
        names.sort();
        names.dedup();
        // Classes without events are listed with their columns, too, so that a query of them finds an empty table.
        let declared =
            traces.iter().flat_map(|trace| ClassRef::all(*trace)).map(|class| class.class.full_name.as_str());
        let is_idle = |name: &&str| !state.contains(name) && !names.iter().any(|busy| busy == name);
        let idle: BTreeSet<&str> = declared.filter(is_idle).collect();
        let idle: Vec<String> = idle.into_iter().map(String::from).collect();
        if !idle.is_empty() {
            let of_idle = ByClass::new(&traces, &idle).failed(reading)?;
            for (name, layout) in of_idle.classes().filter(|(name, _)| idle.iter().any(|one| one == name)) {
                self.classes.push(ClassOf { name: name.into(), schema: encoded(&renamed(&layout.schema())) });
            }
        }
        if names.is_empty() {
            self.classes.sort_by(|a, b| a.name.cmp(&b.name));
            return Ok((0, Damage::default()));
        }
        let by_class = ByClass::new(&traces, &names).failed(reading)?;
        let mut schemas = Vec::new();
        for (name, layout) in by_class.classes() {
            let schema = renamed(&layout.schema());
            self.classes.push(ClassOf { name: name.into(), schema: encoded(&schema) });
            schemas.push((name.to_owned(), schema, false));
        }
        let mut events = 0;
        let damage = std::thread::scope(|scope| {
            let ahead = self.files.chosen(scope, by_class.times(), |trace| Some(by_class.choice(trace)));
            let mut split = Split::of(&by_class, ahead).with_writers(self.files.state().writers);
            for batch in &mut split {
                let (class, batch) = batch.failed(reading)?;
                self.is_wanted()?;
                let (name, schema, is_there) = &mut schemas[class];
                *is_there = true;
                let batch = RecordBatch::try_new(schema.clone(), batch.columns().to_vec()).failed(reading)?;
                for (day, rows) in by_day(&batch, 0) {
                    let of = Of { table: "events", class: Some(name.clone()), day: Some(day) };
                    self.objects.write(&of, Some(0), &rows)?;
                }
                events += batch.num_rows() as u64;
                self.watch.done.store(events, Ordering::Relaxed);
            }
            Ok::<_, Error>(split.damage().clone())
        })?;
        // A class name that is also a pattern can have selected other classes, without events.
        let is_known = |class: &ClassOf| {
            idle.contains(&class.name) || schemas.iter().any(|(name, _, is_there)| *is_there && *name == class.name)
        };
        self.classes.retain(is_known);
        self.classes.sort_by(|a, b| a.name.cmp(&b.name));
        Ok((events, damage))
    }

    /// Writes the pairs, sorted by begin. Returns counts of what is not among them.
    fn pairs(&mut self, memory_bytes: usize) -> Result<Unpaired> {
        let mut sorter = Sorter::new(pairs::BEGIN_TIME, memory_bytes);
        let mut all = Unpaired::default();
        let schema = pairs::schema();
        let columns: Vec<usize> = (0..schema.fields().len()).collect();
        let groups = pairs::of_names(self.files);
        let keys = pairs::survey(self.files, &groups, None)?;
        all.doubtful = keys.iter().filter(|found| found.fields.is_empty()).map(|found| found.alone).sum();
        for group in groups.into_iter().flat_map(|group| group.by_found(&keys)) {
            let found = group.run(self.files, &columns, |batch| {
                self.is_wanted()?;
                sorter.push(batch).map(|()| true)
            })?;
            let Some((unpaired, _)) = found else { continue };
            all.begins += unpaired.begins;
            all.ends += unpaired.ends;
            all.across_losses += unpaired.across_losses;
            all.not_followed += unpaired.not_followed;
        }
        self.tables.insert("pairs".into(), encoded(&schema));
        let objects = &mut self.objects;
        sorter.finish(|batch| {
            by_day(&batch, pairs::BEGIN_TIME).into_iter().try_for_each(|(day, rows)| {
                let of = Of { table: "pairs", class: None, day: Some(day) };
                objects.write(&of, Some(pairs::BEGIN_TIME), &rows)
            })
        })?;
        Ok(all)
    }

    /// Writes the tables of the trace's statistics.
    fn facts(&mut self, unpaired: &Unpaired) -> Result<()> {
        let stats = Some(self.stats);
        let tables = [
            ("processes", facts::processes(stats)),
            ("losses", facts::losses(stats, unpaired)),
            ("totals", facts::totals(stats)),
        ];
        for (table, columns) in tables {
            let batch = facts::batch(columns).failed(|| "cannot write a table".into())?;
            self.tables.insert(table.into(), encoded(&batch.schema()));
            self.objects.write(&Of { table, class: None, day: None }, None, &batch)?;
        }
        Ok(())
    }
}
