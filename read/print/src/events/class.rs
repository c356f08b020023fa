//! Text of events in the format of `babeltrace2`. The parts that all events of a class share are composed once.
//!
//! ```text
//!   ") lair http:request: "   context of the packet   ", { vpid = " 12 ", vtid = " 13 " }, { id = " 7 ", path = " "/x" " }\n"
//!         title              │                             piece    value  piece  …                                  last
//!   └─────── Known: most events of a class repeat the text of the previous one, except the digits of the time ─────────┘
//! ```

use super::buffer::{Buffer, Piece};
use super::number::FRACTION_DIGITS;
use super::{NS, Printer};
use dormouse_ctf::model::{Base, Meaning};
use dormouse_ctf::plan::{Field, FieldError, FieldReader, FieldRef, IntegerNode, Shape, Word};
use dormouse_ctf::stream::Event;

/// The constant parts of the text of a class's events.
#[derive(Debug)]
pub(super) struct ClassText {
    /// Origin and name, for events without a time and for events with one.
    title: Piece,
    timed_title: Piece,
    fields: Box<[(Piece, Value)]>,
    /// Number of fields at the start that are the context of the events, if the context consists only of words.
    front: usize,
    last: Piece,
    /// Whether there are structures, even empty ones.
    has_fields: bool,
}

/// Maximum number of words and alignments of a context that are cached.
const WORDS_MAX: usize = 4;

/// Text in front of the fields, for events of one packet.
#[derive(Debug, Default)]
pub(super) struct Front {
    packet_context: Vec<u8>,
    /// Address of the packet's stream plan.
    plan: usize,
    /// Cached lines, by class.
    known: Vec<Known>,
}

impl Front {
    /// Begins a packet with this context. Drops the cached lines if the context or the plan has changed.
    pub(super) fn begin_packet(&mut self, context: Vec<u8>, plan: usize) {
        if self.packet_context != context || self.plan != plan {
            *self = Front { packet_context: context, plan, known: Vec::new() };
        }
    }

    pub(super) fn packet_context(&self) -> &[u8] {
        &self.packet_context
    }

    /// Returns the cached line of a class, if the class can have one.
    #[inline(always)]
    pub(super) fn known(&mut self, class: usize) -> Option<&mut Known> {
        if self.known.len() <= class && class < KNOWN_MAX {
            self.known.resize_with(class + 1, Known::default);
        }
        self.known.get_mut(class)
    }
}

/// Maximum number of cached classes of a stream, and maximum size of a cached line in bytes. Both bound the memory that
/// hostile traces can take.
const KNOWN_MAX: usize = 256;
const KNOWN_BYTES_MAX: usize = 512;

/// Cached text of the last event of a class, up to its first field. The next event usually differs only in digits.
#[derive(Debug, Default)]
pub(super) struct Known {
    /// Text; empty if it cannot be used.
    text: Buffer,
    words: [u64; WORDS_MAX],
    /// Start of the event's second, and offset in the text of the fraction's digits.
    second_ns: i64,
    digits_at: usize,
}

/// Bytes between the digits of the time and the digits of the distance.
const BETWEEN: usize = b"] (+0.".len();

impl Known {
    /// Caches the text of an event. `times` holds its time and its distance from the previous event; the text of the
    /// time's second takes `second_bytes`.
    #[cold]
    pub(super) fn new(times: Option<(i64, i64)>, words: [u64; WORDS_MAX], text: &[u8], second_bytes: usize) -> Known {
        let Some((ns, 0..NS)) = times.filter(|_| text.len() <= KNOWN_BYTES_MAX) else { return Known::default() };
        let second_ns = ns.wrapping_sub(ns.rem_euclid(NS));
        let mut known = Known { words, second_ns, digits_at: second_bytes, ..Known::default() };
        known.text.put(text);
        known
    }

    /// Appends the cached text with these times. Returns false if the text does not fit the words or the times.
    #[inline(always)]
    pub(super) fn put(
        &self,
        time_ns: Option<i64>,
        distance_ns: Option<i64>,
        words: [u64; WORDS_MAX],
        out: &mut Buffer,
    ) -> bool {
        let (Some(ns), Some(distance @ 0..NS)) = (time_ns, distance_ns) else { return false };
        let fraction = ns.wrapping_sub(self.second_ns);
        // Compares word by word: a combined load of two words would wait until both stores are complete.
        let differ = words.iter().zip(&self.words).fold(0, |differ, (word, known)| differ | (word ^ known));
        let is_same = (0..NS).contains(&fraction) && differ == 0 && !self.text.is_empty();
        if is_same {
            let digits_at = [self.digits_at, self.digits_at + FRACTION_DIGITS + BETWEEN];
            out.append(&self.text, digits_at, [fraction as u32, distance as u32]);
        }
        is_same
    }
}

/// A value after a piece.
#[derive(Debug)]
enum Value {
    /// A decimal number that can be read alone.
    Word(Word),
    SignedWord(Word),
    /// A decimal number of any other form.
    Unsigned(Box<IntegerNode>),
    Signed(Box<IntegerNode>),
    /// UTF-8 text up to its NUL.
    Text,
    /// Any other field.
    Any(Field),
    /// Only an alignment, at the start of a structure.
    Align(u64),
}

impl Value {
    fn new(field: FieldRef<'_>) -> Value {
        match field.shape() {
            Shape::Integer(integer)
                if integer.labels.is_none() && integer.meaning == Meaning::Number && integer.base == Base::Decimal =>
            {
                match (integer.word(), integer.is_signed) {
                    (Some(word), false) => Value::Word(word),
                    (Some(word), true) => Value::SignedWord(word),
                    (None, false) => Value::Unsigned(Box::new(integer.clone())),
                    (None, true) => Value::Signed(Box::new(integer.clone())),
                }
            }
            _ if field.is_terminated_text() => Value::Text,
            _ => Value::Any(field.into()),
        }
    }
}

