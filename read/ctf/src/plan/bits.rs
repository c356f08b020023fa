//! Integers at any bit position (clause 4.1.5). Little-endian integers start with the lowest bit of a byte, big-endian
//! ones with the highest.

use crate::model::ByteOrder;

/// A reason why bytes are not a field.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum FieldError {
    /// The bytes end within the field.
    #[error("is cut off")]
    Cut,
    /// The text has no NUL.
    #[error("is text that does not end")]
    Unterminated,
    /// The field claims more elements than there are bytes for.
    #[error("claims {0} elements, more than the packet holds")]
    Count(u64),
    /// The field is a variant whose tag selects no option.
    #[error("is a variant whose tag has the value {0}, which is none of its options")]
    Tag(i128),
    /// The field is a variable-length number of more than 64 bits.
    #[error("is a number of more than 64 bits")]
    TooLong,
    /// The field has too many elements of size zero.
    #[error("has too many elements without size")]
    Endless,
}

/// Reads a number of `size_bits` (1 to 64) that starts at `bit` and lies within `bytes`.
#[inline(always)]
pub(super) fn read(bytes: &[u8], bit: u64, size_bits: u32, order: ByteOrder) -> u64 {
    let (offset, shift) = ((bit / 8) as usize, (bit % 8) as u32);
    match bytes.get(offset..).and_then(|bytes| bytes.first_chunk::<8>()) {
        Some(word) if shift + size_bits <= 64 => match order {
            ByteOrder::Little => u64::from_le_bytes(*word) >> shift & mask(size_bits),
            ByteOrder::Big => u64::from_be_bytes(*word) << shift >> (64 - size_bits),
        },
        _ => read_slowly(bytes, bit, size_bits, order),
    }
}

#[cold]
fn read_slowly(bytes: &[u8], bit: u64, size_bits: u32, order: ByteOrder) -> u64 {
    let (offset, shift) = ((bit / 8) as usize, (bit % 8) as u32);
    let count = (shift + size_bits).div_ceil(8);
    let bytes = &bytes[offset..offset + count as usize];
    let number = match order {
        ByteOrder::Little => bytes.iter().rev().fold(0u128, |number, byte| number << 8 | u128::from(*byte)) >> shift,
        ByteOrder::Big => {
            bytes.iter().fold(0u128, |number, byte| number << 8 | u128::from(*byte)) >> (8 * count - shift - size_bits)
        }
    };
    number as u64 & mask(size_bits)
}

/// Maximum size of a 64-bit number in LEB128, in bytes.
const LEB128_SIZE_BYTES_MAX: u64 = 10;

/// Reverses the lowest `size_bits` bits of the number.
#[inline(always)]
pub(super) fn reversed(number: u64, size_bits: u32) -> u64 {
    number.reverse_bits() >> (64 - size_bits)
}

/// Returns a mask of the `size_bits` lowest bits.
#[inline(always)]
pub(crate) fn mask(size_bits: u32) -> u64 {
    u64::MAX >> (64 - size_bits)
}

/// Extends the sign of a number of `size_bits` to an `i64`.
#[inline(always)]
pub(super) fn extend_sign(number: u64, size_bits: u32) -> u64 {
    let unused = 64 - size_bits;
    ((number << unused) as i64 >> unused) as u64
}

/// Position of a bit-wise reader. Positions are in bits from the packet's start.
#[derive(Debug, Clone)]
pub(crate) struct Cursor<'a> {
    bytes: &'a [u8],
    /// Position of the first byte of `bytes`; a multiple of 8.
    base: u64,
    pub position: u64,
    /// End of the readable part of `bytes`.
    end: u64,
}

