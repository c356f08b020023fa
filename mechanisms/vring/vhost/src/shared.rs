//! Bytes in memory that another process may access at the same time.

use std::sync::atomic::{AtomicU8, AtomicU64, Ordering::Relaxed};

/// Copies bytes to shared memory, by words if aligned.
///
/// # Safety
/// `from.len()` bytes at `to` are mapped writable, and Rust code accesses them only atomically.
pub(crate) unsafe fn store_bytes(to: *mut u8, from: &[u8]) {
    let (head, rest) = from.split_at(unaligned(to, from.len()));
    let (words, tail) = rest.as_chunks::<8>();
    // SAFETY: the caller guarantees that `from.len()` bytes at `to` are writable and accessed only atomically; these
    // are the first of them.
    unsafe { store_each(to, head) };
    let to = to.wrapping_add(head.len());
    for (index, word) in words.iter().enumerate() {
        // SAFETY: the word is inside the bytes that the caller guarantees, and after the unaligned first bytes it is
        // aligned.
        let at = unsafe { AtomicU64::from_ptr(to.wrapping_add(8 * index).cast()) };
        at.store(u64::from_ne_bytes(*word), Relaxed);
    }
    // SAFETY: the last of the bytes that the caller guarantees to be writable and accessed only atomically.
    unsafe { store_each(to.wrapping_add(8 * words.len()), tail) };
}

/// Copies bytes from shared memory, by words if aligned.
///
/// # Safety
/// `to.len()` bytes at `from` are mapped readable, and Rust code accesses them only atomically.
pub(crate) unsafe fn load_bytes(from: *mut u8, to: &mut [u8]) {
    let len = to.len();
    let (head, rest) = to.split_at_mut(unaligned(from, len));
    let (words, tail) = rest.as_chunks_mut::<8>();
    // SAFETY: the caller guarantees that `to.len()` bytes at `from` are readable and accessed only atomically; these
    // are the first of them.
    unsafe { load_each(from, head) };
    let from = from.wrapping_add(head.len());
    for (index, word) in words.iter_mut().enumerate() {
        // SAFETY: the word is inside the bytes that the caller guarantees, and after the unaligned first bytes it is
        // aligned.
        let at = unsafe { AtomicU64::from_ptr(from.wrapping_add(8 * index).cast()) };
        *word = at.load(Relaxed).to_ne_bytes();
    }
    // SAFETY: the last of the bytes that the caller guarantees to be readable and accessed only atomically.
    unsafe { load_each(from.wrapping_add(8 * words.len()), tail) };
}

/// Returns the number of bytes before the first aligned word, at most `len`.
fn unaligned(at: *mut u8, len: usize) -> usize {
    (at.addr().wrapping_neg() % 8).min(len)
}

unsafe fn store_each(to: *mut u8, from: &[u8]) {
    for (index, byte) in from.iter().enumerate() {
        // SAFETY: the callers guarantee `from.len()` writable bytes at `to`, accessed only atomically; this is one of
        // them.
        let at = unsafe { AtomicU8::from_ptr(to.wrapping_add(index)) };
        at.store(*byte, Relaxed);
    }
}

unsafe fn load_each(from: *mut u8, to: &mut [u8]) {
    for (index, byte) in to.iter_mut().enumerate() {
        // SAFETY: the callers guarantee `to.len()` readable bytes at `from`, accessed only atomically; this is one of
        // them.
        let at = unsafe { AtomicU8::from_ptr(from.wrapping_add(index)) };
        *byte = at.load(Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_copied_at_every_alignment() {
        let memory: Vec<AtomicU64> = (0..16).map(|_| AtomicU64::new(0)).collect();
        let base: *mut u8 = memory.as_ptr().cast_mut().cast();
        for offset in 0..9 {
            for len in 0..40 {
                let bytes: Vec<u8> = (0..len).map(|byte| byte + 10 * offset as u8 + 1).collect();
                memory.iter().for_each(|word| word.store(0, Relaxed));
                // SAFETY: the bytes are among the first 48 of 128 bytes, which are atomics.
                unsafe { store_bytes(base.wrapping_add(offset), &bytes) };
                let mut all = [0; 64];
                // SAFETY: the first 64 of 128 bytes, which are atomics.
                unsafe { load_bytes(base, &mut all) };
                assert_eq!(&all[offset..offset + bytes.len()], &bytes);
                let others = all[..offset].iter().chain(&all[offset + bytes.len()..]);
                assert!(others.into_iter().all(|byte| *byte == 0), "{offset} {len}");
                let mut back = vec![0; bytes.len()];
                // SAFETY: the bytes that were just stored, inside the memory.
                unsafe { load_bytes(base.wrapping_add(offset), &mut back) };
                assert_eq!(back, bytes);
            }
        }
    }
}
