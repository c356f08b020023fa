//! Page chains and channels for C: the functions of `dormouse/relay.h` that are not inlined.
//!
//! ```text
//!   budget    one mapping: head │ links │ pages, unless the caller gives them      struct dormouse_relay_budget, opaque
//!   chain     in the caller's memory, with C's layout                              struct dormouse_relay_chain
//!             caches, sizes │ the rest of Rust's `Chain`
//! ```

#[cfg(target_pointer_width = "64")]
mod channel;

use core::ffi::{c_int, c_void};
use core::mem::{align_of, offset_of};
use core::ptr::{self, NonNull};

use dormouse_relay_chain::{BudgetError, Chain, Link, OutOfBounds, PAGE_SIZE_BYTES_MIN, PageBudget};

/// `struct dormouse_relay_budget`.
pub struct Budget {
    budget: PageBudget<'static>,
    mapping_size_bytes: usize,
}

/// `struct dormouse_relay_chain`: the members that the header names are followed by private words.
type CChain = Chain<'static>;

/// Size of `struct dormouse_relay_chain`, in words.
const CHAIN_WORDS: usize = 9;
const _: () =
    assert!(size_of::<CChain>() == CHAIN_WORDS * size_of::<usize>() && align_of::<CChain>() == size_of::<usize>());

/// Offset of the links in the mapping: the size of the head, rounded up to their alignment.
const HEAD: usize = size_of::<Budget>().next_multiple_of(align_of::<Link>());
const _: () = assert!(offset_of!(Budget, budget) < HEAD && PAGE_SIZE_BYTES_MIN.is_multiple_of(align_of::<Link>()));

/// Returns the negative errno of an error.
fn errno_of(error: BudgetError) -> c_int {
    match error {
        BudgetError::Exhausted => -libc::ENOSPC,
        _ => -libc::EINVAL,
    }
}

fn answer(done: Result<(), BudgetError>) -> c_int {
    done.map_or_else(errno_of, |()| 0)
}

fn copied(done: Result<(), OutOfBounds>) -> c_int {
    done.map_or(-libc::ERANGE, |()| 0)
}

fn create(region: *mut u8, size_bytes: usize, page_size_bytes: usize) -> Result<NonNull<Budget>, c_int> {
    if page_size_bytes < PAGE_SIZE_BYTES_MIN {
        return Err(libc::EINVAL);
    }
    let page_count = size_bytes / page_size_bytes;
    let links_size_bytes = page_count.checked_mul(size_of::<Link>()).ok_or(libc::ENOMEM)?;
    let head_size_bytes = links_size_bytes
        .checked_add(HEAD)
        .and_then(|bytes| bytes.checked_next_multiple_of(PAGE_SIZE_BYTES_MIN))
        .ok_or(libc::ENOMEM)?;
    let own_size_bytes = if region.is_null() { size_bytes } else { 0 };
    let mapping_size_bytes = head_size_bytes.checked_add(own_size_bytes).ok_or(libc::ENOMEM)?;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: a new mapping at an address that the kernel chooses, so no existing memory is touched (mmap(2)).
    let mapping = unsafe { libc::mmap(ptr::null_mut(), mapping_size_bytes, protection, flags, -1, 0) };
    if mapping == libc::MAP_FAILED {
        return Err(libc::ENOMEM);
    }
    let links = mapping.wrapping_byte_add(HEAD).cast::<Link>();
    // SAFETY: the mapping has room for `page_count` links after the head, aligned, and no other thread knows it; zeroes
    // are valid links.
    let links = unsafe { core::slice::from_raw_parts_mut(links, page_count) };
    let pages = if region.is_null() { mapping.wrapping_byte_add(head_size_bytes).cast() } else { region };
    let made = NonNull::new(pages).ok_or(BudgetError::Unaligned).and_then(|pages| {
        // SAFETY: the rest of the mapping, or memory that the caller guarantees to be its own; both last until
        // `dormouse_relay_budget_destroy`.
        unsafe { PageBudget::from_raw(pages, size_bytes, page_size_bytes, links) }
    });
    let budget = match made {
        Ok(budget) => budget,
        Err(error) => {
            unmap(mapping, mapping_size_bytes);
            return Err(-errno_of(error));
        }
    };
    let head = mapping.cast::<Budget>();
    // SAFETY: the start of the mapping, which no other thread knows, aligned, with room for a head.
    unsafe { head.write(Budget { budget, mapping_size_bytes }) };
    NonNull::new(head).ok_or(libc::ENOMEM)
}

/// Unmaps a mapping that is not used any more.
fn unmap(mapping: *mut c_void, size_bytes: usize) {
    // SAFETY: a whole mapping of the caller's. With these arguments it fails only for lack of memory, and then the
    // mapping stays.
    unsafe { libc::munmap(mapping, size_bytes) };
}

/// Creates a budget; NULL and `errno` on failure.
///
/// # Safety
/// `region` is NULL, or `size_bytes` bytes that may be read and written, and that only the budget uses until it is
/// destroyed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dormouse_relay_budget_create(
    region: *mut c_void,
    size_bytes: usize,
    page_size_bytes: usize,
) -> Option<NonNull<Budget>> {
    create(region.cast(), size_bytes, page_size_bytes)
        .inspect_err(|&error| {
            // SAFETY: the call has no arguments, and always returns a valid address.
            let errno = unsafe { libc::__errno_location() };
            // SAFETY: the thread's own `errno`.
            unsafe { *errno = error };
        })
        .ok()
}

