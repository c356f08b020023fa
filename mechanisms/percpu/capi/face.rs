//! Counters, histograms and pools with words on each CPU for C: the functions of `dormouse/percpu.h`.
//!
//! ```text
//!   one mapping   │ head: Rust's data           │ stride of CPU 0 │ stride of CPU 1 │ …
//!                 ▲ the pointer that C has
//! ```

mod pool;
mod this_cpu;

use core::ffi::{c_int, c_uint, c_void};
use core::ptr::{self, NonNull};

use dormouse_percpu::{
    Area, Histogram, HistogramLayout, PerCpu, PerCpuCounter, PerCpuCounterShared, PerCpuCounterSlot, Rseq,
    possible_cpus,
};

/// `struct dormouse_percpu_counter` or `struct dormouse_percpu_histogram`.
pub struct Head<T> {
    object: T,
    rseq: Option<Rseq>,
    mapping_size_bytes: usize,
}

/// `struct dormouse_percpu_bucket`.
#[repr(C)]
pub struct Bucket {
    low: u64,
    high: u64,
    count: u64,
}

/// Offset of the strides in the mapping: a multiple of every alignment, and larger than any head.
const STRIDES: usize = 4096;
const _: () = assert!(size_of::<Head<PerCpuCounter>>() <= STRIDES && size_of::<Head<Histogram>>() <= STRIDES);

/// Offset of the slot in a counter's stride. The shared words, of which only CPU 0's are used, are before it; the slot
/// is on cache lines of its own.
const SLOT: usize = size_of::<PerCpuCounterShared>();
const COUNTER_STRIDE_SHIFT: u32 = (SLOT + size_of::<PerCpuCounterSlot>()).next_power_of_two().ilog2();

/// Maps strides for all possible CPUs, and puts a head before them. Returns an errno on failure.
fn create<T>(stride_shift: u32, object_in: impl FnOnce(Area) -> Option<T>) -> Result<NonNull<Head<T>>, c_int> {
    let cpu_count = possible_cpus();
    let strides_size_bytes = (cpu_count as usize).checked_mul(1 << stride_shift).ok_or(libc::ENOMEM)?;
    let mapping_size_bytes = strides_size_bytes.checked_add(STRIDES).ok_or(libc::ENOMEM)?;
    let mapping = map(mapping_size_bytes).ok_or(libc::ENOMEM)?.as_ptr();
    let strides = mapping.wrapping_byte_add(STRIDES).cast();
    // SAFETY: the mapping has room for `cpu_count` strides after the head. It is zero, which is valid for everything
    // stored there, and stays until `destroy`; `dormouse/percpu.h` forbids any use after that.
    let area = unsafe { Area::new(strides, stride_shift, cpu_count) };
    let Some(object) = object_in(area) else {
        unmap(mapping, mapping_size_bytes);
        return Err(libc::EINVAL);
    };
    let head = mapping.cast::<Head<T>>();
    // SAFETY: the start of the mapping, which no other thread knows; an os_page is aligned for a head, and has room for
    // it.
    unsafe { head.write(Head { object, rseq: detect(), mapping_size_bytes }) };
    NonNull::new(head).ok_or(libc::ENOMEM)
}

/// Returns the process's restartable sequences. In a static program the library finds libc's registration only by
/// symbols that the linker has resolved.
fn detect() -> Option<Rseq> {
    let symbols = dormouse_percpu::rseq_symbols!();
    // SAFETY: symbols of the program's own libc, or null.
    unsafe { Rseq::tell_of_libc(symbols) };
    Rseq::detect()
}

/// Returns the result in C's form: a pointer, or NULL and `errno`.
fn answer<T>(created: Result<NonNull<T>, c_int>) -> Option<NonNull<T>> {
    created.inspect_err(|&error| set_errno(error)).ok()
}

fn set_errno(error: c_int) {
    // SAFETY: the call has no arguments, and always returns a valid address.
    let errno = unsafe { libc::__errno_location() };
    // SAFETY: the thread's own `errno`.
    unsafe { *errno = error };
}

/// # Safety
/// `create` made the head, and it is not used any more.
unsafe fn destroy<T>(head: Option<NonNull<Head<T>>>) {
    if let Some(head) = head {
        // SAFETY: the caller guarantees that `create` made the head and that it is not used any more.
        let mapping_size_bytes = unsafe { head.as_ref() }.mapping_size_bytes;
        unmap(head.as_ptr().cast(), mapping_size_bytes);
    }
}

/// Maps new, zeroed memory of this process; `None` if the kernel refuses.
fn map(size_bytes: usize) -> Option<NonNull<c_void>> {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: a new mapping at an address that the kernel chooses, so no existing memory is touched (mmap(2)).
    let mapping = unsafe { libc::mmap(ptr::null_mut(), size_bytes, protection, flags, -1, 0) };
    NonNull::new(mapping).filter(|_| mapping != libc::MAP_FAILED)
}

/// Unmaps a mapping that is not used any more.
fn unmap(mapping: *mut c_void, size_bytes: usize) {
    // SAFETY: a whole mapping of the caller's. With these arguments it fails only for lack of memory, and then the
    // mapping stays.
    unsafe { libc::munmap(mapping, size_bytes) };
}

