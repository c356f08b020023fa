//! A buffer for lines of text. Short pieces are copied in whole chunks without a function call; the next piece
//! overwrites the excess bytes.

use super::number::FRACTION_DIGITS;

/// Bytes that are copied at a time: the size of a vector register.
const CHUNK_BYTES: usize = 32;

/// Constant text.
#[derive(Debug, Clone, Default)]
pub(super) struct Piece {
    /// First chunk; most pieces have only this one.
    first: Chunk,
    more: Box<[Chunk]>,
}

/// Bytes, and the number of them that are text.
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
    /// Returns the length in bytes.
    pub(super) fn len(&self) -> usize {
        self.first.1 + self.more.iter().map(|chunk| chunk.1).sum::<usize>()
    }

    /// Appends the piece to `out`.
    pub(super) fn put(&self, out: &mut Vec<u8>) {
        let chunks = std::iter::once(&self.first).chain(&self.more);
        chunks.for_each(|Chunk(chunk, len)| out.extend_from_slice(&chunk[..*len]));
    }
}

/// A buffer for lines of text.
#[derive(Debug, Default)]
pub struct Buffer {
    /// Text, followed by spare room.
    bytes: Vec<u8>,
    len: usize,
}

impl Buffer {
    /// Returns the text.
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }

    /// Returns the length of the text in bytes.
    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// Whether there is no text.
    pub(super) fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Empties the buffer and keeps its memory.
    pub fn clear(&mut self) {
        self.len = 0;
    }

    /// Returns at least `size_bytes` bytes after the text.
    #[inline(always)]
    fn room(&mut self, size_bytes: usize) -> &mut [u8] {
        if self.bytes.len() - self.len < size_bytes {
            self.grow(size_bytes);
        }
        &mut self.bytes[self.len..]
    }

    #[cold]
    fn grow(&mut self, size_bytes: usize) {
        let len = (2 * self.bytes.len()).max(self.len + size_bytes).next_multiple_of(CHUNK_BYTES);
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

    /// Appends the text of another buffer with nine other digits at each of two positions.
    #[inline(always)]
    pub(super) fn append(&mut self, other: &Buffer, at: [usize; 2], digits: [u32; 2]) {
        // The other buffer has room up to the end of its last whole chunk.
        let size_bytes = other.len.next_multiple_of(CHUNK_BYTES);
        let room = self.room(size_bytes);
        for (to, from) in room.chunks_exact_mut(CHUNK_BYTES).zip(other.bytes[..size_bytes].chunks_exact(CHUNK_BYTES)) {
            to.copy_from_slice(from);
        }
        for (at, digits) in at.into_iter().zip(digits) {
            nine_digits(&mut room[at..at + FRACTION_DIGITS], digits);
        }
        self.len += other.len;
    }

    /// Appends text of any length. If the length is a constant at the call, this compiles to no function call.
    #[inline(always)]
    pub(super) fn put(&mut self, text: &[u8]) {
        self.room(text.len())[..text.len()].copy_from_slice(text);
        self.len += text.len();
    }

    #[inline(always)]
    pub(super) fn unsigned(&mut self, number: u64) {
        if number >= EIGHT_DIGITS {
            return self.long(number);
        }
        let count = number.checked_ilog10().unwrap_or(0) as usize + 1;
        // Leading zeros are shifted out.
        let digits = eight_digits(number) >> (8 * (8 - count));
        self.room(8)[..8].copy_from_slice(&digits.to_le_bytes());
        self.len += count;
    }

    /// Appends a number of more than eight digits.
    fn long(&mut self, number: u64) {
        self.unsigned(number / EIGHT_DIGITS);
        self.room(8)[..8].copy_from_slice(&eight_digits(number % EIGHT_DIGITS).to_le_bytes());
        self.len += 8;
    }

    #[inline(always)]
    pub(super) fn signed(&mut self, number: i64) {
        if number < 0 {
            self.put(b"-");
        }
        self.unsigned(number.unsigned_abs());
    }

    /// Appends nine digits.
    #[inline(always)]
    pub(super) fn fraction(&mut self, ns: u32) {
        nine_digits(&mut self.room(FRACTION_DIGITS)[..FRACTION_DIGITS], ns);
        self.len += FRACTION_DIGITS;
    }
}

#[inline(always)]
fn nine_digits(room: &mut [u8], number: u32) {
    room[0] = b'0' + (number / EIGHT_DIGITS as u32) as u8;
    room[1..].copy_from_slice(&eight_digits(u64::from(number % EIGHT_DIGITS as u32)).to_le_bytes());
}

const EIGHT_DIGITS: u64 = 100_000_000;

/// Returns the eight digits of a number below 10^8, with leading zeros; the first digit is in the lowest byte. All
/// digits are computed at once in parts of a word: two groups of four digits, then four of two, then eight of one.
#[inline(always)]
fn eight_digits(number: u64) -> u64 {
    // x / 100 for each x below 10^4, and x / 10 for each x below 100, are computed by multiplication and shift.
    let fours = (number / 10_000) | ((number % 10_000) << 32);
    let hundreds = ((fours * 10_486) >> 20) & 0x7F_0000_007F;
    let twos = hundreds | ((fours - 100 * hundreds) << 16);
    let tens = ((twos * 103) >> 10) & 0x0F_000F_000F_000F;
    let ones = tens | ((twos - 10 * tens) << 8);
    ones | 0x3030_3030_3030_3030
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn eight_digits_are_printed_correctly() {
        for number in (0..EIGHT_DIGITS).step_by(997).chain(0..20_000).chain(EIGHT_DIGITS - 20_000..EIGHT_DIGITS) {
            assert_eq!(eight_digits(number).to_le_bytes(), format!("{number:08}").as_bytes());
        }
    }

    #[test]
    fn appended_text_keeps_its_order() {
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
        let (mut twice, mut short) = (Buffer::default(), Buffer::default());
        short.put(b"...---------.---------.");
        [short.len, 100].into_iter().for_each(|len| {
            short.put(&vec![b'x'; len - short.len]);
            twice.append(&short, [3, 13], [123_456_789, 7]);
        });
        assert_eq!(&twice.as_bytes()[..30], b"...123456789.000000007....1234");
        assert_eq!(twice.as_bytes().len(), 123);
        buffer.clear();
        assert_eq!(buffer.as_bytes(), b"");
    }
}
