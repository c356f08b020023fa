//! The filter language, which selects events.
//!
//! A filter such as `bytes > 4096 and comm == "nginx"` is applied to millions of events, whose classes have different
//! fields. So names are looked up once for each event class, and parts that a class alone decides are not evaluated for
//! each event.
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
//! | `x ~ "lib*"` | text or label matches a pattern, in which `*` stands for any text and `?` for one character; `\*` is a literal star |
//! | `x` | a number other than 0, or `true` |
//! | `10` `-3` `0x1f` `1_000` | whole numbers |
//! | `64K` `16M` `1G` `1T` | powers of 1024 |
//! | `500ns` `10us` `10ms` `1.5s` `2m` `1h` | durations, as whole numbers of nanoseconds |
//! | `1.5` `1e-3` | floating-point numbers |
//! | `"text"` | text; `\"` `\\` `\n` `\t` `\r` `\xFF` within |
//! | `true` `false` | a number is true if it is not 0 |
//! | `bytes` `a.b` `a[2]` `` `odd name` `` | a field, a member, an element, and a name that is not a word |
//!
//! Labels of enumerations are compared with text: `state == "READY"`. If a value has several labels, it is enough that
//! one of them is equal.
//!
//! # Three values
//! A comparison is *unknown* if an event lacks a field, or if the kinds of the values are not comparable. An event is
//! selected only if the whole filter is true. `not` of unknown is unknown: `not (bytes > 10)` does not match an event
//! without `bytes`. `or` is true if one side is true, and `and` is false if one side is false, whatever the other side
//! is.
//!
//! # Rules
//! A rule selects what a session records: `shop:* where bytes > 4K`, `shop:* level<=WARNING` by the level of classes,
//! or `!shop:internal_*` for classes that are left out ([`RuleText`]). Programs that record have no parser. They get
//! the filter as a [`Condition`](dormouse_abi::rule::Condition): a list of tests, of which each answer decides the
//! event, or what is tested next. With a [`Tail`], the session owner decides later which of the recorded events are kept.
//!
//! # Cost
//! Evaluation allocates nothing. A comparison costs reading the two values and comparing them. Whole numbers are
//! compared exactly with floating-point numbers.
//!
//! # Limits
//! A filter has at most 64 KiB, 64 levels of parentheses and `not`, and 256 different names. As part of a rule
//! it has at most 256 comparisons, 64 different names, and 8 parts in a name.
#![forbid(unsafe_code)]
#![cfg_attr(not(test), deny(clippy::print_stdout, clippy::print_stderr))]

mod error;
mod grammar;
mod program;
mod rule;
mod syntax;
mod tail;

pub use dormouse_abi::rule::value::{Fields, Labels, Value, matches};
pub use dormouse_abi::rule::{Name, Part};

pub use error::FilterError;
pub use grammar::parse_name;
pub use program::{Binding, Filter, Kind, Test};
pub use rule::RuleText;
pub use tail::{TAIL_NS_MAX, TAIL_NS_MIN, Tail};
