//! Messages between programs, session owners and tools.
//!
//! There are three *edges*, each with an enumeration for either direction. Whoever connects asks, the other side answers:
//!
//! ```text
//!                   asks                         answers
//!   program ──▶ ProgramToOwner ──▶ session owner ──▶ OwnerToProgram       Edge::ProgramOwner, the session's socket
//!   tool    ──▶ ToolToOwner    ──▶ session owner ──▶ OwnerToTool          Edge::ToolOwner,    the session's socket
//!   tool    ──▶ ToolToProgram  ──▶ program       ──▶ ProgramToTool        Edge::ToolProgram,  a program's socket
//! ```
//! A session owner that attaches a program, or has it leave, asks as a tool does.
//!
//! What each side sends begins with a [`Preamble`], whose bytes are the same in every version; frames follow, which each version may change:
//!
//! ```text
//!   ┌───────────────┬─────────────┬──────────┐ ┌────────────┬────────────────┬──────┐ ┌───
//!   │ magic         │ version u32 │ edge u32 │ │ number u8  │ size_bytes u32 │ body │ │ …
//!   │ "dormouse"    │             │          │ │ of message │ of the body    │      │ │
//!   └───────────────┴─────────────┴──────────┘ └────────────┴────────────────┴──────┘ └───
//!     preamble, 16 bytes                          frame
//! ```
//! A side that finds another version in the other's preamble sends its own and closes: then both can say which versions met
//! ([`Mismatch`]).
//!
//! Numbers are little-endian. Text is a `u16` length and UTF-8 bytes; a list is a `u32` count and the items. Each field has a rule in the table
//! of its message, and each message a bound, which a reader checks before it receives the body. Text is checked where it is decoded: what is for
//! people is printable afterwards ([`printable`](crate::text::printable)) and bounded, because the sender cuts it with a mark, and longer text is
//! malformed; a path that could not be printed is malformed, because another path would be meant.
//!
//! A decoder takes any bytes, and gives [`Malformed`] for those that no encoder writes. It never panics, and allocates in proportion to what it is
//! given: counts and lengths are compared with that first.

mod codec;
mod frame;
mod preamble;
mod program_owner;
mod snapshot;
#[cfg(test)]
mod tests;
mod tool_owner;
mod tool_program;

pub use codec::Malformed;
pub use frame::{HEAD_SIZE_BYTES, Message, Question};
pub use preamble::{Edge, MAGIC, Mismatch, Preamble, VERSION};
pub use program_owner::{Grant, OwnerToProgram, ProgramToOwner};
pub use snapshot::{Snapshot, SnapshotRequest};
pub use tool_owner::{BudgetState, OwnerToTool, Status, ToolToOwner};
pub use tool_program::{
    ClassStatus, MEMORY_PART_SIZE_BYTES_MAX, ProgramToTool, ToolToProgram, TunableChange, TunableStatus, Tunables,
};
