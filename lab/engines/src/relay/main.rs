//! Dormouse's engine for the experiment `relay-write`: records written to page chains, in the paper's ways and in ours.
//!
//! ```text
//!   WAY_RECORD_ALIGNMENT_PAGES
//!     WAY         memcpy, specialised, checked-bytes, checked-memcpy, words
//!                               the write is a call, and copies as described in [`copies`] (Memcpy, Switch, Bytewise, Fallback, Words)
//!                 inside-specialised, inside-checked-bytes
//!                               specialised and checked-bytes as two loops of one function, which is there in many copies; each run
//!                               takes another one, whose loops are at another place ([`inside`])
//!                 inlined       like words, with the path to the cached page inlined; lengths are known at compile time
//!                 empty         the same loop, without writes
//!     RECORD      1, 2, 4, 8    a number           16, 64, 256   bytes from memory
//!                 mix           four records of numbers of all sizes and a text, field by field
//!     ALIGNMENT   aligned       to its size; with `mix`, each record to 8
//!                 unaligned     one byte further; with `mix`, packed
//!     PAGES       list, table               16 KiB in pages of 4 KiB
//!                 large-list, large-table   4 MiB in pages of 4 KiB
//!                 huge-list                 4 MiB in pages of 2 MiB, which are huge pages if the system gives them
//!                 channel                   a channel that overwrites: the record is also reserved and committed; `called` there is
//!                                           a call of the whole, for a length that it does not know
//! ```
//! No timestamp is taken: only the write is measured. The buffer's pages are in random order in the budget's memory.
//!
//! # What is verified
//! Each record is an event. It has arrived if its write was not refused. At the end every case runs once more, for a
//! little more than twice its buffer, and the whole buffer is read back and compared with the expected bytes.
//!
//! The length of searches is counted, not timed: before and after each write, the chain's cached page is looked up. It is
//! counted for a writer alone, with a handler that is called after each field, and with signals that interrupt the writer anywhere
//! ([`signals`]).

use std::process::ExitCode;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use copies::Copying;
use dormouse_backing::{Huge, MemoryOptions, PrivatePool};
use dormouse_lab_harness::{Case, Engine, Loop, opaque, report};
use dormouse_relay_chain::{Chain, Link, OutOfBounds, PageBudget};
use table::Table;

mod channel;
mod copies;
mod inside;
mod signals;
mod table;

const SMALL_BYTES: usize = 16 << 10;
const LARGE_BYTES: usize = 4 << 20;
const PAGE_BYTES: usize = 4 << 10;
const HUGE_BYTES: usize = 2 << 20;

/// Bytes that long records and texts are copied from: eight of the longest, one byte more, and the text's length.
#[repr(align(64))]
struct Source([u8; 9 * 256]);

static SOURCE: Source = {
    let mut bytes = [0; 9 * 256];
    let mut index = 0;
    while index < bytes.len() {
        bytes[index] = (index * 167 + index / 256 * 29) as u8;
        index += 1;
    }
    Source(bytes)
};

/// A target for the fields of a record, one after another.
trait Sink {
    /// Writes a field that is in registers.
    fn value<const N: usize>(&mut self, bytes: [u8; N]);
    /// Writes a field that is in memory.
    fn bytes(&mut self, bytes: &[u8]);
    /// Advances to the next multiple of 8.
    fn align(&mut self);
}

/// A kind of record to write.
trait Shape: 'static {
    /// Number of records that an iteration writes.
    const RECORDS: u64;
    /// Maximum number of bytes that an iteration writes.
    const LEN_MAX: usize;
    /// Offset of the first record.
    const START: usize;
    fn write(sink: &mut impl Sink, number: u64);
}

/// A number of 1, 2, 4 or 8 bytes, or more bytes from memory; `AT` bytes past an aligned offset.
struct Bytes<const N: usize, const AT: usize>;

impl<const N: usize, const AT: usize> Shape for Bytes<N, AT> {
    const RECORDS: u64 = 1;
    const LEN_MAX: usize = N;
    const START: usize = AT;

    #[inline(always)]
    fn write(sink: &mut impl Sink, number: u64) {
        if N <= 8 {
            let word = number.to_le_bytes();
            sink.value::<N>(std::array::from_fn(|index| word[index & 7]));
        } else {
            let start = (number & 7) as usize * 256 + AT;
            sink.bytes(&SOURCE.0[start..start + N]);
        }
    }
}

