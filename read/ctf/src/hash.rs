//! Hash maps with small keys that are looked up for every event.
//!
//! The hash is a folded 128-bit product of the key and a random seed of the map, so a trace cannot be made in advance
//! to have colliding keys. It is cheaper than the standard library's hash, and weaker.

use std::collections::HashMap;
use std::hash::{BuildHasher, Hasher, RandomState};

/// A hash map with a fast hash.
pub type QuickMap<K, V> = HashMap<K, V, Seed>;

/// Random seed of a map.
#[derive(Debug, Clone, Copy)]
pub struct Seed(u64);

impl Default for Seed {
    fn default() -> Seed {
        Seed(RandomState::new().hash_one(0u8))
    }
}

impl BuildHasher for Seed {
    type Hasher = Folded;

    #[inline]
    fn build_hasher(&self) -> Folded {
        Folded { state: self.0, seed: self.0 | 1 }
    }
}

/// State of the hash.
#[derive(Debug, Clone, Copy)]
pub struct Folded {
    state: u64,
    seed: u64,
}

/// Digits of pi. They turn a key with few set bits into a multiplicand with many.
const PI: u64 = 0x243F_6A88_85A3_08D3;

impl Folded {
    #[inline(always)]
    fn add(&mut self, word: u64) {
        let product = u128::from(self.state ^ word ^ PI) * u128::from(self.seed);
        self.state = product as u64 ^ (product >> 64) as u64;
    }
}

impl Hasher for Folded {
    #[inline]
    fn finish(&self) -> u64 {
        // The map uses the highest bits as well as the lowest ones.
        self.state ^ self.state.rotate_left(32)
    }

    fn write(&mut self, bytes: &[u8]) {
        let (words, rest) = bytes.as_chunks::<8>();
        words.iter().for_each(|word| self.add(u64::from_le_bytes(*word)));
        let mut last = [0; 8];
        last[..rest.len()].copy_from_slice(rest);
        self.add(u64::from_le_bytes(last));
        self.add(bytes.len() as u64);
    }

    #[inline]
    fn write_u32(&mut self, word: u32) {
        self.add(word.into());
    }

    #[inline]
    fn write_u64(&mut self, word: u64) {
        self.add(word);
    }

    #[inline]
    fn write_usize(&mut self, word: usize) {
        self.add(word as u64);
    }

    #[inline]
    fn write_isize(&mut self, word: isize) {
        self.add(word as u64);
    }
}

/// Cache of recently looked-up indices, by address. It works because most events belong to few classes.
#[derive(Debug, Clone)]
pub struct Recent(Box<[(usize, u32); RECENT]>);

const RECENT: usize = 64;

impl Default for Recent {
    fn default() -> Recent {
        Recent(Box::new([(0, 0); RECENT]))
    }
}

impl Recent {
    /// Returns the index for an address (not 0). Calls `find` if the address is not in the cache.
    #[inline(always)]
    pub fn get(&mut self, address: usize, find: impl FnOnce() -> Option<u32>) -> Option<u32> {
        // Addresses of classes differ by a multiple of a constant, so they are hashed.
        let place = (address as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> (64 - RECENT.trailing_zeros());
        let recent = &mut self.0[place as usize % RECENT];
        if recent.0 != address {
            *recent = (address, find()?);
        }
        Some(recent.1)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn similar_keys_have_different_hashes() {
        let seed = Seed::default();
        let keys = (0..300u32).flat_map(|track| (0..300u32).map(move |name| (track, name)));
        let hashes: Vec<u64> = keys.map(|key| seed.hash_one(key)).collect();
        // Two products occasionally fold to the same hash.
        assert!(hashes.iter().collect::<HashSet<_>>().len() > hashes.len() - 20);
        // The used share of a map's buckets must be about that of random hashes (1 - 1/e, 63 %), by the lowest bits and
        // by the highest.
        for bits in [|hash: &u64| hash & 0xFFFF, |hash: &u64| hash >> 48] {
            let used = hashes.iter().take(1 << 16).map(bits).collect::<HashSet<_>>().len();
            assert!((30_000..55_000).contains(&used), "{used} of 65,536");
        }
        let texts = ["", "\0", "a", "a\0", "aaaaaaaa", "aaaaaaaab"].map(|text| seed.hash_one(text.as_bytes()));
        assert_eq!(texts.iter().collect::<HashSet<_>>().len(), texts.len());
    }
}