impl<'a> Cursor<'a> {
    /// Returns a cursor at `position`. `bytes` start at position `base`, and nothing at or after `end` is read.
    #[inline(always)]
    pub(crate) fn new(bytes: &'a [u8], base: u64, position: u64, end: u64) -> Cursor<'a> {
        Cursor { bytes, base, position, end: end.min(base + 8 * bytes.len() as u64) }
    }

    #[inline]
    pub(super) fn rest(&self) -> u64 {
        self.end.saturating_sub(self.position)
    }

    /// Whether an alignment has moved the cursor beyond the end.
    #[inline(always)]
    pub(super) fn is_beyond(&self) -> bool {
        self.position > self.end
    }

    #[inline(always)]
    pub(crate) fn align(&mut self, align_bits: u64) {
        // Alignments are powers of two, so no division is needed.
        self.position = (self.position + (align_bits - 1)) & !(align_bits - 1);
    }

    #[inline(always)]
    pub(super) fn skip(&mut self, size_bits: u64) -> Result<(), FieldError> {
        if size_bits > self.rest() {
            return Err(FieldError::Cut);
        }
        self.position += size_bits;
        Ok(())
    }

    /// Reads the bits of a number.
    #[inline(always)]
    pub(super) fn number(&mut self, size_bits: u32, order: ByteOrder) -> Result<u64, FieldError> {
        let bit = self.position - self.base;
        self.skip(size_bits.into())?;
        Ok(read(self.bytes, bit, size_bits, order))
    }

    /// Reads a LEB128 number. Returns the value and the number of its bits.
    pub(super) fn leb128(&mut self, is_signed: bool) -> Result<(u64, u32), FieldError> {
        let bytes = self.byte_slice((self.rest() / 8).min(LEB128_SIZE_BYTES_MAX)).ok_or(FieldError::Cut)?;
        let last = bytes.iter().position(|byte| byte & 0x80 == 0);
        let is_cut = (bytes.len() as u64) < LEB128_SIZE_BYTES_MAX;
        let count = last.ok_or(if is_cut { FieldError::Cut } else { FieldError::TooLong })? + 1;
        let number = bytes[..count].iter().rev().fold(0i128, |number, byte| number << 7 | i128::from(byte & 0x7F));
        let size_bits = 7 * count as u32;
        let unused = 128 - size_bits;
        let value = match is_signed {
            true => i64::try_from(number << unused >> unused).map(|value| value as u64),
            false => u64::try_from(number),
        };
        self.position += 8 * count as u64;
        Ok((value.map_err(|_| FieldError::TooLong)?, size_bits))
    }

    /// Reads text with code units of `unit_size_bytes` up to its NUL, and skips the NUL.
    pub(super) fn wide_text(&mut self, unit_size_bytes: usize) -> Result<&'a [u8], FieldError> {
        let rest = self.byte_slice(self.rest() / 8).ok_or(FieldError::Unterminated)?;
        let end = rest.chunks_exact(unit_size_bytes).position(|unit| unit.iter().all(|byte| *byte == 0));
        let len = end.ok_or(FieldError::Unterminated)? * unit_size_bytes;
        self.position += 8 * (len + unit_size_bytes) as u64;
        Ok(&rest[..len])
    }

