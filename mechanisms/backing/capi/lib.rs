//! libdormouse_backing: memory that is present before it is used, for C and C++ programs without a tracer.
//!
//! Its functions are those that libdormouse has for the header `dormouse/backing.h`, compiled from the same source. The
//! crate `dormouse-backing` documents them.

#[path = "face.rs"]
mod backing;
