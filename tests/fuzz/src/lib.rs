//! Code shared by the fuzz targets. `cargo xtask fuzz --help` says how to run them.
//!
//! | target | what it does | oracle |
//! | --- | --- | --- |
//! | `chain` | operations on page chains that share a budget | that of `relay/tests/chain.rs`: a list of bytes for each chain |
//! | `write` | records, page switches (some killed), and the hand-over of pages ([`session`]) | lists of records |
//! | `snapshot` | operations of `write`, with snapshots, and with noise in the memory | lists of records until the noise; then every packet is whole |
//! | `read` | hostile packets, metadata and session memory | no panic, and no access outside the memory |
//! | `ctf`, `ctf2` | arbitrary metadata, in either format, and streams under the valid ones, in all formats of text | printing and counting find the same number; a filter and its `not` never both match |
//! | `packets` | packets of other tracers' shapes, with damaged headers and records, in all formats of text | each packet by itself, if sizes are sound; a filter and its `not` never both match |
//! | `filter` | arbitrary filters over arbitrary streams | a filter and its `not` never both match |
//! | `rule` | arbitrary bytes as the rules of a session, and events of every kind of value | no panic; decoded rules are encoded as the same bytes |
//! | `index` | damaged packets and index files | reading without an index, and event by event |
//! | `message` | messages of both directions of every edge, in pieces | no panic; a decoded message can be encoded and decoded again |
//! | `vring-device`, `vring-driver` | queues, with a peer that writes between any two accesses ([`ring`]) | no panic, no access outside the memory, no endless loop; violations are counted |

pub mod ctf;
pub mod ctf2;
pub mod ring;
pub mod session;
pub mod trace;
