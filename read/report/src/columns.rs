//! Entries as columns of LEB128 numbers: similar values are adjacent and compress well.

use crate::levels::Entry;

/// Number of columns: begins (as differences), durations, names, counts, keys, fields (as zigzag differences), others.
pub(crate) const COLUMNS: usize = 7;

/// The columns of all rows.
#[derive(Debug, Default)]
pub(crate) struct Columns(pub(crate) [Vec<u8>; COLUMNS]);

pub(crate) fn put(mut value: u64, out: &mut Vec<u8>) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

impl Columns {
    /// Adds the entries of one level of a row.
    pub(crate) fn put(&mut self, entries: &[Entry]) {
        let (mut begin, mut fields) = (0, 0);
        for entry in entries {
            let difference = i64::from(entry.fields) - fields;
            let zigzag = (difference << 1) ^ (difference >> 63);
            let values = [
                entry.begin - begin,
                entry.duration,
                entry.name.into(),
                entry.count.into(),
                entry.key.into(),
                zigzag as u64,
                entry.other.into(),
            ];
            for (column, value) in self.0.iter_mut().zip(values) {
                put(value, column);
            }
            (begin, fields) = (entry.begin, entry.fields.into());
        }
    }

    pub(crate) fn sizes(&self) -> Vec<usize> {
        self.0.iter().map(Vec::len).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_take_seven_bits_a_byte() {
        let mut out = Vec::new();
        [0, 127, 128, u64::MAX].into_iter().for_each(|value| put(value, &mut out));
        assert_eq!(out[..4], [0, 127, 0x80, 1]);
        assert_eq!(out.len(), 4 + 10);
    }
}
