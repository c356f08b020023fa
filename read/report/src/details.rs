//! Fields of items, compressed in chunks as they are added. The page unpacks a chunk when an item of it is clicked.

use std::io::{Read, Write};

use flate2::Compression;
use flate2::read::ZlibDecoder;
use flate2::write::ZlibEncoder;

/// Items per chunk: large chunks compress better, small ones are unpacked faster.
pub(crate) const CHUNK_ITEMS: usize = 512;

/// The fields of all items.
#[derive(Debug, Default)]
pub(crate) struct Details {
    chunks: Vec<Box<[u8]>>,
    open: Chunk,
    count: u32,
    size_bytes: u64,
}

/// A chunk that is being filled.
#[derive(Debug, Default)]
struct Chunk {
    sizes: Vec<u8>,
    bytes: Vec<u8>,
}

impl Chunk {
    fn add(&mut self, bytes: &[u8]) {
        self.sizes.extend((bytes.len() as u32).to_le_bytes());
        self.bytes.extend(bytes);
    }

    fn len(&self) -> usize {
        self.sizes.len() / 4
    }

    /// Closes the chunk: sizes in the order of the items, then their bytes.
    fn close(&mut self, level: Compression) -> Box<[u8]> {
        let packed = pack([self.sizes.as_slice(), &self.bytes], level);
        self.sizes.clear();
        self.bytes.clear();
        packed
    }
}

/// Compresses in the format that the page's `DecompressionStream("deflate")` reads.
pub(crate) fn pack<'b>(parts: impl IntoIterator<Item = &'b [u8]>, level: Compression) -> Box<[u8]> {
    let mut encoder = ZlibEncoder::new(Vec::new(), level);
    let written = parts.into_iter().try_for_each(|part| encoder.write_all(part));
    // Writing to memory does not fail.
    written.and_then(|()| encoder.finish()).unwrap_or_default().into()
}

impl Details {
    /// Adds the fields of an item. Returns their number plus 1, or 0 if numbers are used up.
    pub(crate) fn add(&mut self, bytes: &[u8]) -> u32 {
        if self.count >= u32::MAX - 1 {
            return 0;
        }
        self.open.add(bytes);
        self.count += 1;
        if self.open.len() == CHUNK_ITEMS {
            self.close();
        }
        self.count
    }

    fn close(&mut self) {
        if self.open.len() > 0 {
            let chunk = self.open.close(Compression::fast());
            self.size_bytes += chunk.len() as u64;
            self.chunks.push(chunk);
        }
    }

    /// Returns the memory that they take now, in bytes.
    pub(crate) fn memory_bytes(&self) -> usize {
        self.size_bytes as usize + self.open.bytes.len()
    }

    pub(crate) fn count(&self) -> u32 {
        self.count
    }

    /// Closes the open chunk and returns the size of all chunks, in bytes.
    pub(crate) fn size_bytes(&mut self) -> u64 {
        self.close();
        self.size_bytes
    }

    /// Returns chunks of only the kept fields, and for each number its new number plus 1; 0 if it is not kept.
    pub(crate) fn kept(&mut self, is_kept: impl Fn(u32) -> bool) -> (Vec<Box<[u8]>>, Vec<u32>) {
        self.close();
        let (mut chunks, mut numbers, mut next) = (Vec::new(), Vec::with_capacity(self.count as usize), 0);
        let mut open = Chunk::default();
        for chunk in &self.chunks {
            let mut bytes = Vec::new();
            // Unpacking does not fail: the chunk was packed here.
            let _ = ZlibDecoder::new(&chunk[..]).read_to_end(&mut bytes);
            let count = CHUNK_ITEMS.min(self.count as usize - numbers.len());
            let (sizes, mut rest) = bytes.split_at(4 * count);
            for size in sizes.chunks_exact(4) {
                let size = u32::from_le_bytes([size[0], size[1], size[2], size[3]]) as usize;
                let item;
                (item, rest) = rest.split_at(size);
                if !is_kept(numbers.len() as u32) {
                    numbers.push(0);
                    continue;
                }
                next += 1;
                numbers.push(next);
                open.add(item);
                if open.len() == CHUNK_ITEMS {
                    chunks.push(open.close(Compression::default()));
                }
            }
        }
        if open.len() > 0 {
            chunks.push(open.close(Compression::default()));
        }
        (chunks, numbers)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kept_items_stay_in_order() {
        let mut details = Details::default();
        for number in 0..2000_u32 {
            assert_eq!(details.add(format!("fields of {number}").as_bytes()), number + 1);
        }
        let (chunks, numbers) = details.kept(|number| number % 3 == 0);
        assert_eq!((chunks.len(), numbers[0], numbers[1], numbers[3]), (2, 1, 0, 2));
        let mut bytes = Vec::new();
        ZlibDecoder::new(&chunks[1][..]).read_to_end(&mut bytes).unwrap();
        let count = 667 - CHUNK_ITEMS;
        let first = u32::from_le_bytes(bytes[..4].try_into().unwrap()) as usize;
        assert_eq!(&bytes[4 * count..][..first], format!("fields of {}", 3 * CHUNK_ITEMS).as_bytes());
    }
}
