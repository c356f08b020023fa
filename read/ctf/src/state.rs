//! The records of the state stream, which the session owner writes: whose events these are, and what was lost.

use dormouse_abi::class::{CLASS_ID_MAX, FieldType, Kind};
use dormouse_abi::wire::ClassDecl;

use crate::value::Value;

/// Id of `dormouse:process`.
pub const ID_PROCESS: u16 = CLASS_ID_MAX + 1;
/// Id of `dormouse:lost`.
pub const ID_LOST: u16 = CLASS_ID_MAX + 2;
/// Id of `dormouse:session`.
pub const ID_SESSION: u16 = CLASS_ID_MAX + 3;
/// Id of `dormouse:lost_class`.
pub const ID_LOST_CLASS: u16 = CLASS_ID_MAX + 4;
/// Id of `dormouse:snapshot`.
pub const ID_SNAPSHOT: u16 = CLASS_ID_MAX + 5;
/// Id of `dormouse:salvage`.
pub const ID_SALVAGE: u16 = CLASS_ID_MAX + 6;
/// Id of `dormouse:class_refused`.
pub const ID_CLASS_REFUSED: u16 = CLASS_ID_MAX + 7;
/// Id of `dormouse:process_name`.
pub const ID_PROCESS_NAME: u16 = CLASS_ID_MAX + 8;

/// A record of the state stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StateRecord<'a> {
    /// A program joined the session, or became another by `exec`.
    Process {
        /// The session's number for the process.
        process: u32,
        /// Its id as the session owner sees it.
        pid: u32,
        /// Its id as it sees it itself, and as its events carry it.
        vpid: u32,
        /// What it calls itself, as `ps` shows it.
        name: &'a str,
        /// Path of the executable.
        program: &'a str,
        /// The command line.
        command_line: &'a str,
    },
    /// A program calls itself otherwise than before.
    ProcessName {
        /// The session's number for the process.
        process: u32,
        /// As in [`StateRecord::Process`].
        name: &'a str,
    },
    /// Events were lost that no packet could state, for want of disk space for example.
    Lost {
        /// Why.
        reason: &'a str,
        /// How many events.
        count: u64,
    },
    /// How many of all lost events were of one class: a part of what packets and [`StateRecord::Lost`] state, nothing on top.
    LostClass {
        /// `provider:name`, or `(other classes)` for those that have no count of their own.
        class: &'a str,
        /// How many events.
        count: u64,
    },
    /// Events of a class are not in the trace, and nobody has counted them.
    ClassRefused {
        /// `provider:name`, or in parentheses what classes.
        class: &'a str,
        /// Path of the executable that announced it.
        program: &'a str,
        /// Why the session owner refused it, and what to do.
        reason: &'a str,
    },
    /// The trace is a snapshot of a session that went on.
    Snapshot {
        /// Who asked for it.
        trigger: &'a str,
        /// Pages that were overwritten before they could be copied.
        pages_missed: u64,
        /// Pages that were not valid.
        pages_refused: u64,
    },
    /// The trace was salvaged from what a session has left whose owner was killed.
    Salvage {
        /// Where its memory was found, or why it was not.
        memory: &'a str,
        /// What could not be had; empty if all was.
        missing: &'a str,
        /// Packets that are neither on disk nor in the memory, but behind which there are others.
        packets_missing: u64,
        /// Packets that were not valid, or not to their end.
        packets_refused: u64,
        /// Pages that programs that lived on have overwritten before they could be copied.
        pages_missed: u64,
    },
    /// How the session was set up.
    Session {
        /// `discard` or `overwrite`.
        mode: &'a str,
        /// Memory of all pages.
        budget_bytes: u64,
        /// Bytes of a page.
        page_size_bytes: u64,
        /// The command that was traced, or empty.
        command_line: &'a str,
    },
}

impl<'a> StateRecord<'a> {
    /// The id of the record's class.
    pub fn id(&self) -> u16 {
        match self {
            StateRecord::Process { .. } => ID_PROCESS,
            StateRecord::ProcessName { .. } => ID_PROCESS_NAME,
            StateRecord::Lost { .. } => ID_LOST,
            StateRecord::Session { .. } => ID_SESSION,
            StateRecord::LostClass { .. } => ID_LOST_CLASS,
            StateRecord::Snapshot { .. } => ID_SNAPSHOT,
            StateRecord::Salvage { .. } => ID_SALVAGE,
            StateRecord::ClassRefused { .. } => ID_CLASS_REFUSED,
        }
    }

