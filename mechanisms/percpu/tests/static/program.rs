//! A program that `tests/ops_static.rs` links statically: who registers here, and does it work in every thread.

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
    // SAFETY: so many strides, zero, leaked.
    let area = unsafe { Area::new(memory.as_mut_ptr().cast(), STRIDE_SHIFT, STRIDES as u32) };
    // SAFETY: zeroes are shared words, and end where the slot begins.
    let shared = unsafe { PerCpu::<PerCpuCounterShared>::new(0) };
    // SAFETY: zeroes are a slot, and end before the list's begins.
    let slot = unsafe { PerCpu::<PerCpuCounterSlot>::new(128) };
    let counter = PerCpuCounter::new(area, slot, shared, 1_000).expect("inside");
    // SAFETY: zeroes are slots, and these lie behind those of the counter.
    let list = List::new(area, unsafe { PerCpu::<ListSlot>::new(192) }).expect("inside");
    let nodes: &'static [Node] = (0..16).map(|_| Node::new()).collect::<Vec<_>>().leak();
    for node in nodes {
        // SAFETY: on no list, and never unmapped.
        unsafe { list.push(rseq, NonNull::from(node)) };
    }
    let threads: Vec<_> = (0..4)
        .map(|_| {
            std::thread::spawn(move || {
                let is_registered = rseq.is_some_and(Rseq::register_thread);
                for _ in 0..50_000 {
                    counter.add(rseq, 1);
                    if let Some(node) = list.pop(rseq) {
                        // SAFETY: popped just now.
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
    println!("{:?}", rseq.map(Rseq::registrar));
}
