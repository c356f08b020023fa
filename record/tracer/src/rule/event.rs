//! The fields of an event that is about to be recorded: values at places in the bytes of its record.

use dormouse_abi::class::{FieldType, Kind, Label};
use dormouse_abi::rule::value::{Labels, Value, shown_float};
use dormouse_relay::Segment;

/// A place in the bytes of an event's fields.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Place {
    /// Offset of the first skipped field, or of the field, in bytes.
    start: usize,
    /// Fields between `start` and the field, of which at least one has no fixed size.
    skipped: Vec<FieldType>,
    part: Part,
    kind: Kind,
    labels: Option<LabelList>,
}

/// Part of a field.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Part {
    /// All of it: a number or a text.
    Whole,
    /// The number of its elements.
    Count,
    /// One of its elements.
    Element(u64),
}

/// Labels of a field that is an enumeration.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct LabelList {
    kind: Kind,
    pub(crate) labels: Vec<Label>,
}

impl LabelList {
    pub(crate) fn new(kind: Kind, labels: &[Label]) -> LabelList {
        LabelList { kind, labels: labels.to_vec() }
    }

    /// Returns the numbers of the labels that `is_it` selects.
    pub(crate) fn numbers(&self, mut is_it: impl FnMut(&[u8]) -> bool) -> Vec<i128> {
        let selected = self.labels.iter().filter(|label| is_it(label.name.as_bytes()));
        selected.map(|label| self.kind.integer(label.bits)).collect()
    }
}

impl Labels for LabelList {
    fn any(&self, number: i128, is_it: &mut dyn FnMut(&[u8]) -> bool) -> bool {
        let of_number = self.labels.iter().filter(|label| self.kind.integer(label.bits) == number);
        of_number.into_iter().any(|label| is_it(label.name.as_bytes()))
    }
}

impl Place {
    /// Returns the place of a value: of field `index`, of its element, or of the number of its elements. `None` if the
    /// field has no such value.
    pub(crate) fn find(
        fields: &[(String, FieldType)],
        index: usize,
        labels: Option<&Vec<Label>>,
        is_count: bool,
        element: Option<u64>,
    ) -> Option<Place> {
        let (_, field_type) = fields.get(index)?;
        let FieldType { kind, .. } = *field_type;
        let part = match (is_counted(*field_type), is_count, element) {
            (false, false, None) => Part::Whole,
            (true, true, None) => Part::Count,
            (true, false, Some(element)) => Part::Element(element),
            _ => return None,
        };
        let kind = match part {
            Part::Count => Kind::U32,
            Part::Element(_) if kind == Kind::Bytes => Kind::U8,
            _ => kind,
        };
        let types: Vec<FieldType> = fields[..index].iter().map(|(_, field_type)| *field_type).collect();
        let fixed: Vec<usize> = types.iter().map_while(|field_type| field_type.fixed_size_bytes()).collect();
        let labels = labels.map(|labels| LabelList::new(kind, labels));
        Some(Place { start: fixed.iter().sum(), skipped: types[fixed.len()..].to_vec(), part, kind, labels })
    }

    /// Returns the kind of the value.
    pub(crate) fn kind(&self) -> Kind {
        self.kind
    }

    /// Returns the labels of the value.
    pub(crate) fn labels(&self) -> Option<&LabelList> {
        self.labels.as_ref()
    }

    /// Returns the offset of a whole number without labels that every event has there.
    pub(crate) fn fixed_offset(&self) -> Option<usize> {
        let is_plain = self.part == Part::Whole && self.skipped.is_empty() && self.labels.is_none();
        is_plain.then_some(self.start)
    }

    /// Returns the offset of a text that every event has there, if no other text or sequence is before it.
    #[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
    pub(crate) fn fixed_text_offset(&self) -> Option<usize> {
        self.fixed_offset().filter(|_| self.kind == Kind::Str)
    }

    /// Whether every event of the class has the value.
    pub(crate) fn is_always_there(&self) -> bool {
        !matches!(self.part, Part::Element(_))
    }
}

/// Whether a field is a count and that many elements.
fn is_counted(field_type: FieldType) -> bool {
    field_type.sequence || field_type.kind == Kind::Bytes
}

/// The fields of an event: the runs of bytes of its record.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Event<'a> {
    segments: &'a [Segment],
}

