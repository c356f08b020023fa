//! Events as text: in the format of `babeltrace2` ([`Formatter`]), for people ([`People`]), and for programs
//! ([`Lines`]).
//!
//! ```text
//! [14:03:05.123456789] (+0.000000012) lair http:request: { cpu_id = 0 }, { vpid = 12, vtid = 13 }, { id = 7, path = "/x" }
//! ```
//!
//! The caller supplies the time zone, because looking it up reads files or the environment.

mod buffer;
mod cells;
mod class;
mod clock;
mod lines;
mod number;
mod people;
mod within;

pub use buffer::Buffer;
pub use cells::{FieldTexts, put_json_text};
pub use clock::ClockFormat;
pub use lines::{JsonFields, LineFormat, Lines, pair_fields};
pub use people::People;
pub use within::Within;

use std::io::Write;

use class::{ClassText, Front, Known};
pub(crate) use clock::ClockText;
use number::{put_g, put_i64, put_u64};

use dormouse_ctf::model::{Base, Label, Meaning};
use dormouse_ctf::plan::{Group, IntegerNode, Visitor};
use dormouse_ctf::stream::{Block, Event, Notice, Problem, Scratch};

/// Formats the events of traces one after another, in time order.
#[derive(Debug)]
pub struct Formatter<'a> {
    clock: ClockText<'a>,
    /// Time of the previous event, from which the distance of the next one is computed.
    last_ns: Option<i64>,
    /// Packet index and text in front of the fields, by stream.
    fronts: Vec<(u64, Front)>,
    /// Class texts, by address of the stream's plan and by index of the class.
    classes: Vec<(usize, Vec<Option<Box<ClassText>>>)>,
    scratch: Scratch,
    line: Buffer,
}

