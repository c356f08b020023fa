//! libdormouse_percpu: data of each CPU for C and C++, for programs without a tracer.
//!
//! Its functions are those that libdormouse has for the headers `dormouse/percpu.h` and `dormouse/this_cpu.h`, compiled
//! from that source. The crate `dormouse-percpu` documents them.

#[path = "face.rs"]
mod percpu;
