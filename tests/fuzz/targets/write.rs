//! Records and page switches, in both modes, compared with lists of records; read back by the reader of traces.
#![no_main]

use std::cell::OnceCell;

use dormouse_abi::record::RecordKind;
use dormouse_abi::session::{CLOCK_MONOTONIC, MODE_DISCARD, MODE_OVERWRITE};
use dormouse_abi::tag::TagNames;
use dormouse_fuzz::session::{Bench, GEOMETRY, Operation};
use dormouse_owner::fuzzing::UUID;
use dormouse_relay::{Memory, Setup};
use libfuzzer_sys::fuzz_target;

/// An `os_page`, so that the memory is aligned.
#[repr(C, align(4096))]
#[derive(Clone)]
struct OsPage([u8; 4096]);

thread_local! {
    static BACKING: OnceCell<&'static mut [OsPage]> = const { OnceCell::new() };
}

fn memory(mode: u32, kind: RecordKind) -> Memory {
    let base = BACKING.with(|backing| {
        let fresh = || vec![OsPage([0; 4096]); GEOMETRY.size_bytes().div_ceil(4096)].leak();
        backing.get_or_init(fresh).as_ptr().cast_mut().cast::<u8>()
    });
    // SAFETY: the backing is this long, no other code uses it, and its views from earlier inputs are gone.
    unsafe { base.write_bytes(0, GEOMETRY.size_bytes()) };
    let page_count_limit = GEOMETRY.page_count;
    let setup = Setup {
        mode,
        clock: CLOCK_MONOTONIC,
        uuid: UUID,
        kind,
        tags: TagNames::NONE,
        page_count_limit,
        kept_for: &[],
        kept_each: 0,
    };
    // SAFETY: the memory was zeroed just now, is aligned, and is never freed.
    unsafe { Memory::initialise(base, &GEOMETRY, &setup) }
}

fuzz_target!(|input: (bool, bool, Vec<Operation>)| {
    let (is_overwrite, is_compact, operations) = input;
    let kind = if is_compact { RecordKind::Compact } else { RecordKind::Ids };
    let mut bench = Bench::new(memory(if is_overwrite { MODE_OVERWRITE } else { MODE_DISCARD }, kind));
    for (number, operation) in operations.iter().enumerate() {
        bench.apply(operation);
        if number % 8 == 0 {
            bench.check();
        }
    }
    bench.check_end();
});
