//! Operations on chains that share a budget, compared with an oracle: a list of bytes for each chain, and arithmetic
//! for the budget.

use std::collections::BTreeSet;
use std::thread;

use dormouse_relay_chain::{BudgetError, Chain, Link, OutOfBounds, PAGE_SIZE_BYTES_MIN, PageBudget};
use proptest::prelude::*;

/// Number of pages in a budget.
pub const PAGES: usize = 12;
/// Maximum number of chains at one time.
pub const CHAINS_MAX: usize = 4;

#[repr(C, align(4096))]
#[derive(Clone)]
struct OsPage([u8; 4096]);

/// Memory for a budget.
struct Bench {
    region: Vec<OsPage>,
    links: Vec<Link>,
}

impl Bench {
    fn new(page_size_bytes: usize, page_count: usize) -> Bench {
        let os_pages = page_size_bytes / 4096 * page_count;
        Bench { region: vec![OsPage([0; 4096]); os_pages], links: (0..page_count).map(|_| Link::default()).collect() }
    }

    fn budget(&mut self, page_size_bytes: usize) -> Result<PageBudget<'_>, BudgetError> {
        let size_bytes = size_of_val(self.region.as_slice());
        // SAFETY: all of the pages, as bytes, borrowed for as long.
        let region = unsafe { std::slice::from_raw_parts_mut(self.region.as_mut_ptr().cast(), size_bytes) };
        PageBudget::new(region, page_size_bytes, &mut self.links)
    }
}

/// A method of writing bytes.
#[derive(Debug, Clone, Copy)]
#[allow(missing_docs)]
pub enum WriteMethod {
    Write,
    Array,
    Shared,
}

/// All methods of writing.
pub const WRITE_METHODS: [WriteMethod; 3] = [WriteMethod::Write, WriteMethod::Array, WriteMethod::Shared];

/// An offset in a buffer, relative to its size, so that it is valid for any buffer; some are beyond the end.
#[derive(Debug, Clone, Copy)]
#[allow(missing_docs)]
pub enum RelativeOffset {
    /// Number of thousandths of the buffer, and a number of further bytes.
    Part(u16, u8),
    /// Number of bytes before the end of a page, whose number is given in thousandths of the pages.
    PageEnd(u16, u8),
    /// Number of bytes before the end of the buffer.
    End(u8),
    OutOfBounds(u8),
    Far(usize),
}

impl RelativeOffset {
    fn resolve(self, size_bytes: usize, page_size_bytes: usize) -> usize {
        match self {
            RelativeOffset::Part(part, more) => size_bytes * (part as usize % 1000) / 1000 + more as usize,
            RelativeOffset::PageEnd(part, less) => {
                let pages = size_bytes / page_size_bytes;
                (1 + part as usize * pages / 1000 % pages) * page_size_bytes - less as usize
            }
            RelativeOffset::End(less) => size_bytes - less as usize,
            RelativeOffset::OutOfBounds(more) => size_bytes + more as usize,
            RelativeOffset::Far(offset) => offset,
        }
    }
}

/// The operations on chains and their budget. The fuzz target `chain` runs them too.
#[derive(Debug, Clone)]
#[allow(missing_docs)]
pub enum Operation {
    Open {
        page_count: usize,
        promised_count: usize,
    },
    Close {
        chain: usize,
    },
    Grow {
        chain: usize,
        page_count: usize,
    },
    Shrink {
        chain: usize,
        page_count: usize,
    },
    Promise {
        chain: usize,
        promised_count: usize,
    },
    Write {
        chain: usize,
        method: WriteMethod,
        offset: RelativeOffset,
        bytes: Vec<u8>,
    },
    /// A record in two parts, between which a handler writes a record that begins at the end of this one.
    Nested {
        chain: usize,
        offset: RelativeOffset,
        parts: [Vec<u8>; 3],
    },
    Read {
        chain: usize,
        offset: RelativeOffset,
        len: usize,
    },
    Address {
        chain: usize,
        offset: RelativeOffset,
        len: usize,
    },
    /// Draws `page_count` of the free pages, and gives them back in another order.
    Shuffle {
        page_count: usize,
        step: usize,
    },
}

