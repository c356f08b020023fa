//! Virtqueues for C: the functions of `dormouse/vring.h`.
//!
//! ```text
//!   driver, device    used by one thread, split or packed                    struct dormouse_vring_driver, …_device: opaque
//!   chain             buffer popped by the device, reused for each one       struct dormouse_vring_chain: opaque
//!   areas, segments   owned by the caller, in C layout
//! ```

use core::ffi::{c_char, c_int, c_uint, c_void};
use core::{ptr, slice};

use dormouse_vring::{
    AddressSpace, Areas, Chain, Completion, DeviceSide, Direct, DriverSide, Features, IndirectTables, Region, Regions,
    RingError, Segment, either,
};

/// `DORMOUSE_VRING_PACKED` and the features, as flags of one word.
const PACKED: c_uint = 1;
const INDIRECT: c_uint = 2;
const EVENT_IDX: c_uint = 4;
const IN_ORDER: c_uint = 8;

fn features(flags: c_uint) -> Option<Features> {
    let is = |flag| flags & flag != 0;
    let known = flags & !(PACKED | INDIRECT | EVENT_IDX | IN_ORDER) == 0;
    known.then_some(Features { indirect: is(INDIRECT), event_idx: is(EVENT_IDX), in_order: is(IN_ORDER) })
}

/// Returns a negative errno for an error.
fn errno_of(error: RingError) -> c_int {
    match error {
        RingError::Full { .. } => -libc::ENOSPC,
        // The device side does not return these here: for a buffer that it has popped, its functions return EPROTO.
        RingError::TooLong { .. } | RingError::TotalLength => -libc::EMSGSIZE,
        RingError::Size { .. }
        | RingError::Alignment { .. }
        | RingError::Area { .. }
        | RingError::Regions { .. }
        | RingError::IndirectNotNegotiated
        | RingError::Empty => -libc::EINVAL,
        _ => -libc::EPROTO,
    }
}

/// Returns the flags of a queue with these negotiated feature bits.
#[unsafe(no_mangle)]
pub extern "C" fn dormouse_vring_flags_of(features: u64) -> c_uint {
    let Features { indirect, event_idx, in_order } = Features::from_bits(features);
    let of = [
        (features & Features::PACKED != 0, PACKED),
        (indirect, INDIRECT),
        (event_idx, EVENT_IDX),
        (in_order, IN_ORDER),
    ];
    of.into_iter().filter(|(is, _)| *is).map(|(_, flag)| flag).sum()
}

/// Returns the feature bits of these flags, with `VIRTIO_F_VERSION_1`; 0 for flags that there are not.
#[unsafe(no_mangle)]
pub extern "C" fn dormouse_vring_features_of(flags: c_uint) -> u64 {
    let packed = if flags & PACKED != 0 { Features::PACKED } else { 0 };
    features(flags).map_or(0, |features| features.to_bits() | packed | Features::VERSION_1)
}

fn fail<T>(error: c_int) -> *mut T {
    // SAFETY: the function has no precondition and always returns an address.
    let errno = unsafe { libc::__errno_location() };
    // SAFETY: the address is that of the thread's own `errno`.
    unsafe { *errno = error };
    ptr::null_mut()
}

/// Type behind `struct dormouse_vring_driver`.
pub struct Driver {
    queue: either::Driver<Direct>,
    last: Option<RingError>,
}

/// Type behind `struct dormouse_vring_device`.
pub struct Device {
    queue: either::Device<Direct>,
    memory: Regions,
    last: Option<RingError>,
}

/// Writes an error's text, of at most `size` bytes with its NUL, and returns the length of the whole text.
///
/// # Safety
/// `size` bytes are writable at `text`.
unsafe fn tell(error: Option<RingError>, text: *mut c_char, size: usize) -> usize {
    let all = error.map(|error| error.to_string()).unwrap_or_default();
    if size > 0 {
        let len = all.len().min(size - 1);
        // SAFETY: the caller guarantees `size` writable bytes at `text`, and `len` is below `size`.
        unsafe { ptr::copy_nonoverlapping(all.as_ptr(), text.cast(), len) };
        // SAFETY: the caller guarantees `size` writable bytes at `text`, and `len` is below `size`.
        unsafe { text.wrapping_add(len).write(0) };
    }
    all.len()
}

/// Calls [`either::size_bytes`]. 0: there is no such ring.
#[unsafe(no_mangle)]
pub extern "C" fn dormouse_vring_size_bytes(size: u32, flags: c_uint) -> usize {
    either::size_bytes(flags & PACKED != 0, size).unwrap_or(0)
}

