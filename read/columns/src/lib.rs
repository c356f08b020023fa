//! Events of traces as Arrow columns.
//!
//! Analysis works on columns (pandas, Polars, DuckDB), but traces are records. Creating a Python object for each field
//! takes microseconds per event.
//!
//! ```text
//!   StreamReader ─▶ next_chosen ─▶ merge by time ─▶ Projection      ─▶ Column (a visitor) ─▶ RecordBatch
//!      other classes are skipped by size            only chosen members are decoded         at most 64 Ki rows
//! ```
//! Nothing is decoded here: the compiled plan of `dormouse_ctf` passes the values to each column.
//!
//! # Columns
//! First the columns of all events, then those of fields, in the order of their classes. A class that lacks a field has
//! null there.
//!
//! | column | type |
//! | --- | --- |
//! | `time` | timestamp in nanoseconds, UTC; null without a clock |
//! | `cpu` | uint32; null if it is not known |
//! | `pid`, `tid` | uint32, from the contexts `vpid` and `vtid`, otherwise `pid` and `tid`; null without them |
//! | `event` | dictionary of the classes' names |
//!
//! | field | type |
//! | --- | --- |
//! | integer | the smallest of 8, 16, 32 or 64 bits that holds it |
//! | enumeration | dictionary of labels. A value with several labels has all of them, separated by `, `; a value without labels has its number as text |
//! | Boolean (in traces of Dormouse) | Boolean; every byte but 0 is true |
//! | floating-point number | float32 or float64 |
//! | text | UTF-8; invalid bytes become U+FFFD. [`Request::is_text_binary`] keeps the bytes |
//! | byte slice (in traces of Dormouse) | binary |
//! | array, sequence | list. The length that a tracer writes before a sequence is not a column |
//! | structure | structure |
//! | variant | structure with a member for each option, all null except the present one. Most libraries cannot read unions |
//!
//! A field with the name of a column of all events is called `fields.NAME`, a context `context.NAME`. If classes give a
//! name different types, the column has the smallest integer type that holds both. If there is none, each type has its
//! own column, named `CLASS.NAME` from the second on. Within one class, which several programs or templates can write,
//! a mix of signed and unsigned 64-bit integers becomes decimals of 20 digits.
//!
//! Columns that are not single fields follow ([`Extra`]): the name of the process, and all fields as JSON.
//!
//! [`Split`] returns separate batches for each class, with the class's own columns, in one pass over the streams.
//!
//! [`Together`] fills several layouts in one pass over a stream.
//!
//! A nested field becomes a column if it is requested by name: `at.x`, `a[2]`, as in `dormouse_filter`. An event that
//! lacks it has null there.
//!
//! # Cost and limits
//! Events are in order of time, and those with equal times in the order of the streams. Only chosen events are merged.
//! Batches end after 64 Ki rows, 8 MiB of records, 16 MiB of texts of [`Extra`] or 16 Mi elements of lists, whichever
//! is reached first. Packets outside of the requested times are skipped by their headers
//! ([`StreamReader::within`](dormouse_ctf::StreamReader::within)).
//!
//! # Source
//! Apache Arrow columnar format 1.5; The Arrow C stream interface.
#![forbid(unsafe_code)]
#![cfg_attr(not(test), deny(clippy::print_stdout, clippy::print_stderr))]

mod batches;
mod column;
mod kind;
mod layout;
mod pairs;
mod part;

pub use batches::{Batches, ByClass, Damage, Gap, Split, Together, TogetherRows};
pub use layout::{COMMON, ClassColumns, Extra, Layout, Request, RequestError, classes, filled};
pub use pairs::{PairRequest, Pairs, pair_schema};
pub use part::MixedKinds;