fn offsets() -> impl Strategy<Value = RelativeOffset> {
    prop_oneof![
        6 => (0..1000u16, any::<u8>()).prop_map(|(part, more)| RelativeOffset::Part(part, more)),
        4 => (0..1000u16, 0..40u8).prop_map(|(part, less)| RelativeOffset::PageEnd(part, less)),
        2 => (0..40u8).prop_map(RelativeOffset::End),
        1 => (0..40u8).prop_map(RelativeOffset::OutOfBounds),
        1 => prop_oneof![Just(usize::MAX), Just(usize::MAX / 2), any::<usize>()].prop_map(RelativeOffset::Far),
    ]
}

fn some_bytes() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        6 => prop::collection::vec(any::<u8>(), 0..40),
        2 => prop::collection::vec(any::<u8>(), 40..300),
        1 => (4000..14_000usize, any::<u8>()).prop_map(|(len, byte)| (0..len).map(|at| byte ^ (at * 7) as u8).collect()),
    ]
}

fn operations() -> impl Strategy<Value = Vec<Operation>> {
    let chain = 0..CHAINS_MAX;
    let count = 0..PAGES + 1;
    let operation = prop_oneof![
        3 => (0..PAGES, 0..PAGES / 2).prop_map(|(page_count, promised_count)| {
            Operation::Open { page_count, promised_count }
        }),
        1 => chain.clone().prop_map(|chain| Operation::Close { chain }),
        2 => (chain.clone(), 0..5usize).prop_map(|(chain, page_count)| Operation::Grow { chain, page_count }),
        2 => (chain.clone(), 0..5usize).prop_map(|(chain, page_count)| Operation::Shrink { chain, page_count }),
        1 => (chain.clone(), count.clone()).prop_map(|(chain, promised_count)| Operation::Promise { chain, promised_count }),
        8 => (chain.clone(), 0..WRITE_METHODS.len(), offsets(), some_bytes()).prop_map(|(chain, method, offset, bytes)| {
            Operation::Write { chain, method: WRITE_METHODS[method], offset, bytes }
        }),
        3 => (chain.clone(), offsets(), [some_bytes(), some_bytes(), some_bytes()]).prop_map(|(chain, offset, parts)| {
            Operation::Nested { chain, offset, parts }
        }),
        3 => (chain.clone(), offsets(), 0..9000usize).prop_map(|(chain, offset, len)| Operation::Read { chain, offset, len }),
        2 => (chain, offsets(), 0..64usize).prop_map(|(chain, offset, len)| Operation::Address { chain, offset, len }),
        2 => (count, 1..7usize).prop_map(|(page_count, step)| Operation::Shuffle { page_count, step }),
    ];
    prop::collection::vec(operation, 1..80)
}

/// A chain, and its expected contents.
struct CheckedChain<'a> {
    chain: Chain<'a>,
    bytes: Vec<u8>,
    promised_count: usize,
}

fn write(chain: &mut Chain<'_>, method: WriteMethod, offset: usize, bytes: &[u8]) -> Result<(), OutOfBounds> {
    match method {
        WriteMethod::Array => match *bytes {
            [] => chain.write_array(offset, []),
            [a] => chain.write_array(offset, [a]),
            [a, b] => chain.write_array(offset, [a, b]),
            [a, b, c, d] => chain.write_array(offset, [a, b, c, d]),
            [a, b, c, d, e, f, g, h] => chain.write_array(offset, [a, b, c, d, e, f, g, h]),
            _ => chain.write(offset, bytes),
        },
        // SAFETY: no other thread has the chain.
        WriteMethod::Shared => unsafe { chain.write_shared(offset, bytes.as_ptr(), bytes.len()) },
        WriteMethod::Write => chain.write(offset, bytes),
    }
}

/// Applies a write to the oracle, and returns the expected result.
fn write_oracle(oracle: &mut [u8], offset: usize, bytes: &[u8]) -> Result<(), OutOfBounds> {
    let end = offset.checked_add(bytes.len()).ok_or(OutOfBounds)?;
    oracle.get_mut(offset..end).ok_or(OutOfBounds)?.copy_from_slice(bytes);
    Ok(())
}

fn read(chain: &Chain<'_>, offset: usize, len: usize) -> Result<Vec<u8>, OutOfBounds> {
    let mut bytes = vec![0x5A; len];
    let found = chain.read(offset, &mut bytes);
    if found.is_err() {
        assert!(bytes.iter().all(|byte| *byte == 0x5A), "nothing is copied where there is an error");
    }
    found.map(|()| bytes)
}