/// Four records as programs write them: header and context of 8 bytes each, then fields.
struct Mix<const AT: usize>;

impl<const AT: usize> Shape for Mix<AT> {
    const RECORDS: u64 = 4;
    const LEN_MAX: usize = 192;
    const START: usize = AT;

    #[inline(always)]
    fn write(sink: &mut impl Sink, number: u64) {
        let next = |sink: &mut _, kind: u64| {
            if AT == 0 {
                Sink::align(sink);
            }
            Sink::value(sink, (number << 2 | kind).to_le_bytes());
            Sink::value(sink, 0x0102_0304_0506_0708u64.to_le_bytes());
        };
        // An identifier and a total.
        next(sink, 0);
        sink.value((number as u32).to_le_bytes());
        sink.value(number.wrapping_mul(3).to_le_bytes());
        // A status, its class, its port.
        next(sink, 1);
        sink.value([number as u8]);
        sink.value((number as u16).to_le_bytes());
        sink.value((number as u32 ^ 5).to_le_bytes());
        // A text, with its terminator.
        next(sink, 2);
        let start = (number & 7) as usize * 256;
        sink.bytes(&SOURCE.0[start..start + 5 + (number & 15) as usize]);
        sink.value([0]);
        // A digest and an offset.
        next(sink, 3);
        sink.bytes(&SOURCE.0[start..start + 16]);
        sink.value(number.wrapping_add(7).to_le_bytes());
    }
}

/// A buffer of pages, with all ways to write to it.
trait Buffer: Send + 'static {
    fn copied<C: Copying>(&mut self, offset: usize, bytes: &[u8]) -> Result<(), OutOfBounds>;
    fn called<C: Copying>(&mut self, offset: usize, bytes: &[u8]) -> Result<(), OutOfBounds>;
    fn inlined(&mut self, offset: usize, bytes: &[u8]) -> Result<(), OutOfBounds>;
    fn inlined_value<const N: usize>(&mut self, offset: usize, bytes: [u8; N]) -> Result<(), OutOfBounds>;
    fn read(&self) -> Result<Vec<u8>, OutOfBounds>;
}

/// Returns the same bytes and hides their number. A compiler that knows the number would specialise the called function
/// for each length.
#[inline(always)]
fn of_unknown_length(bytes: &[u8]) -> &[u8] {
    let len = opaque(bytes.len() as u64) as usize;
    // SAFETY: the same slice: `opaque` returns the length unchanged.
    unsafe { std::slice::from_raw_parts(bytes.as_ptr(), len) }
}

macro_rules! buffer {
    ($buffer:ty) => {
        impl Buffer for $buffer {
            #[inline(never)]
            fn called<C: Copying>(&mut self, offset: usize, bytes: &[u8]) -> Result<(), OutOfBounds> {
                self.copied::<C>(offset, bytes)
            }

            #[inline(always)]
            fn copied<C: Copying>(&mut self, offset: usize, bytes: &[u8]) -> Result<(), OutOfBounds> {
                let bytes = of_unknown_length(bytes);
                match self.cached(offset, bytes.len()) {
                    Some(address) => {
                        // SAFETY: `cached` returned the address of `bytes.len()` bytes of the buffer, which is borrowed
                        // exclusively; the source is a slice of that length.
                        unsafe { C::copy(address.as_ptr(), bytes.as_ptr(), bytes.len()) };
                        Ok(())
                    }
                    None => self.write(offset, bytes),
                }
            }

            #[inline(always)]
            fn inlined(&mut self, offset: usize, bytes: &[u8]) -> Result<(), OutOfBounds> {
                self.write(offset, bytes)
            }

            #[inline(always)]
            fn inlined_value<const N: usize>(&mut self, offset: usize, bytes: [u8; N]) -> Result<(), OutOfBounds> {
                self.write_array(offset, bytes)
            }

            fn read(&self) -> Result<Vec<u8>, OutOfBounds> {
                let mut bytes = vec![0; self.size_bytes()];
                <$buffer>::read(self, 0, &mut bytes).map(|()| bytes)
            }
        }
    };
}