impl<'a> Event<'a> {
    /// Returns the event whose fields are these runs.
    ///
    /// # Safety
    /// The sources of the segments are readable during the life of the result.
    pub(crate) unsafe fn new(segments: &'a [Segment]) -> Event<'a> {
        Event { segments }
    }

    /// Returns the rest of the run that has the byte at `offset`, and the size of its reversed units; nothing beyond
    /// the end.
    #[inline(always)]
    fn rest(&self, mut offset: usize) -> (&'a [u8], usize) {
        for segment in self.segments {
            if offset < segment.len() {
                // SAFETY: the caller of `new` guarantees that the source is readable.
                let bytes = unsafe { segment.bytes() };
                return (&bytes[offset..], segment.reversed_size_bytes());
            }
            offset -= segment.len();
        }
        (&[], 1)
    }

    /// Returns the number of `size_bytes` at `offset`, zero-extended; `None` beyond the end.
    #[inline(always)]
    pub(crate) fn bits(&self, offset: usize, size_bytes: usize) -> Option<u64> {
        let (rest, reversed) = self.rest(offset);
        // A copy of known size is one instruction.
        let bits = match size_bytes {
            1 => rest.first_chunk().map(|bytes| u8::from_le_bytes(*bytes).into()),
            2 => rest.first_chunk().map(|bytes| u16::from_le_bytes(*bytes).into()),
            4 => rest.first_chunk().map(|bytes| u32::from_le_bytes(*bytes).into()),
            _ => rest.first_chunk().map(|bytes| u64::from_le_bytes(*bytes)),
        };
        match bits {
            Some(bits) if reversed > 1 => Some(bits.swap_bytes() >> (64 - 8 * size_bytes)),
            Some(bits) => Some(bits),
            None => self.split_bits(offset, size_bytes),
        }
    }

    /// Returns a number within which a run ends.
    #[cold]
    fn split_bits(&self, offset: usize, size_bytes: usize) -> Option<u64> {
        let mut bytes = [0; 8];
        for (index, byte) in bytes[..size_bytes].iter_mut().enumerate() {
            *byte = *self.rest(offset + index).0.first()?;
        }
        Some(u64::from_le_bytes(bytes))
    }

    /// Returns the text at `offset` and its size with the NUL, in bytes. A text that is not empty is a run of its own.
    fn text(&self, offset: usize) -> Option<(&'a [u8], usize)> {
        let (rest, _) = self.rest(offset);
        match rest {
            [] => None,
            [0, ..] => Some((&[], 1)),
            [text @ .., 0] => Some((text, rest.len())),
            text => Some((text, text.len() + 1)),
        }
    }

    /// Returns the offset behind a field that begins at `offset`.
    fn end_of(&self, field_type: FieldType, offset: usize) -> Option<usize> {
        let size_bytes = match field_type.fixed_size_bytes() {
            Some(size_bytes) => size_bytes,
            None if is_counted(field_type) => {
                let count = self.bits(offset, 4)? as usize;
                count.checked_mul(field_type.kind.element_size_bytes())?.checked_add(4)?
            }
            None => self.text(offset)?.1,
        };
        offset.checked_add(size_bytes)
    }

    /// Returns the value at a place, if the event has it.
    pub(crate) fn value<'v>(&self, place: &'v Place) -> Option<Value<'v>>
    where
        'a: 'v,
    {
        let begin = |offset, field_type: &FieldType| self.end_of(*field_type, offset);
        let offset = place.skipped.iter().try_fold(place.start, begin)?;
        let size_bytes = place.kind.element_size_bytes();
        let offset = match place.part {
            Part::Whole if place.kind == Kind::Str => return Some(Value::Text(self.text(offset)?.0.into())),
            Part::Whole | Part::Count => offset,
            Part::Element(index) => {
                let is_there = index < self.bits(offset, 4)?;
                is_there.then_some(())?;
                offset.checked_add(4)?.checked_add((index as usize).checked_mul(size_bytes)?)?
            }
        };
        let bits = self.bits(offset, size_bytes)?;
        Some(match place.kind {
            Kind::F32 => Value::Float(shown_float(f32::from_bits(bits as u32))),
            Kind::F64 => Value::Float(f64::from_bits(bits)),
            kind => {
                let number = kind.integer(extended(bits, size_bytes, kind));
                match &place.labels {
                    Some(labels) => Value::Enumeration(number, labels),
                    None => Value::Integer(number),
                }
            }
        })
    }
}

/// Whether the integers of a kind have a sign.
pub(crate) fn is_signed(kind: Kind) -> bool {
    matches!(kind, Kind::I8 | Kind::I16 | Kind::I32 | Kind::I64)
}

/// Returns the bits of an integer of this kind, extended to 64.
#[inline(always)]
pub(crate) fn extended(bits: u64, size_bytes: usize, kind: Kind) -> i64 {
    let shift = 64 - 8 * size_bytes as u32;
    if is_signed(kind) { (bits << shift).cast_signed() >> shift } else { bits.cast_signed() }
}
