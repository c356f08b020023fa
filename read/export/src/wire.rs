//! The wire format of protocol buffers: a tag (field number and wire type), then the value.
//!
//! Values are so short that copying costs more than writing. They are written in place, with spare room after them that
//! the next value overwrites.

/// Wire types.
pub(crate) const VARINT: u64 = 0;
const FIXED64: u64 = 1;
pub(crate) const LENGTH: u64 = 2;

/// Returns the tag of a field whose number is less than 16; such a tag has one byte.
pub(crate) const fn tag(field: u64, kind: u64) -> u8 {
    assert!(field < 16);
    (field << 3 | kind) as u8
}

/// Bytes that are reserved for a length before it is known.
pub(crate) const LENGTH_BYTES: usize = 2;
/// Least length that needs more bytes.
const LONG: usize = 1 << (7 * LENGTH_BYTES);
/// Room for a varint, which has at most ten bytes.
const VARINT_ROOM: usize = 16;
/// Size of the room for `Wire::short`.
pub(crate) const SHORT: usize = 64;
/// Maximum length of a text that has, with its name, a length of one byte.
const TEXT_SHORT: usize = 100;
/// Least growth of the room.
const GROWTH: usize = 4096;

/// Bytes that are written repeatedly.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Piece([u8; 16], usize);

impl Piece {
    /// No bytes.
    pub(crate) const NONE: Piece = Piece([0; 16], 0);

    /// Encodes a number; 0 means none and gives no bytes.
    pub(crate) fn uint(field: u64, value: u64) -> Piece {
        Piece::default().and_uint(field, value)
    }

    /// Appends another number. Two fields with 32-bit numbers fit.
    pub(crate) fn and_uint(mut self, field: u64, value: u64) -> Piece {
        if value > 0 {
            let mut wire = Wire::of(self.0[..self.1].to_vec());
            wire.uint(field, value);
            self.1 = wire.len;
            self.0[..self.1].copy_from_slice(&wire.bytes[..self.1]);
        }
        self
    }

    /// Writes the bytes into `room` and returns their number.
    #[inline(always)]
    pub(crate) fn put_at(&self, room: &mut [u8]) -> usize {
        room[..self.0.len()].copy_from_slice(&self.0);
        // The length is never greater; `min` shows the compiler that no access is out of bounds.
        self.1.min(self.0.len())
    }

    /// Starts a message with these bytes and returns their end. The length of the message is left open.
    #[inline(always)]
    fn put(&self, room: &mut [u8; SHORT], kind: u64) -> usize {
        room[0] = (kind << 3 | LENGTH) as u8;
        room[2..2 + self.0.len()].copy_from_slice(&self.0);
        // The length is never greater; `min` shows the compiler that no access is out of bounds.
        2 + self.1.min(self.0.len())
    }
}

/// Written bytes, followed by spare room.
#[derive(Debug, Default)]
pub(crate) struct Wire {
    bytes: Vec<u8>,
    len: usize,
}

/// Writes a varint and returns its length.
#[inline(always)]
pub(crate) fn varint_at(room: &mut [u8], value: u64) -> usize {
    if value < 0x80 {
        room[0] = value as u8;
        return 1;
    }
    // Spreads groups of seven bits over bytes: first halves, then quarters, then eighths.
    let word = value & 0x0FFF_FFFF | (value & 0x00FF_FFFF_F000_0000) << 4;
    let word = word & 0x0000_3FFF_0000_3FFF | (word & 0x0FFF_C000_0FFF_C000) << 2;
    let word = word & 0x007F_007F_007F_007F | (word & 0x3F80_3F80_3F80_3F80) << 1;
    let more = word | 0x8080_8080_8080_8080;
    let count = (70 - value.leading_zeros() as usize) / 7;
    if count <= 8 {
        let last = 0x80 << (8 * count - 8);
        room[..8].copy_from_slice(&(more & !last).to_le_bytes());
    } else {
        room[..8].copy_from_slice(&more.to_le_bytes());
        let rest = value >> 56;
        room[8] = if count == 10 { rest as u8 | 0x80 } else { rest as u8 };
        room[9] = (rest >> 7) as u8;
    }
    count
}

impl Wire {
    /// Continues after `bytes`.
    pub(crate) fn of(bytes: Vec<u8>) -> Wire {
        Wire { len: bytes.len(), bytes }
    }

    pub(crate) fn finish(mut self) -> Vec<u8> {
        self.bytes.truncate(self.len);
        self.bytes
    }