buffer!(Chain<'static>);
buffer!(Table);

/// A way of writing a field.
trait Way: 'static {
    fn value<const N: usize>(buffer: &mut impl Buffer, offset: usize, bytes: [u8; N]) -> Result<(), OutOfBounds>;
    fn bytes(buffer: &mut impl Buffer, offset: usize, bytes: &[u8]) -> Result<(), OutOfBounds>;
}

struct Empty;
struct Called<C>(std::marker::PhantomData<C>);
struct Inlined;

impl Way for Empty {
    #[inline(always)]
    fn value<const N: usize>(_: &mut impl Buffer, offset: usize, _: [u8; N]) -> Result<(), OutOfBounds> {
        opaque(offset as u64);
        Ok(())
    }

    #[inline(always)]
    fn bytes(_: &mut impl Buffer, offset: usize, bytes: &[u8]) -> Result<(), OutOfBounds> {
        opaque((offset + bytes.len()) as u64);
        Ok(())
    }
}

impl<C: Copying> Way for Called<C> {
    #[inline(always)]
    fn value<const N: usize>(buffer: &mut impl Buffer, offset: usize, bytes: [u8; N]) -> Result<(), OutOfBounds> {
        buffer.called::<C>(offset, &bytes)
    }

    #[inline(always)]
    fn bytes(buffer: &mut impl Buffer, offset: usize, bytes: &[u8]) -> Result<(), OutOfBounds> {
        buffer.called::<C>(offset, bytes)
    }
}

impl Way for Inlined {
    #[inline(always)]
    fn value<const N: usize>(buffer: &mut impl Buffer, offset: usize, bytes: [u8; N]) -> Result<(), OutOfBounds> {
        buffer.inlined_value(offset, bytes)
    }

    #[inline(always)]
    fn bytes(buffer: &mut impl Buffer, offset: usize, bytes: &[u8]) -> Result<(), OutOfBounds> {
        buffer.inlined(offset, bytes)
    }
}

/// A buffer, the offset up to which it is written, and the numbers of records written and of writes refused.
struct Bench<B> {
    buffer: B,
    size_bytes: usize,
    offset: usize,
    written: u64,
    refused: u64,
}

struct Writing<'b, B, W> {
    buffer: &'b mut B,
    offset: usize,
    refused: u64,
    way: std::marker::PhantomData<W>,
}

impl<B: Buffer, W: Way> Sink for Writing<'_, B, W> {
    #[inline(always)]
    fn value<const N: usize>(&mut self, bytes: [u8; N]) {
        if W::value(self.buffer, self.offset, bytes).is_err() {
            self.refused += 1;
        }
        self.offset += N;
    }

    #[inline(always)]
    fn bytes(&mut self, bytes: &[u8]) {
        if W::bytes(self.buffer, self.offset, bytes).is_err() {
            self.refused += 1;
        }
        self.offset += bytes.len();
    }

    #[inline(always)]
    fn align(&mut self) {
        self.offset = self.offset.next_multiple_of(8);
    }
}

/// The expected content of the buffer.
struct Expected {
    bytes: Vec<u8>,
    offset: usize,
}

impl Sink for Expected {
    fn value<const N: usize>(&mut self, bytes: [u8; N]) {
        self.bytes(&bytes);
    }

    fn bytes(&mut self, bytes: &[u8]) {
        self.bytes[self.offset..self.offset + bytes.len()].copy_from_slice(bytes);
        self.offset += bytes.len();
    }

    fn align(&mut self) {
        self.offset = self.offset.next_multiple_of(8);
    }
}

/// Returns the offset of the next iteration's first record: the start again if the iteration may not fit.
#[inline(always)]
fn place<S: Shape>(offset: usize, size_bytes: usize) -> usize {
    if offset + S::LEN_MAX > size_bytes { S::START } else { offset }
}

/// A kind of pages, with the buffer made of them.
trait Pages: 'static {
    type Buffer: Buffer;
    fn bench() -> MutexGuard<'static, Bench<Self::Buffer>>;
}

fn locked<B>(
    bench: &'static OnceLock<Mutex<Bench<B>>>,
    make: impl FnOnce() -> Bench<B>,
) -> MutexGuard<'static, Bench<B>> {
    bench.get_or_init(|| Mutex::new(make())).lock().unwrap_or_else(PoisonError::into_inner)
}

