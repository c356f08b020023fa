//! What the fuzz targets have in common. `cargo xtask fuzz --help` says how they are run.
//!
//! | target | what it does | oracle |
//! | --- | --- | --- |
//! | `chain` | operations on page chains that share a budget | that of `relay/tests/chain.rs`: a list of bytes for each chain |
//! | `write` | records, page switches, killed ones among them, and the hand-over of pages ([`session`]) | lists of records |
//! | `snapshot` | the same, with snapshots, and with noise in the memory | the same until the noise; then every packet is whole |
//! | `read` | hostile packets, metadata and session memory | none panics, and nobody leaves the memory |
//! | `ctf`, `ctf2` | metadata of anybody, in either format, and streams under whatever of them is valid, in all formats of text | printing and counting find as many; what a filter wants, its `not` does not |
//! | `packets` | packets of other tracers' shapes, whose headers and records are damaged, in all formats of text | each packet by itself, where sizes are sound; what a filter wants, its `not` does not |
//! | `filter` | filters of anybody, over streams of anybody | what a filter wants, its `not` does not |
//! | `index` | packets and index files that are damaged | reading without an index, and event by event |
//! | `message` | messages of both directions of every edge, in pieces | none panics; what is decoded is encoded and decoded again |
//! | `vring-device`, `vring-driver` | queues, with a peer that writes between any two accesses ([`ring`]) | none panics, leaves the memory or runs on; violations are counted |

pub mod ctf;
pub mod ctf2;
pub mod ring;
pub mod session;
pub mod trace;