/// Asserts that no page is in two chains or twice in one, that the other pages are free, and that the promised number
/// of these is kept.
fn check(budget: &PageBudget<'_>, chains: &[CheckedChain<'_>]) {
    let page = budget.page_size_bytes();
    let mut addresses = BTreeSet::new();
    let (mut drawn_count, mut kept_count) = (0, 0);
    for checked in chains {
        let count = checked.chain.page_count();
        assert_eq!(count * page, checked.bytes.len());
        let chain = &checked.chain;
        assert_eq!(chain.size_bytes(), checked.bytes.len());
        assert_eq!(chain.promised_count(), checked.promised_count);
        assert!(
            read(chain, 0, checked.bytes.len()).as_ref() == Ok(&checked.bytes),
            "the chain holds what the oracle holds"
        );
        for number in 0..count {
            let address = chain.address(number * page, page).expect("a page's bytes are in one piece").addr().get();
            assert!(address.is_multiple_of(PAGE_SIZE_BYTES_MIN));
            assert!(addresses.insert(address), "a page is in two places");
        }
        drawn_count += count;
        kept_count += checked.promised_count.saturating_sub(count);
    }
    assert_eq!(budget.free_count(), budget.page_count() - drawn_count);
    assert_eq!(budget.available_count(), budget.free_count() - kept_count);
    let (first, last) = (addresses.first().copied(), addresses.last().copied());
    if let (Some(first), Some(last)) = (first, last) {
        assert!(last - first < budget.page_count() * page, "all in one region");
    }
}

/// Returns whether the budget's arithmetic allows `more` further pages for a chain.
fn may_draw(budget: &PageBudget<'_>, promised_count: usize, drawn_count: usize, more: usize) -> bool {
    let kept = promised_count.saturating_sub(drawn_count);
    more.saturating_sub(kept) <= budget.available_count()
}

/// Runs all operations, and compares with the oracle after each.
pub fn run(page_size_bytes: usize, operations: &[Operation]) {
    let mut bench = Bench::new(page_size_bytes, PAGES);
    let budget = bench.budget(page_size_bytes).unwrap();
    let mut chains: Vec<CheckedChain<'_>> = Vec::new();
    for operation in operations {
        apply(&budget, &mut chains, operation);
        check(&budget, &chains);
    }
    drop(chains);
    assert_eq!((budget.free_count(), budget.available_count()), (PAGES, PAGES));
}

