//! Why something cannot be done: one line, as in `dormouse-control`.

pub use dormouse_control::Error;
