//! Programs that find the end of a record's fields while reading as little as possible.

use super::bits::{Cursor, FieldError};
use super::node::{Count, IntegerNode, Node, StructNode};
use super::walk::{Memory, is_in, option_of};
use crate::model::{Coding, Range};

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Operation {
    Skip(u64),
    Align(u64),
    /// Reads a number that other fields depend on.
    Read(Box<IntegerNode>),
    Text,
    /// Skips text with code units of this many bytes.
    WideText(usize),
    /// Skips elements of a constant size.
    Elements(u32, u64),
    Repeat(Count, u64, Box<[Operation]>),
    Variant(u32, bool, Box<[Choice]>),
    Optional(u32, bool, Box<Choice>),
}

/// Values of a tag, and the operations for them.
type Choice = (Vec<Range>, Box<[Operation]>);

/// Knowledge about a position: its remainder modulo a power of two.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Known {
    pub modulus: u64,
    pub rest: u64,
}

impl Known {
    pub(super) const NOTHING: Known = Known { modulus: 1, rest: 0 };

    fn reduced(self, modulus: u64) -> Known {
        let modulus = self.modulus.min(modulus.max(1));
        Known { modulus, rest: self.rest % modulus }
    }
}

/// Assembles operations. Consecutive parts of known size become one step.
pub(super) struct Assembler {
    operations: Vec<Operation>,
    known: Known,
    /// Whether only a constant size is wanted.
    is_probe: bool,
}

/// Returns the operations for consecutive structures that start at a position of known alignment.
pub(super) fn program<'a>(structures: impl IntoIterator<Item = &'a StructNode>, known: Known) -> Box<[Operation]> {
    let mut assembler = Assembler::new(known);
    structures.into_iter().for_each(|structure| assembler.structure(structure));
    assembler.finish()
}

/// Returns the size of all fields in bits, if it is constant.
pub(super) fn fixed_size(operations: &[Operation]) -> Option<u64> {
    match operations {
        [] => Some(0),
        [Operation::Skip(size)] => Some(*size),
        _ => None,
    }
}

impl Assembler {
    pub(super) fn new(known: Known) -> Assembler {
        Assembler { operations: Vec::new(), known, is_probe: false }
    }

    /// Returns the size in bits of a field at a multiple of its alignment, if it is constant. Each contained field is
    /// visited once.
    fn probe(node: &Node, align_bits: u64) -> Option<u64> {
        let known = Known { modulus: align_bits, rest: 0 };
        let mut probe = Assembler { operations: Vec::new(), known, is_probe: true };
        probe.node(node);
        fixed_size(&probe.operations)
    }

    /// Returns what is known of the current position.
    pub(super) fn known(&self) -> Known {
        self.known
    }

    pub(super) fn finish(self) -> Box<[Operation]> {
        self.operations.into()
    }

    fn skip(&mut self, size_bits: u64) {
        self.known.rest = self.known.rest.wrapping_add(size_bits) % self.known.modulus;
        match self.operations.last_mut() {
            Some(Operation::Skip(before)) if before.checked_add(size_bits).is_some() => *before += size_bits,
            _ if size_bits > 0 => self.operations.push(Operation::Skip(size_bits)),
            _ => {}
        }
    }

    pub(super) fn align(&mut self, align_bits: u64) {
        if align_bits <= self.known.modulus {
            return self.skip((align_bits - self.known.rest % align_bits) % align_bits);
        }
        self.operations.push(Operation::Align(align_bits));
        self.known = Known { modulus: align_bits, rest: 0 };
    }

    pub(super) fn structure(&mut self, structure: &StructNode) {
        self.align(structure.align_bits);
        structure.members.iter().for_each(|member| self.node(&member.node));
    }

