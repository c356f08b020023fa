//! Answers to operators who list and set the immediate values and static branches of a running program.

mod answer;

pub use answer::{list, set};
