//! The filter language: which events are wanted.
//!
//! The problem: a person asks for `bytes > 4096 and comm == "nginx"`, of events whose classes have different fields, in traces of millions. So names are
//! looked up once for each event class, and what a class answers by itself is not asked again for each event.
//!
//! ```text
//!   text ──▶ grammar ──▶ Filter (expression, names) ──▶ Test, one for each event class ──▶ Some(true), Some(false), None
//!                              ▲ names of the class: Binding        ▲ values of an event: Fields
//! ```
//!
//! | written | means |
//! | --- | --- |
//! | `a and b`, `a && b`; `a or b`, `a \|\| b`; `not a`, `!a`; `( )` | `not` binds closest, then `and`, then `or` |
//! | `==` `!=` `<` `<=` `>` `>=` | comparison of two values: fields, or values as below |
//! | `x ~ "lib*"` | text or label matches a pattern, in which `*` stands for any text and `?` for one character; `\*` is the star itself |
//! | `x` | a number other than 0, or `true` |
//! | `10` `-3` `0x1f` `1_000` | whole numbers |
//! | `64K` `16M` `1G` `1T` | powers of 1024 |
//! | `500ns` `10us` `10ms` `1.5s` `2m` `1h` | durations, which are whole numbers of nanoseconds |
//! | `1.5` `1e-3` | floating-point numbers |
//! | `"text"` | text; `\"` `\\` `\n` `\t` `\r` `\xFF` within |
//! | `true` `false` | a number is true if it is not 0 |
//! | `bytes` `a.b` `a[2]` `` `odd name` `` | a field, a member, an element, and a name that is no word |
//!
//! Labels of enumerations are compared with text: `state == "READY"`. If a value has several labels, one that is equal is enough.
//!
//! # Three values
//! What an event does not have, and values of kinds that are not comparable, make a comparison *unknown*, and an event is wanted only if the
//! whole is true. `not` of unknown is unknown: `not (bytes > 10)` does not match an event without `bytes`. `or` is true if one
//! side is, and `and` is false if one side is, whatever the other.
//!
//! # Cost
//! Evaluation allocates nothing. A comparison costs the two values and one comparison; whole numbers are compared exactly with floating-point numbers.
//!
//! # Limits
//! A filter has at most 64 KiB, 64 levels of parentheses and `not`, and 256 different names.
#![forbid(unsafe_code)]
#![cfg_attr(not(test), deny(clippy::print_stdout, clippy::print_stderr))]

mod error;
mod grammar;
mod program;
mod syntax;
mod value;

pub use error::FilterError;
pub use program::{Binding, Fields, Filter, Kind, Test};
pub use syntax::{Name, Part};
pub use value::{Labels, Value, matches};