    pub(crate) fn as_bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }

    /// Empties the buffer. Its memory is kept and not zeroed again.
    pub(crate) fn clear(&mut self) {
        self.len = 0;
    }

    #[inline(always)]
    fn room(&mut self, size_bytes: usize) -> &mut [u8] {
        if self.bytes.len() - self.len < size_bytes {
            self.grow(size_bytes);
        }
        &mut self.bytes[self.len..]
    }

    #[cold]
    fn grow(&mut self, size_bytes: usize) {
        self.bytes.resize((2 * self.bytes.len()).max(self.len + size_bytes + GROWTH), 0);
    }

    #[inline(always)]
    pub(crate) fn varint(&mut self, value: u64) {
        self.len += varint_at(self.room(VARINT_ROOM), value);
    }

    #[inline(always)]
    pub(crate) fn piece(&mut self, piece: &Piece) {
        self.room(piece.0.len())[..piece.0.len()].copy_from_slice(&piece.0);
        self.len += piece.1;
    }

    /// Returns the position of the next byte.
    #[inline(always)]
    pub(crate) fn position(&self) -> usize {
        self.len
    }

    /// Appends encoded bytes.
    pub(crate) fn raw(&mut self, bytes: &[u8]) {
        self.put(bytes);
    }

    #[inline(always)]
    fn put(&mut self, bytes: &[u8]) {
        self.room(bytes.len())[..bytes.len()].copy_from_slice(bytes);
        self.len += bytes.len();
    }

    #[inline(always)]
    pub(crate) fn uint(&mut self, field: u64, value: u64) {
        self.varint(field << 3 | VARINT);
        self.varint(value);
    }

    #[inline(always)]
    pub(crate) fn fixed64(&mut self, field: u64, value: u64) {
        self.varint(field << 3 | FIXED64);
        self.put(&value.to_le_bytes());
    }

    /// Writes a field of bytes, text or a message.
    #[inline(always)]
    pub(crate) fn bytes(&mut self, field: u64, bytes: &[u8]) {
        self.varint(field << 3 | LENGTH);
        self.varint(bytes.len() as u64);
        self.put(bytes);
    }

    /// Writes a text. Bytes that are not UTF-8 become U+FFFD.
    #[inline]
    pub(crate) fn text(&mut self, field: u64, text: &[u8]) {
        match std::str::from_utf8(text) {
            Ok(_) => self.bytes(field, text),
            Err(_) => self.bytes(field, String::from_utf8_lossy(text).as_bytes()),
        }
    }

    /// Writes something short at once. `fill` returns how many bytes of the room it used.
    #[inline(always)]
    pub(crate) fn short(&mut self, fill: impl FnOnce(&mut [u8; SHORT]) -> usize) {
        let len = self.len;
        if self.bytes.len() - len < SHORT {
            self.grow(SHORT);
        }
        if let Some(room) = self.bytes[len..].first_chunk_mut() {
            self.len += fill(room);
        }
    }

    /// Writes a message of a piece and a number. `kind` and `field` are numbers less than 16, whose tags have one byte.
    #[inline(always)]
    pub(crate) fn named_uint(&mut self, kind: u64, name: &Piece, field: u64, value: u64) {
        self.short(|room| {
            let at = name.put(room, kind);
            room[at] = (field << 3 | VARINT) as u8;
            let end = at + 1 + varint_at(&mut room[at + 1..], value);
            room[1] = (end - 2) as u8;
            end
        });
    }

    /// Writes a message of a piece and a text. `kind` and `field` are numbers less than 16.
    #[inline(always)]
    pub(crate) fn named_text(&mut self, kind: u64, name: &Piece, field: u64, text: &[u8]) {
        if text.len() > TEXT_SHORT || std::str::from_utf8(text).is_err() {
            return self.message(kind, |wire| {
                wire.piece(name);
                wire.text(field, text);
            });
        }
        self.short(|room| {
            let at = name.put(room, kind);
            room[at] = (field << 3 | LENGTH) as u8;
            room[at + 1] = text.len() as u8;
            room[1] = (at + text.len()) as u8;
            at + 2
        });
        self.put(text);
    }

    /// Writes a message; `fill` writes its contents.
    #[inline(always)]
    pub(crate) fn message(&mut self, field: u64, fill: impl FnOnce(&mut Wire)) {
        let begin = self.open(field);
        fill(self);
        self.close(begin);
    }

    /// Begins a message. Returns the argument for [`Wire::close`].
    #[inline(always)]
    pub(crate) fn open(&mut self, field: u64) -> usize {
        self.varint(field << 3 | LENGTH);
        self.put(&[0; LENGTH_BYTES]);
        self.len
    }

    /// Ends a message by writing its length.
    #[inline(always)]
    pub(crate) fn close(&mut self, begin: usize) {
        let length = self.len - begin;
        if length >= LONG {
            return self.close_long(begin);
        }
        self.bytes[begin - 2] = length as u8 | 0x80;
        self.bytes[begin - 1] = (length >> 7) as u8;
    }

    /// Ends a long message: moves its contents, so that the length has as many bytes as it needs.
    #[cold]
    fn close_long(&mut self, begin: usize) {
        let mut length = [0; VARINT_ROOM];
        let count = varint_at(&mut length, (self.len - begin) as u64);
        let more = count - LENGTH_BYTES;
        self.room(more);
        self.bytes.copy_within(begin..self.len, begin + more);
        self.bytes[begin - LENGTH_BYTES..begin + more].copy_from_slice(&length[..count]);
        self.len += more;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Encodes a varint seven bits at a time, like the format's definition.
    fn varint_of(mut value: u64) -> Vec<u8> {
        let mut bytes = Vec::new();
        while value >= 0x80 {
            bytes.push(value as u8 | 0x80);
            value >>= 7;
        }
        bytes.push(value as u8);
        bytes
    }

    fn written(fill: impl FnOnce(&mut Wire)) -> Vec<u8> {
        let mut wire = Wire::of(Vec::new());
        fill(&mut wire);
        wire.finish()
    }

    #[test]
    fn varints_of_all_lengths() {
        let near = (0..64).flat_map(|bit| [(1u64 << bit) - 1, 1 << bit, (1 << bit) + 1, u64::MAX >> bit]);
        for value in near.chain([300, 0x0123_4567_89AB_CDEF, u64::MAX - 1]) {
            assert_eq!(written(|wire| wire.varint(value)), varint_of(value), "{value:#x}");
        }
    }

    #[test]
    fn messages_begin_with_their_length() {
        assert_eq!(written(|wire| wire.message(3, |wire| wire.uint(1, 5))), [0x1A, 0x82, 0, 8, 5]);
        assert_eq!(written(|wire| wire.text(2, b"a\xFF")), [0x12, 4, b'a', 0xEF, 0xBF, 0xBD]);
        // Long messages within one another are moved.
        for len in [LONG - 10, LONG, 1 << 21, 1 << 22] {
            let text = vec![b'x'; len];
            let bytes = written(|wire| {
                wire.message(1, |wire| {
                    wire.message(2, |wire| wire.bytes(3, &text));
                    wire.uint(4, 1);
                });
            });
            let inner = [&[0x1A], varint_of(len as u64).as_slice(), &text].concat();
            let length =
                |len: usize| if len < LONG { vec![len as u8 | 0x80, (len >> 7) as u8] } else { varint_of(len as u64) };
            let outer = [&[0x12], length(inner.len()).as_slice(), &inner, &[0x20, 1]].concat();
            assert_eq!(bytes, [&[0x0A], length(outer.len()).as_slice(), &outer].concat());
        }
    }

    #[test]
    fn named_values_are_messages() {
        let name = Piece::uint(1, 300);
        let bytes = written(|wire| wire.named_uint(4, &name, 3, u64::MAX));
        assert_eq!(bytes, [&[0x22, 14, 8, 0xAC, 2, 0x18][..], &[0xFF; 9], &[1]].concat());
        for len in [0, TEXT_SHORT, TEXT_SHORT + 1, 127, 128, LONG - 10, LONG] {
            let text = vec![b'x'; len];
            let bytes = written(|wire| wire.named_text(4, &Piece::default(), 6, &text));
            let inner = [&[0x32], varint_of(len as u64).as_slice(), &text].concat();
            let length = match inner.len() {
                long @ 103..LONG => vec![long as u8 | 0x80, (long >> 7) as u8],
                any => varint_of(any as u64),
            };
            assert_eq!(bytes, [&[0x22], length.as_slice(), &inner].concat());
        }
        assert_eq!(written(|wire| wire.piece(&Piece::uint(1, 0))), b"");
        let wide = Piece::uint(10, u32::MAX.into()).and_uint(3, u32::MAX.into());
        assert_eq!(written(|wire| wire.piece(&wide)).len(), 12);
    }
}
