//! libdormouse_backing: memory that is really there for C and C++, for programs without a tracer.
//!
//! Its functions are those that libdormouse has for the header `dormouse/backing.h`, compiled from the same source. What they do is in
//! the documentation of the crate `dormouse-backing`.

#[path = "face.rs"]
mod backing;
