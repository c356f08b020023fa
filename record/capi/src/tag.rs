//! Functions of `include/dormouse/tag.h`.

use core::ffi::{CStr, c_char};
use core::sync::atomic::AtomicU8;

use tracer::{Tags, foreign};

/// A tag. It never moves.
#[repr(C)]
#[derive(Debug)]
pub struct CTag {
    name: *const c_char,
    known: AtomicU8,
    _unused: [u8; 7],
}

const _: () = assert!(size_of::<CTag>() == 16 && size_of::<Tags>() == 32);

/// Returns the tag's name; an empty one if it is not UTF-8.
///
/// # Safety
/// The name is a text of static storage.
#[inline(always)]
unsafe fn name_of(tag: &CTag) -> &str {
    // SAFETY: the caller guarantees a text of static storage.
    unsafe { CStr::from_ptr(tag.name) }.to_str().unwrap_or_default()
}

/// Sets a tag in the calling thread, and returns its former value.
///
/// # Safety
/// `tag` is a tag of static storage, with a name.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dormouse_tag_set(tag: *const CTag, value: u64) -> u64 {
    // SAFETY: the caller guarantees a tag of static storage. Only its atomic changes.
    let tag = unsafe { &*tag };
    // SAFETY: the caller guarantees a tag with a name.
    foreign::set_tag(|| unsafe { name_of(tag) }, &tag.known, value)
}

/// Returns the value that represents a text of this tag.
///
/// # Safety
/// `tag` is a tag of static storage, with a name; the `len` bytes at `text` are readable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dormouse_tag_text(tag: *const CTag, text: *const u8, len: usize) -> u64 {
    if len == 0 {
        return 0;
    }
    // SAFETY: the caller guarantees a tag of static storage. Only its atomic changes.
    let tag = unsafe { &*tag };
    // SAFETY: the caller guarantees that the bytes are readable.
    let text = unsafe { core::slice::from_raw_parts(text, len) };
    // SAFETY: the caller guarantees a tag with a name.
    foreign::tag_text(|| unsafe { name_of(tag) }, &tag.known, text)
}

/// Copies the calling thread's tags.
///
/// # Safety
/// `tags` may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dormouse_tags_get(tags: *mut Tags) {
    // SAFETY: the caller guarantees a place for the tags.
    unsafe { tags.write(Tags::current()) }
}

/// Sets the calling thread's tags.
///
/// # Safety
/// `tags` may be read.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dormouse_tags_set(tags: *const Tags) {
    // SAFETY: the caller guarantees tags; any bytes are.
    foreign::set_tags(unsafe { tags.read() });
}
