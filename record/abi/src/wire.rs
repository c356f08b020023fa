//! Messages on the two Unix sockets: the session owner's, which programs join, and a program's own, to which tools connect.
//!
//! A frame is a `u32` length (of the rest), a type byte and the body. Strings are a `u16` length and UTF-8 bytes; lists are
//! a `u32` count and the items. Every decoder accepts any bytes: invalid ones give [`Malformed`], never a panic or a huge allocation.

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
/// Environment variable: `0` keeps a program from listening.
pub const ENV_LISTEN: &str = "DORMOUSE_LISTEN";
/// Environment variable: `1` forces the path for machines without rseq.
pub const ENV_NO_RSEQ: &str = "DORMOUSE_NO_RSEQ";

/// The directory of a user's sockets, given `$XDG_RUNTIME_DIR` (if set and not empty) and the user's id.
pub fn socket_dir(xdg_runtime_dir: Option<&str>, uid: u32) -> String {
    match xdg_runtime_dir.filter(|dir| !dir.is_empty()) {
        Some(dir) => alloc::format!("{dir}/dormouse"),
        None => alloc::format!("/tmp/dormouse-{uid}"),
    }
}

/// File name of a program's socket. A process has several if several of its loaded objects contain a tracer of their own.
pub fn program_socket_name(pid: u32, number: u32) -> String {
    alloc::format!("{pid}.{number}.sock")
}

/// Whether a file name is that of a socket of process `pid`.
pub fn is_program_socket(file_name: &str, pid: u32) -> bool {
    let number = file_name.strip_prefix(&alloc::format!("{pid}.")).and_then(|rest| rest.strip_suffix(".sock"));
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

/// An event class as it is announced.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ClassDecl {
    /// Provider.
    pub provider: String,
    /// Event name.
    pub name: String,
    /// Field names and types.
    pub fields: Vec<(String, FieldType)>,
}

impl ClassDecl {
    /// `provider:name`, as patterns match it and tools print it.
    pub fn full_name(&self) -> String {
        alloc::format!("{}:{}", self.provider, self.name)
    }
}

/// An event class as a program announces it, not checked yet: the session owner reports each class that it refuses.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Announcement {
    /// Provider.
    pub provider: String,
    /// Event name.
    pub name: String,
    /// Field names and type bytes ([`FieldType::to_u8`]).
    pub fields: Vec<(String, u8)>,
}

impl Announcement {
    /// `provider:name`.
    pub fn full_name(&self) -> String {
        alloc::format!("{}:{}", self.provider, self.name)
    }

    /// The class, if a trace can hold it.
    ///
    /// # Errors
    /// The first thing that no trace can hold.
    pub fn check(&self) -> Result<ClassDecl, ClassError> {
        let check_name =
            |name: &String| if is_name(name) { Ok(name.clone()) } else { Err(ClassError::Name(name.clone())) };
        let (provider, name) = (check_name(&self.provider)?, check_name(&self.name)?);
        if self.fields.len() > FIELD_COUNT_MAX {
            return Err(ClassError::FieldCount(self.fields.len()));
        }
        let field = |(name, type_byte): &(String, u8)| {
            let name = check_name(name)?;
            match FieldType::from_u8(*type_byte) {
                Some(field_type) => Ok((name, field_type)),
                None => Err(ClassError::FieldType { field: name, type_byte: *type_byte }),
            }
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

/// Why no trace can hold a class.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ClassError {
    /// A name that no provider, event or field may have ([`is_name`]).
    Name(String),
    /// More fields than [`FIELD_COUNT_MAX`].
    FieldCount(usize),
    /// A field of an unknown type.
    FieldType {
        /// The field.
        field: String,
        /// The type byte.
        type_byte: u8,
    },
}

impl core::fmt::Display for ClassError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            ClassError::Name(name) => write!(
                f,
                "`{}` is no name that a trace can hold: write ASCII letters, digits and `_`, no digit first, at most {NAME_LEN_MAX} bytes",
                shown(name)
            ),
            ClassError::FieldCount(count) => write!(f, "it has {count} fields, and a class at most {FIELD_COUNT_MAX}"),
            ClassError::FieldType { field, type_byte } => {
                write!(
                    f,
                    "its field {field} is of the unknown type {type_byte}; build the program with the headers of its libdormouse"
                )
            }
        }
    }
}

