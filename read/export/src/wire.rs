//! The wire format of protocol buffers: a tag (number of the field, kind of its value), then the value.

/// Kinds of values.
const VARINT: u64 = 0;
const FIXED64: u64 = 1;
const LENGTH: u64 = 2;

/// Bytes of a length that is written before it is known.
const LENGTH_BYTES: usize = 5;

#[inline(always)]
pub(crate) fn put_varint(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

#[inline(always)]
pub(crate) fn put_uint(out: &mut Vec<u8>, field: u64, value: u64) {
    put_varint(out, field << 3 | VARINT);
    put_varint(out, value);
}

#[inline(always)]
pub(crate) fn put_fixed64(out: &mut Vec<u8>, field: u64, value: u64) {
    put_varint(out, field << 3 | FIXED64);
    out.extend_from_slice(&value.to_le_bytes());
}

/// Bytes, text or a message.
#[inline(always)]
pub(crate) fn put_bytes(out: &mut Vec<u8>, field: u64, bytes: &[u8]) {
    put_varint(out, field << 3 | LENGTH);
    put_varint(out, bytes.len() as u64);
    out.extend_from_slice(bytes);
}

/// Text. What is not UTF-8 becomes U+FFFD.
pub(crate) fn put_text(out: &mut Vec<u8>, field: u64, text: &[u8]) {
    match std::str::from_utf8(text) {
        Ok(_) => put_bytes(out, field, text),
        Err(_) => put_bytes(out, field, String::from_utf8_lossy(text).as_bytes()),
    }
}

/// A message that `fill` writes.
pub(crate) fn put_message(out: &mut Vec<u8>, field: u64, fill: impl FnOnce(&mut Vec<u8>)) {
    let begin = open(out, field);
    fill(out);
    close(out, begin);
}

/// Begins a message; [`close`] needs what it gives.
pub(crate) fn open(out: &mut Vec<u8>, field: u64) -> usize {
    put_varint(out, field << 3 | LENGTH);
    out.extend_from_slice(&[0; LENGTH_BYTES]);
    out.len()
}

/// Ends a message: writes its length, in as many bytes as were left for it.
pub(crate) fn close(out: &mut [u8], begin: usize) {
    let mut length = out.len() - begin;
    for byte in &mut out[begin - LENGTH_BYTES..begin] {
        *byte = length as u8 & 0x7F | 0x80;
        length >>= 7;
    }
    out[begin - 1] &= 0x7F;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn varints_and_messages() {
        let mut out = Vec::new();
        for value in [0, 127, 128, 300, u64::MAX] {
            put_varint(&mut out, value);
        }
        let expected = [0, 127, 0x80, 1, 0xAC, 2, 255, 255, 255, 255, 255, 255, 255, 255, 255, 1];
        assert_eq!(out, expected);
        out.clear();
        put_message(&mut out, 3, |out| put_uint(out, 1, 5));
        assert_eq!(out, [0x1A, 0x82, 0x80, 0x80, 0x80, 0, 8, 5]);
        out.clear();
        put_text(&mut out, 2, b"a\xFF");
        assert_eq!(out, [0x12, 4, b'a', 0xEF, 0xBF, 0xBD]);
    }
}
