//! libdormouse_relay: buffers made of pages for C and C++, for programs without a tracer, on 32-bit machines too.
//!
//! Its functions are those that libdormouse has for the header `dormouse/relay.h`, compiled from that source. The crate
//! `dormouse-relay` documents them.

#[path = "face.rs"]
mod relay;
