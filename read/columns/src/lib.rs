//! Events of traces as Arrow columns.
//!
//! The problem: analysis runs over columns (pandas, Polars, DuckDB), and traces are records. Whoever makes a Python object of each field
//! spends microseconds an event.
//!
//! ```text
//!   StreamReader ─▶ next_chosen ─▶ merge by time ─▶ Projection      ─▶ Column (a visitor) ─▶ RecordBatch
//!      other classes are passed by their sizes      only chosen members are looked at       at most 64 Ki rows
//! ```
//! Nothing is decoded here: the compiled plan of `dormouse_ctf` shows each column its values.
//!
//! # What the columns are
//! First those that all events have, then the fields, in the order of their classes. A class that lacks a field has null there.
//!
//! | column | type |
//! | --- | --- |
//! | `time` | timestamp in nanoseconds, UTC; null without a clock |
//! | `cpu` | uint32; null where it is not known |
//! | `pid`, `tid` | uint32, of the contexts `vpid` and `vtid`, otherwise `pid` and `tid`; null without them |
//! | `event` | dictionary of the classes' names |
//!
//! | field | type |
//! | --- | --- |
//! | whole number | the smallest of 8, 16, 32 or 64 bits that holds it |
//! | enumeration | dictionary of labels. A value with several labels has all, separated by `, `; one without has its number as text |
//! | Boolean (in traces of Dormouse) | Boolean; every byte but 0 is true |
//! | floating-point number | float32 or float64 |
//! | text | UTF-8; bytes that are none become U+FFFD. [`Request::is_text_binary`] gives the bytes as they are |
//! | byte slice (in traces of Dormouse) | binary |
//! | array, sequence | list. The length that a tracer writes before a sequence is no column |
//! | structure | structure |
//! | variant | structure with a member for each option, all null but the one that is there. Most libraries read no unions |
//!
//! A field that has the name of a column that all events have is called `fields.NAME`, a context's `context.NAME`. Where classes give a
//! name different types, the column has the smallest whole number that holds both; if nothing does, each type has a column of its own,
//! `CLASS.NAME` from the second on. Of one class, which several programs or templates write, signed and unsigned numbers of 64 bits are decimals of 20 digits.
//!
//! What no field says by itself are columns behind these ([`Extra`]): the name of the process, and all fields as JSON.
//!
//! [`Split`] gives batches of each class by itself, with the class's own columns, in one pass over the streams.
//!
//! [`Together`] fills several layouts in one pass over a stream.
//!
//! A field that lies within others is a column where it is asked for by its name: `at.x`, `a[2]`, as in `dormouse_filter`. An event that lacks it has
//! null there.
//!
//! # Cost and limits
//! Events come in the order of time, those of one time in the order of the streams. Only chosen events are merged. Batches end after 64 Ki
//! rows, 8 MiB of records, 16 MiB of texts of [`Extra`] or 16 Mi elements of lists, whichever comes first. Packets outside of the time that is
//! asked for are passed by their headers ([`StreamReader::within`](dormouse_ctf::StreamReader::within)).
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
pub use layout::{ClassColumns, Extra, Layout, Request, RequestError, classes, filled};
pub use pairs::{PairRequest, Pairs, pair_schema};
pub use part::MixedKinds;
