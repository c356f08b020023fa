//! A program that `tests/ops_static.rs` links statically: it checks that registration works in every thread, and prints
//! whether libc registers threads.

use std::ptr::NonNull;

use dormouse_percpu::{
    Area, List, ListSlot, Node, PerCpu, PerCpuCounter, PerCpuCounterShared, PerCpuCounterSlot, Rseq,
};

const STRIDE_SHIFT: u32 = 8;
const STRIDES: usize = 1024;

#[derive(Clone)]
#[repr(C, align(128))]
struct Stride([u8; 1 << STRIDE_SHIFT]);

fn main() {
    let rseq = Rseq::detect();
    let memory = vec![Stride([0; 1 << STRIDE_SHIFT]); STRIDES].leak();
    // SAFETY: `STRIDES` strides of zeroes, leaked.
    let area = unsafe { Area::new(memory.as_mut_ptr().cast(), STRIDE_SHIFT, STRIDES as u32) };
    // SAFETY: zeroes are valid shared words, and end where the slot begins.
    let shared = unsafe { PerCpu::<PerCpuCounterShared>::new(0) };
    // SAFETY: zeroes are a valid slot, and end before the list's slot begins.
    let slot = unsafe { PerCpu::<PerCpuCounterSlot>::new(128) };
    let counter = PerCpuCounter::new(area, slot, shared, 1_000).expect("inside");
    // SAFETY: zeroes are valid slots, which are after those of the counter.
    let list = List::new(area, unsafe { PerCpu::<ListSlot>::new(192) }).expect("inside");
    let nodes: &'static [Node] = (0..16).map(|_| Node::new()).collect::<Vec<_>>().leak();
    for node in nodes {
        // SAFETY: the node is on no list, and never unmapped.
        unsafe { list.push(rseq, NonNull::from(node)) };
    }
    let threads: Vec<_> = (0..4)
        .map(|_| {
            std::thread::spawn(move || {
                let is_registered = rseq.is_some_and(Rseq::register_thread);
                for _ in 0..50_000 {
                    counter.add(rseq, 1);
                    if let Some(node) = list.pop(rseq) {
                        // SAFETY: the node was popped just now.
                        unsafe { list.push(rseq, node) };
                    }
                }
                is_registered == rseq.is_some()
            })
        })
        .collect();
    assert!(threads.into_iter().all(|thread| thread.join().expect("no panic")), "a thread has no area");
    let mut count = 0;
    // SAFETY: all users have been joined.
    unsafe { list.drain(|_| count += 1) };
    assert_eq!((counter.sum(), count), (200_000, 16));
    println!("{:?}", rseq.map(|_| Rseq::of_libc().is_some()));
}
