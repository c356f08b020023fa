//! A tool and a program: what the program has, and what it is to change. A session's owner that attaches it asks so too.

use alloc::string::String;
use alloc::vec::Vec;

use super::codec::{Bytes, Codec, Line, List, Malformed, Path, structures};
use super::frame::{Question, messages};
use crate::class::ClassDecl;
use crate::site::TunableType;
use crate::tunable::{TUNABLE_DESCRIPTION_LEN_MAX, TUNABLE_SET_COUNT_MAX, TunableRange, TunableValue, is_tunable_name};

/// Most bytes of a session's memory in one [`ProgramToTool::MemoryPart`]: a program can allocate that much to answer.
pub const MEMORY_PART_SIZE_BYTES_MAX: u32 = 256 << 10;

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

/// Most patterns in a question.
const PATTERN_COUNT_MAX: usize = 1024;
type Patterns = List<Line<1024>, PATTERN_COUNT_MAX>;

messages! {
    /// What a tool, or a session's owner, asks a program.
    ToolProgram, ToolToProgram {
        /// The answer is [`ProgramToTool::Classes`].
        1, 0 => List,
        /// Arms the classes that match any pattern. The answer is [`ProgramToTool::Changed`].
        2, 256 << 10 => Arm {
            /// Patterns with `*` and `?`, matched against `provider:name`.
            patterns: Vec<String> as Patterns,
        },
        /// Disarms. The answer is [`ProgramToTool::Changed`].
        3, 256 << 10 => Disarm {
            /// Patterns.
            patterns: Vec<String> as Patterns,
        },
        /// Join the session at this socket, then arm what matches its patterns. The session's memory comes with it as a descriptor: the program may not
        /// be able to open what the owner can. The answer is [`ProgramToTool::Changed`].
        4, 8 << 10 => Attach {
            /// Path of the session's socket.
            session: String as Path,
        },
        /// Disarm everything and leave the session. The answer is [`ProgramToTool::Changed`].
        5, 0 => Detach,
        /// Asks for the tunables. The answer is [`ProgramToTool::Tunables`].
        6, 0 => ListTunables,
        /// Sets all of these tunables, or none. The answer is [`ProgramToTool::TunablesSet`] or [`ProgramToTool::Error`].
        7, 1 << 20 => SetTunables {
            /// Names and values as text, at most [`TUNABLE_SET_COUNT_MAX`]; the program checks type and range.
            values: Vec<(String, String)> as List<(Line<300>, Line<300>), TUNABLE_SET_COUNT_MAX>,
        },
        /// Asks for a part of this session's memory, as the program has it mapped: for a session whose owner is dead. The answer is
        /// [`ProgramToTool::MemoryPart`].
        8, 28 => ReadMemory {
            /// The session's uuid.
            uuid: [u8; 16],
            /// Offset in bytes from the memory's start.
            offset: u64,
            /// At most [`MEMORY_PART_SIZE_BYTES_MAX`].
            size_bytes: u32 as PartSize,
        },
    }
}

messages! {
    /// What a program answers.
    ToolProgram, ProgramToTool {
        /// What it has.
        1, 16 << 20 => Classes {
            /// Socket of the session that the program is in, or empty.
            session: String as Path,
            /// The classes.
            classes: Vec<ClassStatus> as List<ClassStatus>,
            /// How sites are patched, or why they are not.
            patching: String as Line<4096>,
        },
        /// What it has changed.
        2, 8 << 10 => Changed {
            /// Classes that matched.
            matched: u32,
            /// Those of them that are armed now and were not before, or the other way round.
            changed: u32,
            /// Classes of the program that are armed now.
            armed: u32,
            /// Socket of the session that the program is in, or empty.
            session: String as Path,
        },
        /// What can be tuned.
        3, 16 << 20 => Tunables {
            /// The tunables of one tracer.
            tracer: Tunables,
        },
        /// What was set.
        4, 1 << 20 => TunablesSet {
            /// In the order of the request.
            changes: Vec<TunableChange> as List<TunableChange, TUNABLE_SET_COUNT_MAX>,
        },
        /// A part of a session's memory.
        5, MEMORY_PART_SIZE_BYTES_MAX as usize + 12 => MemoryPart {
            /// Bytes of all the memory.
            memory_size_bytes: u64,
            /// The requested bytes; nothing beyond the memory's end.
            bytes: Vec<u8> as Bytes,
        },
        /// One line that says what is wrong.
        6, 8 << 10 => Error {
            /// The line.
            text: String as Line<4096>,
        },
    }
}