    pub(super) fn node(&mut self, node: &Node) {
        match node {
            Node::Integer(integer) => {
                self.align(integer.align_bits);
                if integer.coding == Coding::Variable {
                    self.operations.push(Operation::Read(Box::new(integer.as_ref().clone())));
                    self.known = Known { modulus: 8, rest: 0 };
                } else if integer.slot.is_some() {
                    self.operations.push(Operation::Read(Box::new(integer.as_ref().clone())));
                    self.known.rest = (self.known.rest + u64::from(integer.size_bits)) % self.known.modulus;
                } else {
                    self.skip(integer.size_bits.into());
                }
            }
            Node::Float(float) => {
                self.align(float.align_bits);
                self.skip(float.size_bits.into());
            }
            Node::Text { encoding, count: None } => {
                self.align(8);
                self.operations.push(match encoding.unit_size_bytes() {
                    1 => Operation::Text,
                    size_bytes => Operation::WideText(size_bytes),
                });
                self.known = Known { modulus: 8, rest: 0 };
            }
            Node::Text { count: Some(count), .. } | Node::Blob { count, .. } => {
                self.align(8);
                self.elements(*count, 8);
            }
            Node::Struct(structure) => self.structure(structure),
            // Marks the size as not constant, independent of the content.
            Node::Variant { .. } | Node::Optional { .. } if self.is_probe => self.operations.push(Operation::Text),
            Node::Variant { slot, is_tag_signed, options } => {
                let known = self.known;
                let option = |option: &super::node::OptionNode| {
                    let mut assembler = Assembler::new(known);
                    assembler.node(&option.node);
                    (option.ranges.clone(), assembler.operations.into_boxed_slice())
                };
                let options = options.iter().map(option).collect();
                self.operations.push(Operation::Variant(*slot, *is_tag_signed, options));
                self.known = Known::NOTHING;
            }
            Node::Optional { slot, is_selector_signed, ranges, node } => {
                let mut assembler = Assembler::new(self.known);
                assembler.node(node);
                let choice = (ranges.clone(), assembler.operations.into_boxed_slice());
                self.operations.push(Operation::Optional(*slot, *is_selector_signed, Box::new(choice)));
                self.known = Known::NOTHING;
            }
            Node::Array { element, count, align_bits, .. } => self.array(element, *count, *align_bits),
        }
    }

    /// Adds elements of one size.
    fn elements(&mut self, count: Count, size_bits: u64) {
        match count {
            // The size saturates. An array that large does not fit a packet, and is reported as cut off.
            Count::Fixed(count) => self.skip(size_bits.saturating_mul(count).min(1 << 62)),
            Count::Slot(slot) => {
                let lowest_bit = size_bits & size_bits.wrapping_neg();
                self.known = self.known.reduced(lowest_bit);
                self.operations.push(Operation::Elements(slot, size_bits));
            }
        }
    }

    pub(super) fn array(&mut self, element: &Node, count: Count, align_bits: u64) {
        self.align(align_bits);
        let element_align_bits = element.align_bits();
        let size_bits = Assembler::probe(element, element_align_bits);
        let size_bits = size_bits.filter(|size| size.is_multiple_of(element_align_bits));
        match (size_bits, count) {
            (Some(size @ 1..), _) => self.elements(count, size),
            // Marks the size as not constant.
            _ if self.is_probe => self.operations.push(Operation::Text),
            // Elements without a constant size are counted one by one, as a visitor must count them.
            _ => {
                let mut any = Assembler::new(Known::NOTHING);
                any.node(element);
                self.operations.push(Operation::Repeat(count, align_bits, any.operations.into()));
                self.known = Known::NOTHING;
            }
        }
    }
}

/// Skips what the operations describe.
pub(super) fn run(operations: &[Operation], cursor: &mut Cursor<'_>, memory: &mut Memory) -> Result<(), FieldError> {
    for operation in operations {
        match operation {
            Operation::Skip(size_bits) => cursor.skip(*size_bits)?,
            Operation::Align(align_bits) => cursor.align(*align_bits),
            Operation::Read(integer) => {
                integer.read(cursor, memory)?;
            }
            Operation::Text => {
                cursor.text()?;
            }
            Operation::WideText(unit_size_bytes) => {
                cursor.wide_text(*unit_size_bytes)?;
            }
            Operation::Elements(slot, size_bits) => {
                let count = memory.slot(*slot);
                // Compares by division: the count is not trusted, so the product might overflow.
                if count > cursor.rest() / size_bits {
                    return Err(FieldError::Count(count));
                }
                cursor.skip(count * size_bits)?;
            }
            Operation::Repeat(count, align_bits, element) => {
                cursor.align(*align_bits);
                for _ in 0..count.get(memory) {
                    let begin = cursor.position;
                    run(element, cursor, memory)?;
                    if cursor.position == begin {
                        memory.note_empty()?;
                    }
                }
            }
            Operation::Optional(slot, is_signed, choice) => {
                let (ranges, operations) = choice.as_ref();
                if is_in(ranges, memory.slot(*slot), *is_signed) {
                    run(operations, cursor, memory)?;
                }
            }
            Operation::Variant(slot, is_signed, options) => {
                let tag = memory.slot(*slot);
                let found = options.iter().find(|(ranges, _)| is_in(ranges, tag, *is_signed));
                match found {
                    Some((_, option)) => run(option, cursor, memory)?,
                    None => return option_of(&[], tag, *is_signed).map(|_| ()),
                }
            }
        }
    }
    Ok(())
}
