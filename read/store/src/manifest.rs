//! What a chunk consists of: the object that makes it there.

use std::collections::BTreeMap;
use std::sync::Arc;

use arrow_ipc::convert::{IpcSchemaEncoder, fb_to_schema};
use arrow_ipc::root_as_schema;
use arrow_schema::{Schema, SchemaRef};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde::{Deserialize, Serialize};

use crate::error::{Error, Failed, Result};

/// Where manifests lie in a store.
pub const MANIFESTS: &str = "manifest";

/// The layout that this version writes and reads.
pub const FORMAT: u32 = 1;

/// The tables of a store, `events` first.
pub const TABLES: [&str; 5] = ["events", "pairs", "processes", "losses", "totals"];

/// What a chunk consists of. A reader takes what manifests name, and nothing else.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Manifest {
    /// [`FORMAT`].
    pub format: u32,
    /// Who has written it.
    pub writer: String,
    /// The host that the trace is of.
    pub host: String,
    /// The chunk's key.
    pub chunk: String,
    /// What the trace was called where it lay.
    pub name: String,
    /// The trace's UUID, if it has one.
    pub trace: Option<String>,
    /// The first event, nanoseconds since the epoch.
    pub begin_ns: Option<i64>,
    /// The last event, nanoseconds since the epoch.
    pub end_ns: Option<i64>,
    /// Events in the files of the table `events`.
    pub events: u64,
    /// What begins or ends in the chunk and is not among its pairs.
    pub unpaired: Unpaired,
    /// All files.
    pub files: Vec<FileOf>,
    /// Event classes, with their columns; those without events have no files.
    pub classes: Vec<ClassOf>,
    /// The columns of the other tables, as of classes.
    pub tables: BTreeMap<String, String>,
}

/// A file of a chunk.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileOf {
    /// One of [`TABLES`].
    pub table: String,
    /// Of events: the class.
    pub class: Option<String>,
    /// Of events and pairs: the day of all rows, `2026-11-26`; `__HIVE_DEFAULT_PARTITION__` for rows without a time.
    pub day: Option<String>,
    /// Below the store's prefix.
    pub path: String,
    /// The object's length.
    pub size_bytes: u64,
    /// Rows in it.
    pub rows: u64,
    /// The least time of a row (of pairs: of a begin), nanoseconds since the epoch.
    pub begin_ns: Option<i64>,
    /// The greatest time of a row (of pairs: of a begin), nanoseconds since the epoch.
    pub end_ns: Option<i64>,
}

/// An event class of a chunk.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClassOf {
    /// `provider:name`.
    pub name: String,
    /// The columns of its files: an Arrow schema (`Schema` of its flatbuffers), in base64.
    pub schema: String,
}

/// What is not among the pairs of a chunk.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Unpaired {
    /// Begins whose end is not in the chunk.
    pub begins: u64,
    /// Ends whose begin is not in the chunk.
    pub ends: u64,
    /// Pairs between whose two ends events can have been lost.
    pub across_losses: u64,
    /// Begins that came while too many were open.
    pub not_followed: u64,
}

impl Unpaired {
    /// What there is of it, in words.
    pub fn told(&self) -> impl Iterator<Item = (&'static str, u64)> {
        let all = [
            ("begins whose end is not in this chunk", self.begins),
            ("ends whose begin is not in this chunk", self.ends),
            ("pairs between whose ends events can have been lost", self.across_losses),
            ("begins that came while too many were open", self.not_followed),
        ];
        all.into_iter().filter(|(_, count)| *count > 0)
    }
}

impl Manifest {
    /// Where the manifest of a chunk lies in a store.
    pub fn path_of(host: &str, chunk: &str) -> String {
        format!("{MANIFESTS}/host={}/{chunk}.json", crate::layout::escaped(host))
    }

    /// Reads one.
    ///
    /// # Errors
    /// It is none, or of a later layout.
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

    /// The columns of the files of a table; of `events` those of a class. Without the columns that directories name.
    ///
    /// # Errors
    /// The chunk has no such table or class, or what stands there is no schema.
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

    /// The files of a table.
    pub fn files_of<'m>(&'m self, table: &'m str) -> impl Iterator<Item = &'m FileOf> {
        self.files.iter().filter(move |file| file.table == table)
    }
}

/// A schema as a manifest has it.
pub(crate) fn encoded(schema: &Schema) -> String {
    STANDARD.encode(IpcSchemaEncoder::new().schema_to_fb(schema).finished_data())
}
