//! Records of the state stream, which the session owner writes: the processes of the session, and lost events.

use dormouse_abi::class::{CLASS_ID_MAX, ClassDecl, FieldType, Kind, Labels};

/// A type that a field of these records can have.
trait Field<'a>: Sized {
    const KIND: Kind;
    fn put(&self, out: &mut Vec<u8>);
    /// Takes the field from the start of `bytes`; `None` if they end within it, or if it is text that is not UTF-8.
    fn take(bytes: &mut &'a [u8]) -> Option<Self>;
}

impl Field<'_> for u32 {
    const KIND: Kind = Kind::U32;
    fn put(&self, out: &mut Vec<u8>) {
        out.extend(self.to_le_bytes());
    }
    fn take(bytes: &mut &[u8]) -> Option<u32> {
        let (number, rest) = bytes.split_first_chunk()?;
        *bytes = rest;
        Some(u32::from_le_bytes(*number))
    }
}

impl Field<'_> for u64 {
    const KIND: Kind = Kind::U64;
    fn put(&self, out: &mut Vec<u8>) {
        out.extend(self.to_le_bytes());
    }
    fn take(bytes: &mut &[u8]) -> Option<u64> {
        let (number, rest) = bytes.split_first_chunk()?;
        *bytes = rest;
        Some(u64::from_le_bytes(*number))
    }
}

impl<'a> Field<'a> for &'a str {
    const KIND: Kind = Kind::Str;
    /// Writes the text up to its first NUL.
    fn put(&self, out: &mut Vec<u8>) {
        out.extend(self.bytes().take_while(|byte| *byte != 0));
        out.push(0);
    }
    fn take(bytes: &mut &'a [u8]) -> Option<&'a str> {
        let len = bytes.iter().position(|byte| *byte == 0)?;
        let (text, rest) = bytes.split_at(len);
        *bytes = &rest[1..];
        std::str::from_utf8(text).ok()
    }
}