    /// Reads `count` bytes.
    #[inline]
    pub(super) fn take_bytes(&mut self, count: u64) -> Result<&'a [u8], FieldError> {
        let bytes = self.byte_slice(count).ok_or(FieldError::Count(count))?;
        self.position += 8 * count;
        Ok(bytes)
    }

    /// Reads text up to its NUL, and skips the NUL.
    #[inline(always)]
    pub(super) fn text(&mut self) -> Result<&'a [u8], FieldError> {
        let rest = self.byte_slice(self.rest() / 8).ok_or(FieldError::Unterminated)?;
        let text = std::ffi::CStr::from_bytes_until_nul(rest).map_err(|_| FieldError::Unterminated)?.to_bytes();
        self.position += 8 * (text.len() as u64 + 1);
        Ok(text)
    }

    /// Returns all bytes from the cursor on, which can extend beyond the readable part.
    #[inline(always)]
    pub(super) fn tail(&self) -> &'a [u8] {
        let offset = (self.position - self.base) / 8;
        self.bytes.get(offset as usize..).unwrap_or_default()
    }

    /// Returns a byte-wise reader from the next whole byte on.
    #[inline(always)]
    pub(super) fn at_byte(&self) -> Option<AtByte<'a>> {
        let offset = self.position.checked_sub(self.base)?.div_ceil(8) as usize;
        Some(AtByte { bytes: self.bytes, offset, base: self.base, end: self.end })
    }

    /// Returns the 64 bits from the current byte on, if there are that many.
    #[inline(always)]
    pub(super) fn word(&self) -> Option<u64> {
        self.tail().first_chunk().map(|bytes| u64::from_le_bytes(*bytes))
    }

    /// Returns the next `count` bytes without advancing, or `None` if there are fewer.
    #[inline]
    pub(super) fn byte_slice(&self, count: u64) -> Option<&'a [u8]> {
        let offset = (self.position.checked_sub(self.base)? / 8) as usize;
        (count <= self.rest() / 8).then(|| self.bytes.get(offset..offset + count as usize))?
    }

    /// Returns the bytes between two positions that have been read.
    pub(crate) fn between(&self, begin: u64, end: u64) -> &'a [u8] {
        let index = |position: u64| (position.saturating_sub(self.base) / 8) as usize;
        self.bytes.get(index(begin)..index(end)).unwrap_or_default()
    }
}

/// Position of a byte-wise reader.
#[derive(Debug)]
pub(super) struct AtByte<'a> {
    bytes: &'a [u8],
    offset: usize,
    base: u64,
    end: u64,
}

impl<'a> AtByte<'a> {
    /// Returns the next 64 bits, if there are that many.
    #[inline(always)]
    pub(super) fn word(&self) -> Option<u64> {
        Some(u64::from_le_bytes(*self.bytes.get(self.offset..)?.first_chunk()?))
    }

    /// Returns all bytes, and the bounds of the readable whole bytes among them.
    #[inline(always)]
    pub(super) fn whole_bytes(&self) -> (&'a [u8], usize, usize) {
        (self.bytes, self.offset, (self.end.saturating_sub(self.base) / 8) as usize)
    }

    /// Returns the position in bits, as a [`Cursor`] has it.
    #[inline(always)]
    pub(super) fn position(&self) -> u64 {
        self.base + 8 * self.offset as u64
    }

    /// Advances by `count` bytes if `end`, the end of their content in bits, is within the readable part.
    #[inline(always)]
    pub(super) fn pass(&mut self, count: u64, end: u64) -> Option<()> {
        let is_there = end <= self.end;
        if is_there {
            self.offset += count as usize;
        }
        is_there.then_some(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Reads a number bit by bit, as the clause defines it.
    fn oracle(bytes: &[u8], bit: u64, size_bits: u32, order: ByteOrder) -> u64 {
        (0..u64::from(size_bits)).fold(0, |number, index| {
            let (byte, at) = (bytes[((bit + index) / 8) as usize], (bit + index) % 8);
            match order {
                ByteOrder::Little => number | u64::from(byte >> at & 1) << index,
                ByteOrder::Big => number << 1 | u64::from(byte >> (7 - at) & 1),
            }
        })
    }

    #[test]
    fn numbers_at_any_bit() {
        let bytes: Vec<u8> = (0..17u32).map(|n| (n.wrapping_mul(0x9E37_79B9) >> 13) as u8).collect();
        for order in [ByteOrder::Little, ByteOrder::Big] {
            for bit in 0..8 * 17 {
                for size_bits in (1..=64).take_while(|size| bit + u64::from(*size) <= 8 * 17) {
                    let expected = oracle(&bytes, bit, size_bits, order);
                    assert_eq!(read(&bytes, bit, size_bits, order), expected, "{bit} {size_bits} {order:?}");
                }
            }
        }
        assert_eq!(extend_sign(0b101, 3) as i64, -3);
        assert_eq!(extend_sign(0b011, 3), 3);
        assert_eq!(extend_sign(u64::MAX, 64), u64::MAX);
    }
}
