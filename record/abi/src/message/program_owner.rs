//! A program and the owner of the session that it joins.

use alloc::string::String;

use super::codec::Line;
use super::frame::{Question, messages};
use super::snapshot::{Snapshot, SnapshotRequest};

messages! {
    /// What a program asks a session's owner.
    ProgramOwner, ProgramToOwner {
        /// It joins. The answer is [`OwnerToProgram::Welcome`], with the memory's descriptor attached.
        1, 16 << 10 => Hello {
            /// The program's process id as it sees it itself.
            vpid: u32,
            /// See [`Process::image`](crate::register::Process::image).
            image: u64,
            /// Path of the executable, for people.
            program: String as Line<4096>,
            /// The command line, arguments separated by blanks.
            command_line: String as Line<4096>,
        },
        /// Of a session in overwrite mode: writes what is retained as a trace of its own. The answer is [`OwnerToProgram::Snapshotted`]
        /// once it is complete.
        2, 8 << 10 => Snapshot {
            /// Which.
            request: SnapshotRequest,
        },
    }
}

messages! {
    /// What a session's owner answers a program.
    ProgramOwner, OwnerToProgram {
        /// The program has an entry in the register of the memory that comes with this.
        1, 8 => Welcome {
            /// The session's number for the process.
            process: u16,
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