macro_rules! pages {
    ($($name:ident: $buffer:ty, $new:ident, $size_bytes:expr, $page_bytes:expr);* $(;)?) => {$(
        struct $name;

        impl Pages for $name {
            type Buffer = $buffer;

            #[inline(always)]
            fn bench() -> MutexGuard<'static, Bench<Self::Buffer>> {
                static BENCH: OnceLock<Mutex<Bench<$buffer>>> = OnceLock::new();
                locked(&BENCH, || {
                    let buffer = $new($size_bytes, $page_bytes).expect("memory for the buffers");
                    Bench { buffer, size_bytes: $size_bytes, offset: 0, written: 0, refused: 0 }
                })
            }
        }
    )*};
}

pages! {
    List: Chain<'static>, list, SMALL_BYTES, PAGE_BYTES;
    InTable: Table, table, SMALL_BYTES, PAGE_BYTES;
    LargeList: Chain<'static>, list, LARGE_BYTES, PAGE_BYTES;
    LargeTable: Table, table, LARGE_BYTES, PAGE_BYTES;
    HugeList: Chain<'static>, list, LARGE_BYTES, HUGE_BYTES;
}

/// Returns memory with a budget over it, both leaked. Every page is backed, and the free pages are in random order.
fn budget(size_bytes: usize, page_bytes: usize) -> Result<&'static PageBudget<'static>, String> {
    let huge = if page_bytes == HUGE_BYTES { Huge::Prefer } else { Huge::Never };
    let pool = PrivatePool::new(size_bytes, MemoryOptions::new().huge(huge)).map_err(|error| error.to_string())?;
    let (start, _) = pool.into_mapping().into_raw();
    // SAFETY: the mapping, which nothing else refers to and nothing unmaps.
    let region = unsafe { std::slice::from_raw_parts_mut(start, size_bytes) };
    dormouse_lab_harness::assure_backed("the budget's pages", region);
    let page_count = size_bytes / page_bytes;
    let links: Vec<Link> = (0..page_count).map(|_| Link::default()).collect();
    dormouse_lab_harness::assure_backed("the budget's links", &links);
    let budget = PageBudget::new(region, page_bytes, links.leak()).map_err(|error| error.to_string())?;
    let budget = Box::leak(Box::new(budget));
    let mut share = budget.share(0).map_err(|error| error.to_string())?;
    let mut drawn = Vec::new();
    while let Ok(page) = share.draw() {
        drawn.push(page);
    }
    let mut random = 1u64;
    while !drawn.is_empty() {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let index = (random >> 33) as usize % drawn.len();
        share.give_back(drawn.swap_remove(index));
    }
    Ok(budget)
}

fn list(size_bytes: usize, page_bytes: usize) -> Result<Chain<'static>, String> {
    Chain::new(budget(size_bytes, page_bytes)?, size_bytes / page_bytes, 0).map_err(|error| error.to_string())
}

fn table(size_bytes: usize, page_bytes: usize) -> Result<Table, String> {
    Table::new(budget(size_bytes, page_bytes)?, size_bytes / page_bytes).map_err(|error| error.to_string())
}

extern "C" fn run<P: Pages, S: Shape, W: Way>(iterations: u64, first: u64) {
    write_all::<P, S, W>(iterations, first, dormouse_lab_harness::align);
}

/// Writes records, in a loop before whose code `at` is called, which may move that code.
#[inline(always)]
fn write_all<P: Pages, S: Shape, W: Way>(iterations: u64, first: u64, at: impl FnOnce()) {
    let mut guard = P::bench();
    let bench = &mut *guard;
    // Another shape may have left the offset unaligned for this one.
    let start = bench.offset.next_multiple_of(256) + S::START;
    let mut sink =
        Writing::<P::Buffer, W> { buffer: &mut bench.buffer, offset: start, refused: 0, way: std::marker::PhantomData };
    let size_bytes = bench.size_bytes;
    at();
    for number in first..first.wrapping_add(iterations) {
        sink.offset = place::<S>(sink.offset, size_bytes);
        S::write(&mut sink, opaque(number));
    }
    let (offset, refused) = (sink.offset, sink.refused);
    bench.offset = offset;
    bench.refused += refused;
    bench.written += iterations * S::RECORDS;
}

