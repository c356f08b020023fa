//! Messages between a tool and a program: what the program has, and what it should change. A session's owner that
//! attaches the program uses them too.

use alloc::string::String;
use alloc::vec::Vec;

use super::codec::{Bytes, Codec, Line, List, Malformed, Path, structures};
use super::frame::{Question, messages};
use crate::class::ClassDecl;
use crate::register::SESSION_COUNT_MAX;
use crate::site::TunableType;
use crate::tunable::{TUNABLE_DESCRIPTION_LEN_MAX, TUNABLE_SET_COUNT_MAX, TunableRange, TunableValue, is_tunable_name};

/// Maximum size, in bytes, of a session's memory in one [`ProgramToTool::MemoryPart`]: a program can allocate this much
/// for an answer.
pub const MEMORY_PART_SIZE_BYTES_MAX: u32 = 256 << 10;

/// A class in a program's listing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClassStatus {
    /// The class.
    pub decl: ClassDecl,
    /// Number of sites that emit it.
    pub site_count: u32,
    /// Number of these that are patched (the others read the variable).
    pub patched_count: u32,
    /// The class in each session, in the order of the listing's sessions.
    pub sessions: Vec<ClassInSession>,
}

impl ClassStatus {
    /// Whether any session records its events now.
    pub fn is_armed(&self) -> bool {
        self.sessions.iter().any(|session| session.is_armed)
    }

    /// Whether the session with this index in the listing records its events now.
    pub fn is_armed_in(&self, index: usize) -> bool {
        self.sessions.get(index).is_some_and(|session| session.is_armed)
    }
}

/// A class in a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ClassInSession {
    /// Whether its events are recorded now.
    pub is_armed: bool,
    /// Number of the class's events that the session's rules have rejected, in all programs; 0 for a class that has no
    /// counter of its own.
    pub rejected: u64,
    /// Number of them that sampling has left out, likewise.
    pub sampled_out: u64,
}

/// A tunable in a program's listing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TunableStatus {
    /// Its name.
    pub name: String,
    /// Its description, one line.
    pub description: String,
    /// File of the program or library that contains its variable; empty if not known.
    pub object: String,
    /// Present value of the variable.
    pub value: TunableValue,
    /// Values that may be set.
    pub range: TunableRange,
    /// Number of sites that read it.
    pub site_count: u32,
    /// Number of these that are patched (the others read the variable).
    pub patched_count: u32,
}

/// A tunable that was set.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TunableChange {
    /// Its name.
    pub name: String,
    /// Value before.
    pub former: TunableValue,
    /// Value now.
    pub value: TunableValue,
}

/// The tunables of one tracer in a program.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tunables {
    /// Name of the way in which sites are written.
    pub writer: String,
    /// Reason for that way.
    pub reason: String,
    /// Number of sites in the program's loaded objects, for keys and variables of all kinds.
    pub site_count: u32,
    /// Number of these that are patched.
    pub patched_count: u32,
    /// Tunables in the order of their loaded objects. A name may occur several times, each time for another variable.
    pub tunables: Vec<TunableStatus>,
}

/// Maximum number of patterns in a question.
const PATTERN_COUNT_MAX: usize = 1024;
type Patterns = List<Line<1024>, PATTERN_COUNT_MAX>;

