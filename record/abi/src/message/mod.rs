//! Messages between programs, session owners and tools.
//!
//! There are three *edges*, each with one enumeration per direction. The connecting side asks, the other side answers:
//!
//! ```text
//!                   asks                         answers
//!   program ──▶ ProgramToOwner ──▶ session owner ──▶ OwnerToProgram       Edge::ProgramOwner, the session's socket
//!   tool    ──▶ ToolToOwner    ──▶ session owner ──▶ OwnerToTool          Edge::ToolOwner,    the session's socket
//!   tool    ──▶ ToolToProgram  ──▶ program       ──▶ ProgramToTool        Edge::ToolProgram,  a program's socket
//! ```
//! A session owner that attaches or detaches a program asks like a tool.
//!
//! The data of each side begin with a [`Preamble`], whose bytes are the same in every version. Frames follow, which may
//! change with each version:
//!
//! ```text
//!   ┌───────────────┬─────────────┬──────────┐ ┌────────────┬────────────────┬──────┐ ┌───
//!   │ magic         │ version u32 │ edge u32 │ │ number u8  │ size_bytes u32 │ body │ │ …
//!   │ "dormouse"    │             │          │ │ of message │ of the body    │      │ │
//!   └───────────────┴─────────────┴──────────┘ └────────────┴────────────────┴──────┘ └───
//!     preamble, 16 bytes                          frame
//! ```
//! A side that finds another version in the other's preamble sends its own and closes, so that both can report the two
//! versions ([`Mismatch`]).
//!
//! Numbers are little-endian. Text is a `u16` length and UTF-8 bytes; a list is a `u32` count and the items. Each field
//! has a rule in the table of its message. Each message has a maximum size, which a reader checks before it receives
//! the body. Text is checked when it is decoded. Text for people is printable afterwards
//! ([`printable`](crate::text::printable)) and bounded: the sender cuts it with a mark, and longer text is malformed. A
//! path that is not printable is malformed, because replacing characters would make it another path.
//!
//! A decoder accepts any bytes, and returns [`Malformed`] for those that no encoder writes. It never panics. It
//! allocates in proportion to the size of its input: counts and lengths are compared with that size first.

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
pub use program_owner::{OwnerToProgram, ProgramToOwner};
pub use snapshot::{Snapshot, SnapshotRequest};
pub use tool_owner::{BudgetState, OwnerToTool, RulesState, Status, ToolToOwner};
pub use tool_program::{
    ClassInSession, ClassStatus, MEMORY_PART_SIZE_BYTES_MAX, ProgramToTool, ToolToProgram, TunableChange,
    TunableStatus, Tunables,
};