    /// Appends the fields.
    pub(crate) fn encode(&self, out: &mut Vec<u8>) {
        let mut put = |value: Value<'_>| value.encode(out);
        match *self {
            StateRecord::Process { process, pid, vpid, name, program, command_line } => {
                [process, pid, vpid].into_iter().for_each(|number| put(Value::U32(number)));
                [name, program, command_line].into_iter().for_each(|text| put(Value::Str(text.as_bytes())));
            }
            StateRecord::ProcessName { process, name } => {
                put(Value::U32(process));
                put(Value::Str(name.as_bytes()));
            }
            StateRecord::Lost { reason: text, count } | StateRecord::LostClass { class: text, count } => {
                put(Value::Str(text.as_bytes()));
                put(Value::U64(count));
            }
            StateRecord::ClassRefused { class, program, reason } => {
                [class, program, reason].into_iter().for_each(|text| put(Value::Str(text.as_bytes())));
            }
            StateRecord::Snapshot { trigger, pages_missed, pages_refused } => {
                put(Value::Str(trigger.as_bytes()));
                [pages_missed, pages_refused].into_iter().for_each(|number| put(Value::U64(number)));
            }
            StateRecord::Salvage { memory, missing, packets_missing, packets_refused, pages_missed } => {
                [memory, missing].into_iter().for_each(|text| put(Value::Str(text.as_bytes())));
                [packets_missing, packets_refused, pages_missed].into_iter().for_each(|number| put(Value::U64(number)));
            }
            StateRecord::Session { mode, budget_bytes, page_size_bytes, command_line } => {
                put(Value::Str(mode.as_bytes()));
                [budget_bytes, page_size_bytes].into_iter().for_each(|number| put(Value::U64(number)));
                put(Value::Str(command_line.as_bytes()));
            }
        }
    }

    /// The record of the class `id` with these fields; `None` for every other class, and where text is not UTF-8.
    pub(crate) fn of_fields(id: u16, mut fields: impl Iterator<Item = Value<'a>>) -> Option<StateRecord<'a>> {
        let mut next = || fields.next();
        Some(match id {
            ID_PROCESS => StateRecord::Process {
                process: number(next()?)? as u32,
                pid: number(next()?)? as u32,
                vpid: number(next()?)? as u32,
                name: text(next()?)?,
                program: text(next()?)?,
                command_line: text(next()?)?,
            },
            ID_PROCESS_NAME => StateRecord::ProcessName { process: number(next()?)? as u32, name: text(next()?)? },
            ID_LOST => StateRecord::Lost { reason: text(next()?)?, count: number(next()?)? },
            ID_LOST_CLASS => StateRecord::LostClass { class: text(next()?)?, count: number(next()?)? },
            ID_CLASS_REFUSED => {
                StateRecord::ClassRefused { class: text(next()?)?, program: text(next()?)?, reason: text(next()?)? }
            }
            ID_SNAPSHOT => StateRecord::Snapshot {
                trigger: text(next()?)?,
                pages_missed: number(next()?)?,
                pages_refused: number(next()?)?,
            },
            ID_SALVAGE => StateRecord::Salvage {
                memory: text(next()?)?,
                missing: text(next()?)?,
                packets_missing: number(next()?)?,
                packets_refused: number(next()?)?,
                pages_missed: number(next()?)?,
            },
            ID_SESSION => StateRecord::Session {
                mode: text(next()?)?,
                budget_bytes: number(next()?)?,
                page_size_bytes: number(next()?)?,
                command_line: text(next()?)?,
            },
            _ => return None,
        })
    }
}

fn number(value: Value<'_>) -> Option<u64> {
    match value {
        Value::U32(number) => Some(number.into()),
        Value::U64(number) => Some(number),
        _ => None,
    }
}

fn text(value: Value<'_>) -> Option<&str> {
    match value {
        Value::Str(text) => std::str::from_utf8(text).ok(),
        _ => None,
    }
}

/// Ids and declarations of the state stream's classes.
pub(crate) fn classes() -> [(u16, ClassDecl); 8] {
    let class = |id: u16, name: &str, fields: &[(&str, Kind)]| {
        let fields = fields.iter().map(|(name, kind)| (name.to_string(), FieldType::scalar(*kind))).collect();
        (id, ClassDecl { provider: "dormouse".into(), name: name.into(), fields })
    };
    [
        class(
            ID_PROCESS,
            "process",
            &[
                ("process", Kind::U32),
                ("pid", Kind::U32),
                ("vpid", Kind::U32),
                ("name", Kind::Str),
                ("program", Kind::Str),
                ("command_line", Kind::Str),
            ],
        ),
        class(ID_LOST, "lost", &[("reason", Kind::Str), ("count", Kind::U64)]),
        class(
            ID_SESSION,
            "session",
            &[
                ("mode", Kind::Str),
                ("budget_bytes", Kind::U64),
                ("page_size_bytes", Kind::U64),
                ("command_line", Kind::Str),
            ],
        ),
        class(ID_LOST_CLASS, "lost_class", &[("class", Kind::Str), ("count", Kind::U64)]),
        class(
            ID_SNAPSHOT,
            "snapshot",
            &[("trigger", Kind::Str), ("pages_missed", Kind::U64), ("pages_refused", Kind::U64)],
        ),
        class(
            ID_SALVAGE,
            "salvage",
            &[
                ("memory", Kind::Str),
                ("missing", Kind::Str),
                ("packets_missing", Kind::U64),
                ("packets_refused", Kind::U64),
                ("pages_missed", Kind::U64),
            ],
        ),
        class(
            ID_CLASS_REFUSED,
            "class_refused",
            &[("class", Kind::Str), ("program", Kind::Str), ("reason", Kind::Str)],
        ),
        class(ID_PROCESS_NAME, "process_name", &[("process", Kind::U32), ("name", Kind::Str)]),
    ]
}