impl ClassText {
    pub(super) fn new(event: &Event<'_>) -> ClassText {
        let origin = event.trace().origin().map_or(String::new(), |origin| format!("{origin} "));
        let class = event.class;
        let (mut fields, mut text, mut has_fields) = (Vec::new(), String::new(), false);
        let mut front = 0;
        for structure in [&class.event_context, &class.own_context, &class.fields].into_iter().flatten() {
            let separator = if has_fields { ", " } else { "" };
            text += &format!("{separator}{{");
            has_fields = true;
            if structure.align_bits() > 1 {
                fields.push((piece(&mut text), Value::Align(structure.align_bits())));
            }
            for (index, (name, field)) in structure.members().enumerate() {
                let separator = if index == 0 { " " } else { ", " };
                text += &format!("{separator}{name} = ");
                fields.push((piece(&mut text), Value::new(field)));
            }
            text += " }";
            let is_word = |(_, value): &(Piece, Value)| {
                matches!(value, Value::Word(..) | Value::SignedWord(..) | Value::Align(_))
            };
            let is_context = class.event_context.as_ref().is_some_and(|context| std::ptr::eq(context, structure));
            if is_context && fields.len() <= WORDS_MAX && fields.iter().all(is_word) {
                front = fields.len();
            }
        }
        text += "\n";
        ClassText {
            title: Piece::from(format!("{origin}{}: ", class.full_name).as_bytes()),
            timed_title: Piece::from(format!(") {origin}{}: ", class.full_name).as_bytes()),
            fields: fields.into(),
            front,
            last: piece(&mut text),
            has_fields,
        }
    }

    /// Appends the text in front of the contexts.
    #[inline(always)]
    pub(super) fn title(&self, is_timed: bool, out: &mut Buffer) {
        out.piece(if is_timed { &self.timed_title } else { &self.title });
    }

    /// Reads the words of the context, which precede the other fields.
    #[inline(always)]
    pub(super) fn words(&self, reader: &mut FieldReader<'_, '_>) -> [u64; WORDS_MAX] {
        let mut words = [0; WORDS_MAX];
        for (word, (_, value)) in words.iter_mut().zip(self.fields.iter().take(self.front)) {
            *word = value.word(reader);
        }
        words
    }

    /// Appends the packet context, the event context with these words, and the text in front of the first field.
    pub(super) fn contexts(&self, packet_context: &[u8], words: [u64; WORDS_MAX], out: &mut Buffer) {
        out.put(packet_context);
        if self.has_fields && !packet_context.is_empty() {
            out.put(b", ");
        }
        let (context, fields) = self.fields.split_at(self.front);
        for ((piece, value), word) in context.iter().zip(words) {
            out.piece(piece);
            value.put_word(word, out);
        }
        out.piece(fields.first().map_or(&self.last, |(piece, _)| piece));
    }

    /// Appends the fields and the end of the line.
    #[inline(always)]
    pub(super) fn fields(&self, reader: &mut FieldReader<'_, '_>, out: &mut Buffer) {
        let mut fields = self.fields.iter().skip(self.front);
        let Some((_, first)) = fields.next() else { return };
        // The record has been measured, so its fields can be read.
        let _ = first.put(reader, out);
        for (piece, value) in fields {
            out.piece(piece);
            let _ = value.put(reader, out);
        }
        out.piece(&self.last);
    }
}

impl Value {
    /// Reads a word. For an alignment, advances the reader and returns 0.
    #[inline(always)]
    fn word(&self, reader: &mut FieldReader<'_, '_>) -> u64 {
        match self {
            // The record has been measured, so its fields can be read.
            Value::Word(word) | Value::SignedWord(word) => reader.word(*word).unwrap_or_default(),
            Value::Align(align_bits) => {
                reader.align(*align_bits);
                0
            }
            _ => 0,
        }
    }

    #[inline(always)]
    fn put_word(&self, bits: u64, out: &mut Buffer) {
        match self {
            Value::Word(_) => out.unsigned(bits),
            Value::SignedWord(word) => out.signed(word.signed(bits)),
            _ => {}
        }
    }

    #[inline(always)]
    fn put(&self, reader: &mut FieldReader<'_, '_>, out: &mut Buffer) -> Result<(), FieldError> {
        match self {
            Value::Word(word) | Value::SignedWord(word) => self.put_word(reader.word(*word)?, out),
            Value::Unsigned(integer) => out.unsigned(reader.integer(integer)?),
            Value::Signed(integer) => out.signed(reader.integer(integer)? as i64),
            Value::Text => text(reader.text()?, out),
            Value::Any(field) => {
                let mut shown = Vec::new();
                // Prints as within a structure, after a name.
                let mut printer = Printer { out: &mut shown, is_first: false, depth: 1 };
                let visited = reader.visit(field.get(), &mut printer);
                out.put(&shown);
                visited?;
            }
            Value::Align(align_bits) => reader.align(*align_bits),
        }
        Ok(())
    }
}

/// Appends text in quotes. Most text needs no escapes.
#[inline]
fn text(text: &[u8], out: &mut Buffer) {
    let is_plain = |byte: &u8| !matches!(byte, 0..0x20 | 0x7F | b'\\' | b'\'' | b'"' | b'?');
    if text.iter().all(is_plain) {
        out.put(b"\"");
        out.put(text);
        out.put(b"\"");
    } else {
        let mut shown = Vec::new();
        super::put_text(&mut shown, text);
        out.put(&shown);
    }
}

/// Takes the text as a piece and leaves it empty.
fn piece(text: &mut String) -> Piece {
    Piece::from(std::mem::take(text).as_bytes())
}
