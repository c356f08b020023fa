//! A program and the owner of the session that it joins.

use alloc::string::String;
use alloc::vec::Vec;

use super::codec::{Codec, Line, List, Malformed, structures};
use super::frame::{Question, messages};
use super::snapshot::{Snapshot, SnapshotRequest};
use crate::class::Announcement;

/// The owner's answer for one announced class, in the order of the announcement.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Grant {
    /// The class's id in the trace, or `u32::MAX` for one that is refused.
    pub id: u32,
    /// Whether to arm it now.
    pub armed: bool,
}

structures! {
    Grant { id: u32, armed: bool }
}

messages! {
    /// What a program asks a session's owner.
    ProgramOwner, ProgramToOwner {
        /// It joins. The answer is [`OwnerToProgram::Welcome`], with the memory's descriptor attached.
        1, 64 << 10 => Hello {
            /// The program's process id as it sees it itself.
            vpid: u32,
            /// Path of the executable, for people.
            program: String as Line<4096>,
            /// The command line, arguments separated by blanks.
            command_line: String as Line<4096>,
            /// Classes known so far: as many as [`ProgramToOwner::HELLO_CLASSES_SIZE_BYTES_MAX`] holds; the others follow as
            /// [`ProgramToOwner::MoreClasses`].
            classes: Vec<Announcement> as List<Announcement>,
        },
        /// Classes that came later (`dlopen`). The answer is [`OwnerToProgram::Welcome`] without a descriptor.
        2, 1 << 20 => MoreClasses {
            /// The session's number for the process.
            process: u16,
            /// The new classes, at most [`ProgramToOwner::MORE_CLASSES_SIZE_BYTES_MAX`] of them.
            classes: Vec<Announcement> as List<Announcement>,
        },
        /// Of a session in overwrite mode: writes what is retained as a trace of its own. The answer is [`OwnerToProgram::Snapshotted`]
        /// once it is complete.
        3, 8 << 10 => Snapshot {
            /// Which.
            request: SnapshotRequest,
        },
    }
}

messages! {
    /// What a session's owner answers a program.
    ProgramOwner, OwnerToProgram {
        /// The program has joined, or its classes are known.
        1, 1 << 20 => Welcome {
            /// The session's number for the process.
            process: u16,
            /// One grant for each class.
            grants: Vec<Grant> as List<Grant>,
        },
        /// The snapshot is complete.
        2, 8 << 10 => Snapshotted {
            /// The new trace.
            snapshot: Snapshot,
        },
        /// One line that says what is wrong.
        3, 8 << 10 => Error {
            /// The line.
            text: String as Line<4096>,
        },
    }
}

impl Question for ProgramToOwner {
    type Answer = OwnerToProgram;
}

impl ProgramToOwner {
    /// Most bytes of announcements in a [`ProgramToOwner::Hello`].
    pub const HELLO_CLASSES_SIZE_BYTES_MAX: usize = 48 << 10;
    /// Most bytes of announcements in a [`ProgramToOwner::MoreClasses`].
    pub const MORE_CLASSES_SIZE_BYTES_MAX: usize = (1 << 20) - 64;
}

impl Announcement {
    /// Bytes that it takes in a frame.
    pub fn size_bytes(&self) -> usize {
        let mut bytes = Vec::new();
        Announcement::put(self, &mut bytes);
        bytes.len()
    }
}