/// Defines the records from one table: the enumeration, the classes for the metadata, the encoder and the decoder. A
/// row consists of the record's number, which is its class's id minus [`CLASS_ID_MAX`], the class's name, and the
/// fields in order.
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

            /// Appends the encoded fields.
            pub fn encode(&self, out: &mut Vec<u8>) {
                match self { $(StateRecord::$record { $($field),* } => { $($field.put(out);)* })* }
            }

            /// Decodes the fields of a record of class `id`; `None` for any other class, if the bytes end too early, or
            /// if a text is not UTF-8.
            pub fn decode(id: u16, mut fields: &'a [u8]) -> Option<StateRecord<'a>> {
                Some(match id.checked_sub(CLASS_ID_MAX)? {
                    $($number => StateRecord::$record { $($field: Field::take(&mut fields)?,)* },)*
                    _ => return None,
                })
            }

            /// Returns ids and declarations of the state stream's classes.
            pub fn classes() -> Vec<(u16, ClassDecl)> {
                vec![$(class($number, $name, &[$((stringify!($field), <$type as Field<'_>>::KIND)),*])),*]
            }
        }
    };
}

records! {
    /// A program joined the session, or became another program by `exec`.
    1 => Process "process" {
        /// Number of the process in the session.
        process: u32,
        /// Process id as the session owner sees it.
        pid: u32,
        /// Process id as the process itself sees it, which its events carry.
        vpid: u32,
        /// Name that the process gave itself, as `ps` shows it.
        name: &'a str,
        /// Path of the executable.
        program: &'a str,
        /// Command line.
        command_line: &'a str,
    },
    /// Events were lost that no packet could state, for example for want of disk space.
    2 => Lost "lost" {
        /// Reason.
        reason: &'a str,
        /// Number of events.
        count: u64,
    },
    /// Configuration of the session.
    3 => Session "session" {
        /// `discard` or `overwrite`.
        mode: &'a str,
        /// Size of all pages, in bytes.
        budget_bytes: u64,
        /// Size of a page, in bytes.
        page_size_bytes: u64,
        /// Command that was traced, or empty.
        command_line: &'a str,
    },
    /// Number of lost events of one class. It is a part of the losses that packets and [`StateRecord::Lost`] state, not
    /// in addition to them.
    4 => LostClass "lost_class" {
        /// `provider:name`, or `(other classes)` for classes without a count of their own.
        class: &'a str,
        /// Number of events.
        count: u64,
    },
    /// The trace is a snapshot of a session that continued.
    5 => Snapshot "snapshot" {
        /// Trigger of the snapshot.
        trigger: &'a str,
        /// Number of pages that were overwritten before they could be copied.
        pages_missed: u64,
        /// Number of pages that were not valid.
        pages_refused: u64,
    },
    /// The trace was salvaged from a session whose owner was killed.
    6 => Salvage "salvage" {
        /// Place where the session's memory was found, or the reason why it was not found.
        memory: &'a str,
        /// Parts that could not be recovered; empty if nothing is missing.
        missing: &'a str,
        /// Number of packets that are neither on disk nor in memory, although later packets are.
        packets_missing: u64,
        /// Number of packets that were invalid, wholly or from some point on.
        packets_refused: u64,
        /// Number of pages that surviving programs overwrote before they could be copied.
        pages_missed: u64,
    },
    /// Events of a class are not in the trace, and were not counted.
    7 => ClassRefused "class_refused" {
        /// `provider:name`, or a description of the classes in parentheses.
        class: &'a str,
        /// Path of the executable that announced it.
        program: &'a str,
        /// Reason for the refusal, and what to do about it.
        reason: &'a str,
    },
    /// A program changed its name.
    8 => ProcessName "process_name" {
        /// Number of the process in the session.
        process: u32,
        /// Name that the process gave itself, as in [`StateRecord::Process`].
        name: &'a str,
    },
    /// Something happened that can lose events, and they were not counted.
    9 => LossPossible "loss_possible" {
        /// Cause.
        cause: &'a str,
        /// Number of occasions.
        count: u64,
    },
    /// A thread has a name of its own. Older traces do not have this class.
    10 => ThreadName "thread_name" {
        /// Number of the process in the session.
        process: u32,
        /// Thread id as the thread itself sees it, which its events carry.
        vtid: u32,
        /// Name that the thread has, as `ps -L` shows it.
        name: &'a str,
    },
    /// Rules by which events are recorded from now on. A session that records all events from its beginning has no such
    /// record there. Older traces do not have this class.
    11 => Rules "rules" {
        /// The rules as a user wrote them, one a line.
        rules: &'a str,
    },
    /// Numbers of events of one class that the session's rules left out. They are not lost. Older traces do not have
    /// this class.
    12 => Unrecorded "unrecorded" {
        /// `provider:name`, or `(other classes)` for classes without a count of their own.
        class: &'a str,
        /// Number of events that the rules' conditions rejected.
        rejected: u64,
        /// Number of events that sampling left out.
        sampled_out: u64,
    },
    /// Where a process runs, when it joined. What the session owner may not see is empty. Older traces do not have this
    /// class.
    13 => ProcessContext "process_context" {
        /// Number of the process in the session.
        process: u32,
        /// Effective user id as the session owner sees it, or 4294967295.
        uid: u32,
        /// Name of that user on the owner's machine.
        user: &'a str,
        /// Path of its control group (version 2).
        cgroup: &'a str,
        /// Id of the container that the control group's name tells.
        container: &'a str,
    },
    /// Number of events of one class that programs recorded, and that no tail of the session's rules kept. They are not
    /// lost. Older traces do not have this class.
    14 => NotKept "not_kept" {
        /// `provider:name`, or `(other classes)` for classes without a count of their own.
        class: &'a str,
        /// Number of events.
        count: u64,
    },
}

/// Number of classes that the state stream of every trace has. Those after them are newer.
pub const STATE_CLASS_COUNT_MIN: usize = 9;

fn class(number: u16, name: &str, fields: &[(&str, Kind)]) -> (u16, ClassDecl) {
    let fields = fields.iter().map(|(name, kind)| (name.to_string(), FieldType::scalar(*kind))).collect();
    let (provider, name) = ("dormouse".into(), name.into());
    (CLASS_ID_MAX + number, ClassDecl { provider, name, fields, labels: Labels::new(), level: None })
}