impl Question for ToolToProgram {
    type Answer = ProgramToTool;
}

structures! {
    ClassStatus { decl: ClassDecl, armed: bool, site_count: u32, patched_count: u32 }
    TunableValue { value_type: TunableType, bits: u64 }
    Tunables {
        writer: Line<300>, reason: Line<1024>, site_count: u32, patched_count: u32, tunables: List<TunableStatus>,
    }
}

/// So that no program is asked for more than it has room for.
struct PartSize;

impl Codec for PartSize {
    type Value = u32;
    fn put(value: &u32, frame: &mut Vec<u8>) {
        u32::put(value, frame);
    }
    fn take(frame: &mut &[u8]) -> Result<u32, Malformed> {
        let size_bytes = u32::take(frame)?;
        if size_bytes <= MEMORY_PART_SIZE_BYTES_MAX { Ok(size_bytes) } else { Err(Malformed("a part is too large")) }
    }
}

/// The name of a tunable that exists.
struct TunableName;

impl Codec for TunableName {
    type Value = String;
    fn put(value: &String, frame: &mut Vec<u8>) {
        Line::<300>::put(value, frame);
    }
    fn take(frame: &mut &[u8]) -> Result<String, Malformed> {
        let name = Line::<300>::take(frame)?;
        if is_tunable_name(name.as_bytes()) { Ok(name) } else { Err(Malformed("no tunable has such a name")) }
    }
}

impl Codec for TunableType {
    type Value = TunableType;
    fn put(value: &TunableType, frame: &mut Vec<u8>) {
        frame.push(*value as u8);
    }
    fn take(frame: &mut &[u8]) -> Result<TunableType, Malformed> {
        TunableType::from_number(u8::take(frame)?.into()).ok_or(Malformed("a tunable's type is unknown"))
    }
}

/// Value and range are of one type.
impl Codec for TunableStatus {
    type Value = TunableStatus;
    fn put(value: &TunableStatus, frame: &mut Vec<u8>) {
        TunableName::put(&value.name, frame);
        Line::<TUNABLE_DESCRIPTION_LEN_MAX>::put(&value.description, frame);
        Line::<4096>::put(&value.object, frame);
        TunableValue::put(&value.value, frame);
        <((u64, u64), (u32, u32))>::put(
            &((value.range.min, value.range.max), (value.site_count, value.patched_count)),
            frame,
        );
    }
    fn take(frame: &mut &[u8]) -> Result<TunableStatus, Malformed> {
        let name = TunableName::take(frame)?;
        let description = Line::<TUNABLE_DESCRIPTION_LEN_MAX>::take(frame)?;
        let object = Line::<4096>::take(frame)?;
        let value = TunableValue::take(frame)?;
        let ((min, max), (site_count, patched_count)) = <((u64, u64), (u32, u32))>::take(frame)?;
        let range = TunableRange { value_type: value.value_type, min, max };
        Ok(TunableStatus { name, description, object, value, range, site_count, patched_count })
    }
}

/// Both values are of one type.
impl Codec for TunableChange {
    type Value = TunableChange;
    fn put(value: &TunableChange, frame: &mut Vec<u8>) {
        TunableName::put(&value.name, frame);
        <(TunableValue, u64)>::put(&(value.former, value.value.bits), frame);
    }
    fn take(frame: &mut &[u8]) -> Result<TunableChange, Malformed> {
        let (name, (former, bits)) = <(TunableName, (TunableValue, u64))>::take(frame)?;
        Ok(TunableChange { name, former, value: TunableValue { bits, ..former } })
    }
}
