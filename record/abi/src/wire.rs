//! Messages on the two Unix sockets: the session owner's, which programs join, and a program's own, to which tools connect.
//!
//! A frame is a `u32` length (of the rest), a type byte and the body. Strings are a `u16` length and UTF-8 bytes; lists are
//! a `u32` count and the items. Every decoder accepts any bytes: invalid ones give [`Malformed`], never a panic or a huge allocation.

use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;

use crate::class::{FIELD_COUNT_MAX, FieldType, NAME_LEN_MAX};
use crate::site::TunableType;
use crate::tunable::{TUNABLE_SET_COUNT_MAX, TunableRange, TunableValue, is_tunable_name};

/// Protocol version, first in [`Message::Hello`].
pub const VERSION: u32 = 1;
/// Longest frame body in bytes.
pub const FRAME_SIZE_MAX_BYTES: usize = 4 << 20;
/// Most bytes of a session's memory in one [`Message::MemoryPart`]: a program can allocate that much to answer.
pub const MEMORY_PART_SIZE_BYTES_MAX: u32 = 256 << 10;
/// Environment variable: path of the session's socket.
pub const ENV_SESSION: &str = "DORMOUSE_SESSION";
/// Environment variable: `thread` (or `1`) has a program listen, `0` keeps it from it.
pub const ENV_LISTEN: &str = "DORMOUSE_LISTEN";
/// Environment variable: `0` keeps a program from waking the session owner when pages are full, which takes a system call.
pub const ENV_KICK: &str = "DORMOUSE_KICK";
/// Environment variable: `1` forces the path for machines without rseq.
pub const ENV_NO_RSEQ: &str = "DORMOUSE_NO_RSEQ";

/// The directory of a user's sockets, given `$XDG_RUNTIME_DIR` (if set and not empty) and the user's id.
pub fn socket_dir(xdg_runtime_dir: Option<&str>, uid: u32) -> String {
    match xdg_runtime_dir.filter(|dir| !dir.is_empty()) {
        Some(dir) => format!("{dir}/dormouse"),
        None => format!("/tmp/dormouse-{uid}"),
    }
}

/// File name of a program's socket. A process has several if several of its loaded objects contain a tracer of their own.
pub fn program_socket_name(pid: u32, number: u32) -> String {
    format!("{pid}.{number}.sock")
}

/// Whether a file name is that of a socket of process `pid`.
pub fn is_program_socket(file_name: &str, pid: u32) -> bool {
    let number = file_name.strip_prefix(&format!("{pid}.")).and_then(|rest| rest.strip_suffix(".sock"));
    number.is_some_and(|number| number.parse::<u32>().is_ok())
}

/// A frame that is not of this protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Malformed;

impl core::fmt::Display for Malformed {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str("malformed message")
    }
}

impl core::error::Error for Malformed {}

/// An event class. The types of its fields are checked, or bytes as they are announced ([`Announcement`]).
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ClassDecl<T = FieldType> {
    /// Provider.
    pub provider: String,
    /// Event name.
    pub name: String,
    /// Field names and types.
    pub fields: Vec<(String, T)>,
}

impl<T> ClassDecl<T> {
    /// `provider:name`, as patterns match it and tools print it.
    pub fn full_name(&self) -> String {
        format!("{}:{}", self.provider, self.name)
    }
}

/// An event class as a program announces it, with type bytes ([`FieldType::to_u8`]), not checked yet: the session owner reports each class
/// that it refuses.
pub type Announcement = ClassDecl<u8>;