impl<'a> Formatter<'a> {
    /// `utc_offset_s` returns the offset of the local time in seconds east of UTC, for a time in seconds since the
    /// epoch; `|_| 0` shows UTC.
    pub fn new(clock_format: ClockFormat, utc_offset_s: impl Fn(i64) -> i32 + 'a) -> Formatter<'a> {
        Formatter {
            clock: ClockText::new(clock_format, utc_offset_s),
            last_ns: None,
            fronts: Vec::new(),
            classes: Vec::new(),
            scratch: Scratch::default(),
            line: Buffer::default(),
        }
    }

    /// Appends the event's line with its newline. Text is written as the bytes that the program wrote, which need not
    /// be UTF-8; control characters are escaped.
    pub fn event(&mut self, event: &Event<'_>, out: &mut Vec<u8>) {
        let mut line = std::mem::take(&mut self.line);
        line.clear();
        self.append(event, &mut line);
        out.extend_from_slice(line.as_bytes());
        self.line = line;
    }

    /// Appends the lines of a block's events. `last_ns` is the time of the last earlier event that has a time.
    pub fn block(&mut self, block: &Block<'_>, last_ns: Option<i64>, out: &mut Buffer) {
        self.last_ns = last_ns;
        block.events().for_each(|event| self.append(&event, out));
    }

    #[inline(always)]
    fn append(&mut self, event: &Event<'_>, out: &mut Buffer) {
        let last_ns = event.time_ns.and_then(|ns| self.last_ns.replace(ns));
        let distance = last_ns.zip(event.time_ns).map(|(last, ns)| ns.saturating_sub(last).max(0));
        let Formatter { clock, fronts, classes, scratch, .. } = self;
        let front = front(fronts, event);
        let class = class_text(classes, event);
        let mut reader = event.field_reader(scratch);
        let words = class.words(&mut reader);
        let known = front.known(event.class_index());
        if !known.is_some_and(|known| known.put(event.time_ns, distance, words, out)) {
            let begin = out.len();
            if let Some(ns) = event.time_ns {
                clock.append(ns, out);
                distance_text(distance, out);
            }
            class.title(event.time_ns.is_some(), out);
            class.contexts(front.packet_context(), words, out);
            let times = event.time_ns.filter(|_| clock.is_by_second()).zip(distance);
            if let Some(known) = front.known(event.class_index()) {
                *known = Known::new(times, words, &out.as_bytes()[begin..], clock.second_bytes());
            }
        }
        class.fields(&mut reader, out);
    }

    /// Returns a warning line for a notice, without a newline. `stream` is the name of the stream, for example its
    /// file.
    pub fn warning(&mut self, notice: &Notice, stream: &str) -> String {
        let Problem::Discarded { count, begin_ns, end_ns } = notice.problem else {
            return format!("warning: {stream}: {notice}");
        };
        let plural = if count == 1 { "" } else { "s" };
        let mut out = format!("warning: {stream}: {count} event{plural} discarded").into_bytes();
        if let (Some(begin_ns), Some(end_ns)) = (begin_ns, end_ns) {
            out.extend(b" between ");
            self.time(begin_ns, &mut out);
            out.extend(b" and ");
            self.time(end_ns, &mut out);
        }
        String::from_utf8_lossy(&out).into_owned()
    }

    fn time(&mut self, ns: i64, out: &mut Vec<u8>) {
        out.push(b'[');
        self.clock.put(ns, out);
        out.push(b']');
    }
}

/// Appends the time since the previous event.
fn distance_text(distance_ns: Option<i64>, out: &mut Buffer) {
    let Some(distance) = distance_ns else { return out.put(b"] (+?.?????????") };
    out.put(b"] (+");
    out.unsigned((distance / NS) as u64);
    out.put(b".");
    out.fraction((distance % NS) as u32);
}

/// Returns the text in front of the fields, for the packet of the event.
#[inline(always)]
fn front<'f>(fronts: &'f mut Vec<(u64, Front)>, event: &Event<'_>) -> &'f mut Front {
    if fronts.len() <= event.stream {
        fronts.resize_with(event.stream + 1, || (u64::MAX, Front::default()));
    }
    let (packet, front) = &mut fronts[event.stream];
    if *packet != event.packet_index() {
        *packet = event.packet_index();
        renew(front, event);
    }
    front
}

/// Renews the text for a new packet. Most packets have the same text as the previous one.
#[cold]
fn renew(front: &mut Front, event: &Event<'_>) {
    let mut text = Vec::new();
    let mut printer = Printer { out: &mut text, is_first: true, depth: 0 };
    printer.open(Group::Struct);
    let is_there = event.visit_packet_context(&mut printer);
    printer.close(Group::Struct);
    if !is_there {
        text.clear();
    }
    front.begin_packet(text, event.plan_address());
}

/// Returns the text of the event's class.
#[inline(always)]
fn class_text<'c>(classes: &'c mut Vec<(usize, Vec<Option<Box<ClassText>>>)>, event: &Event<'_>) -> &'c ClassText {
    let (plan, index) = (event.plan_address(), event.class_index());
    let at = classes.iter().position(|(known, _)| *known == plan).unwrap_or_else(|| {
        classes.push((plan, Vec::new()));
        classes.len() - 1
    });
    let of_plan = &mut classes[at].1;
    if of_plan.len() <= index {
        of_plan.resize_with(index + 1, || None);
    }
    of_plan[index].get_or_insert_with(|| Box::new(ClassText::new(event)))
}

const NS: i64 = 1_000_000_000;

/// Printer of fields.
struct Printer<'a> {
    out: &'a mut Vec<u8>,
    /// Whether nothing has been printed in the current group.
    is_first: bool,
    /// Number of open groups.
    depth: u32,
}

