//! How events of a class look as `babeltrace2` prints them: what is the same in all of them is put together once.
//!
//! ```text
//!   ") lair http:request: "   context of the packet   ", { vpid = " 12 ", vtid = " 13 " }, { id = " 7 ", path = " "/x" " }\n"
//!         title              │                             piece    value  piece  …                                  last
//!                            └── Front: most events of a stream have the same ──┘
//! ```

use std::sync::Arc;

use super::Printer;
use super::buffer::{Buffer, Piece};
use crate::model::{Base, Encoding, Meaning};
use crate::plan::{Cursor, IntegerNode, Memory, Node, extend_sign};
use crate::stream::Event;

/// How events of a class look.
#[derive(Debug)]
pub(super) struct ClassText {
    /// Origin and name; and what they are behind a time.
    title: Piece,
    timed_title: Piece,
    fields: Box<[(Piece, Value)]>,
    /// How many of them, the first ones, are the context of the events, if that is of words alone.
    front: usize,
    last: Piece,
    /// Whether there are structures, even if they are empty.
    has_fields: bool,
}

/// Words of a context that are remembered, and its alignments.
const WORDS_MAX: usize = 4;

/// What stands in front of an event's own fields: the context of its packet and the words of its own. Most events of a stream have the same as the one
/// before.
#[derive(Debug, Default)]
pub(super) struct Front {
    packet_context: Vec<u8>,
    /// Of the event before in the packet: how many there are, and which.
    words: Option<(usize, [u64; WORDS_MAX])>,
    text: Buffer,
}

impl Front {
    pub(super) fn new(packet_context: Vec<u8>) -> Front {
        Front { packet_context, ..Front::default() }
    }
}

/// What stands behind a piece.
#[derive(Debug)]
enum Value {
    /// Decimal, little-endian, and nothing that others refer to: alignment and size in bits.
    Word(u64, u32),
    SignedWord(u64, u32),
    /// Decimal, in any other form.
    Unsigned(Arc<IntegerNode>),
    Signed(Arc<IntegerNode>),
    /// UTF-8 up to its NUL.
    Text,
    /// Whatever the field shows.
    Any(Node),
    /// Nothing: a structure begins here.
    Align(u64),
}

impl Value {
    fn new(node: &Node) -> Value {
        match node {
            Node::Integer(integer)
                if integer.labels.is_none() && integer.meaning == Meaning::Number && integer.base == Base::Decimal =>
            {
                if let Some((align_bits, size_bits)) = integer.word() {
                    let of = if integer.is_signed { Value::SignedWord } else { Value::Word };
                    return of(align_bits, size_bits);
                }
                if integer.is_signed {
                    Value::Signed(Arc::clone(integer))
                } else {
                    Value::Unsigned(Arc::clone(integer))
                }
            }
            Node::Text { encoding: Encoding::Utf8, count: None } => Value::Text,
            node => Value::Any(node.clone()),
        }
    }
}

impl ClassText {
    pub(super) fn new(event: &Event<'_>) -> ClassText {
        let origin = event.origin().map_or(String::new(), |origin| format!("{origin} "));
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
            for (index, member) in structure.members.iter().enumerate() {
                let separator = if index == 0 { " " } else { ", " };
                text += &format!("{separator}{} = ", member.shown);
                fields.push((piece(&mut text), Value::new(&member.node)));
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

    /// Appends what stands in front of the contexts.
    #[inline(always)]
    pub(super) fn title(&self, is_timed: bool, out: &mut Buffer) {
        out.piece(if is_timed { &self.timed_title } else { &self.title });
    }

    /// Appends contexts and fields, and the end of the line. `front`: of the stream.
    #[inline(always)]
    pub(super) fn fields(&self, front: &mut Front, cursor: &mut Cursor<'_>, memory: &mut Memory, out: &mut Buffer) {
        let (context, fields) = self.fields.split_at(self.front);
        let mut words = [0; WORDS_MAX];
        for (word, (_, value)) in words.iter_mut().zip(context) {
            *word = value.word(cursor);
        }
        if front.words != Some((self.front, words)) {
            self.renew(front, words);
        }
        out.append(&front.text);
        if self.front == 0 && self.has_fields && !front.packet_context.is_empty() {
            out.put(b", ");
        }
        for (piece, value) in fields {
            out.piece(piece);
            // The record has been measured, so its fields can be read.
            let _ = value.put(cursor, memory, out);
        }
        out.piece(&self.last);
    }

    /// What is in front of an event whose context has these words. All classes of a stream have the same context; where a field of one has its length
    /// there, it is not of words for that class.
    #[cold]
    fn renew(&self, front: &mut Front, words: [u64; WORDS_MAX]) {
        front.words = Some((self.front, words));
        front.text.clear();
        front.text.put(&front.packet_context);
        if self.front > 0 && !front.packet_context.is_empty() {
            front.text.put(b", ");
        }
        for ((piece, value), word) in self.fields.iter().take(self.front).zip(words) {
            front.text.piece(piece);
            value.put_word(word, &mut front.text);
        }
    }
}

impl Value {
    /// What a word holds; 0 of an alignment, which is done.
    #[inline(always)]
    fn word(&self, cursor: &mut Cursor<'_>) -> u64 {
        match self {
            // The record has been measured, so its fields can be read.
            Value::Word(align_bits, size_bits) | Value::SignedWord(align_bits, size_bits) => {
                cursor.word_at(*align_bits, *size_bits).unwrap_or_default()
            }
            Value::Align(align_bits) => {
                cursor.align(*align_bits);
                0
            }
            _ => 0,
        }
    }

    #[inline(always)]
    fn put_word(&self, word: u64, out: &mut Buffer) {
        match self {
            Value::Word(..) => out.unsigned(word),
            Value::SignedWord(_, size_bits) => out.signed(extend_sign(word, *size_bits) as i64),
            _ => {}
        }
    }

    #[inline(always)]
    fn put(&self, cursor: &mut Cursor<'_>, memory: &mut Memory, out: &mut Buffer) -> Option<()> {
        match self {
            Value::Word(align_bits, size_bits) | Value::SignedWord(align_bits, size_bits) => {
                self.put_word(cursor.word_at(*align_bits, *size_bits)?, out);
            }
            Value::Unsigned(integer) => out.unsigned(integer.read(cursor, memory).ok()?),
            Value::Signed(integer) => out.signed(integer.read(cursor, memory).ok()? as i64),
            Value::Text => {
                cursor.align(8);
                text(cursor.text().ok()?, out);
            }
            Value::Any(node) => {
                let mut shown = Vec::new();
                // As within a structure, behind a name.
                let mut printer = Printer { out: &mut shown, is_first: false, depth: 1 };
                let walked = node.walk(cursor, memory, &mut printer);
                out.put(&shown);
                walked.ok()?;
            }
            Value::Align(align_bits) => cursor.align(*align_bits),
        }
        Some(())
    }
}

/// Text in quotes, most of which needs nothing else.
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

/// The text as a piece; there is none then.
fn piece(text: &mut String) -> Piece {
    Piece::from(std::mem::take(text).as_bytes())
}
