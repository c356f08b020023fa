//! Programs that continue to write while their memory is read, before each of the reads in turn.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;

use dormouse_abi::record::RecordKind;
use dormouse_abi::session::{CLOCK_MONOTONIC, MODE_OVERWRITE};
use dormouse_abi::tag::TagNames;
use dormouse_relay::{Memory, Setup};
use dormouse_traces::TraceBuilder;

use super::copy::CopiedMemory;
use super::directory::{Directory, StateStream};
use super::find::SearchResult;
use super::memory::OwnerlessMemory;
use super::merge::{Salvage, merge};
use crate::dir::Dir;
use crate::testing::{EVERYTHING, FIELDS, GEOMETRY, Writer, assert_no_hole, numbers};

#[repr(C, align(4096))]
#[derive(Clone)]
struct OsPage([u8; 4096]);

struct Bench {
    directory: Directory,
    _backing: Vec<OsPage>,
    writer: Rc<RefCell<Writer>>,
}

impl Bench {
    fn new() -> Bench {
        let mut trace = TraceBuilder::new();
        let class_id = trace.class("p", "e", &FIELDS);
        let metadata = trace.finish().parse();
        let mut backing = vec![OsPage([0; 4096]); GEOMETRY.size_bytes().div_ceil(4096)];
        let setup = Setup {
            mode: MODE_OVERWRITE,
            clock: CLOCK_MONOTONIC,
            uuid: metadata.options.uuid,
            kind: RecordKind::Ids,
            tags: TagNames::NONE,
            page_count_limit: GEOMETRY.page_count,
            kept_for: &[],
            kept_each: 0,
        };
        // SAFETY: the backing is valid, zeroed and aligned, and its allocation moves with the view without changing its
        // address.
        let memory = unsafe { Memory::initialise(backing.as_mut_ptr().cast(), &GEOMETRY, &setup) };
        let writer = Rc::new(RefCell::new(Writer::new(memory, class_id)));
        let directory = Directory {
            metadata,
            session_file: None,
            state: StateStream::default(),
            streams: BTreeMap::new(),
            entered: Vec::new(),
            missing: Vec::new(),
            owner: 0,
        };
        Bench { directory, _backing: backing, writer }
    }

    /// Salvages the memory while the writer acts before each read, whose number it gets. Returns the result, the
    /// numbers in the trace from where it is complete on, and the number of reads.
    fn salvage(&self, meanwhile: impl Fn(&mut Writer, u32) + 'static) -> (Salvage, Vec<u64>, u32) {
        let (writer, asked) = (Rc::clone(&self.writer), Rc::new(Cell::new(0)));
        let (counter, uuid) = (Rc::clone(&asked), self.directory.uuid());
        let memory = OwnerlessMemory::of_writer(uuid, GEOMETRY.size_bytes() as u64, move |offset, target| {
            meanwhile(&mut writer.borrow_mut(), counter.replace(counter.get() + 1));
            let source = writer.borrow().memory.base().wrapping_add(offset as usize);
            // SAFETY: offset and length are inside the memory, by the geometry; this thread is the only writer.
            unsafe { std::ptr::copy_nonoverlapping(source, target.as_mut_ptr(), target.len()) };
        });
        let place = tempfile::tempdir().unwrap();
        let copied = Some(CopiedMemory::of(&memory, &self.directory).unwrap());
        let output = Dir::open(place.path()).unwrap();
        let result = merge(&self.directory, SearchResult { copied, ..SearchResult::default() }, &output).unwrap();
        (result, numbers(place.path()), asked.get())
    }
}

fn begun() -> Bench {
    let bench = Bench::new();
    bench.writer.borrow_mut().hop();
    bench
}

#[test]
fn once_everything_is_had() {
    for busy in [&[1][..], &[0], &[1, 0], &[1, 0, 1]] {
        let mut question = 0;
        loop {
            let bench = begun();
            let written = bench.writer.borrow().next;
            let (result, numbers, asked) = bench.salvage(move |writer, number| {
                if number == question {
                    busy.iter().for_each(|stream| writer.write(*stream, EVERYTHING));
                }
            });
            let at = format!("streams {busy:?} overwritten before question {question}");
            assert_eq!(result.missing, Vec::<String>::new(), "{at}");
            assert_no_hole(&numbers, &at);
            assert!(numbers.last().is_none_or(|last| *last + 1 >= written), "{at}: {:?} of {written}", numbers.last());
            if question >= asked {
                break;
            }
            question += 1;
        }
        assert!(question > 10, "{question}");
    }
}

#[test]
fn again_and_again_it_is_said() {
    for first in [0, 2, 5, 9] {
        let bench = begun();
        let (result, numbers, _) = bench.salvage(move |writer, number| {
            if number >= first {
                writer.write(1, EVERYTHING);
            }
        });
        let is_told = result.missing.len() == 1 && result.missing[0].contains("faster");
        if !is_told {
            assert_eq!(result.missing, Vec::<String>::new());
            assert_no_hole(&numbers, &format!("overwritten before every question from {first} on"));
        }
    }
}

#[test]
fn a_stream_that_has_given_everything_up_says_so() {
    let bench = begun();
    bench.writer.borrow_mut().give_all_up(1);
    bench.writer.borrow_mut().write(0, 20);
    let (result, numbers, _) = bench.salvage(|_, _| {});
    assert_eq!(result.missing, Vec::<String>::new());
    let next = bench.writer.borrow().next;
    assert_eq!(numbers, (next - 20..next).collect::<Vec<u64>>());
}