/// A case with its check, which is compiled once for each kind of pages. Empty cases write nothing and need no check.
struct Checked {
    name: &'static str,
    run: Loop,
    shape: Laid,
    check: fn(&Checked) -> Result<(), String>,
}

/// A shape as data, for a check.
struct Laid {
    start: usize,
    len_max: usize,
    write: fn(&mut Expected, u64),
}

/// Runs the case for a little more than twice its buffer, and compares the buffer with the expected content.
fn check<P: Pages>(Checked { name, run, shape, .. }: &Checked) -> Result<(), String> {
    let (before, start, written) = {
        let bench = P::bench();
        let before = bench.buffer.read().map_err(|error| error.to_string())?;
        (before, bench.offset.next_multiple_of(256) + shape.start, bench.written)
    };
    let (iterations, first) = (2 * before.len() as u64 / shape.len_max as u64 + 3, 12_345);
    run(iterations, first);
    let mut expected = Expected { bytes: before, offset: start };
    for number in first..first + iterations {
        if expected.offset + shape.len_max > expected.bytes.len() {
            expected.offset = shape.start;
        }
        (shape.write)(&mut expected, number);
    }
    let mut bench = P::bench();
    bench.written = written;
    let found = bench.buffer.read().map_err(|error| error.to_string())?;
    match found.iter().zip(&expected.bytes).position(|(found, expected)| found != expected) {
        None if bench.refused == 0 => Ok(()),
        None => Err(format!("{name}: {} writes were refused", bench.refused)),
        Some(offset) => Err(format!("{name}: byte {offset} is not what was written there")),
    }
}

#[derive(Default)]
struct Cases {
    cases: Vec<Case>,
    checked: Vec<Checked>,
    of_channel: Vec<OfChannel>,
}