/// Calls [`either::contiguous`].
#[unsafe(no_mangle)]
pub extern "C" fn dormouse_vring_place(areas: &mut Areas, base: *mut c_void, size: u32, flags: c_uint) -> c_int {
    let placed = either::contiguous(flags & PACKED != 0, base.cast(), size);
    placed.map(|placed| *areas = placed).map_or_else(errno_of, |()| 0)
}

/// Calls [`either::init`].
///
/// # Safety
/// The areas are mapped, and neither side uses them yet.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dormouse_vring_init(areas: &Areas, size: u32, flags: c_uint) -> c_int {
    // SAFETY: the caller guarantees that the areas are mapped and that neither side uses them yet.
    let bus = unsafe { Direct::new(*areas) };
    either::init(flags & PACKED != 0, &bus, size).map_or_else(errno_of, |()| 0)
}

/// Calls [`either::Driver::new`]. If it fails, returns NULL and sets `errno`.
///
/// # Safety
/// The areas are mapped as long as the driver exists, and no other code of this program writes the driver's side.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dormouse_vring_driver_create(areas: &Areas, size: u32, flags: c_uint) -> *mut Driver {
    let Some(features) = features(flags) else { return fail(libc::EINVAL) };
    // SAFETY: the caller guarantees that the areas are mapped as long as the driver exists, and that no other code of
    // this program writes its side.
    let bus = unsafe { Direct::new(*areas) };
    match either::Driver::new(flags & PACKED != 0, bus, size, features) {
        Ok(queue) => Box::into_raw(Box::new(Driver { queue, last: None })),
        Err(error) => fail(-errno_of(error)),
    }
}

/// Calls [`either::Driver::use_indirect`].
///
/// # Safety
/// `tables` has 16 × `entries` bytes for each entry of the ring, mapped writable as long as the driver exists.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dormouse_vring_driver_use_indirect(
    driver: &mut Driver,
    tables: *mut c_void,
    addr: u64,
    entries: u16,
) -> c_int {
    let tables = IndirectTables { base: tables.cast(), addr, entries };
    if !tables.base.addr().is_multiple_of(16) {
        return -libc::EINVAL;
    }
    // SAFETY: the caller guarantees enough bytes for the tables, mapped writable as long as the driver exists; they are
    // aligned to 16.
    let done = unsafe { driver.queue.use_indirect(tables) };
    done.map_or_else(errno_of, |()| 0)
}

macro_rules! adding {
    ($(#[$attribute:meta])* $name:ident, $publishes:literal) => {
        $(#[$attribute])*
        ///
        /// # Safety
        /// `readable_count` segments that the device reads are at `segments`, followed by `writable_count` segments
        /// that it writes.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name(
            driver: &mut Driver,
            segments: *const Segment,
            readable_count: usize,
            writable_count: usize,
            token: u64,
        ) -> c_int {
            // SAFETY: the caller guarantees that many segments at `segments`.
            unsafe { add(driver, segments, [readable_count, writable_count], token, $publishes) }
        }
    };
}

adding!(
    /// Calls [`DriverSide::add`].
    dormouse_vring_driver_add,
    false
);
adding!(
    /// Calls [`DriverSide::add_and_publish`].
    dormouse_vring_driver_add_and_publish,
    true
);

/// Adds a buffer with `counts` segments to read and to write, and publishes it if `publishes`.
///
/// # Safety
/// As many segments as the sum of `counts` are at `segments`.
unsafe fn add(driver: &mut Driver, segments: *const Segment, counts: [usize; 2], token: u64, publishes: bool) -> c_int {
    let [readable_count, writable_count] = counts;
    let Some(count) = readable_count.checked_add(writable_count).filter(|count| *count <= isize::MAX as usize / 16)
    else {
        return -libc::EMSGSIZE;
    };
    // SAFETY: the caller guarantees `count` segments at `segments`; if `count` is 0, the address is not used.
    let segments = if count == 0 { &[] } else { unsafe { slice::from_raw_parts(segments, count) } };
    let (readable, writable) = segments.split_at(readable_count);
    let added = if publishes {
        driver.queue.add_and_publish(readable, writable, token)
    } else {
        driver.queue.add(readable, writable, token)
    };
    added.map_or_else(
        |error| {
            driver.last = Some(error);
            errno_of(error)
        },
        |()| 0,
    )
}

/// Calls [`either::Driver::reset`]. Returns the number of tokens; -ENOBUFS if there is no room for them, and nothing was
/// changed.
///
/// # Safety
/// `max` tokens are writable at `tokens`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dormouse_vring_driver_reset(driver: &mut Driver, tokens: *mut u64, max: usize) -> c_int {
    let count = usize::from(driver.queue.in_flight()) + usize::from(driver.queue.unpublished());
    if max < count {
        return -libc::ENOBUFS;
    }
    let mut number = 0;
    driver.queue.reset(|token| {
        // A device can have lost buffers by naming others in their place: these are more than the count.
        if number < max {
            // SAFETY: the caller guarantees `max` tokens at `tokens`, and `number` is below that.
            unsafe { tokens.wrapping_add(number).write(token) };
            number += 1;
        }
    });
    number as c_int
}

