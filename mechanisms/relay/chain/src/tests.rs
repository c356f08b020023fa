//! The contents of the caches, and the direction of searches.

use super::*;

const PAGE: usize = PAGE_SIZE_BYTES_MIN;

#[repr(C, align(4096))]
#[derive(Clone)]
struct Os([u8; PAGE]);

fn bytes(region: &mut [Os]) -> &mut [u8] {
    // SAFETY: all bytes of the region, borrowed for as long.
    unsafe { core::slice::from_raw_parts_mut(region.as_mut_ptr().cast(), size_of_val(region)) }
}

/// Runs a test with a chain of `page_count` pages.
fn with_chain(page_count: usize, test: impl FnOnce(Chain<'_>)) {
    let mut region = vec![Os([0; PAGE]); page_count];
    let mut links: Vec<Link> = (0..page_count).map(|_| Link::default()).collect();
    let budget = PageBudget::new(bytes(&mut region), PAGE, &mut links).unwrap();
    test(Chain::new(&budget, page_count, 0).unwrap());
}

/// Makes page `from` the writers' cached page, writes to page `to`, and returns the number of the cached page then.
fn cached_after(page_count: usize, from: usize, to: usize, within: usize) -> usize {
    let mut cached = 0;
    with_chain(page_count, |mut chain| {
        // Forward, page by page, so that each page is cached.
        for page in 0..=from {
            chain.write(page * PAGE, &[1]).unwrap();
        }
        assert_eq!(chain.pages.cached_offset(Access::Write), from * PAGE);
        chain.write(to * PAGE + within, &[2]).unwrap();
        cached = chain.pages.cached_offset(Access::Write) / PAGE;
        let mut found = [0];
        chain.read(to * PAGE + within, &mut found).unwrap();
        assert_eq!(found, [2]);
    });
    cached
}

#[test]
fn a_page_found_forward_is_cached_and_one_found_backward_is_not() {
    for page_count in 1..9 {
        for from in 0..page_count {
            for to in 0..page_count {
                let forward = (to + page_count - from) % page_count;
                // If the page is opposite, the search goes forward.
                let is_cached = 2 * forward <= page_count;
                for within in [0, 1, PAGE - 1] {
                    let expected = if is_cached { to } else { from };
                    assert_eq!(
                        cached_after(page_count, from, to, within),
                        expected,
                        "{page_count} {from} {to} {within}"
                    );
                }
            }
        }
    }
}

#[test]
fn each_access_has_its_own_cache() {
    with_chain(4, |mut chain| {
        chain.write(PAGE, &[1]).unwrap();
        chain.read(2 * PAGE, &mut [0]).unwrap();
        assert!(chain.address(PAGE - 8, 8).is_some());
        let cached = [Access::Write, Access::Read, Access::Address].map(|access| chain.pages.cached_offset(access));
        assert_eq!(cached, [PAGE, 2 * PAGE, 0]);
    });
}

#[test]
fn no_cache_names_a_page_that_was_given_back() {
    with_chain(4, |mut chain| {
        chain.write(PAGE, &[1]).unwrap();
        chain.write(3 * PAGE, &[1]).unwrap();
        chain.read(2 * PAGE, &mut [0]).unwrap();
        chain.shrink(3).unwrap();
        assert_eq!([Access::Write, Access::Read].map(|access| chain.pages.cached_offset(access)), [0, 0]);
        assert_eq!(chain.write(PAGE, &[1]), Err(OutOfBounds));
        chain.write(PAGE - 1, &[7]).unwrap();
    });
}