impl Announcement {
    /// The class, if a trace can hold it.
    ///
    /// # Errors
    /// The first thing that no trace can hold, in a line.
    pub fn check(&self) -> Result<ClassDecl, String> {
        let check_name = |name: &String| {
            let wrong = || {
                let name = shown(name);
                format!(
                    "`{name}` is no name that a trace can hold: write ASCII letters, digits and `_`, no digit first, at most {NAME_LEN_MAX} bytes"
                )
            };
            if is_name(name) { Ok(name.clone()) } else { Err(wrong()) }
        };
        let (provider, name) = (check_name(&self.provider)?, check_name(&self.name)?);
        let field_count = self.fields.len();
        if field_count > FIELD_COUNT_MAX {
            return Err(format!("it has {field_count} fields, and a class at most {FIELD_COUNT_MAX}"));
        }
        let field = |(name, type_byte): &(String, u8)| -> Result<_, String> {
            let name = check_name(name)?;
            let field_type = FieldType::from_u8(*type_byte).ok_or_else(|| {
                format!(
                    "its field {name} is of the unknown type {type_byte}; build the program with the headers of its libdormouse"
                )
            })?;
            Ok((name, field_type))
        };
        Ok(ClassDecl { provider, name, fields: self.fields.iter().map(field).collect::<Result<_, _>>()? })
    }

    /// Bytes that it takes in a frame.
    pub fn size_bytes(&self) -> usize {
        let names = [&self.provider, &self.name].into_iter().map(|name| 2 + name.len());
        let fields = self.fields.iter().map(|(name, _)| 2 + name.len() + 1);
        names.chain(fields).sum::<usize>() + 4
    }
}

impl From<&ClassDecl> for Announcement {
    fn from(decl: &ClassDecl) -> Announcement {
        let fields = decl.fields.iter().map(|(name, field_type)| (name.clone(), field_type.to_u8()));
        Announcement { provider: decl.provider.clone(), name: decl.name.clone(), fields: fields.collect() }
    }
}

/// Text that a program chose, to be printed for people: in one line, and nothing in it moves a terminal's cursor.
pub fn printable(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { char::REPLACEMENT_CHARACTER } else { c }).collect()
}

/// The same, none too long.
pub fn shown(text: &str) -> String {
    let mut chars = text.chars();
    let mut shown = printable(&chars.by_ref().take(300).collect::<String>());
    if chars.next().is_some() {
        shown.push('…');
    }
    shown
}

/// A class as a program lists it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClassStatus {
    /// The class.
    pub decl: ClassDecl,
    /// Whether its events are recorded now.
    pub armed: bool,
    /// How many sites emit it.
    pub site_count: u32,
    /// How many of these are patched (the others read the variable).
    pub patched_count: u32,
}

/// The owner's answer for one announced class, in the order of the announcement.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Grant {
    /// The class's id in the trace, or `u32::MAX` for one that is refused.
    pub id: u32,
    /// Whether to arm it now.
    pub armed: bool,
}

/// A tunable as a program lists it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TunableStatus {
    /// Its name.
    pub name: String,
    /// What it is for, one line.
    pub description: String,
    /// The file of the program or library that contains its variable; empty if that is not known.
    pub object: String,
    /// The variable's value.
    pub value: TunableValue,
    /// What may be set.
    pub range: TunableRange,
    /// How many sites read it.
    pub site_count: u32,
    /// How many of these are patched (the others read the variable).
    pub patched_count: u32,
}

/// A tunable that was set.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TunableChange {
    /// Its name.
    pub name: String,
    /// The value before.
    pub former: TunableValue,
    /// The value now.
    pub value: TunableValue,
}

/// The tunables of one tracer in a program.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tunables {
    /// How sites are written.
    pub writer: String,
    /// The reason for that.
    pub reason: String,
    /// Sites of the program's loaded objects, whatever they read.
    pub site_count: u32,
    /// How many of these are patched.
    pub patched_count: u32,
    /// In the order of their loaded objects. A name may occur several times, each time for another variable.
    pub tunables: Vec<TunableStatus>,
}

/// What a snapshot came to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Snapshot {
    /// The new trace's directory.
    pub dir: String,
    /// Events in it.
    pub events: u64,
    /// Bytes of its streams.
    pub bytes: u64,
    /// Nanoseconds from the beginning of its oldest page to the snapshot.
    pub span_ns: u64,
    /// Pages that were overwritten before they could be copied.
    pub pages_missed: u64,
    /// Pages that were not valid.
    pub pages_refused: u64,
}

