//! libdormouse_imv: immediate values and static branches for C and C++, for programs without a tracer.
//!
//! Its functions are those that libdormouse has for the headers `dormouse/imv.h` and `dormouse/static_key.h`, compiled from the
//! same source. What they do is in the documentation of the crate `dormouse-imv`.

#[path = "face.rs"]
mod imv;