impl Visitor for Printer<'_> {
    fn name(&mut self, name: &str) {
        self.out.extend_from_slice(if self.is_first { b" " } else { b", " });
        self.is_first = false;
        self.out.extend_from_slice(name.as_bytes());
        self.out.extend_from_slice(b" = ");
    }

    fn option(&mut self, _: &str) {
        self.out.push(b' ');
        self.is_first = false;
    }

    fn element(&mut self, index: u64) {
        self.out.extend_from_slice(if self.is_first { b" [" } else { b", [" });
        self.is_first = false;
        put_u64(self.out, index);
        self.out.extend_from_slice(b"] = ");
    }

    fn integer(&mut self, value: u64, class: &IntegerNode) {
        match (&class.labels, class.meaning) {
            (_, Meaning::Boolean) => self.out.extend_from_slice(if value == 0 { b"false" } else { b"true" }),
            (flags, Meaning::Bits) => put_bits(self.out, value, flags.as_deref().unwrap_or_default()),
            (None, Meaning::Number) => put_integer(self.out, value, class),
            (Some(labels), Meaning::Number) => {
                self.out.extend_from_slice(b"( ");
                let mut separator: &[u8] = b"";
                for label in labels.iter().filter(|label| label.range.contains(value, class.is_signed)) {
                    self.out.extend_from_slice(separator);
                    put_text(self.out, label.name.as_bytes());
                    separator = b", ";
                }
                if separator.is_empty() {
                    self.out.extend_from_slice(b"<unknown>");
                }
                self.out.extend_from_slice(b" : container = ");
                put_integer(self.out, value, class);
                self.out.extend_from_slice(b" )");
            }
        }
    }

    fn float(&mut self, value: f64) {
        put_g(self.out, value);
    }

    fn single(&mut self, value: f32) {
        put_g(self.out, value.into());
    }

    fn text(&mut self, text: &[u8]) {
        put_text(self.out, text);
    }

    fn blob(&mut self, bytes: &[u8], _: bool) {
        self.out.extend_from_slice(b"{ ");
        bytes.iter().for_each(|byte| put(self.out, format_args!("{byte:02x} ")));
        self.out.push(b'}');
    }

    fn absent(&mut self) {
        self.out.extend_from_slice(b"<none>");
    }

    fn open(&mut self, group: Group) {
        // The structures of contexts and fields have no names.
        if self.depth == 0 && !self.is_first {
            self.out.extend_from_slice(b", ");
        }
        self.out.push(if group == Group::Array { b'[' } else { b'{' });
        self.is_first = true;
        self.depth += 1;
        if group == Group::Optional {
            self.option("");
        }
    }

    fn close(&mut self, group: Group) {
        self.out.extend_from_slice(if group == Group::Array { b" ]" } else { b" }" });
        self.is_first = false;
        self.depth -= 1;
    }
}

fn put_integer(out: &mut Vec<u8>, value: u64, class: &IntegerNode) {
    // Negative numbers show only as many bits as the field has.
    let bits = |size_bits: u32| value & if size_bits < 64 { (1 << size_bits) - 1 } else { u64::MAX };
    match class.base {
        Base::Decimal if class.is_signed => put_i64(out, value as i64),
        Base::Decimal => put_u64(out, value),
        // Rounded up to whole digits of four bits.
        Base::Hexadecimal => put(out, format_args!("0x{:X}", bits(class.size_bits.next_multiple_of(4)))),
        // Rounded up to whole digits of three bits.
        Base::Octal => put(out, format_args!("0{:o}", bits(class.size_bits.next_multiple_of(3)))),
        Base::Binary => {
            put(out, format_args!("0b{:0width$b}", bits(class.size_bits), width = class.size_bits as usize))
        }
    }
}

/// Appends the bits and the names of the flags that have one of them.
fn put_bits(out: &mut Vec<u8>, value: u64, flags: &[Label]) {
    put(out, format_args!("0x{value:X}"));
    let is_set = |flag: &&Label| (0..64).any(|bit| value >> bit & 1 == 1 && flag.range.contains(bit, false));
    let mut names: Vec<&str> = flags.iter().filter(is_set).map(|flag| flag.name.as_str()).collect();
    names.sort_unstable();
    names.dedup();
    for (index, name) in names.iter().enumerate() {
        out.extend_from_slice(if index == 0 { b" { " } else { b", " });
        put_text(out, name.as_bytes());
    }
    if !names.is_empty() {
        out.extend_from_slice(b" }");
    }
}

fn put_text(out: &mut Vec<u8>, text: &[u8]) {
    out.push(b'"');
    for byte in text {
        match byte {
            b'\\' | b'\'' | b'"' | b'?' => out.extend([b'\\', *byte]),
            0x07 => out.extend(b"\\a"),
            0x08 => out.extend(b"\\b"),
            0x0c => out.extend(b"\\f"),
            b'\n' => out.extend(b"\\n"),
            b'\r' => out.extend(b"\\r"),
            b'\t' => out.extend(b"\\t"),
            0x0b => out.extend(b"\\v"),
            0x1b => out.extend(b"\\e"),
            byte if byte.is_ascii_control() => put(out, format_args!("\\x{byte:02x}")),
            byte => out.push(*byte),
        }
    }
    out.push(b'"');
}

fn put(out: &mut Vec<u8>, arguments: std::fmt::Arguments<'_>) {
    out.write_fmt(arguments).expect("a Vec takes all bytes");
}