/// A case of a channel: its name, its loop and its check.
type OfChannel = (&'static str, Loop, fn(&str, Loop) -> Result<(), String>);

impl Cases {
    fn way<P: Pages, S: Shape, W: Way>(&mut self, way: &str, of: &str) {
        self.loop_of::<P, S>(way, of, run::<P, S, W>);
    }

    fn loop_of<P: Pages, S: Shape>(&mut self, way: &str, of: &str, run: Loop) {
        let name = &*format!("{way}_{of}").leak();
        self.cases.push(Case { name, run, events_per_iteration: S::RECORDS });
        let shape = Laid { start: S::START, len_max: S::LEN_MAX, write: S::write };
        self.checked.push(Checked { name, run, shape, check: check::<P> });
    }

    /// Adds all ways for a shape in a kind of pages.
    fn add<P: Pages, S: Shape>(&mut self, of: &str) {
        let name = format!("empty_{of}").leak();
        self.cases.push(Case { name, run: run_empty::<P, S>, events_per_iteration: 0 });
        self.way::<P, S, Called<copies::Memcpy>>("memcpy", of);
        self.way::<P, S, Called<copies::Switch>>("specialised", of);
        self.way::<P, S, Called<copies::Words>>("words", of);
        self.way::<P, S, Inlined>("inlined", of);
    }

    /// Adds the ways to write to a channel.
    fn add_channel<S: Shape>(&mut self, of: &'static str) {
        let name = |way: &str| &*format!("{way}_{of}_channel").leak();
        self.cases.push(Case { name: name("empty"), run: channel::run_empty::<S>, events_per_iteration: 0 });
        for (way, run) in [("called", channel::run_called::<S> as Loop), ("inlined", channel::run_inlined::<S> as Loop)]
        {
            self.cases.push(Case { name: name(way), run, events_per_iteration: S::RECORDS });
            self.of_channel.push((name(way), run, channel::check::<S>));
        }
    }

    /// Adds the ways that are meant for machines without efficient unaligned accesses, and one of them beside a way without a
    /// check in one function.
    fn add_checking<S: Shape>(&mut self, of: &str) {
        self.way::<List, S, Called<copies::Bytewise>>("checked-bytes", of);
        self.way::<List, S, Called<copies::Fallback>>("checked-memcpy", of);
        self.loop_of::<List, S>("inside-specialised", of, inside::run::<S, false>);
        self.loop_of::<List, S>("inside-checked-bytes", of, inside::run::<S, true>);
    }

    /// Adds the shapes that are measured in one kind of pages only.
    fn add_all<P: Pages>(&mut self, pages: &str) {
        self.add::<P, Bytes<1, 0>>(&format!("1_aligned_{pages}"));
        self.add::<P, Bytes<2, 0>>(&format!("2_aligned_{pages}"));
        self.add::<P, Bytes<2, 1>>(&format!("2_unaligned_{pages}"));
        self.add::<P, Bytes<4, 0>>(&format!("4_aligned_{pages}"));
        self.add::<P, Bytes<4, 1>>(&format!("4_unaligned_{pages}"));
        self.add::<P, Bytes<16, 0>>(&format!("16_aligned_{pages}"));
        self.add::<P, Bytes<16, 1>>(&format!("16_unaligned_{pages}"));
        self.add::<P, Bytes<256, 0>>(&format!("256_aligned_{pages}"));
        self.add::<P, Bytes<256, 1>>(&format!("256_unaligned_{pages}"));
    }

    /// Adds the shapes that are compared between all kinds of pages.
    fn add_some<P: Pages>(&mut self, pages: &str) {
        self.add::<P, Bytes<8, 0>>(&format!("8_aligned_{pages}"));
        self.add::<P, Bytes<8, 1>>(&format!("8_unaligned_{pages}"));
        self.add::<P, Bytes<64, 0>>(&format!("64_aligned_{pages}"));
        self.add::<P, Bytes<64, 1>>(&format!("64_unaligned_{pages}"));
        self.add::<P, Mix<0>>(&format!("mix_aligned_{pages}"));
        self.add::<P, Mix<1>>(&format!("mix_unaligned_{pages}"));
    }
}

/// Number of pages of the list in which searches are counted.
const WALKED_PAGES: usize = 64;
/// Number of iterations, which fill the list several times.
const WALKED_ITERATIONS: u64 = 10_000;
/// Number of bytes that a handler writes after each field.
const NESTED_BYTES: usize = 64;
/// Maximum number of fields that an iteration writes.
const FIELDS_MAX: usize = 20;

/// A sink that writes to a list and counts the entries that each search has walked over, from the cached page before to
/// the one after.
struct Walked {
    chain: Chain<'static>,
    offset: usize,
    cached: usize,
    entries_max: usize,
    /// Number of bytes that a handler writes, after each field, behind the interrupted record; 0 if there is none.
    nested_bytes: usize,
    /// Offset of the handler's next record.
    nested_at: usize,
}

impl Walked {
    /// Returns the number of the page that the chain has cached. The search starts at the previous one.
    fn cached(&self) -> usize {
        let is_cached = |page: &usize| self.chain.cached(page % WALKED_PAGES * PAGE_BYTES, 1).is_some();
        (self.cached..self.cached + WALKED_PAGES).find(is_cached).map_or(0, |page| page % WALKED_PAGES)
    }

    /// Writes, and counts the entries from the page that was cached before to each page that is written to. A page that
    /// lies back is found from there, too, but not cached.
    fn write(&mut self, offset: usize, bytes: &[u8]) {
        self.chain.write(offset, bytes).expect("room");
        for page in offset / PAGE_BYTES..=(offset + bytes.len() - 1) / PAGE_BYTES {
            let forward = (page + WALKED_PAGES - self.cached) % WALKED_PAGES;
            let entries = forward.min(WALKED_PAGES - forward);
            self.entries_max = self.entries_max.max(entries);
            if entries == forward {
                self.cached = page;
            }
        }
        let cached = self.cached();
        assert_eq!(cached, self.cached, "the page that the chain has cached");
    }
}

impl Sink for Walked {
    fn value<const N: usize>(&mut self, bytes: [u8; N]) {
        self.bytes(&bytes);
    }

    fn bytes(&mut self, bytes: &[u8]) {
        self.write(self.offset, bytes);
        self.offset += bytes.len();
        if self.nested_bytes > 0 {
            self.write(self.nested_at, &SOURCE.0[..self.nested_bytes]);
            self.nested_at += self.nested_bytes;
        }
    }

    fn align(&mut self) {
        self.offset = self.offset.next_multiple_of(8);
    }
}

/// Returns the maximum number of list entries that a write of packed records walks over. After each field, a handler writes
/// this many bytes behind the records, as one does that has interrupted their writer after it had reserved them.
fn entries_walked_max(nested_bytes: usize) -> Result<usize, String> {
    let size_bytes = WALKED_PAGES * PAGE_BYTES;
    let chain = list(size_bytes, PAGE_BYTES)?;
    let mut walked = Walked { chain, offset: 1, cached: 0, entries_max: 0, nested_bytes, nested_at: 0 };
    for number in 0..WALKED_ITERATIONS {
        if walked.offset + Mix::<1>::LEN_MAX + FIELDS_MAX * nested_bytes > size_bytes {
            walked.offset = Mix::<1>::START;
        }
        walked.nested_at = walked.offset + Mix::<1>::LEN_MAX;
        Mix::<1>::write(&mut walked, number);
        if nested_bytes > 0 {
            walked.offset = walked.nested_at;
        }
    }
    Ok(walked.entries_max)
}

/// Runs the loop without writes, and does not count its records.
extern "C" fn run_empty<P: Pages, S: Shape>(iterations: u64, first: u64) {
    run::<P, S, Empty>(iterations, first);
    P::bench().written -= iterations * S::RECORDS;
}

static CHECKED: OnceLock<Vec<Checked>> = OnceLock::new();
static OF_CHANNEL: OnceLock<Vec<OfChannel>> = OnceLock::new();

fn written() -> u64 {
    List::bench().written
        + InTable::bench().written
        + LargeList::bench().written
        + LargeTable::bench().written
        + HugeList::bench().written
        + channel::written()
}

/// Returns the number of bytes of the process in huge pages, as the system reports it.
fn huge_bytes() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/self/smaps_rollup").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("AnonHugePages:"))?;
    let kib: u64 = line.split_whitespace().next()?.parse().ok()?;
    Some(kib << 10)
}

