//! The records of the state stream, which the session owner writes: whose events these are, and what was lost.

use dormouse_abi::class::{CLASS_ID_MAX, ClassDecl, FieldType, Kind};

use crate::value::Value;

/// What a field of these records may be.
trait Field<'a>: Sized {
    const KIND: Kind;
    fn put(&self, out: &mut Vec<u8>);
    /// `None`: the value is of another kind, or text that is not UTF-8.
    fn take(value: Value<'a>) -> Option<Self>;
}

impl Field<'_> for u32 {
    const KIND: Kind = Kind::U32;
    fn put(&self, out: &mut Vec<u8>) {
        out.extend(self.to_le_bytes());
    }
    fn take(value: Value<'_>) -> Option<u32> {
        if let Value::U32(number) = value { Some(number) } else { None }
    }
}

impl Field<'_> for u64 {
    const KIND: Kind = Kind::U64;
    fn put(&self, out: &mut Vec<u8>) {
        out.extend(self.to_le_bytes());
    }
    fn take(value: Value<'_>) -> Option<u64> {
        if let Value::U64(number) = value { Some(number) } else { None }
    }
}

impl<'a> Field<'a> for &'a str {
    const KIND: Kind = Kind::Str;
    /// Text ends at its first NUL.
    fn put(&self, out: &mut Vec<u8>) {
        out.extend(self.bytes().take_while(|byte| *byte != 0));
        out.push(0);
    }
    fn take(value: Value<'a>) -> Option<&'a str> {
        if let Value::Str(text) = value { std::str::from_utf8(text).ok() } else { None }
    }
}

/// The records: the enumeration, the classes in the metadata, and both directions of each, from one table. A record is its number, which
/// is its class's id above [`CLASS_ID_MAX`], the class's name, and the fields in their order.
macro_rules! records {
    ($(
        $(#[$about:meta])*
        $number:literal => $record:ident $name:literal { $($(#[$about_field:meta])* $field:ident: $type:ty,)* },
    )*) => {
        /// A record of the state stream.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum StateRecord<'a> {
            $($(#[$about])* $record { $($(#[$about_field])* $field: $type,)* },)*
        }

        impl<'a> StateRecord<'a> {
            /// The id of the record's class.
            pub fn id(&self) -> u16 {
                CLASS_ID_MAX + match self { $(StateRecord::$record { .. } => $number,)* }
            }

            /// Appends the fields.
            pub(crate) fn encode(&self, out: &mut Vec<u8>) {
                match self { $(StateRecord::$record { $($field),* } => { $($field.put(out);)* })* }
            }

            /// The record of the class `id` with these fields; `None` for every other class, and where text is not UTF-8.
            pub(crate) fn of_fields(id: u16, mut fields: impl Iterator<Item = Value<'a>>) -> Option<StateRecord<'a>> {
                Some(match id.checked_sub(CLASS_ID_MAX)? {
                    $($number => StateRecord::$record { $($field: Field::take(fields.next()?)?,)* },)*
                    _ => return None,
                })
            }

            /// Ids and declarations of the state stream's classes.
            pub(crate) fn classes() -> Vec<(u16, ClassDecl)> {
                vec![$(class($number, $name, &[$((stringify!($field), <$type as Field<'_>>::KIND)),*])),*]
            }
        }
    };
}

records! {
    /// A program joined the session, or became another by `exec`.
    1 => Process "process" {
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
    /// Events were lost that no packet could state, for want of disk space for example.
    2 => Lost "lost" {
        /// Why.
        reason: &'a str,
        /// How many events.
        count: u64,
    },
    /// How the session was set up.
    3 => Session "session" {
        /// `discard` or `overwrite`.
        mode: &'a str,
        /// Memory of all pages.
        budget_bytes: u64,
        /// Bytes of a page.
        page_size_bytes: u64,
        /// The command that was traced, or empty.
        command_line: &'a str,
    },
    /// How many of all lost events were of one class: a part of what packets and [`StateRecord::Lost`] state, nothing on top.
    4 => LostClass "lost_class" {
        /// `provider:name`, or `(other classes)` for those that have no count of their own.
        class: &'a str,
        /// How many events.
        count: u64,
    },
    /// The trace is a snapshot of a session that went on.
    5 => Snapshot "snapshot" {
        /// Who asked for it.
        trigger: &'a str,
        /// Pages that were overwritten before they could be copied.
        pages_missed: u64,
        /// Pages that were not valid.
        pages_refused: u64,
    },
    /// The trace was salvaged from what a session has left whose owner was killed.
    6 => Salvage "salvage" {
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
    /// Events of a class are not in the trace, and nobody has counted them.
    7 => ClassRefused "class_refused" {
        /// `provider:name`, or in parentheses what classes.
        class: &'a str,
        /// Path of the executable that announced it.
        program: &'a str,
        /// Why the session owner refused it, and what to do.
        reason: &'a str,
    },
    /// A program calls itself otherwise than before.
    8 => ProcessName "process_name" {
        /// The session's number for the process.
        process: u32,
        /// As in [`StateRecord::Process`].
        name: &'a str,
    },
    /// Something has happened that can lose events, and nobody has counted these.
    9 => LossPossible "loss_possible" {
        /// What.
        cause: &'a str,
        /// How many times.
        count: u64,
    },
}

fn class(number: u16, name: &str, fields: &[(&str, Kind)]) -> (u16, ClassDecl) {
    let fields = fields.iter().map(|(name, kind)| (name.to_string(), FieldType::scalar(*kind))).collect();
    (CLASS_ID_MAX + number, ClassDecl { provider: "dormouse".into(), name: name.into(), fields })
}
