//! Operations on page chains that share a budget, compared with the oracle of the tests: pages of at least 4 KiB.
#![no_main]

#[allow(dead_code, unused_imports, reason = "what draws operations for the tests stays unused")]
#[path = "../tests/chain.rs"]
mod chain;

use arbitrary::{Arbitrary, Result, Unstructured};
use chain::{CHAINS_MAX, Operation, PAGES, RelativeOffset, WRITE_METHODS};
use libfuzzer_sys::fuzz_target;

/// Maximum number of operations, because all bytes are compared after each.
const OPERATIONS_MAX: usize = 24;

/// The size of a page, in bytes, and the operations.
#[derive(Debug)]
struct Input {
    page_size_bytes: usize,
    operations: Vec<Operation>,
}

fn offset(u: &mut Unstructured<'_>) -> Result<RelativeOffset> {
    Ok(match u.int_in_range(0..=7u8)? {
        0..=2 => RelativeOffset::Part(u.arbitrary()?, u.arbitrary()?),
        3 | 4 => RelativeOffset::PageEnd(u.int_in_range(0..=999)?, u.int_in_range(0..=39)?),
        5 => RelativeOffset::End(u.int_in_range(0..=39)?),
        6 => RelativeOffset::OutOfBounds(u.int_in_range(0..=39)?),
        _ => RelativeOffset::Far(u.arbitrary()?),
    })
}

/// Returns bytes: short strings come from the input, long ones from a pattern.
fn bytes(u: &mut Unstructured<'_>) -> Result<Vec<u8>> {
    let len = u.int_in_range(0..=255usize)?;
    if len < 64 {
        return Ok(u.bytes(len.min(u.len()))?.to_vec());
    }
    let len = if len < 192 { len } else { 64 * len };
    let byte: u8 = u.arbitrary()?;
    Ok((0..len).map(|at| byte ^ (at * 7) as u8).collect())
}

fn operation(u: &mut Unstructured<'_>) -> Result<Operation> {
    let chain = u.int_in_range(0..=CHAINS_MAX - 1)?;
    let page_count = u.int_in_range(0..=PAGES)?;
    Ok(match u.int_in_range(0..=15u8)? {
        0 | 1 => {
            Operation::Open { page_count: page_count.min(PAGES - 1), promised_count: u.int_in_range(0..=PAGES / 2)? }
        }
        2 => Operation::Close { chain },
        3 => Operation::Grow { chain, page_count },
        4 => Operation::Shrink { chain, page_count },
        5 => Operation::Promise { chain, promised_count: page_count },
        6..=9 => Operation::Write {
            chain,
            method: WRITE_METHODS[u.int_in_range(0..=WRITE_METHODS.len() - 1)?],
            offset: offset(u)?,
            bytes: bytes(u)?,
        },
        10 | 11 => Operation::Nested { chain, offset: offset(u)?, parts: [bytes(u)?, bytes(u)?, bytes(u)?] },
        12 => Operation::Read { chain, offset: offset(u)?, len: u.int_in_range(0..=9_000)? },
        13 => Operation::Address { chain, offset: offset(u)?, len: u.int_in_range(0..=64)? },
        _ => Operation::Shuffle { page_count, step: u.int_in_range(1..=7)? },
    })
}

impl<'a> Arbitrary<'a> for Input {
    fn arbitrary(u: &mut Unstructured<'a>) -> Result<Input> {
        // Larger pages are rare, because the check compares all of their bytes.
        let page_size_bytes = 4096 << u.int_in_range(0..=15u8)?.saturating_sub(12);
        let mut operations = Vec::new();
        while !u.is_empty() && operations.len() < OPERATIONS_MAX {
            operations.push(operation(u)?);
        }
        Ok(Input { page_size_bytes, operations })
    }
}

fuzz_target!(|input: Input| chain::run(input.page_size_bytes, &input.operations));
