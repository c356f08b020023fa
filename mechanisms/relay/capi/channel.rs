//! Channels for C: the functions of `dormouse/relay.h` that are not inlined.

use core::ffi::{c_int, c_uint, c_void};
use core::mem::{ManuallyDrop, offset_of};
use core::ptr::{self, NonNull};
use std::os::fd::BorrowedFd;

use dormouse_relay_channel::{Channel, ChannelError, Counts, Mode, Options, TakeError, TakenPage, Writers};

/// Flag of `dormouse_relay_channel_take`: [`Writers::Ended`].
const WRITERS_ENDED: c_uint = 1;
/// Flag of `dormouse_relay_channel_take`: [`Writers::Stuck`].
const WRITERS_STUCK: c_uint = 2;

/// `struct dormouse_relay_channel_options`.
#[repr(C)]
pub struct COptions {
    mode: c_uint,
    buffer_count: usize,
    page_count: usize,
    page_size_bytes: usize,
    kept_page_count: usize,
}

/// `struct dormouse_relay_counts`.
#[repr(C)]
pub struct CCounts {
    lost_full: u64,
    lost_big: u64,
    overwritten: u64,
}

const _: () = assert!(size_of::<TakenPage>() == 48 && offset_of!(TakenPage, unfinished_count) == 16);

fn set_errno(error: ChannelError) {
    let error = match error {
        ChannelError::Options => libc::EINVAL,
        ChannelError::NoChannel => libc::EBADMSG,
        ChannelError::System(errno) => errno,
    };
    // SAFETY: the call has no arguments, and always returns a valid address.
    let errno = unsafe { libc::__errno_location() };
    // SAFETY: the thread's own `errno`.
    unsafe { *errno = error };
}

fn boxed(made: Result<Channel, ChannelError>) -> Option<NonNull<Channel>> {
    made.inspect_err(|&error| set_errno(error)).ok().map(|channel| NonNull::from(Box::leak(Box::new(channel))))
}

fn answer<T>(done: Result<T, TakeError>) -> Result<T, c_int> {
    done.map_err(|error| match error {
        TakeError::Empty => -libc::EAGAIN,
        TakeError::Busy => -libc::EBUSY,
    })
}

/// [`Options::new`].
#[unsafe(no_mangle)]
pub extern "C" fn dormouse_relay_channel_options_init(options: &mut COptions, mode: c_uint) {
    let mode_in_rust = if mode == Mode::Overwrite as c_uint { Mode::Overwrite } else { Mode::Discard };
    let Options { buffer_count, page_count, page_size_bytes, kept_page_count, .. } = Options::new(mode_in_rust);
    *options = COptions { mode, buffer_count, page_count, page_size_bytes, kept_page_count };
}

/// [`Channel::new`], or [`Channel::create`] if `file` is not negative; NULL and `errno` on failure.
///
/// # Safety
/// `file` is negative or an open descriptor.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dormouse_relay_channel_create(file: c_int, options: &COptions) -> Option<NonNull<Channel>> {
    let &COptions { mode, buffer_count, page_count, page_size_bytes, kept_page_count } = options;
    let mode = match mode {
        0 => Mode::Discard,
        1 => Mode::Overwrite,
        _ => return boxed(Err(ChannelError::Options)),
    };
    let options = Options { mode, buffer_count, page_count, page_size_bytes, kept_page_count };
    if file < 0 {
        return boxed(Channel::new(&options));
    }
    // SAFETY: the caller guarantees that the descriptor is open.
    boxed(Channel::create(unsafe { BorrowedFd::borrow_raw(file) }, &options))
}

/// [`Channel::open`]; NULL and `errno` on failure.
///
/// # Safety
/// The conditions of [`Channel::open`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dormouse_relay_channel_open(file: c_int) -> Option<NonNull<Channel>> {
    if file < 0 {
        return boxed(Err(ChannelError::System(libc::EBADF)));
    }
    // SAFETY: the caller guarantees that the descriptor is open.
    let file = unsafe { BorrowedFd::borrow_raw(file) };
    // SAFETY: the caller guarantees that the file is not truncated, and written to by channels only.
    boxed(unsafe { Channel::open(file) })
}