/// Calls [`DriverSide::take_used`]. Returns 1, 0 if there is none, or -EPROTO if the device has violated the protocol.
#[unsafe(no_mangle)]
pub extern "C" fn dormouse_vring_driver_take_used(driver: &mut Driver, completion: &mut Completion) -> c_int {
    match driver.queue.take_used() {
        Ok(Some(taken)) => {
            *completion = taken;
            1
        }
        Ok(None) => 0,
        Err(error) => {
            driver.last = Some(error);
            -libc::EPROTO
        }
    }
}

/// Writes a text about the last error.
///
/// # Safety
/// `size` bytes are writable at `text`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dormouse_vring_driver_why(driver: &Driver, text: *mut c_char, size: usize) -> usize {
    // SAFETY: the caller guarantees `size` writable bytes at `text`.
    unsafe { tell(driver.last, text, size) }
}

/// Copies regions.
///
/// # Safety
/// `count` regions are at `regions`, and their memory stays mapped as long as the result is used.
unsafe fn regions_at(regions: *const Region, count: usize) -> Result<Regions, RingError> {
    // SAFETY: the caller guarantees `count` regions at `regions`; if the count is 0, the address is not used.
    let regions = if count == 0 { &[] } else { unsafe { slice::from_raw_parts(regions, count) } };
    // SAFETY: the caller guarantees that the regions' memory stays mapped.
    unsafe { Regions::new(regions.to_vec()) }
}

/// Calls [`either::Device::new`]. If it fails, returns NULL and sets `errno`.
///
/// # Safety
/// The areas are mapped as long as the device exists, and no other code of this program writes the device's side.
/// `region_count` regions are at `regions`, and their memory is mapped as long as the device exists.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dormouse_vring_device_create(
    areas: &Areas,
    size: u32,
    flags: c_uint,
    regions: *const Region,
    region_count: usize,
) -> *mut Device {
    let base = if flags & PACKED != 0 { PACKED_START } else { 0 };
    // SAFETY: the caller guarantees the contract of this function, which is that of the other.
    unsafe { dormouse_vring_device_create_at(areas, size, flags, regions, region_count, base) }
}

/// Base of an empty packed queue: offset 0, with the wrap counter set.
const PACKED_START: u16 = 1 << 15;

/// Calls [`either::Device::with_base`]. If it fails, returns NULL and sets `errno`.
///
/// # Safety
/// See [`dormouse_vring_device_create`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dormouse_vring_device_create_at(
    areas: &Areas,
    size: u32,
    flags: c_uint,
    regions: *const Region,
    region_count: usize,
    base: u16,
) -> *mut Device {
    let Some(features) = features(flags) else { return fail(libc::EINVAL) };
    // SAFETY: the caller guarantees the regions, and that their memory is mapped as long as the device exists.
    let memory = match unsafe { regions_at(regions, region_count) } {
        Ok(memory) => memory,
        Err(error) => return fail(-errno_of(error)),
    };
    // SAFETY: the caller guarantees that the areas are mapped as long as the device exists, and that no other code of
    // this program writes its side.
    let bus = unsafe { Direct::new(*areas) };
    match either::Device::with_base(flags & PACKED != 0, bus, size, features, base) {
        Ok(queue) => Box::into_raw(Box::new(Device { queue, memory, last: None })),
        Err(error) => fail(-errno_of(error)),
    }
}

/// Replaces the regions of the driver's memory.
///
/// # Safety
/// `count` regions are at `regions`, and their memory is mapped as long as the device has them.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dormouse_vring_device_set_regions(
    device: &mut Device,
    regions: *const Region,
    count: usize,
) -> c_int {
    // SAFETY: the caller guarantees the regions, and that their memory is mapped as long as the device has them.
    let memory = unsafe { regions_at(regions, count) };
    memory.map_or_else(errno_of, |memory| {
        device.memory = memory;
        0
    })
}

/// Calls [`either::Device::base`].
#[unsafe(no_mangle)]
pub extern "C" fn dormouse_vring_device_base(device: &Device) -> u16 {
    device.queue.base()
}

/// Creates a chain to pop into.
#[unsafe(no_mangle)]
pub extern "C" fn dormouse_vring_chain_create() -> *mut Chain {
    Box::into_raw(Box::default())
}

/// Returns the segments that the device reads.
#[unsafe(no_mangle)]
pub extern "C" fn dormouse_vring_chain_readable(chain: &Chain, count: &mut usize) -> *const Segment {
    *count = chain.readable().len();
    chain.readable().as_ptr()
}

