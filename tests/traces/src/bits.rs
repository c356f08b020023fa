//! Bytes of other tools' traces: numbers of any size at any bit, in both byte orders.

/// Writes consecutive fields as CTF 1.8 lays them out (clause 4).
#[derive(Debug, Clone, Default)]
pub struct BitWriter {
    bytes: Vec<u8>,
    bits: u64,
    is_big_endian: bool,
}

impl BitWriter {
    /// Returns a writer for a trace whose numbers are big-endian or little-endian.
    pub fn new(is_big_endian: bool) -> BitWriter {
        BitWriter { is_big_endian, ..BitWriter::default() }
    }

    /// Returns the number of bits written so far.
    pub fn position(&self) -> u64 {
        self.bits
    }

    /// Pads to the next multiple of `align_bits` bits.
    pub fn align(&mut self, align_bits: u64) -> &mut Self {
        self.bits = self.bits.next_multiple_of(align_bits);
        self.bytes.resize(self.bits.div_ceil(8) as usize, 0);
        self
    }

    /// Appends the low `size_bits` of a number, bit by bit.
    pub fn number(&mut self, size_bits: u32, value: u64) -> &mut Self {
        for index in 0..size_bits {
            let bit = if self.is_big_endian { value >> (size_bits - 1 - index) } else { value >> index } & 1;
            let (byte, at) = ((self.bits / 8) as usize, self.bits % 8);
            self.bytes.resize(self.bytes.len().max(byte + 1), 0);
            self.bytes[byte] |= (bit as u8) << if self.is_big_endian { 7 - at } else { at };
            self.bits += 1;
        }
        self
    }

    /// Appends bytes at the next byte boundary.
    pub fn bytes(&mut self, bytes: &[u8]) -> &mut Self {
        self.align(8);
        self.bytes.extend_from_slice(bytes);
        self.bits += 8 * bytes.len() as u64;
        self
    }

    /// Appends text and its NUL.
    pub fn text(&mut self, text: &str) -> &mut Self {
        self.bytes(text.as_bytes()).bytes(&[0])
    }

    /// Returns the bytes, padded to a whole byte and to `size_bytes_min`.
    pub fn finish(&mut self, size_bytes_min: usize) -> Vec<u8> {
        let len = self.bytes.len().max(size_bytes_min);
        self.bytes.resize(len, 0);
        std::mem::take(&mut self.bytes)
    }
}