fn verify() -> Result<u64, String> {
    let cases = CHECKED.get().map_or(&[][..], Vec::as_slice);
    for case in cases {
        (case.check)(case)?;
    }
    let of_channel = OF_CHANNEL.get().map_or(&[][..], Vec::as_slice);
    for (name, run, check) in of_channel {
        check(name, *run)?;
    }
    let huge = match huge_bytes() {
        Some(bytes) => format!("{} MiB of the process are huge pages", bytes >> 20),
        None => "the system does not tell of huge pages".into(),
    };
    let (count, entries) = (cases.len() + of_channel.len(), entries_walked_max(0)?);
    let nested = entries_walked_max(NESTED_BYTES)?;
    let text = format!(
        "the buffers of {count} cases were read back and are right; {huge}; entries walked over at most: {entries}; \
         with nested writers: {nested}; {}",
        signals::entries_walked_max()?
    );
    report(written(), 0, &text)
}

fn main() -> ExitCode {
    let mut cases = Cases::default();
    cases.add_all::<List>("list");
    cases.add_some::<List>("list");
    cases.add_checking::<Bytes<2, 0>>("2_aligned_list");
    cases.add_checking::<Bytes<2, 1>>("2_unaligned_list");
    cases.add_checking::<Bytes<4, 0>>("4_aligned_list");
    cases.add_checking::<Bytes<4, 1>>("4_unaligned_list");
    cases.add_checking::<Bytes<8, 0>>("8_aligned_list");
    cases.add_checking::<Bytes<8, 1>>("8_unaligned_list");
    cases.add_checking::<Mix<0>>("mix_aligned_list");
    cases.add_checking::<Mix<1>>("mix_unaligned_list");
    cases.add_some::<InTable>("table");
    cases.add_some::<LargeList>("large-list");
    cases.add_some::<LargeTable>("large-table");
    cases.add_some::<HugeList>("huge-list");
    cases.add_channel::<Bytes<8, 0>>("8_aligned");
    cases.add_channel::<Bytes<16, 0>>("16_aligned");
    cases.add_channel::<Bytes<64, 0>>("64_aligned");
    let Cases { cases, checked, of_channel } = cases;
    let _ = CHECKED.set(checked);
    let _ = OF_CHANNEL.set(of_channel);
    dormouse_lab_harness::main(&Engine {
        name: "dormouse",
        version: env!("CARGO_PKG_VERSION").into(),
        cases,
        arrived: Some(verify),
    })
}