/// Writes at most `capacity` values; returns the number of values there are, or a negative errno.
///
/// # Safety
/// `place` has room for `capacity` values, and is not accessed otherwise during the call.
unsafe fn fill<T>(place: *mut T, capacity: usize, values: impl Iterator<Item = T>) -> isize {
    if place.is_null() && capacity > 0 {
        return -(libc::EINVAL as isize);
    }
    let mut len = 0;
    for value in values {
        if len < capacity {
            // SAFETY: the index is below `capacity`, for which the caller guarantees room.
            unsafe { place.wrapping_add(len).write(value) };
        }
        len += 1;
    }
    len as isize
}

/// Creates a counter; NULL and `errno` if the threshold is not valid or there is no memory.
#[unsafe(no_mangle)]
pub extern "C" fn dormouse_percpu_counter_create(threshold: u64) -> Option<NonNull<Head<PerCpuCounter>>> {
    answer(create(COUNTER_STRIDE_SHIFT, |area| {
        // SAFETY: zeroes are valid shared words, and the slot begins where they end.
        let shared = unsafe { PerCpu::<PerCpuCounterShared>::new(0) };
        // SAFETY: zeroes are a valid slot, and nothing else is stored there.
        let slot = unsafe { PerCpu::<PerCpuCounterSlot>::new(SLOT) };
        PerCpuCounter::new(area, slot, shared, threshold)
    }))
}

/// [`PerCpuCounter::add`].
#[unsafe(no_mangle)]
pub extern "C" fn dormouse_percpu_counter_add(counter: &Head<PerCpuCounter>, n: i64) {
    counter.object.add(counter.rseq, n);
}

/// [`PerCpuCounter::approximate`].
#[unsafe(no_mangle)]
pub extern "C" fn dormouse_percpu_counter_approximate(counter: &Head<PerCpuCounter>) -> i64 {
    counter.object.approximate()
}

/// [`PerCpuCounter::sum`].
#[unsafe(no_mangle)]
pub extern "C" fn dormouse_percpu_counter_sum(counter: &Head<PerCpuCounter>) -> i64 {
    counter.object.sum()
}

/// [`PerCpuCounter::error_max`] for one process, whose threads are not killed one by one.
#[unsafe(no_mangle)]
pub extern "C" fn dormouse_percpu_counter_error_max(counter: &Head<PerCpuCounter>, adders: u64) -> u64 {
    counter.object.error_max(adders, 0)
}

/// Frees the counter's memory.
///
/// # Safety
/// NULL, or a counter that was created and not destroyed, and that is not used any more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dormouse_percpu_counter_destroy(counter: Option<NonNull<Head<PerCpuCounter>>>) {
    // SAFETY: the caller guarantees that the counter was created, not destroyed, and is not used any more.
    unsafe { destroy(counter) }
}

/// Creates a histogram; NULL and `errno` if there are too many bits or there is no memory.
#[unsafe(no_mangle)]
pub extern "C" fn dormouse_percpu_histogram_create(sub_bucket_bits: c_uint) -> Option<NonNull<Head<Histogram>>> {
    answer(HistogramLayout::new(sub_bucket_bits).ok_or(libc::EINVAL).and_then(|layout| {
        create(layout.size_bytes().next_power_of_two().ilog2(), |area| {
            // SAFETY: the memory is zero, and nothing else is in the strides.
            unsafe { Histogram::new(area, 0, layout) }
        })
    }))
}

/// [`Histogram::record`].
#[unsafe(no_mangle)]
pub extern "C" fn dormouse_percpu_histogram_record(histogram: &Head<Histogram>, value: u64) {
    histogram.object.record(histogram.rseq, value);
}

/// [`Histogram::count`].
#[unsafe(no_mangle)]
pub extern "C" fn dormouse_percpu_histogram_count(histogram: &Head<Histogram>) -> u64 {
    histogram.object.count()
}

/// [`HistogramLayout::bucket_count`].
#[unsafe(no_mangle)]
pub extern "C" fn dormouse_percpu_histogram_bucket_count(histogram: &Head<Histogram>) -> usize {
    histogram.object.layout().bucket_count()
}

/// [`Histogram::quantile`]; returns 0 or a negative errno.
#[unsafe(no_mangle)]
pub extern "C" fn dormouse_percpu_histogram_quantile(
    histogram: &Head<Histogram>,
    q: f64,
    value: Option<&mut u64>,
) -> c_int {
    let Some(value) = value.filter(|_| (0.0..=1.0).contains(&q)) else { return -libc::EINVAL };
    let Some(found) = histogram.object.quantile(q) else { return -libc::ENODATA };
    *value = found;
    0
}

/// Writes the buckets that are not empty; returns the number of these, or a negative errno.
///
/// # Safety
/// `buckets` has room for `capacity` buckets, and is not accessed otherwise during the call.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dormouse_percpu_histogram_snapshot(
    histogram: &Head<Histogram>,
    buckets: *mut Bucket,
    capacity: usize,
) -> isize {
    let layout = histogram.object.layout();
    let buckets_in_use = (0..layout.bucket_count()).filter_map(|index| {
        let (count, (low, high)) = (histogram.object.bucket(index), layout.bounds(index));
        (count > 0).then_some(Bucket { low, high, count })
    });
    // SAFETY: the caller guarantees room for `capacity` buckets, not accessed otherwise during the call.
    unsafe { fill(buckets, capacity, buckets_in_use) }
}

/// Frees the histogram's memory.
///
/// # Safety
/// NULL, or a histogram that was created and not destroyed, and that is not used any more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dormouse_percpu_histogram_destroy(histogram: Option<NonNull<Head<Histogram>>>) {
    // SAFETY: the caller guarantees that the histogram was created, not destroyed, and is not used any more.
    unsafe { destroy(histogram) }
}
