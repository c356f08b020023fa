//! A buffer for lines of text. Short pieces go into it without a call: they are copied with what stands behind them, which the next piece
//! overwrites.

use super::number::{FRACTION_DIGITS, PAIRS};

/// Bytes that are copied at a time: what a vector register holds.
const CHUNK_BYTES: usize = 32;
/// Digits of the largest `u64`.
const DIGITS_MAX: usize = 20;

/// Text that is always the same.
#[derive(Debug, Clone, Default)]
pub(super) struct Piece {
    /// Most have no more than this.
    first: Chunk,
    more: Box<[Chunk]>,
}

/// Bytes, and how many of them are text.
#[derive(Debug, Clone, Copy, Default)]
struct Chunk([u8; CHUNK_BYTES], usize);

impl From<&[u8]> for Piece {
    fn from(text: &[u8]) -> Piece {
        let chunk = |text: &[u8]| {
            let mut chunk = [0; CHUNK_BYTES];
            chunk[..text.len()].copy_from_slice(text);
            Chunk(chunk, text.len())
        };
        let mut chunks = text.chunks(CHUNK_BYTES).map(chunk);
        Piece { first: chunks.next().unwrap_or_default(), more: chunks.collect() }
    }
}

impl Piece {
    pub(super) fn is_empty(&self) -> bool {
        self.first.1 == 0
    }

    /// Appends it to other text.
    pub(super) fn put(&self, out: &mut Vec<u8>) {
        let chunks = std::iter::once(&self.first).chain(&self.more);
        chunks.for_each(|Chunk(chunk, len)| out.extend_from_slice(&chunk[..*len]));
    }
}

/// A buffer for lines of text.
#[derive(Debug, Default)]
pub struct Buffer {
    /// Text, and room behind it.
    bytes: Vec<u8>,
    len: usize,
}

impl Buffer {
    /// The text.
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }

    /// Empties it. Its memory is kept.
    pub fn clear(&mut self) {
        self.len = 0;
    }

    /// The next bytes.
    #[inline(always)]
    fn room(&mut self, size_bytes: usize) -> &mut [u8] {
        if self.bytes.len() - self.len < size_bytes {
            self.grow(size_bytes);
        }
        &mut self.bytes[self.len..]
    }

    #[cold]
    fn grow(&mut self, size_bytes: usize) {
        let len = (2 * self.bytes.len()).max(self.len + size_bytes).max(4096);
        self.bytes.resize(len, 0);
    }

    #[inline(always)]
    pub(super) fn piece(&mut self, piece: &Piece) {
        self.chunk(&piece.first);
        piece.more.iter().for_each(|chunk| self.chunk(chunk));
    }

    #[inline(always)]
    fn chunk(&mut self, Chunk(chunk, len): &Chunk) {
        self.room(CHUNK_BYTES)[..CHUNK_BYTES].copy_from_slice(chunk);
        self.len += len;
    }

    /// Text of any length; of a length that is known where this is called, without a call.
    #[inline(always)]
    pub(super) fn put(&mut self, text: &[u8]) {
        self.room(text.len())[..text.len()].copy_from_slice(text);
        self.len += text.len();
    }

    #[inline(always)]
    pub(super) fn unsigned(&mut self, mut number: u64) {
        let room = self.room(DIGITS_MAX);
        let count = number.checked_ilog10().unwrap_or(0) as usize + 1;
        let digits = &mut room[..count];
        let mut at = count;
        while at >= 2 {
            at -= 2;
            digits[at..at + 2].copy_from_slice(&PAIRS[(number % 100) as usize]);
            number /= 100;
        }
        if at == 1 {
            digits[0] = b'0' + number as u8;
        }
        self.len += count;
    }

    #[inline(always)]
    pub(super) fn signed(&mut self, number: i64) {
        if number < 0 {
            self.put(b"-");
        }
        self.unsigned(number.unsigned_abs());
    }

    /// Nine digits.
    #[inline(always)]
    pub(super) fn fraction(&mut self, ns: u32) {
        let digits = &mut self.room(FRACTION_DIGITS)[..FRACTION_DIGITS];
        let mut rest = ns;
        for at in [7, 5, 3, 1] {
            digits[at..at + 2].copy_from_slice(&PAIRS[(rest % 100) as usize]);
            rest /= 100;
        }
        digits[0] = b'0' + (rest % 10) as u8;
        self.len += FRACTION_DIGITS;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_put_stands_there_in_its_order() {
        let (mut buffer, mut expected) = (Buffer::default(), Vec::new());
        let mut number = 1u64;
        for round in 0..3000usize {
            let text = vec![b'a' + (round % 26) as u8; round % 100];
            let piece = Piece::from(text.as_slice());
            buffer.piece(&piece);
            buffer.put(&text);
            piece.put(&mut expected);
            expected.extend_from_slice(&text);
            for number in [number, number >> (round % 64), round as u64, 10u64.saturating_pow(round as u32 % 21)] {
                buffer.unsigned(number);
                buffer.signed(number as i64);
                buffer.fraction((number % 1_000_000_000) as u32);
                expected.extend(format!("{number}{}{:09}", number as i64, number % 1_000_000_000).into_bytes());
            }
            number = number.wrapping_mul(6_364_136_223_846_793_005).rotate_right(round as u32 % 64).wrapping_add(1);
        }
        assert_eq!(buffer.as_bytes(), expected);
        buffer.clear();
        assert_eq!(buffer.as_bytes(), b"");
    }
}