fn apply<'a>(budget: &'a PageBudget<'a>, chains: &mut Vec<CheckedChain<'a>>, operation: &Operation) {
    let len = chains.len();
    let index = |chain: &usize| if len == 0 { None } else { Some(chain % len) };
    match operation {
        &Operation::Open { page_count, promised_count } => {
            if len == CHAINS_MAX {
                return;
            }
            let opened = Chain::new(budget, page_count, promised_count);
            let (available, wanted) = (budget.available_count(), page_count.max(promised_count));
            match opened {
                Ok(chain) => {
                    let bytes = read(&chain, 0, page_count * budget.page_size_bytes()).unwrap();
                    chains.push(CheckedChain { chain, bytes, promised_count });
                }
                Err(BudgetError::NoPage) => assert_eq!(page_count, 0),
                Err(BudgetError::Exhausted) => assert!(wanted > available),
                Err(error) => panic!("{error}"),
            }
        }
        Operation::Close { chain } => {
            if let Some(index) = index(chain) {
                chains.swap_remove(index);
            }
        }
        Operation::Grow { chain, page_count } => {
            let Some(index) = index(chain) else { return };
            let checked = &mut chains[index];
            let before = checked.bytes.len();
            let may = may_draw(budget, checked.promised_count, checked.chain.page_count(), *page_count);
            match checked.chain.grow(*page_count) {
                Ok(()) => {
                    assert!(may);
                    let more = page_count * budget.page_size_bytes();
                    checked.bytes.extend(read(&checked.chain, before, more).unwrap());
                }
                Err(error) => assert!(error == BudgetError::Exhausted && !may, "{error}"),
            }
        }
        Operation::Shrink { chain, page_count } => {
            let Some(index) = index(chain) else { return };
            let checked = &mut chains[index];
            let is_possible = *page_count < checked.chain.page_count();
            let shrunk = checked.chain.shrink(*page_count);
            assert_eq!(shrunk, if is_possible { Ok(()) } else { Err(BudgetError::NoPage) });
            if is_possible {
                checked.bytes.truncate(checked.bytes.len() - page_count * budget.page_size_bytes());
            }
        }
        Operation::Promise { chain, promised_count } => {
            let Some(index) = index(chain) else { return };
            let checked = &mut chains[index];
            let kept = |promised_count: usize| promised_count.saturating_sub(checked.chain.page_count());
            let may = kept(*promised_count) <= budget.available_count() + kept(checked.promised_count);
            let set = checked.chain.set_promised_count(*promised_count);
            assert_eq!(set, if may { Ok(()) } else { Err(BudgetError::Exhausted) });
            if may {
                checked.promised_count = *promised_count;
            }
        }
        Operation::Write { chain, method, offset, bytes } => {
            let Some(index) = index(chain) else { return };
            let checked = &mut chains[index];
            let offset = offset.resolve(checked.bytes.len(), budget.page_size_bytes());
            let written = write(&mut checked.chain, *method, offset, bytes);
            assert_eq!(written, write_oracle(&mut checked.bytes, offset, bytes), "{offset}");
        }
        Operation::Nested { chain, offset, parts: [first, second, nested] } => {
            let Some(index) = index(chain) else { return };
            let checked = &mut chains[index];
            let offset = offset.resolve(checked.bytes.len(), budget.page_size_bytes());
            let middle = offset.wrapping_add(first.len());
            let end = middle.wrapping_add(second.len());
            for (offset, bytes) in [(offset, first), (end, nested), (middle, second)] {
                // SAFETY: no other thread has the chain, and the parts do not overlap.
                let written = unsafe { checked.chain.write_shared(offset, bytes.as_ptr(), bytes.len()) };
                assert_eq!(written, write_oracle(&mut checked.bytes, offset, bytes));
            }
        }
        Operation::Read { chain, offset, len } => {
            let Some(index) = index(chain) else { return };
            let checked = &chains[index];
            let offset = offset.resolve(checked.bytes.len(), budget.page_size_bytes());
            let found = read(&checked.chain, offset, *len);
            let end = offset.checked_add(*len);
            assert_eq!(found.ok().as_deref(), end.and_then(|end| checked.bytes.get(offset..end)));
        }
        Operation::Address { chain, offset, len } => {
            let Some(index) = index(chain) else { return };
            let checked = &chains[index];
            let page = budget.page_size_bytes();
            let offset = offset.resolve(checked.bytes.len(), page);
            match checked.chain.address(offset, *len) {
                Some(address) => {
                    // SAFETY: `len` bytes of one page, which are not written.
                    let found = unsafe { std::slice::from_raw_parts(address.as_ptr(), *len) };
                    assert_eq!(found, &checked.bytes[offset..offset + len]);
                }
                None => {
                    let is_beyond = offset.checked_add(*len).is_none_or(|end| end > checked.bytes.len());
                    let is_empty_at_end = *len == 0 && offset == checked.bytes.len();
                    assert!(is_beyond || is_empty_at_end || offset % page + len > page);
                }
            }
        }
        Operation::Shuffle { page_count, step } => {
            let mut share = budget.share(0).unwrap();
            let mut drawn = Vec::new();
            while drawn.len() < *page_count {
                match share.draw() {
                    Ok(page) => drawn.push(page),
                    Err(error) => {
                        assert_eq!((error, budget.available_count()), (BudgetError::Exhausted, 0));
                        break;
                    }
                }
            }
            while !drawn.is_empty() {
                let index = step % drawn.len();
                share.give_back(drawn.swap_remove(index));
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn chains_hold_what_the_oracle_holds(operations in operations()) {
        run(4096, &operations);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(20))]

    #[test]
    fn whatever_the_size_of_a_page(shift in 12..17u32, operations in operations()) {
        run(1 << shift, &operations);
    }
}

#[test]
fn budgets_are_not_made_of_just_anything() {
    let refused = |page_size_bytes, pages, links| {
        let mut bench = Bench::new(4096, pages);
        bench.links.truncate(links);
        bench.budget(page_size_bytes).map(|_| ()).unwrap_err()
    };
    for page_size_bytes in [0, 1, 2048, 4095, 4097, 12_288, 4 << 20, usize::MAX] {
        assert_eq!(refused(page_size_bytes, 2, 2), BudgetError::PageSize, "{page_size_bytes}");
    }
    assert_eq!(refused(4096, 0, 0), BudgetError::PageCount);
    assert_eq!(refused(8192, 1, 1), BudgetError::PageCount);
    assert_eq!(refused(4096, 3, 2), BudgetError::Links);

    let mut bench = Bench::new(4096, 3);
    let bytes = size_of_val(bench.region.as_slice());
    // SAFETY: all of the pages, as bytes, borrowed for as long.
    let region: &mut [u8] = unsafe { std::slice::from_raw_parts_mut(bench.region.as_mut_ptr().cast(), bytes) };
    let mut links: Vec<Link> = (0..3).map(|_| Link::default()).collect();
    assert_eq!(PageBudget::new(&mut region[64..], 4096, &mut links).map(|_| ()), Err(BudgetError::Unaligned));
    // A partial page is left out.
    assert_eq!(PageBudget::new(&mut region[..bytes - 1], 4096, &mut links).unwrap().page_count(), 2);
}

#[test]
fn huge_pages() {
    const HUGE: usize = 2 << 20;
    let mut bench = Bench::new(HUGE, 2);
    let budget = bench.budget(HUGE).unwrap();
    let mut chain = Chain::new(&budget, 2, 2).unwrap();
    chain.write(HUGE - 3, b"crosses").unwrap();
    let mut found = [0; 7];
    chain.read(HUGE - 3, &mut found).unwrap();
    assert_eq!(&found, b"crosses");
    assert_eq!(chain.address(HUGE - 3, 7), None);
    assert_eq!(chain.write(2 * HUGE - 3, b"crosses"), Err(OutOfBounds));
}

#[test]
fn a_promise_is_kept_whatever_others_draw() {
    let mut bench = Bench::new(4096, 10);
    let budget = bench.budget(4096).unwrap();
    let mut quiet = Chain::new(&budget, 1, 4).unwrap();
    let mut busy = Chain::new(&budget, 1, 0).unwrap();
    assert_eq!(Chain::new(&budget, 1, 7).map(|_| ()), Err(BudgetError::Exhausted));
    assert_eq!(busy.grow(6), Err(BudgetError::Exhausted));
    assert_eq!(busy.page_count(), 1);
    busy.grow(5).unwrap();
    assert_eq!((budget.free_count(), budget.available_count()), (3, 0));
    assert_eq!(busy.grow(1), Err(BudgetError::Exhausted));
    assert_eq!(Chain::new(&budget, 1, 0).map(|_| ()), Err(BudgetError::Exhausted));
    assert_eq!(quiet.set_promised_count(5), Err(BudgetError::Exhausted));
    quiet.grow(3).unwrap();
    assert_eq!(quiet.grow(1), Err(BudgetError::Exhausted));
    // A chain that gives back pages beyond its promise makes them available; pages within it are kept for the chain.
    busy.shrink(2).unwrap();
    quiet.shrink(1).unwrap();
    assert_eq!((budget.free_count(), budget.available_count()), (3, 2));
    busy.grow(2).unwrap();
    quiet.set_promised_count(3).unwrap();
    quiet.grow(0).unwrap();
    drop(quiet);
    assert_eq!(budget.available_count(), 4);
}

#[test]
#[should_panic = "somebody else's"]
fn a_page_goes_back_where_it_came_from() {
    let (mut one, mut other) = (Bench::new(4096, 1), Bench::new(4096, 1));
    let (one, other) = (one.budget(4096).unwrap(), other.budget(4096).unwrap());
    let (mut share, mut stranger) = (one.share(0).unwrap(), other.share(0).unwrap());
    let _its_own = stranger.draw().unwrap();
    stranger.give_back(share.draw().unwrap());
}

/// Threads grow and shrink chains at the same time: no page is in two chains, none is lost, and each thread gets what
/// it was promised.
#[test]
fn threads_share_a_budget() {
    const THREADS: usize = 4;
    const PROMISED: usize = 3;
    const ROUNDS: usize = 20_000;
    let mut bench = Bench::new(4096, 16);
    let budget = bench.budget(4096).unwrap();
    // All chains are made before the threads start, because a promise counts from then on.
    let chains: Vec<_> = (0..THREADS).map(|_| Chain::new(&budget, 1, PROMISED).unwrap()).collect();
    thread::scope(|scope| {
        for (number, mut chain) in chains.into_iter().enumerate() {
            scope.spawn(move || {
                let mut random = number as u64 + 1;
                let mut stamps = vec![0u64];
                chain.write(0, &stamps[0].to_ne_bytes()).unwrap();
                for round in 0..ROUNDS {
                    random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                    let count = (random >> 33) as usize % 4;
                    if random >> 40 & 1 == 0 {
                        let before = chain.page_count();
                        let grown = chain.grow(count);
                        assert!(grown.is_ok() || before + count > PROMISED, "the promise is not kept");
                        for page in before..chain.page_count() {
                            let stamp = (round * THREADS + number) as u64;
                            chain.write(page * 4096, &stamp.to_ne_bytes()).unwrap();
                            stamps.push(stamp);
                        }
                    } else if chain.shrink(count).is_ok() {
                        stamps.truncate(chain.page_count());
                    }
                    for (page, stamp) in stamps.iter().enumerate() {
                        let mut found = [0; 8];
                        chain.read(page * 4096, &mut found).unwrap();
                        assert_eq!(u64::from_ne_bytes(found), *stamp, "somebody else has written to the page");
                    }
                }
            });
        }
    });
    assert_eq!((budget.free_count(), budget.available_count()), (16, 16));
}

/// Threads write to one chain, each to every fourth record, many of which cross a page's end.
#[test]
fn threads_share_a_chain() {
    const THREADS: usize = 4;
    const RECORD: usize = 27;
    let mut bench = Bench::new(4096, 9);
    let budget = bench.budget(4096).unwrap();
    let chain = Chain::new(&budget, 9, 0).unwrap();
    let records = chain.size_bytes() / RECORD;
    for round in 0..50u8 {
        let record = |index: usize| -> [u8; RECORD] { core::array::from_fn(|at| (index * 31 + at) as u8 ^ round) };
        thread::scope(|scope| {
            for number in 0..THREADS {
                let (chain, record) = (&chain, &record);
                scope.spawn(move || {
                    for index in (number..records).step_by(THREADS) {
                        let bytes = record(index);
                        // SAFETY: the other threads write other records.
                        unsafe { chain.write_shared(index * RECORD, bytes.as_ptr(), RECORD) }.unwrap();
                    }
                });
            }
        });
        for index in 0..records {
            let mut found = [0; RECORD];
            chain.read(index * RECORD, &mut found).unwrap();
            assert_eq!(found, record(index));
        }
    }
}

/// The oracle is an array; offsets grow by what is written, from shortly before they overflow.
#[test]
fn wrapping_operations_agree_with_an_array() {
    for (page_count, start) in [(1, 0), (4, usize::MAX - 30_000), (3, 5), (7, 4096 * 70)] {
        let size_bytes = page_count * PAGE_SIZE_BYTES_MIN;
        let mut bench = Bench::new(PAGE_SIZE_BYTES_MIN, page_count);
        let budget = bench.budget(PAGE_SIZE_BYTES_MIN).unwrap();
        let mut chain = Chain::new(&budget, page_count, 0).unwrap();
        let mut held = vec![0; size_bytes];
        let mut offset = start;
        for round in 0..3000usize {
            let len = if round % 100 == 99 { size_bytes } else { round * 37 % 90 };
            let bytes: Vec<u8> = (0..len).map(|index| (index * 31 + round) as u8).collect();
            chain.write_wrapping(offset, &bytes).unwrap();
            for (index, byte) in bytes.iter().enumerate() {
                held[offset.wrapping_add(index) % size_bytes] = *byte;
            }
            let mut found = vec![0; len];
            chain.read_wrapping(offset, &mut found).unwrap();
            assert_eq!(found, bytes, "{page_count} pages, offset {offset}");
            let within = offset % size_bytes;
            let is_in_one_page = within % PAGE_SIZE_BYTES_MIN + len <= PAGE_SIZE_BYTES_MIN;
            let address = chain.address_wrapping(offset, len);
            assert!(len == 0 || address.is_some() == is_in_one_page);
            assert!(address.is_none() || address == chain.address(within, len));
            offset = offset.wrapping_add(len);
        }
        let mut all = vec![0; size_bytes];
        chain.read(0, &mut all).unwrap();
        assert!(all == held, "{page_count} pages");
        let more = vec![1; size_bytes + 1];
        assert_eq!(chain.write_wrapping(3, &more), Err(OutOfBounds));
        assert_eq!(chain.read_wrapping(3, &mut vec![0; size_bytes + 1]), Err(OutOfBounds));
        chain.read(0, &mut all).unwrap();
        assert!(all == held, "a refused write has changed nothing");
    }
}
