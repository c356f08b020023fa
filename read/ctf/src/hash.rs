//! Hash maps with small keys that are looked up for every event.

/// A hash map with a fast hash. The hash's seed is random, so a trace cannot be made in advance to have colliding keys.
pub type QuickMap<K, V> = foldhash::HashMap<K, V>;

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