messages! {
    /// Question of a tool, or a session's owner, to a program.
    ToolProgram, ToolToProgram {
        /// Asks for the event classes. The answer is [`ProgramToTool::Classes`].
        1, 0 => List,
        /// Arms the classes that match any pattern. The answer is [`ProgramToTool::Changed`].
        2, 256 << 10 => Arm {
            /// Socket of the session, or empty for all that the program is in.
            session: String as Path,
            /// Patterns with `*` and `?`, matched against `provider:name`.
            patterns: Vec<String> as Patterns,
        },
        /// Disarms the classes that match any pattern. The answer is [`ProgramToTool::Changed`].
        3, 256 << 10 => Disarm {
            /// Socket of the session, or empty for all that the program is in.
            session: String as Path,
            /// Patterns with `*` and `?`, matched against `provider:name`.
            patterns: Vec<String> as Patterns,
        },
        /// Joins the session at this socket, then arms what matches its patterns. The descriptor of the session's
        /// memory is attached, because the program may not be able to open what the owner can. The answer is
        /// [`ProgramToTool::Changed`].
        4, 8 << 10 => Attach {
            /// Path of the session's socket.
            session: String as Path,
        },
        /// Leaves a session. The answer is [`ProgramToTool::Changed`].
        5, 8 << 10 => Detach {
            /// Socket of the session, or empty for all that the program is in.
            session: String as Path,
        },
        /// Asks for the tunables. The answer is [`ProgramToTool::Tunables`].
        6, 0 => ListTunables,
        /// Sets all of these tunables, or none. The answer is [`ProgramToTool::TunablesSet`] or [`ProgramToTool::Error`].
        7, 1 << 20 => SetTunables {
            /// Names and values as text, at most [`TUNABLE_SET_COUNT_MAX`]; the program checks type and range.
            values: Vec<(String, String)> as List<(Line<300>, Line<300>), TUNABLE_SET_COUNT_MAX>,
        },
        /// Asks for a part of this session's memory, which the program has mapped, for a session whose owner is dead.
        /// The answer is [`ProgramToTool::MemoryPart`].
        8, 28 => ReadMemory {
            /// The session's uuid.
            uuid: [u8; 16],
            /// Offset from the memory's start, in bytes.
            offset: u64,
            /// Size in bytes, at most [`MEMORY_PART_SIZE_BYTES_MAX`].
            size_bytes: u32 as PartSize,
        },
        /// Reads the rules of the sessions that the program is in, and follows them. The answer is
        /// [`ProgramToTool::Changed`].
        9, 0 => FollowRules,
    }
}

messages! {
    /// Answer of a program.
    ToolProgram, ProgramToTool {
        /// The event classes of the program.
        1, 16 << 20 => Classes {
            /// Sockets of the sessions that the program is in.
            sessions: Vec<String> as List<Path, SESSION_COUNT_MAX>,
            /// The classes.
            classes: Vec<ClassStatus> as List<ClassStatus>,
            /// Description of how sites are patched, or why they are not.
            patching: String as Line<4096>,
        },
        /// The classes were armed or disarmed.
        2, 256 << 10 => Changed {
            /// Number of classes that matched.
            matched: u32,
            /// Number of those that were armed or disarmed by the request.
            changed: u32,
            /// Number of the program's classes that are armed now.
            armed: u32,
            /// Sockets of the sessions that the program is in, and the number of classes that are armed in each.
            sessions: Vec<(String, u32)> as List<(Path, u32), SESSION_COUNT_MAX>,
        },
        /// The tunables of the program.
        3, 16 << 20 => Tunables {
            /// The tunables of one tracer.
            tracer: Tunables,
        },
        /// The tunables were set.
        4, 1 << 20 => TunablesSet {
            /// The changes, in the order of the request.
            changes: Vec<TunableChange> as List<TunableChange, TUNABLE_SET_COUNT_MAX>,
        },
        /// A part of a session's memory.
        5, MEMORY_PART_SIZE_BYTES_MAX as usize + 12 => MemoryPart {
            /// Size of the whole memory, in bytes.
            memory_size_bytes: u64,
            /// The requested bytes, up to the memory's end.
            bytes: Vec<u8> as Bytes,
        },
        /// The request failed.
        6, 8 << 10 => Error {
            /// Error message of one line.
            text: String as Line<4096>,
        },
    }
}

impl Question for ToolToProgram {
    type Answer = ProgramToTool;
}

structures! {
    ClassStatus {
        decl: ClassDecl, site_count: u32, patched_count: u32, sessions: List<ClassInSession, SESSION_COUNT_MAX>,
    }
    ClassInSession { is_armed: bool, rejected: u64, sampled_out: u64 }
    TunableValue { value_type: TunableType, bits: u64 }
    Tunables {
        writer: Line<300>, reason: Line<1024>, site_count: u32, patched_count: u32, tunables: List<TunableStatus>,
    }
}

/// Size of a memory part, limited so that a program is not asked for more than it can allocate.
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

/// The name of an existing tunable, which must be valid.
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

/// Value and range have the same type, which is encoded once.
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

/// Both values have the same type, which is encoded once.
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