/// [`PageBudget::page_count`].
#[unsafe(no_mangle)]
pub extern "C" fn dormouse_relay_budget_page_count(budget: &Budget) -> usize {
    budget.budget.page_count()
}

/// [`PageBudget::free_count`].
#[unsafe(no_mangle)]
pub extern "C" fn dormouse_relay_budget_free_count(budget: &Budget) -> usize {
    budget.budget.free_count()
}

/// [`PageBudget::available_count`].
#[unsafe(no_mangle)]
pub extern "C" fn dormouse_relay_budget_available_count(budget: &Budget) -> usize {
    budget.budget.available_count()
}

/// Frees the budget's memory.
///
/// # Safety
/// NULL, or a budget that was created and not destroyed, that has no chain, and that is not used any more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dormouse_relay_budget_destroy(budget: Option<NonNull<Budget>>) {
    if let Some(budget) = budget {
        // SAFETY: the caller guarantees that the budget was created, not destroyed, and is not used any more.
        let mapping_size_bytes = unsafe { budget.as_ref() }.mapping_size_bytes;
        unmap(budget.as_ptr().cast(), mapping_size_bytes);
    }
}

/// [`Chain::new`], in the caller's memory. Returns 0 or a negative errno.
///
/// # Safety
/// `chain` may be written. The budget stays until the chain is closed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dormouse_relay_chain_open(
    chain: *mut CChain,
    budget: &'static Budget,
    page_count: usize,
    promised_count: usize,
) -> c_int {
    let opened = Chain::new(&budget.budget, page_count, promised_count).map(|opened| {
        // SAFETY: the caller guarantees that `chain` may be written.
        unsafe { chain.write(opened) }
    });
    answer(opened)
}

/// Gives back the chain's pages and its promise.
///
/// # Safety
/// The chain was opened and not closed, and is not used any more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dormouse_relay_chain_close(chain: *mut CChain) {
    // SAFETY: the caller guarantees that the chain was opened, not closed, and is not used any more.
    unsafe { chain.drop_in_place() }
}

/// [`Chain::grow`]. Returns 0 or a negative errno.
#[unsafe(no_mangle)]
pub extern "C" fn dormouse_relay_chain_grow(chain: &mut CChain, page_count: usize) -> c_int {
    answer(chain.grow(page_count))
}

/// [`Chain::shrink`]. Returns 0 or a negative errno.
#[unsafe(no_mangle)]
pub extern "C" fn dormouse_relay_chain_shrink(chain: &mut CChain, page_count: usize) -> c_int {
    answer(chain.shrink(page_count))
}

/// [`Chain::set_promised_count`]. Returns 0 or a negative errno.
#[unsafe(no_mangle)]
pub extern "C" fn dormouse_relay_chain_promise(chain: &mut CChain, promised_count: usize) -> c_int {
    answer(chain.set_promised_count(promised_count))
}

/// [`Chain::write_shared`], for writes that the header's inline function does not handle. Returns 0 or a negative
/// errno.
///
/// # Safety
/// The conditions of [`Chain::write_shared`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dormouse_relay_write_slow(
    chain: &CChain,
    offset: usize,
    source: *const c_void,
    len: usize,
) -> c_int {
    // SAFETY: the caller guarantees that the source may be read, and that these bytes of the buffer are its own.
    copied(unsafe { chain.write_shared(offset, source.cast(), len) })
}

/// [`Chain::read_shared`]. Returns 0 or a negative errno.
///
/// # Safety
/// The conditions of [`Chain::read_shared`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dormouse_relay_read(chain: &CChain, offset: usize, target: *mut c_void, len: usize) -> c_int {
    // SAFETY: the caller guarantees that the target may be written, and that these bytes of the buffer are not.
    copied(unsafe { chain.read_shared(offset, target.cast(), len) })
}

/// [`Chain::write_wrapping_shared`], for bytes that continue at the buffer's beginning. Returns 0 or a negative errno.
///
/// # Safety
/// The conditions of [`Chain::write_shared`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dormouse_relay_write_wrapping_slow(
    chain: &CChain,
    offset: usize,
    source: *const c_void,
    len: usize,
) -> c_int {
    // SAFETY: the caller guarantees that the source may be read, and that these bytes of the buffer are its own.
    copied(unsafe { chain.write_wrapping_shared(offset, source.cast(), len) })
}

/// [`Chain::read_wrapping_shared`]. Returns 0 or a negative errno.
///
/// # Safety
/// The conditions of [`Chain::read_shared`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dormouse_relay_read_wrapping(
    chain: &CChain,
    offset: usize,
    target: *mut c_void,
    len: usize,
) -> c_int {
    // SAFETY: the caller guarantees that the target may be written, and that these bytes of the buffer are not.
    copied(unsafe { chain.read_wrapping_shared(offset, target.cast(), len) })
}

/// [`Chain::address`], for addresses that the header's inline function does not find. Returns NULL if there is none.
#[unsafe(no_mangle)]
pub extern "C" fn dormouse_relay_address_slow(chain: &CChain, offset: usize, len: usize) -> *mut c_void {
    chain.address(offset, len).map_or(ptr::null_mut(), |address| address.as_ptr().cast())
}