/// Returns the segments that the device writes.
#[unsafe(no_mangle)]
pub extern "C" fn dormouse_vring_chain_writable(chain: &Chain, count: &mut usize) -> *const Segment {
    *count = chain.writable().len();
    chain.writable().as_ptr()
}

/// Calls [`AddressSpace::translate`] for the device's regions. NULL: the bytes are not in the regions, or not all in
/// one of them.
#[unsafe(no_mangle)]
pub extern "C" fn dormouse_vring_device_translate(device: &Device, addr: u64, size_bytes: u64) -> *mut c_void {
    device.memory.translate(addr, size_bytes).map_or(ptr::null_mut(), |at| at.cast())
}

/// Calls [`DeviceSide::pop`]. Returns 1, 0 if there is none, or -EPROTO if the driver has violated the protocol.
#[unsafe(no_mangle)]
pub extern "C" fn dormouse_vring_device_pop(device: &mut Device, chain: &mut Chain) -> c_int {
    match device.queue.pop(&device.memory, chain) {
        Ok(any) => any.into(),
        Err(error) => {
            device.last = Some(error);
            -libc::EPROTO
        }
    }
}

/// Calls [`DeviceSide::push_used`].
#[unsafe(no_mangle)]
pub extern "C" fn dormouse_vring_device_push_used(device: &mut Device, chain: &Chain, len: u32) {
    device.queue.push_used(chain, len);
}

/// Writes a text about the last error.
///
/// # Safety
/// `size` bytes are writable at `text`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dormouse_vring_device_why(device: &Device, text: *mut c_char, size: usize) -> usize {
    // SAFETY: the caller guarantees `size` writable bytes at `text`.
    unsafe { tell(device.last, text, size) }
}

/// Defines functions that call a method of the queue.
macro_rules! passed_on {
    ($($(#[$doc:meta])* $name:ident($side:ident: $type:ty) -> $result:ty = $method:ident;)*) => {$(
        $(#[$doc])*
        #[unsafe(no_mangle)]
        pub extern "C" fn $name($side: $type) -> $result {
            <$result>::from($side.queue.$method())
        }
    )*};
}

passed_on! {
    /// Calls [`DriverSide::publish`].
    dormouse_vring_driver_publish(driver: &mut Driver) -> () = publish;
    /// Calls [`DriverSide::needs_kick`].
    dormouse_vring_driver_needs_kick(driver: &mut Driver) -> c_int = needs_kick;
    /// Calls [`DriverSide::arm_interrupt`].
    dormouse_vring_driver_arm_interrupt(driver: &mut Driver) -> c_int = arm_interrupt;
    /// Calls [`DriverSide::disarm_interrupt`].
    dormouse_vring_driver_disarm_interrupt(driver: &mut Driver) -> () = disarm_interrupt;
    /// Calls [`DriverSide::free_count`].
    dormouse_vring_driver_free_count(driver: &Driver) -> u16 = free_count;
    /// Calls [`DriverSide::violations`].
    dormouse_vring_driver_violations(driver: &Driver) -> u64 = violations;
    /// Calls [`DeviceSide::publish_used`].
    dormouse_vring_device_publish_used(device: &mut Device) -> () = publish_used;
    /// Calls [`DeviceSide::needs_interrupt`].
    dormouse_vring_device_needs_interrupt(device: &mut Device) -> c_int = needs_interrupt;
    /// Calls [`DeviceSide::arm_notification`].
    dormouse_vring_device_arm_notification(device: &mut Device) -> c_int = arm_notification;
    /// Calls [`DeviceSide::disarm_notification`].
    dormouse_vring_device_disarm_notification(device: &mut Device) -> () = disarm_notification;
    /// Calls [`DeviceSide::violations`].
    dormouse_vring_device_violations(device: &Device) -> u64 = violations;
}

macro_rules! freed {
    ($($(#[$doc:meta])* $name:ident($value:ident: *mut $type:ty);)*) => {$(
        $(#[$doc])*
        ///
        /// # Safety
        /// The pointer is NULL, or was returned by the create function and not yet destroyed.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name($value: *mut $type) {
            if !$value.is_null() {
                // SAFETY: the caller guarantees that the create function returned the pointer, from a box, and that it
                // was not yet destroyed.
                drop(unsafe { Box::from_raw($value) });
            }
        }
    )*};
}

freed! {
    /// Frees a driver.
    dormouse_vring_driver_destroy(driver: *mut Driver);
    /// Frees a device.
    dormouse_vring_device_destroy(device: *mut Device);
    /// Frees a chain.
    dormouse_vring_chain_destroy(chain: *mut Chain);
}