/// Unmaps the channel's memory.
///
/// # Safety
/// NULL, or a channel that was created or opened here, not destroyed, and that is not used any more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dormouse_relay_channel_destroy(channel: Option<NonNull<Channel>>) {
    if let Some(channel) = channel {
        // SAFETY: the caller guarantees that this is the box of `boxed`, which nobody uses any more.
        drop(unsafe { Box::from_raw(channel.as_ptr()) });
    }
}

/// [`Channel::this_buffer`].
#[unsafe(no_mangle)]
pub extern "C" fn dormouse_relay_channel_this_buffer_slow(channel: &Channel) -> u32 {
    channel.this_buffer()
}

/// [`Channel::reserve_in`]; NULL if the record is lost.
#[unsafe(no_mangle)]
pub extern "C" fn dormouse_relay_channel_reserve_slow(channel: &Channel, buffer: u32, len: usize) -> *mut c_void {
    match channel.reserve_in(buffer, len) {
        // C commits or cancels it by the word in front of it.
        Ok(reservation) => ManuallyDrop::new(reservation).as_mut_ptr().cast(),
        Err(_) => ptr::null_mut(),
    }
}

/// [`Channel::flush`]. Returns 1 if a page was closed.
#[unsafe(no_mangle)]
pub extern "C" fn dormouse_relay_channel_flush(channel: &Channel, buffer: u32) -> c_int {
    c_int::from(channel.flush(buffer))
}

/// [`Channel::take_from`]. Returns 0 or a negative errno.
///
/// # Safety
/// `page` may be written; and the conditions of [`Channel::take_from`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dormouse_relay_channel_take(
    channel: &Channel,
    buffer: u32,
    page: *mut TakenPage,
    flags: c_uint,
) -> c_int {
    let writers = match flags {
        0 => Writers::Running,
        WRITERS_ENDED => Writers::Ended,
        WRITERS_STUCK => Writers::Stuck,
        _ => return -libc::EINVAL,
    };
    // SAFETY: the caller guarantees that no thread is at work, if it says so.
    match answer(unsafe { channel.take_from(buffer, writers) }) {
        Ok(taken) => {
            // SAFETY: the caller guarantees that `page` may be written.
            unsafe { page.write(taken.into_taken()) };
            0
        }
        Err(error) => error,
    }
}

/// Returns the page's next record, and stores its length; NULL after the last.
///
/// # Safety
/// The page was taken from this channel, and not given back.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dormouse_relay_channel_next(
    channel: &Channel,
    page: &mut TakenPage,
    len: &mut usize,
) -> *const c_void {
    // SAFETY: the caller has taken the page. The copy here does not give it back.
    let attached = ManuallyDrop::new(unsafe { channel.attach(*page) });
    let mut records = attached.records();
    let record = records.next();
    *page = records.taken();
    *len = record.map_or(0, <[u8]>::len);
    record.map_or(ptr::null(), |record| record.as_ptr().cast())
}

/// Gives a page back.
///
/// # Safety
/// The page was taken from this channel, not given back, and its records are not used any more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dormouse_relay_channel_give_back(channel: &Channel, page: &TakenPage) {
    // SAFETY: the caller has taken the page, and does not use it any more.
    drop(unsafe { channel.attach(*page) });
}

/// [`Channel::counts`]. Returns 0, or -EINVAL if there is no such buffer.
#[unsafe(no_mangle)]
pub extern "C" fn dormouse_relay_channel_counts(channel: &Channel, buffer: u32, counts: &mut CCounts) -> c_int {
    let Some(Counts { lost_full, lost_big, overwritten }) = channel.counts(buffer) else { return -libc::EINVAL };
    *counts = CCounts { lost_full, lost_big, overwritten };
    0
}