impl core::error::Error for ClassError {}

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

/// Any message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Message {
    /// Program → owner: joins. The answer is [`Message::Welcome`], with the memory's descriptor attached.
    Hello {
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
    Welcome {
        /// The session's number for the process.
        process: u16,
        /// One grant for each class.
        grants: Vec<Grant>,
    },
    /// Program → owner: classes that came later (`dlopen`). The answer is [`Message::Welcome`] without a descriptor.
    MoreClasses {
        /// The session's number for the process.
        process: u16,
        /// The new classes.
        classes: Vec<Announcement>,
    },
    /// Tool → owner of an attached session: ends it. The answer is [`Message::Stopped`] once the trace is complete.
    Stop,
    /// Owner → tool: the summary line.
    Stopped {
        /// The line that `record` prints at its end.
        summary: String,
    },
    /// Tool or program → owner of a session in overwrite mode: writes what is retained as a trace of its own. The answer is
    /// [`Message::Snapshotted`] once it is complete.
    Snapshot {
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
    Snapshotted {
        /// The new trace's directory.
        dir: String,
        /// Events in it.
        events: u64,
        /// Bytes of its streams.
        bytes: u64,
        /// Nanoseconds from the beginning of its oldest page to the snapshot.
        span_ns: u64,
        /// Pages that were overwritten before they could be copied.
        pages_missed: u64,
        /// Pages that were not valid.
        pages_refused: u64,
    },
    /// Tool → owner: sets the session's memory budget while it is live, or asks for it. The answer is [`Message::BudgetIs`].
    Budget {
        /// Bytes of all pages. Zero: do not change it.
        bytes: u64,
    },
    /// Owner → tool: the session's memory. Bytes of whole pages.
    BudgetIs {
        /// Bytes of a page.
        page_size_bytes: u32,
        /// The budget.
        bytes: u64,
        /// What it may grow to.
        bytes_max: u64,
        /// Additional memory that exists while snapshots are taken.
        room: u64,
        /// Pages that are free.
        free: u64,
        /// Pages that are written to, or are about to be.
        drawn: u64,
        /// Pages that are closed: on their way to the trace, or retained.
        queued: u64,
        /// Pages that are beyond the budget now, and still in use.
        beyond: u64,
        /// Streams that were ever written to.
        streams: u32,
        /// Whether closed pages are retained.
        is_overwrite: bool,
    },
    /// Tool → program. The answer is [`Message::Classes`].
    List,
    /// Program → tool.
    Classes {
        /// Socket of the session that the program is in, or empty.
        session: String,
        /// The classes.
        classes: Vec<ClassStatus>,
        /// How sites are patched, or why they are not.
        patching: String,
    },
    /// Tool → program: arms the classes that match any pattern. The answer is [`Message::Changed`].
    Arm {
        /// Patterns with `*` and `?`, matched against `provider:name`.
        patterns: Vec<String>,
    },
    /// Tool → program: disarms. The answer is [`Message::Changed`].
    Disarm {
        /// Patterns.
        patterns: Vec<String>,
    },
    /// Owner → program: join the session at this socket, then arm what its grants say. The answer is [`Message::Changed`].
    Attach {
        /// Path of the session's socket.
        session: String,
    },
    /// Owner → program: disarm everything and leave the session. The answer is [`Message::Changed`].
    Detach,
    /// Program → tool.
    Changed {
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
    ListTunables,
    /// Program → tool.
    Tunables {
        /// How sites are written.
        writer: String,
        /// The reason for that.
        reason: String,
        /// Sites of the program's loaded objects, whatever they read.
        site_count: u32,
        /// How many of these are patched.
        patched_count: u32,
        /// In the order of their loaded objects. A name may occur several times, each time for another variable.
        tunables: Vec<TunableStatus>,
    },
    /// Tool → program: sets all of them, or none. The answer is [`Message::TunablesSet`] or [`Message::Error`].
    SetTunables {
        /// Names and values as text, at most [`TUNABLE_SET_COUNT_MAX`]; the program checks type and range.
        values: Vec<(String, String)>,
    },
    /// Program → tool.
    TunablesSet {
        /// In the order of the request.
        changes: Vec<TunableChange>,
    },
    /// Tool → program: asks for a part of this session's memory, as the program has it mapped: for a session whose owner is dead.
    /// The answer is [`Message::MemoryPart`].
    ReadMemory {
        /// The session's uuid.
        uuid: [u8; 16],
        /// Offset in bytes from the memory's start.
        offset: u64,
        /// At most [`MEMORY_PART_SIZE_BYTES_MAX`].
        size_bytes: u32,
    },
    /// Program → tool.
    MemoryPart {
        /// Bytes of all the memory.
        memory_size_bytes: u64,
        /// The requested bytes; nothing beyond the memory's end.
        bytes: Vec<u8>,
    },
    /// Either direction: one line that says what is wrong.
    Error {
        /// The line.
        text: String,
    },
}

struct Writer(Vec<u8>);

impl Writer {
    fn u8(&mut self, value: u8) {
        self.0.push(value);
    }
    fn u16(&mut self, value: u16) {
        self.0.extend_from_slice(&value.to_le_bytes());
    }
    fn u32(&mut self, value: u32) {
        self.0.extend_from_slice(&value.to_le_bytes());
    }
    /// Longer strings are cut at a character boundary.
    fn str(&mut self, text: &str) {
        let mut len = text.len().min(u16::MAX as usize);
        while !text.is_char_boundary(len) {
            len -= 1;
        }
        self.u16(len as u16);
        self.0.extend_from_slice(&text.as_bytes()[..len]);
    }
    fn list<T>(&mut self, items: &[T], mut each: impl FnMut(&mut Self, &T)) {
        self.u32(items.len() as u32);
        for item in items {
            each(self, item);
        }
    }
    fn u64(&mut self, value: u64) {
        self.0.extend_from_slice(&value.to_le_bytes());
    }
    fn tunable(&mut self, tunable: &TunableStatus) {
        self.str(&tunable.name);
        self.str(&tunable.description);
        self.str(&tunable.object);
        self.u8(tunable.value.value_type as u8);
        self.u64(tunable.value.bits);
        self.u64(tunable.range.min);
        self.u64(tunable.range.max);
        self.u32(tunable.site_count);
        self.u32(tunable.patched_count);
    }
    fn announcement(&mut self, class: &Announcement) {
        self.str(&class.provider);
        self.str(&class.name);
        self.list(&class.fields, |w, (name, type_byte)| {
            w.str(name);
            w.u8(*type_byte);
        });
    }
}

struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn take(&mut self, len: usize) -> Result<&'a [u8], Malformed> {
        let (head, tail) = self.0.split_at_checked(len).ok_or(Malformed)?;
        self.0 = tail;
        Ok(head)
    }
    fn u8(&mut self) -> Result<u8, Malformed> {
        Ok(self.take(1)?[0])
    }
    fn u16(&mut self) -> Result<u16, Malformed> {
        self.take(2)?.try_into().map(u16::from_le_bytes).map_err(|_| Malformed)
    }
    fn u32(&mut self) -> Result<u32, Malformed> {
        self.take(4)?.try_into().map(u32::from_le_bytes).map_err(|_| Malformed)
    }
    fn bool(&mut self) -> Result<bool, Malformed> {
        match self.u8()? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(Malformed),
        }
    }
    fn str(&mut self) -> Result<String, Malformed> {
        let len = self.u16()? as usize;
        core::str::from_utf8(self.take(len)?).map(String::from).map_err(|_| Malformed)
    }
    /// A list whose items take at least one byte each, so that a count never allocates more than the frame has.
    fn list<T>(&mut self, mut each: impl FnMut(&mut Self) -> Result<T, Malformed>) -> Result<Vec<T>, Malformed> {
        let count = self.u32()? as usize;
        if count > self.0.len() {
            return Err(Malformed);
        }
        (0..count).map(|_| each(self)).collect()
    }
    fn u64(&mut self) -> Result<u64, Malformed> {
        self.take(8)?.try_into().map(u64::from_le_bytes).map_err(|_| Malformed)
    }
    /// Text from the other side that a person reads: one with control characters is refused.
    fn line(&mut self) -> Result<String, Malformed> {
        let line = self.str()?;
        if line.chars().any(char::is_control) { Err(Malformed) } else { Ok(line) }
    }
    fn tunable_name(&mut self) -> Result<String, Malformed> {
        let name = self.str()?;
        if is_tunable_name(name.as_bytes()) { Ok(name) } else { Err(Malformed) }
    }
    fn tunable_type(&mut self) -> Result<TunableType, Malformed> {
        TunableType::from_number(self.u8()?.into()).ok_or(Malformed)
    }
    fn tunable(&mut self) -> Result<TunableStatus, Malformed> {
        let (name, description, object) = (self.tunable_name()?, self.line()?, self.line()?);
        let value_type = self.tunable_type()?;
        Ok(TunableStatus {
            name,
            description,
            object,
            value: TunableValue { value_type, bits: self.u64()? },
            range: TunableRange { value_type, min: self.u64()?, max: self.u64()? },
            site_count: self.u32()?,
            patched_count: self.u32()?,
        })
    }
    fn tunable_change(&mut self) -> Result<TunableChange, Malformed> {
        let name = self.tunable_name()?;
        let value_type = self.tunable_type()?;
        let mut value = || Ok(TunableValue { value_type, bits: self.u64()? });
        Ok(TunableChange { name, former: value()?, value: value()? })
    }
    fn announcement(&mut self) -> Result<Announcement, Malformed> {
        let (provider, name) = (self.str()?, self.str()?);
        Ok(Announcement { provider, name, fields: self.list(|r| Ok((r.str()?, r.u8()?)))? })
    }
    fn decl(&mut self) -> Result<ClassDecl, Malformed> {
        self.announcement()?.check().map_err(|_| Malformed)
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

impl Message {
    /// The frame: length, type, body.
    pub fn encode(&self) -> Vec<u8> {
        let mut w = Writer(alloc::vec![0; 4]);
        match self {
            Message::Hello { version, vpid, program, command_line, classes } => {
                w.u8(1);
                w.u32(*version);
                w.u32(*vpid);
                w.str(program);
                w.str(command_line);
                w.list(classes, Writer::announcement);
            }
            Message::Welcome { process, grants } => {
                w.u8(2);
                w.u16(*process);
                w.list(grants, |w, grant| {
                    w.u32(grant.id);
                    w.u8(grant.armed as u8);
                });
            }
            Message::MoreClasses { process, classes } => {
                w.u8(3);
                w.u16(*process);
                w.list(classes, Writer::announcement);
            }
            Message::Stop => w.u8(4),
            Message::Stopped { summary } => {
                w.u8(5);
                w.str(summary);
            }
            Message::Snapshot { dir, last_ns, bytes_max, trigger } => {
                w.u8(18);
                w.str(dir);
                [*last_ns, *bytes_max].into_iter().for_each(|number| w.u64(number));
                w.str(trigger);
            }
            Message::Snapshotted { dir, events, bytes, span_ns, pages_missed, pages_refused } => {
                w.u8(19);
                w.str(dir);
                for number in [events, bytes, span_ns, pages_missed, pages_refused] {
                    w.u64(*number);
                }
            }
            Message::Budget { bytes } => {
                w.u8(24);
                w.u64(*bytes);
            }
            Message::BudgetIs {
                page_size_bytes,
                bytes,
                bytes_max,
                room,
                free,
                drawn,
                queued,
                beyond,
                streams,
                is_overwrite,
            } => {
                w.u8(25);
                [*page_size_bytes, *streams].into_iter().for_each(|number| w.u32(number));
                [bytes, bytes_max, room, free, drawn, queued, beyond].into_iter().for_each(|number| w.u64(*number));
                w.u8(*is_overwrite as u8);
            }
            Message::List => w.u8(6),
            Message::Classes { session, classes, patching } => {
                w.u8(7);
                w.str(session);
                w.list(classes, |w, class| {
                    w.announcement(&(&class.decl).into());
                    w.u8(class.armed as u8);
                    w.u32(class.site_count);
                    w.u32(class.patched_count);
                });
                w.str(patching);
            }
            Message::Arm { patterns } => {
                w.u8(8);
                w.list(patterns, |w, pattern| w.str(pattern));
            }
            Message::Disarm { patterns } => {
                w.u8(9);
                w.list(patterns, |w, pattern| w.str(pattern));
            }
            Message::Attach { session } => {
                w.u8(10);
                w.str(session);
            }
            Message::Detach => w.u8(11),
            Message::Changed { matched, changed, armed, session } => {
                w.u8(12);
                w.u32(*matched);
                w.u32(*changed);
                w.u32(*armed);
                w.str(session);
            }
            Message::Error { text } => {
                w.u8(13);
                w.str(text);
            }
            Message::ListTunables => w.u8(14),
            Message::Tunables { writer, reason, site_count, patched_count, tunables } => {
                w.u8(15);
                w.str(writer);
                w.str(reason);
                w.u32(*site_count);
                w.u32(*patched_count);
                w.list(tunables, Writer::tunable);
            }
            Message::SetTunables { values } => {
                w.u8(16);
                w.list(values, |w, (name, value)| {
                    w.str(name);
                    w.str(value);
                });
            }
            Message::TunablesSet { changes } => {
                w.u8(17);
                w.list(changes, |w, change| {
                    w.str(&change.name);
                    w.u8(change.value.value_type as u8);
                    w.u64(change.former.bits);
                    w.u64(change.value.bits);
                });
            }
            Message::ReadMemory { uuid, offset, size_bytes } => {
                w.u8(20);
                w.0.extend_from_slice(uuid);
                w.u64(*offset);
                w.u32(*size_bytes);
            }
            Message::MemoryPart { memory_size_bytes, bytes } => {
                w.u8(21);
                w.u64(*memory_size_bytes);
                w.u32(bytes.len() as u32);
                w.0.extend_from_slice(bytes);
            }
        }
        let body_len = (w.0.len() - 4) as u32;
        w.0[..4].copy_from_slice(&body_len.to_le_bytes());
        w.0
    }

    /// Reads a frame's type and body (without the length).
    ///
    /// # Errors
    /// [`Malformed`] for anything that [`Message::encode`] cannot have written.
    pub fn decode(frame: &[u8]) -> Result<Message, Malformed> {
        let mut r = Reader(frame);
        let message = match r.u8()? {
            1 => Message::Hello {
                version: r.u32()?,
                vpid: r.u32()?,
                program: r.str()?,
                command_line: r.str()?,
                classes: r.list(Reader::announcement)?,
            },
            2 => Message::Welcome {
                process: r.u16()?,
                grants: r.list(|r| Ok(Grant { id: r.u32()?, armed: r.bool()? }))?,
            },
            3 => Message::MoreClasses { process: r.u16()?, classes: r.list(Reader::announcement)? },
            4 => Message::Stop,
            5 => Message::Stopped { summary: r.str()? },
            6 => Message::List,
            7 => Message::Classes {
                session: r.str()?,
                classes: r.list(|r| {
                    Ok(ClassStatus { decl: r.decl()?, armed: r.bool()?, site_count: r.u32()?, patched_count: r.u32()? })
                })?,
                patching: r.str()?,
            },
            8 => Message::Arm { patterns: r.list(Reader::str)? },
            9 => Message::Disarm { patterns: r.list(Reader::str)? },
            10 => Message::Attach { session: r.str()? },
            11 => Message::Detach,
            12 => Message::Changed { matched: r.u32()?, changed: r.u32()?, armed: r.u32()?, session: r.str()? },
            13 => Message::Error { text: r.str()? },
            14 => Message::ListTunables,
            15 => Message::Tunables {
                writer: r.line()?,
                reason: r.line()?,
                site_count: r.u32()?,
                patched_count: r.u32()?,
                tunables: r.list(Reader::tunable)?,
            },
            16 => {
                let values = r.list(|r| Ok((r.str()?, r.str()?)))?;
                if values.len() > TUNABLE_SET_COUNT_MAX {
                    return Err(Malformed);
                }
                Message::SetTunables { values }
            }
            17 => Message::TunablesSet { changes: r.list(Reader::tunable_change)? },
            18 => Message::Snapshot { dir: r.str()?, last_ns: r.u64()?, bytes_max: r.u64()?, trigger: r.str()? },
            19 => Message::Snapshotted {
                dir: r.str()?,
                events: r.u64()?,
                bytes: r.u64()?,
                span_ns: r.u64()?,
                pages_missed: r.u64()?,
                pages_refused: r.u64()?,
            },
            20 => {
                let uuid = r.take(16)?.try_into().map_err(|_| Malformed)?;
                let (offset, size_bytes) = (r.u64()?, r.u32()?);
                if size_bytes > MEMORY_PART_SIZE_BYTES_MAX {
                    return Err(Malformed);
                }
                Message::ReadMemory { uuid, offset, size_bytes }
            }
            21 => Message::MemoryPart {
                memory_size_bytes: r.u64()?,
                bytes: {
                    let len = r.u32()? as usize;
                    r.take(len)?.into()
                },
            },
            24 => Message::Budget { bytes: r.u64()? },
            25 => Message::BudgetIs {
                page_size_bytes: r.u32()?,
                streams: r.u32()?,
                bytes: r.u64()?,
                bytes_max: r.u64()?,
                room: r.u64()?,
                free: r.u64()?,
                drawn: r.u64()?,
                queued: r.u64()?,
                beyond: r.u64()?,
                is_overwrite: r.bool()?,
            },
            _ => return Err(Malformed),
        };
        if r.0.is_empty() { Ok(message) } else { Err(Malformed) }
    }
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
                dir: "/tmp/x".into(),
                events: 1,
                bytes: 2,
                span_ns: 3,
                pages_missed: 4,
                pages_refused: 5,
            },
            Message::Budget { bytes: 1 << 24 },
            Message::BudgetIs {
                page_size_bytes: 65536,
                bytes: 1,
                bytes_max: 2,
                room: 8,
                free: 3,
                drawn: 4,
                queued: 5,
                beyond: 6,
                streams: 7,
                is_overwrite: true,
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
                writer: "none".into(),
                reason: "forced".into(),
                site_count: 9,
                patched_count: 0,
                tunables: vec![tunable()],
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
            let error = ClassError::Name(name.into());
            assert_eq!(announcement(name, "f", 1).check(), Err(error.clone()));
            assert_eq!(announcement("e", name, 1).check(), Err(error.clone()));
            assert_eq!(Announcement { provider: name.into(), ..class.clone() }.check(), Err(error.clone()));
            assert!(!alloc::format!("{error}").contains(char::is_control));
        }
        for type_byte in [0, 15, SEQUENCE, SEQUENCE | Kind::Str as u8] {
            let error = ClassError::FieldType { field: "f".into(), type_byte };
            assert_eq!(announcement("e", "f", type_byte).check(), Err(error));
        }
        let many = |count| Announcement { fields: vec![("f".into(), 1); count], ..class.clone() };
        assert!(many(FIELD_COUNT_MAX).check().is_ok());
        assert_eq!(many(FIELD_COUNT_MAX + 1).check(), Err(ClassError::FieldCount(FIELD_COUNT_MAX + 1)));

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
            let message =
                Message::Tunables { writer, reason, site_count: 0, patched_count: 0, tunables: vec![tunable] };
            Message::decode(&message.encode()[4..])
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
