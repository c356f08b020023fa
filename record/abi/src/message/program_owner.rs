//! Messages between a program and the owner of the session that it joins.

use alloc::string::String;

use super::codec::Line;
use super::frame::{Question, messages};
use super::snapshot::{Snapshot, SnapshotRequest};

messages! {
    /// Question of a program to a session's owner.
    ProgramOwner, ProgramToOwner {
        /// The program joins. The answer is [`OwnerToProgram::Welcome`], with the memory's descriptor attached.
        1, 16 << 10 => Hello {
            /// The program's process id in its own namespace.
            vpid: u32,
            /// See [`Process::image`](crate::register::Process::image).
            image: u64,
            /// Path of the executable, for people.
            program: String as Line<4096>,
            /// Command line, arguments separated by blanks.
            command_line: String as Line<4096>,
        },
        /// Writes what a session in overwrite mode retains as a trace of its own. The answer is
        /// [`OwnerToProgram::Snapshotted`] once it is complete.
        2, 8 << 10 => Snapshot {
            /// Options of the snapshot.
            request: SnapshotRequest,
        },
    }
}

messages! {
    /// Answer of a session's owner to a program.
    ProgramOwner, OwnerToProgram {
        /// The program has an entry in the register of the memory whose descriptor is attached.
        1, 8 => Welcome {
            /// Number that the session has given the process.
            process: u16,
        },
        /// The snapshot is complete.
        2, 8 << 10 => Snapshotted {
            /// The snapshot that was taken.
            snapshot: Snapshot,
        },
        /// The request failed.
        3, 8 << 10 => Error {
            /// Error message of one line.
            text: String as Line<4096>,
        },
    }
}

impl Question for ProgramToOwner {
    type Answer = OwnerToProgram;
}
