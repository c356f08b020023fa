//! How events of a class look as `babeltrace2` prints them: what is the same in all of them is put together once.
//!
//! ```text
//!   ") lair http:request: "   context of the packet   ", { vpid = " 12 ", vtid = " 13 " }, { id = " 7 ", path = " "/x" " }\n"
//!         title                                            piece    value  piece  …                                  last
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
    last: Piece,
    /// Whether there are structures, even if they are empty.
    has_fields: bool,
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
        }
        text += "\n";
        ClassText {
            title: Piece::from(format!("{origin}{}: ", class.full_name).as_bytes()),
            timed_title: Piece::from(format!(") {origin}{}: ", class.full_name).as_bytes()),
            fields: fields.into(),
            last: piece(&mut text),
            has_fields,
        }
    }

    /// Appends what stands in front of the fields. `context`: of the packet.
    #[inline(always)]
    pub(super) fn title(&self, is_timed: bool, context: &Piece, out: &mut Buffer) {
        out.piece(if is_timed { &self.timed_title } else { &self.title });
        if !context.is_empty() {
            out.piece(context);
            if self.has_fields {
                out.put(b", ");
            }
        }
    }

    /// Appends contexts and fields, and the end of the line.
    #[inline(always)]
    pub(super) fn fields(&self, cursor: &mut Cursor<'_>, memory: &mut Memory, out: &mut Buffer) {
        for (piece, value) in &self.fields {
            out.piece(piece);
            // The record has been measured, so its fields can be read.
            let _ = value.put(cursor, memory, out);
        }
        out.piece(&self.last);
    }
}

impl Value {
    #[inline(always)]
    fn put(&self, cursor: &mut Cursor<'_>, memory: &mut Memory, out: &mut Buffer) -> Option<()> {
        match self {
            Value::Word(align_bits, size_bits) => out.unsigned(cursor.word_at(*align_bits, *size_bits)?),
            Value::SignedWord(align_bits, size_bits) => {
                out.signed(extend_sign(cursor.word_at(*align_bits, *size_bits)?, *size_bits) as i64);
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
