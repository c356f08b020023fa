mod hostile;
mod notification;
mod operation;
mod oracle;
mod planned;
mod published;
mod threads;

use std::sync::atomic::{AtomicU8, Ordering::Relaxed};
use std::vec::Vec;

use proptest::prelude::*;

use crate::{Direct, Region, Regions, need_event, packed, split};

#[repr(align(64))]
struct Line([AtomicU8; 64]);

/// Memory that both sides share, initialised to one byte value.
struct Memory(Vec<Line>);

impl Memory {
    fn new(len: usize, byte: u8) -> Memory {
        let memory = Memory((0..len.div_ceil(64)).map(|_| Line([const { AtomicU8::new(0) }; 64])).collect());
        memory.bytes().for_each(|at| at.store(byte, Relaxed));
        memory
    }

    /// Creates memory with an empty split ring.
    fn split(size: u32, byte: u8) -> Memory {
        let memory = Memory::new(split::size_bytes(size).unwrap(), byte);
        split::init(&memory.split_bus(size), size).unwrap();
        memory
    }

    /// Creates memory with an empty packed ring.
    fn packed(size: u32, byte: u8) -> Memory {
        let memory = Memory::new(packed::size_bytes(size).unwrap(), byte);
        packed::init(&memory.packed_bus(size), size).unwrap();
        memory
    }

    fn base(&self) -> *mut u8 {
        self.0.as_ptr().cast_mut().cast()
    }

    fn len(&self) -> usize {
        64 * self.0.len()
    }

    fn bytes(&self) -> impl Iterator<Item = &AtomicU8> {
        self.0.iter().flat_map(|line| &line.0)
    }

    fn put(&self, offset: usize, bytes: &[u8]) {
        self.bytes().skip(offset).zip(bytes).for_each(|(at, byte)| at.store(*byte, Relaxed));
    }

    fn split_bus(&self, size: u32) -> Direct {
        // SAFETY: the vector outlives the bus in every test, has the layout's size, and its bytes are atomics.
        unsafe { Direct::new(split::contiguous(self.base(), size).unwrap()) }
    }

    fn packed_bus(&self, size: u32) -> Direct {
        // SAFETY: the vector outlives the bus in every test, has the layout's size, and its bytes are atomics.
        unsafe { Direct::new(packed::contiguous(self.base(), size).unwrap()) }
    }

    /// Returns a region of the whole memory, at the device's address `addr`.
    fn regions(&self, addr: u64) -> Regions {
        let region = Region { addr, len: self.len() as u64, base: self.base() };
        // SAFETY: the vector outlives the regions in every test, is as long as is said, and its bytes are atomics.
        unsafe { Regions::new(std::vec![region]) }.unwrap()
    }
}

proptest! {
    /// Compares with counters that do not wrap: the step from `old` to `new` passes an event that is not too far away.
    #[test]
    fn need_event_passes_the_event(old in 0..200_000_u64, step in 0..=32_768_u64, event in -32_767..32_767_i64) {
        let event = old.saturating_add_signed(event);
        let new = old + step;
        prop_assert_eq!(need_event(event as u16, new as u16, old as u16), old <= event && event < new);
    }
}
