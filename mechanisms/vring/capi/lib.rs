//! libdormouse_vring: virtqueues for C and C++, for programs without a tracer.
//!
//! Its functions are those that libdormouse has for the header `dormouse/vring.h`, compiled from the same source. The
//! crate `dormouse-vring` documents them.

#[path = "face.rs"]
mod vring;
