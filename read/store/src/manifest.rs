//! Manifests: the object that lists the files of a chunk, without which the chunk does not exist.

use std::collections::BTreeMap;
use std::sync::Arc;

use arrow_ipc::convert::{IpcSchemaEncoder, fb_to_schema};
use arrow_ipc::root_as_schema;
use arrow_schema::{Schema, SchemaRef};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde::{Deserialize, Serialize};

use crate::error::{Error, Failed, Result};

/// Name of the directory of manifests in a store.
pub const MANIFESTS: &str = "manifest";

/// Number of the layout that this version writes and reads.
pub const FORMAT: u32 = 1;

/// The tables of a store, `events` first.
pub const TABLES: [&str; 5] = ["events", "pairs", "processes", "losses", "totals"];

/// The content of a chunk. A reader takes the files that manifests name, and no others.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Manifest {
    /// [`FORMAT`].
    pub format: u32,
    /// Program and version that wrote it.
    pub writer: String,
    /// Host of the trace.
    pub host: String,
    /// The chunk's key.
    pub chunk: String,
    /// Name of the trace when it was put.
    pub name: String,
    /// The trace's UUID, if it has one.
    pub trace: Option<String>,
    /// Time of the first event, in nanoseconds since the epoch.
    pub begin_ns: Option<i64>,
    /// Time of the last event, in nanoseconds since the epoch.
    pub end_ns: Option<i64>,
    /// Events in the files of the table `events`.
    pub events: u64,
    /// Counts of events and pairs that are not among the chunk's pairs.
    pub unpaired: Unpaired,
    /// Files of all tables.
    pub files: Vec<FileOf>,
    /// Event classes, with their columns. A class without events has no files.
    pub classes: Vec<ClassOf>,
    /// Columns of the other tables, by name of the table, in the form of [`ClassOf::schema`].
    pub tables: BTreeMap<String, String>,
}

/// A file of a chunk.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileOf {
    /// Name of the table, one of [`TABLES`].
    pub table: String,
    /// Event class, in the table `events`.
    pub class: Option<String>,
    /// Day of all rows, `2026-11-26`, in the tables `events` and `pairs`; `__HIVE_DEFAULT_PARTITION__` for rows without
    /// a time.
    pub day: Option<String>,
    /// Path below the store's prefix.
    pub path: String,
    /// Length of the object, in bytes.
    pub size_bytes: u64,
    /// Number of rows.
    pub rows: u64,
    /// Least time of a row (of a begin, in the table `pairs`), in nanoseconds since the epoch.
    pub begin_ns: Option<i64>,
    /// Greatest time of a row (of a begin, in the table `pairs`), in nanoseconds since the epoch.
    pub end_ns: Option<i64>,
}

/// An event class of a chunk.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClassOf {
    /// Full name, `provider:name`.
    pub name: String,
    /// Columns of its files: an Arrow schema (`Schema` of Arrow's flatbuffers), in base64.
    pub schema: String,
}

/// Counts of events and pairs that are not among the pairs of a chunk.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Unpaired {
    /// Begins whose end is not in the chunk.
    pub begins: u64,
    /// Ends whose begin is not in the chunk.
    pub ends: u64,
    /// Pairs between whose begin and end events can have been lost.
    pub across_losses: u64,
    /// Begins that were not followed because too many others were open.
    pub not_followed: u64,
    /// Begins and ends that are alone on their threads, of names that no field identifies: the pairs of these names are
    /// not certain.
    #[serde(default)]
    pub doubtful: u64,
}

impl Unpaired {
    /// Returns the counts that are not zero, each with its description.
    pub fn told(&self) -> impl Iterator<Item = (&'static str, u64)> {
        let all = [
            ("begins whose end is not in this chunk", self.begins),
            ("ends whose begin is not in this chunk", self.ends),
            ("pairs between whose ends events can have been lost", self.across_losses),
            ("begins that came while too many were open", self.not_followed),
            (
                "begins and ends on different threads without a common field: pairs of their names are not certain",
                self.doubtful,
            ),
        ];
        all.into_iter().filter(|(_, count)| *count > 0)
    }
}

impl Manifest {
    /// Returns the path of a chunk's manifest in a store.
    pub fn path_of(host: &str, chunk: &str) -> String {
        format!("{MANIFESTS}/host={}/{chunk}.json", crate::layout::escaped(host))
    }

    /// Decodes a manifest. `name` is its name in errors.
    ///
    /// # Errors
    /// The bytes are not a manifest, or one of another layout.
    pub fn decode(bytes: impl AsRef<[u8]>, name: &dyn std::fmt::Display) -> Result<Manifest> {
        #[derive(Deserialize)]
        struct Format {
            format: u32,
        }
        let no_manifest = || format!("{name} is no manifest of a store");
        let Format { format } = serde_json::from_slice(bytes.as_ref()).failed(no_manifest)?;
        if format != FORMAT {
            return Err(
                format!("{name} is of layout {format}, and this program reads {FORMAT}: take a later one").into()
            );
        }
        serde_json::from_slice(bytes.as_ref()).failed(no_manifest)
    }

    /// Returns the columns of the files of a class, or of a table other than `events`. Columns that are names of
    /// directories are not included.
    ///
    /// # Errors
    /// The chunk does not have the table or class, or its schema cannot be decoded.
    pub fn schema(&self, table: &str, class: Option<&str>) -> Result<SchemaRef> {
        let text = match class {
            Some(class) => self.classes.iter().find(|of| of.name == class).map(|of| &of.schema),
            None => self.tables.get(table),
        };
        let text = text.ok_or_else(|| Error(format!("chunk {} has no {}", self.chunk, class.unwrap_or(table))))?;
        let no_schema = || format!("the manifest of chunk {} has no columns of {}", self.chunk, class.unwrap_or(table));
        let bytes = STANDARD.decode(text).failed(no_schema)?;
        root_as_schema(&bytes).failed(no_schema).map(|schema| Arc::new(fb_to_schema(schema)))
    }
}

/// Returns a schema in the form of [`ClassOf::schema`].
pub(crate) fn encoded(schema: &Schema) -> String {
    STANDARD.encode(IpcSchemaEncoder::new().schema_to_fb(schema).finished_data())
}
