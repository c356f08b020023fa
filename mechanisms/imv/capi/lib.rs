//! libdormouse_imv: immediate values and static branches for C and C++, for programs without a tracer.
//!
//! Its functions are those that libdormouse has for the headers `dormouse/imv.h` and `dormouse/static_key.h`, compiled
//! from that source. The crate `dormouse-imv` documents them.

#[path = "face.rs"]
mod imv;
