//! libdormouse_vring: virtqueues for C and C++, for programs without a tracer.
//!
//! Its functions are those that libdormouse has for the header `dormouse/vring.h`, compiled from the same source. What they do is in
//! the documentation of the crate `dormouse-vring`.

#[path = "face.rs"]
mod vring;