/// A session's memory, in bytes of whole pages.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BudgetState {
    /// Bytes of a page.
    pub page_size_bytes: u32,
    /// Streams that were ever written to.
    pub streams: u32,
    /// The budget.
    pub bytes: u64,
    /// What it may grow to.
    pub bytes_max: u64,
    /// Additional memory that exists while snapshots are taken.
    pub room: u64,
    /// Pages that are free.
    pub free: u64,
    /// Pages that are written to, or are about to be.
    pub drawn: u64,
    /// Pages that are closed: on their way to the trace, or retained.
    pub queued: u64,
    /// Pages that are beyond the budget now, and still in use.
    pub beyond: u64,
    /// Whether closed pages are retained.
    pub is_overwrite: bool,
}

/// The messages: the enumeration, and both directions of each, from one table. A message is its number and its fields in their order.
macro_rules! messages {
    ($(
        $(#[$about:meta])*
        $number:literal => $name:ident $({ $($(#[$about_field:meta])* $field:ident: $type:ty,)* })?,
    )*) => {
        /// Any message.
        #[derive(Debug, Clone, PartialEq, Eq)]
        pub enum Message {
            $($(#[$about])* $name $({ $($(#[$about_field])* $field: $type),* })?,)*
        }

        impl Message {
            fn put(&self, frame: &mut Vec<u8>) {
                match self {
                    $(Message::$name $({ $($field),* })? => {
                        frame.push($number);
                        $($($field.put(frame);)*)?
                    })*
                }
            }

            fn take(frame: &mut &[u8]) -> Result<Message, Malformed> {
                Ok(match u8::take(frame)? {
                    $($number => Message::$name $({ $($field: Wire::take(frame)?),* })?,)*
                    _ => return Err(Malformed),
                })
            }
        }
    };
}

messages! {
    /// Program → owner: joins. The answer is [`Message::Welcome`], with the memory's descriptor attached.
    1 => Hello {
        /// [`VERSION`].
        version: u32,
        /// The program's process id as it sees it itself.
        vpid: u32,
        /// Path of the executable.
        program: String,
        /// The command line, arguments separated by blanks.
        command_line: String,
        /// Classes known so far: as many as fit into a frame; the others follow as [`Message::MoreClasses`].
        classes: Vec<Announcement>,
    },
    /// Owner → program.
    2 => Welcome {
        /// The session's number for the process.
        process: u16,
        /// One grant for each class.
        grants: Vec<Grant>,
    },
    /// Program → owner: classes that came later (`dlopen`). The answer is [`Message::Welcome`] without a descriptor.
    3 => MoreClasses {
        /// The session's number for the process.
        process: u16,
        /// The new classes.
        classes: Vec<Announcement>,
    },
    /// Tool → owner of an attached session: ends it. The answer is [`Message::Stopped`] once the trace is complete.
    4 => Stop,
    /// Owner → tool: the summary line.
    5 => Stopped {
        /// The line that `record` prints at its end.
        summary: String,
    },
    /// Tool or program → owner of a session in overwrite mode: writes what is retained as a trace of its own. The answer is
    /// [`Message::Snapshotted`] once it is complete.
    18 => Snapshot {
        /// The new trace's directory, absolute; empty: beside the session's.
        dir: String,
        /// Nanoseconds: older pages are left out. Zero: none is.
        last_ns: u64,
        /// Bytes of the newest pages that are taken. Zero: all.
        bytes_max: u64,
        /// What asked for it, for the trace.
        trigger: String,
    },
    /// Owner → tool or program.
    19 => Snapshotted {
        /// The new trace.
        snapshot: Snapshot,
    },
    /// Tool → owner: sets the session's memory budget while it is live, or asks for it. The answer is [`Message::BudgetIs`].
    24 => Budget {
        /// Bytes of all pages. Zero: do not change it.
        bytes: u64,
    },
    /// Owner → tool.
    25 => BudgetIs {
        /// The session's memory.
        state: BudgetState,
    },
    /// Tool → program. The answer is [`Message::Classes`].
    6 => List,
    /// Program → tool.
    7 => Classes {
        /// Socket of the session that the program is in, or empty.
        session: String,
        /// The classes.
        classes: Vec<ClassStatus>,
        /// How sites are patched, or why they are not.
        patching: String,
    },
    /// Tool → program: arms the classes that match any pattern. The answer is [`Message::Changed`].
    8 => Arm {
        /// Patterns with `*` and `?`, matched against `provider:name`.
        patterns: Vec<String>,
    },
    /// Tool → program: disarms. The answer is [`Message::Changed`].
    9 => Disarm {
        /// Patterns.
        patterns: Vec<String>,
    },
    /// Owner → program: join the session at this socket, then arm what its grants say. The answer is [`Message::Changed`].
    10 => Attach {
        /// Path of the session's socket.
        session: String,
    },
    /// Owner → program: disarm everything and leave the session. The answer is [`Message::Changed`].
    11 => Detach,
    /// Program → tool.
    12 => Changed {
        /// Classes that matched.
        matched: u32,
        /// Those of them that are armed now and were not before, or the other way round.
        changed: u32,
        /// Classes of the program that are armed now.
        armed: u32,
        /// Socket of the session that the program is in, or empty.
        session: String,
    },
    /// Tool → program: asks for its tunables. The answer is [`Message::Tunables`].
    14 => ListTunables,
    /// Program → tool.
    15 => Tunables {
        /// Those of one tracer.
        tracer: Tunables,
    },
    /// Tool → program: sets all of them, or none. The answer is [`Message::TunablesSet`] or [`Message::Error`].
    16 => SetTunables {
        /// Names and values as text, at most [`TUNABLE_SET_COUNT_MAX`]; the program checks type and range.
        values: Vec<(String, String)>,
    },
    /// Program → tool.
    17 => TunablesSet {
        /// In the order of the request.
        changes: Vec<TunableChange>,
    },
    /// Tool → program: asks for a part of this session's memory, as the program has it mapped: for a session whose owner is dead.
    /// The answer is [`Message::MemoryPart`].
    20 => ReadMemory {
        /// The session's uuid.
        uuid: [u8; 16],
        /// Offset in bytes from the memory's start.
        offset: u64,
        /// At most [`MEMORY_PART_SIZE_BYTES_MAX`].
        size_bytes: u32,
    },
    /// Program → tool.
    21 => MemoryPart {
        /// Bytes of all the memory.
        memory_size_bytes: u64,
        /// The requested bytes; nothing beyond the memory's end.
        bytes: Vec<u8>,
    },
    /// Either direction: one line that says what is wrong.
    13 => Error {
        /// The line.
        text: String,
    },
}

impl Message {
    /// The frame: length, type, body.
    pub fn encode(&self) -> Vec<u8> {
        let mut frame = alloc::vec![0; 4];
        self.put(&mut frame);
        let body_len = (frame.len() - 4) as u32;
        frame[..4].copy_from_slice(&body_len.to_le_bytes());
        frame
    }

    /// Reads a frame's type and body (without the length).
    ///
    /// # Errors
    /// [`Malformed`] for anything that [`Message::encode`] cannot have written, and for what would harm its reader.
    pub fn decode(mut frame: &[u8]) -> Result<Message, Malformed> {
        let message = Message::take(&mut frame)?;
        let is_harmless = match &message {
            Message::Tunables { tracer } => is_line(&tracer.writer) && is_line(&tracer.reason),
            Message::SetTunables { values } => values.len() <= TUNABLE_SET_COUNT_MAX,
            Message::ReadMemory { size_bytes, .. } => *size_bytes <= MEMORY_PART_SIZE_BYTES_MAX,
            _ => true,
        };
        if frame.is_empty() && is_harmless { Ok(message) } else { Err(Malformed) }
    }
}

/// Whether a provider, event or field may have this name: a C identifier of at most [`NAME_LEN_MAX`] bytes.
pub const fn is_name(name: &str) -> bool {
    let name = name.as_bytes();
    let mut index = 0;
    while index < name.len() {
        match name[index] {
            b'_' | b'a'..=b'z' | b'A'..=b'Z' => {}
            b'0'..=b'9' if index > 0 => {}
            _ => return false,
        }
        index += 1;
    }
    index > 0 && index <= NAME_LEN_MAX
}

/// Whether `text` matches `pattern`, in which `*` stands for any characters and `?` for any one character.
///
/// `.` and `:` match each other, so `http.request` and `http:request` are the same name.
pub fn matches(pattern: &str, text: &str) -> bool {
    fn canonical(byte: u8) -> u8 {
        if byte == b'.' { b':' } else { byte }
    }
    let (pattern, text) = (pattern.as_bytes(), text.as_bytes());
    let (mut p, mut t) = (0, 0);
    let mut retry: Option<(usize, usize)> = None;
    while t < text.len() {
        match pattern.get(p) {
            Some(b'*') => {
                retry = Some((p + 1, t));
                p += 1;
            }
            Some(&byte) if byte == b'?' || canonical(byte) == canonical(text[t]) => {
                p += 1;
                t += 1;
            }
            _ => match retry {
                Some((star, from)) => {
                    retry = Some((star, from + 1));
                    p = star;
                    t = from + 1;
                }
                None => return false,
            },
        }
    }
    pattern[p..].iter().all(|byte| *byte == b'*')
}

/// What a message is made of: how it is written to a frame, and read from the front of what is left of one.
trait Wire: Sized {
    fn put(&self, frame: &mut Vec<u8>);
    fn take(frame: &mut &[u8]) -> Result<Self, Malformed>;
}

fn take_array<const LEN: usize>(frame: &mut &[u8]) -> Result<[u8; LEN], Malformed> {
    let (array, rest) = frame.split_first_chunk().ok_or(Malformed)?;
    *frame = rest;
    Ok(*array)
}

macro_rules! numbers {
    ($($type:ty),*) => {$(
        impl Wire for $type {
            fn put(&self, frame: &mut Vec<u8>) {
                frame.extend_from_slice(&self.to_le_bytes());
            }
            fn take(frame: &mut &[u8]) -> Result<Self, Malformed> {
                take_array(frame).map(<$type>::from_le_bytes)
            }
        }
    )*};
}
numbers!(u8, u16, u32, u64);

impl Wire for bool {
    fn put(&self, frame: &mut Vec<u8>) {
        u8::from(*self).put(frame);
    }
    fn take(frame: &mut &[u8]) -> Result<Self, Malformed> {
        match u8::take(frame)? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(Malformed),
        }
    }
}

impl Wire for [u8; 16] {
    fn put(&self, frame: &mut Vec<u8>) {
        frame.extend_from_slice(self);
    }
    fn take(frame: &mut &[u8]) -> Result<Self, Malformed> {
        take_array(frame)
    }
}

impl Wire for String {
    /// Longer strings are cut at a character boundary.
    fn put(&self, frame: &mut Vec<u8>) {
        let mut len = self.len().min(u16::MAX as usize);
        while !self.is_char_boundary(len) {
            len -= 1;
        }
        (len as u16).put(frame);
        frame.extend_from_slice(&self.as_bytes()[..len]);
    }
    fn take(frame: &mut &[u8]) -> Result<Self, Malformed> {
        let len = u16::take(frame)?.into();
        let text = frame.split_off(..len).ok_or(Malformed)?;
        core::str::from_utf8(text).map(String::from).map_err(|_| Malformed)
    }
}

/// A list whose items take at least one byte each, so that a count never allocates more than the frame has.
impl<T: Wire> Wire for Vec<T> {
    fn put(&self, frame: &mut Vec<u8>) {
        (self.len() as u32).put(frame);
        self.iter().for_each(|item| item.put(frame));
    }
    fn take(frame: &mut &[u8]) -> Result<Self, Malformed> {
        let count = u32::take(frame)? as usize;
        if count > frame.len() {
            return Err(Malformed);
        }
        (0..count).map(|_| T::take(frame)).collect()
    }
}

impl<A: Wire, B: Wire> Wire for (A, B) {
    fn put(&self, frame: &mut Vec<u8>) {
        self.0.put(frame);
        self.1.put(frame);
    }
    fn take(frame: &mut &[u8]) -> Result<Self, Malformed> {
        Ok((A::take(frame)?, B::take(frame)?))
    }
}

/// A structure is its fields, in the order that is given here.
macro_rules! structures {
    ($($type:ident { $($field:ident),* })*) => {$(
        impl Wire for $type {
            fn put(&self, frame: &mut Vec<u8>) {
                $(self.$field.put(frame);)*
            }
            fn take(frame: &mut &[u8]) -> Result<Self, Malformed> {
                Ok($type { $($field: Wire::take(frame)?),* })
            }
        }
    )*};
}
structures! {
    Announcement { provider, name, fields }
    Grant { id, armed }
    ClassStatus { decl, armed, site_count, patched_count }
    BudgetState { page_size_bytes, streams, bytes, bytes_max, room, free, drawn, queued, beyond, is_overwrite }
    Snapshot { dir, events, bytes, span_ns, pages_missed, pages_refused }
    TunableValue { value_type, bits }
    Tunables { writer, reason, site_count, patched_count, tunables }
}

impl Wire for ClassDecl {
    fn put(&self, frame: &mut Vec<u8>) {
        Announcement::from(self).put(frame);
    }
    fn take(frame: &mut &[u8]) -> Result<Self, Malformed> {
        Announcement::take(frame)?.check().map_err(|_| Malformed)
    }
}

impl Wire for TunableType {
    fn put(&self, frame: &mut Vec<u8>) {
        (*self as u8).put(frame);
    }
    fn take(frame: &mut &[u8]) -> Result<Self, Malformed> {
        TunableType::from_number(u8::take(frame)?.into()).ok_or(Malformed)
    }
}

/// Value and range are of one type.
impl Wire for TunableStatus {
    fn put(&self, frame: &mut Vec<u8>) {
        [&self.name, &self.description, &self.object].into_iter().for_each(|text| text.put(frame));
        self.value.put(frame);
        (self.range.min, self.range.max).put(frame);
        (self.site_count, self.patched_count).put(frame);
    }
    fn take(frame: &mut &[u8]) -> Result<Self, Malformed> {
        let (name, (description, object)): (String, (String, String)) = Wire::take(frame)?;
        if !is_tunable_name(name.as_bytes()) || !is_line(&description) || !is_line(&object) {
            return Err(Malformed);
        }
        let (value, (min, max)) = <(TunableValue, _)>::take(frame)?;
        let range = TunableRange { value_type: value.value_type, min, max };
        let (site_count, patched_count) = Wire::take(frame)?;
        Ok(TunableStatus { name, description, object, value, range, site_count, patched_count })
    }
}

/// Both values are of one type.
impl Wire for TunableChange {
    fn put(&self, frame: &mut Vec<u8>) {
        self.name.put(frame);
        self.former.put(frame);
        self.value.bits.put(frame);
    }
    fn take(frame: &mut &[u8]) -> Result<Self, Malformed> {
        let (name, (former, bits)) = <(String, (TunableValue, u64))>::take(frame)?;
        let value = TunableValue { bits, ..former };
        if is_tunable_name(name.as_bytes()) { Ok(TunableChange { name, former, value }) } else { Err(Malformed) }
    }
}

/// Whether text from the other side may be shown to a person: it has no control characters.
fn is_line(text: &str) -> bool {
    !text.chars().any(char::is_control)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::class::{Kind, SEQUENCE};
    use alloc::vec;

    fn samples() -> Vec<Message> {
        let decl = ClassDecl {
            provider: "http".into(),
            name: "request".into(),
            fields: vec![
                ("id".into(), FieldType::scalar(Kind::U64)),
                ("sizes".into(), FieldType::sequence(Kind::I16)),
                ("path".into(), FieldType::scalar(Kind::Str)),
            ],
        };
        vec![
            Message::Hello {
                version: VERSION,
                vpid: 7,
                program: "/bin/true".into(),
                command_line: "true".into(),
                classes: vec![(&decl).into()],
            },
            Message::Welcome { process: 3, grants: vec![Grant { id: 5, armed: true }] },
            Message::MoreClasses { process: 3, classes: vec![] },
            Message::Stop,
            Message::Stopped { summary: "done".into() },
            Message::Snapshot { dir: "/tmp/x".into(), last_ns: 5, bytes_max: 0, trigger: "command".into() },
            Message::Snapshotted {
                snapshot: Snapshot {
                    dir: "/tmp/x".into(),
                    events: 1,
                    bytes: 2,
                    span_ns: 3,
                    pages_missed: 4,
                    pages_refused: 5,
                },
            },
            Message::Budget { bytes: 1 << 24 },
            Message::BudgetIs {
                state: BudgetState {
                    page_size_bytes: 65536,
                    streams: 7,
                    bytes: 1,
                    bytes_max: 2,
                    room: 8,
                    free: 3,
                    drawn: 4,
                    queued: 5,
                    beyond: 6,
                    is_overwrite: true,
                },
            },
            Message::List,
            Message::Classes {
                session: String::new(),
                classes: vec![ClassStatus { decl, armed: false, site_count: 2, patched_count: 1 }],
                patching: "mprotect".into(),
            },
            Message::Arm { patterns: vec!["*".into()] },
            Message::Disarm { patterns: vec![] },
            Message::Attach { session: "/run/x".into() },
            Message::Detach,
            Message::Changed { matched: 3, changed: 1, armed: 2, session: "s".into() },
            Message::Error { text: "no".into() },
            Message::ListTunables,
            Message::Tunables {
                tracer: Tunables {
                    writer: "none".into(),
                    reason: "forced".into(),
                    site_count: 9,
                    patched_count: 0,
                    tunables: vec![tunable()],
                },
            },
            Message::SetTunables { values: vec![("server.batch_size".into(), "64".into())] },
            Message::TunablesSet {
                changes: vec![TunableChange {
                    name: "server.batch_size".into(),
                    former: TunableValue { value_type: TunableType::U32, bits: 16 },
                    value: TunableValue { value_type: TunableType::U32, bits: 64 },
                }],
            },
            Message::ReadMemory { uuid: [7; 16], offset: 1 << 40, size_bytes: MEMORY_PART_SIZE_BYTES_MAX },
            Message::MemoryPart { memory_size_bytes: 9, bytes: vec![1, 2, 3] },
        ]
    }

    fn tunable() -> TunableStatus {
        TunableStatus {
            name: "server.batch_size".into(),
            description: "requests handled at once".into(),
            object: "/usr/bin/server".into(),
            value: TunableValue { value_type: TunableType::U32, bits: 16 },
            range: TunableRange { value_type: TunableType::U32, min: 1, max: 1024 },
            site_count: 2,
            patched_count: 2,
        }
    }

    #[test]
    fn classes_that_no_trace_can_hold_are_told_apart() {
        let announcement = |name: &str, field: &str, type_byte| Announcement {
            provider: "p".into(),
            name: name.into(),
            fields: vec![("first".into(), 1), (field.into(), type_byte)],
        };
        let class = announcement("e", "second", SEQUENCE | Kind::U16 as u8);
        let decl = class.check().unwrap();
        assert_eq!((decl.full_name().as_str(), Announcement::from(&decl)), ("p:e", class.clone()));
        let frame = Message::MoreClasses { process: 1, classes: vec![class.clone(), class.clone()] }.encode();
        let one = Message::MoreClasses { process: 1, classes: vec![class.clone()] }.encode();
        assert_eq!(frame.len() - one.len(), class.size_bytes());

        let long = "n".repeat(NAME_LEN_MAX + 1);
        for name in ["größe", "", "9", "a b", "\u{1b}[2J", &long] {
            let error = announcement(name, "f", 1).check().unwrap_err();
            assert!(error.starts_with(&format!("`{}` is no name", shown(name))), "{error}");
            assert_eq!(announcement("e", name, 1).check(), Err(error.clone()));
            assert_eq!(Announcement { provider: name.into(), ..class.clone() }.check(), Err(error.clone()));
            assert!(!error.contains(char::is_control));
        }
        for type_byte in [0, 15, SEQUENCE, SEQUENCE | Kind::Str as u8] {
            let error = announcement("e", "f", type_byte).check().unwrap_err();
            assert!(error.starts_with(&format!("its field f is of the unknown type {type_byte};")), "{error}");
        }
        let many = |count| Announcement { fields: vec![("f".into(), 1); count], ..class.clone() };
        assert!(many(FIELD_COUNT_MAX).check().is_ok());
        assert_eq!(many(FIELD_COUNT_MAX + 1).check(), Err("it has 33 fields, and a class at most 32".into()));

        // Of a listing, they are no classes.
        let listed = |name: &str| {
            let decl = ClassDecl { name: name.into(), ..decl.clone() };
            let classes = vec![ClassStatus { decl, armed: false, site_count: 0, patched_count: 0 }];
            Message::decode(&Message::Classes { session: "".into(), classes, patching: "".into() }.encode()[4..])
        };
        assert!(listed("e").is_ok());
        assert_eq!(listed("größe"), Err(Malformed));
        assert_eq!(shown(&"ß".repeat(301)), "ß".repeat(300) + "…");
        assert_eq!(shown("a\nb"), "a\u{fffd}b");
    }

    #[test]
    fn what_would_harm_a_reader_of_tunables_is_malformed() {
        let listed = |tunable| {
            let (writer, reason) = ("none".into(), "forced".into());
            let tracer = Tunables { writer, reason, site_count: 0, patched_count: 0, tunables: vec![tunable] };
            Message::decode(&Message::Tunables { tracer }.encode()[4..])
        };
        assert!(listed(tunable()).is_ok());
        assert_eq!(listed(TunableStatus { name: "a b".into(), ..tunable() }), Err(Malformed));
        assert_eq!(listed(TunableStatus { description: "\x1b[2J".into(), ..tunable() }), Err(Malformed));
        assert_eq!(listed(TunableStatus { object: "a\nb".into(), ..tunable() }), Err(Malformed));

        let set = |count| Message::SetTunables { values: vec![("a".into(), "1".into()); count] };
        assert!(Message::decode(&set(TUNABLE_SET_COUNT_MAX).encode()[4..]).is_ok());
        assert_eq!(Message::decode(&set(TUNABLE_SET_COUNT_MAX + 1).encode()[4..]), Err(Malformed));

        let set = samples().into_iter().find(|message| matches!(message, Message::TunablesSet { .. }));
        let mut unknown_type = set.unwrap().encode();
        let at = unknown_type.len() - 17;
        assert_eq!(unknown_type[at], TunableType::U32 as u8);
        unknown_type[at] = TunableType::ALL.len() as u8;
        assert_eq!(Message::decode(&unknown_type[4..]), Err(Malformed));
    }

    #[test]
    fn messages_come_back_and_every_cut_is_malformed() {
        for message in samples() {
            let frame = message.encode();
            assert_eq!(frame.len(), 4 + u32::from_le_bytes(frame[..4].try_into().unwrap()) as usize);
            assert_eq!(Message::decode(&frame[4..]).as_ref(), Ok(&message));
            for len in 4..frame.len() {
                assert_eq!(Message::decode(&frame[4..len]), Err(Malformed), "{message:?} cut at {len}");
            }
        }
    }

    #[test]
    fn no_program_is_asked_for_more_than_it_has_room_for() {
        let question = Message::ReadMemory { uuid: [0; 16], offset: 0, size_bytes: MEMORY_PART_SIZE_BYTES_MAX + 1 };
        assert_eq!(Message::decode(&question.encode()[4..]), Err(Malformed));
    }

    #[test]
    fn a_count_beyond_the_frame_is_malformed() {
        assert_eq!(Message::decode(&[8, 255, 255, 255, 255]), Err(Malformed));
    }

    #[test]
    fn patterns() {
        for (pattern, text, expected) in [
            ("*", "a:b", true),
            ("a:*", "a:b", true),
            ("a.*", "a:b", true),
            ("a:?", "a:b", true),
            ("a:?", "a:bc", false),
            ("*:b*d", "x:bad", true),
            ("*:b*d", "x:badly", false),
            ("a:b", "a:b", true),
            ("", "a:b", false),
            ("a*b*c", "aXbXbXc", true),
        ] {
            assert_eq!(matches(pattern, text), expected, "{pattern} {text}");
        }
    }
}
