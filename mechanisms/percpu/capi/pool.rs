//! Pools for C: handles as words, errors as numbers with a cause and a text.

use core::alloc::Layout;
use core::ffi::{c_char, c_int, c_uint, c_void};
use core::fmt::{self, Display, Write};
use core::mem::MaybeUninit;
use core::ptr::{self, NonNull};

use super::this_cpu::CArea;
use dormouse_percpu::{
    AllocError, Attached, Copying, Leak, List, ListSlot, Node, Object, Pool, PoolOptions, Region, Requirement, Rseq,
    Shortage, Usage, View, WordError, Words,
};

/// `enum dormouse_percpu_cause`.
#[derive(Clone, Copy)]
#[repr(u32)]
enum Cause {
    TooBig = 1,
    BadAlignment,
    Fixed,
    Limit,
    ChunkCount,
    Refused,
    Corrupted,
    BadOption,
    Reentered,
    DoubleFree,
    Foreign,
    Attached,
    Other,
}

/// A failure: its cause, its errno, and the text of the error.
struct Failure<'a> {
    cause: Cause,
    errno: c_int,
    text: &'a dyn Display,
}

/// `struct dormouse_percpu_error`.
#[repr(C)]
pub struct CError {
    error: c_int,
    cause: u32,
    text: [c_char; TEXT_SIZE],
}

const TEXT_SIZE: usize = 248;

/// Writes text up to the end of the array, and leaves room for a NUL.
struct Text<'a> {
    text: &'a mut [c_char; TEXT_SIZE],
    len: usize,
}

impl Write for Text<'_> {
    fn write_str(&mut self, part: &str) -> fmt::Result {
        for byte in part.bytes() {
            if self.len + 1 < TEXT_SIZE {
                self.text[self.len] = byte.cast_signed() as c_char;
                self.len += 1;
            }
        }
        Ok(())
    }
}

/// Stores the failure for the caller, and returns the function's result.
fn report(to: Option<&mut CError>, failure: &Failure<'_>) -> c_int {
    if let Some(to) = to {
        (to.error, to.cause, to.text) = (failure.errno, failure.cause as u32, [0; TEXT_SIZE]);
        // A text that is too long is truncated.
        let _ = write!(Text { text: &mut to.text, len: 0 }, "{}", failure.text);
    }
    -failure.errno
}

fn of_alloc(error: &AllocError) -> Failure<'_> {
    let (cause, errno) = match error {
        AllocError::TooBig { .. } => (Cause::TooBig, libc::E2BIG),
        AllocError::BadAlignment { .. } => (Cause::BadAlignment, libc::EINVAL),
        AllocError::Exhausted { shortage, .. } => match shortage {
            Shortage::Fixed { .. } => (Cause::Fixed, libc::ENOSPC),
            Shortage::Limit { .. } => (Cause::Limit, libc::ENOSPC),
            Shortage::Chunks { .. } => (Cause::ChunkCount, libc::ENOSPC),
            Shortage::Refused { .. } => (Cause::Refused, libc::ENOMEM),
            _ => (Cause::Other, libc::ENOSPC),
        },
        AllocError::DoubleFree { .. } => (Cause::DoubleFree, libc::EALREADY),
        AllocError::Foreign { .. } => (Cause::Foreign, libc::ENOENT),
        AllocError::Corrupted(_) => (Cause::Corrupted, libc::EUCLEAN),
        AllocError::BadOption { .. } => (Cause::BadOption, libc::EINVAL),
        AllocError::Reentered => (Cause::Reentered, libc::EDEADLK),
        _ => (Cause::Other, libc::EINVAL),
    };
    Failure { cause, errno, text: error }
}

/// Returns the result of a function that only succeeds or fails.
fn answer_of(done: Result<(), AllocError>, error_out: Option<&mut CError>) -> c_int {
    done.map_or_else(|error| report(error_out, &of_alloc(&error)), |()| 0)
}

const ATTACHED: Failure<'static> = Failure {
    cause: Cause::Attached,
    errno: libc::EPERM,
    text: &"only the pool that was created in this memory allocates and frees; this one is attached",
};

/// `struct dormouse_percpu_object`.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct CObject {
    word: Option<NonNull<u8>>,
}

impl CObject {
    fn of(object: Object) -> CObject {
        CObject { word: Some(object.into_raw()) }
    }

    /// Returns the object; `None` for a handle of zeroes.
    fn get(self) -> Option<Object> {
        self.word.map(Object::from_raw)
    }
}

/// `struct dormouse_percpu_pool_options`.
#[repr(C)]
pub struct COptions {
    flags: c_uint,
    cpu_count: u32,
    stride_bytes: usize,
    limit_bytes: usize,
}

const ROBUST: c_uint = 1;
const LAZY: c_uint = 2;

// `../tests/c_programs/pool.c` checks these sizes for the structures of the header.
const _: () = assert!(size_of::<Node>() == 8 && size_of::<ListSlot>() == 24 && align_of::<ListSlot>() == 8);
const _: () = assert!(size_of::<CObject>() == 8 && size_of::<COptions>() == 24 && size_of::<CError>() == 256);
const _: () = assert!(size_of::<Leak>() == 16 && size_of::<Usage>() == 56 && size_of::<Copying>() == 56);

impl COptions {
    const DEFAULT: COptions = COptions { flags: 0, cpu_count: 0, stride_bytes: 0, limit_bytes: 0 };

    fn to_rust(&self) -> Result<PoolOptions, AllocError> {
        let (value, most) = (self.flags as usize, (ROBUST | LAZY) as usize);
        if value > most {
            return Err(AllocError::BadOption {
                option: "flags",
                value,
                need: Requirement::Between { least: 0, most },
            });
        }
        let default = PoolOptions::default();
        let or = |value, default| if value == 0 { default } else { value };
        Ok(PoolOptions {
            cpu_count: if self.cpu_count == 0 { default.cpu_count } else { self.cpu_count },
            stride_bytes: or(self.stride_bytes, default.stride_bytes),
            limit_bytes: or(self.limit_bytes, default.limit_bytes),
            is_robust: self.flags & ROBUST != 0,
            is_lazy: self.flags & LAZY != 0,
        })
    }
}

/// `struct dormouse_percpu_pool`: a pool or an attachment, and the state that its operations need.
pub struct CPool {
    memory: Memory,
    view: View,
    /// Words of the pool; `None` if processes share the memory and this process has no rseq.
    words: Option<Words>,
    rseq: Option<Rseq>,
    area: CArea,
}

enum Memory {
    Pool(Pool),
    Attached(Attached),
}

impl CPool {
    fn pool(&self) -> Option<&Pool> {
        match &self.memory {
            Memory::Pool(pool) => Some(pool),
            Memory::Attached(_) => None,
        }
    }

    /// # Safety
    /// The conditions of [`List::of_object`].
    unsafe fn list(&self, object: Object, offset: usize) -> List {
        // SAFETY: the caller guarantees that the object lives, and that a slot at `offset` is inside it and written
        // only by lists.
        unsafe { List::of_object(self.view, object, offset) }
    }
}

/// Size of the mapping that contains a pool, in bytes.
const MAPPING_SIZE: usize = 4096;
const _: () = assert!(size_of::<CPool>() <= MAPPING_SIZE);

/// How C creates a pool.
#[derive(Clone, Copy)]
enum CreationMode {
    Private,
    InRegion(Region),
    AttachedTo(Region),
}

fn create(options: &COptions, mode: CreationMode) -> Result<NonNull<CPool>, AllocError> {
    let options = options.to_rust()?;
    let rseq = super::detect();
    let memory = match mode {
        CreationMode::Private => Memory::Pool(Pool::new(&options)?),
        CreationMode::InRegion(region) => Memory::Pool(Pool::in_region(region, &options)?),
        CreationMode::AttachedTo(region) => Memory::Attached(Attached::new(region, &options)?),
    };
    let view = match &memory {
        Memory::Pool(pool) => pool.view(),
        Memory::Attached(attached) => attached.view(),
    };
    let words = match (mode, &memory) {
        (CreationMode::Private, Memory::Pool(pool)) => Some(Words::new(pool)),
        _ => Words::shared(view),
    };
    let Some(pool) = super::map(MAPPING_SIZE).map(NonNull::cast::<CPool>) else {
        let shortage = Shortage::Refused { size_bytes: MAPPING_SIZE, errno: libc::ENOMEM };
        return Err(AllocError::Exhausted { size_bytes: 0, align_bytes: 0, shortage });
    };
    // SAFETY: there is room in the mapping, which is aligned to an os_page and which no other thread knows.
    unsafe { pool.write(CPool { memory, view, words, rseq, area: CArea::of_pool(view, words, rseq) }) };
    // SAFETY: it was written just now, and no other thread knows it.
    unsafe { &mut *pool.as_ptr() }.area.settle();
    Ok(pool)
}

/// Creates a pool and returns it in C's form: a pointer, or NULL and `errno`.
fn answer(options: Option<&COptions>, mode: CreationMode, error_out: Option<&mut CError>) -> Option<NonNull<CPool>> {
    create(options.unwrap_or(&COptions::DEFAULT), mode)
        .inspect_err(|error| super::set_errno(-report(error_out, &of_alloc(error))))
        .ok()
}

/// Creates a pool of private memory; NULL and `errno` on failure.
#[unsafe(no_mangle)]
pub extern "C" fn dormouse_percpu_pool_create(
    options: Option<&COptions>,
    error_out: Option<&mut CError>,
) -> Option<NonNull<CPool>> {
    answer(options, CreationMode::Private, error_out)
}

/// Creates a pool of the caller's memory; NULL and `errno` on failure.
///
/// # Safety
/// The conditions of [`Region::new`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dormouse_percpu_pool_create_in_region(
    base: *mut u8,
    size_bytes: usize,
    options: Option<&COptions>,
    error_out: Option<&mut CError>,
) -> Option<NonNull<CPool>> {
    // SAFETY: the caller guarantees that the bytes stay mapped, and that nothing else writes to them.
    let region = unsafe { Region::new(base, size_bytes) };
    answer(options, CreationMode::InRegion(region), error_out)
}

/// Attaches to a pool in the caller's memory; NULL and `errno` on failure.
///
/// # Safety
/// The conditions of [`Region::new`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dormouse_percpu_pool_attach(
    base: *mut u8,
    size_bytes: usize,
    options: Option<&COptions>,
    error_out: Option<&mut CError>,
) -> Option<NonNull<CPool>> {
    // SAFETY: the caller guarantees that the bytes stay mapped, and that they are only written through objects.
    let region = unsafe { Region::new(base, size_bytes) };
    answer(options, CreationMode::AttachedTo(region), error_out)
}

/// Frees the pool's memory.
///
/// # Safety
/// NULL, or a pool that was created and not destroyed, and that is not used any more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dormouse_percpu_pool_destroy(pool: Option<NonNull<CPool>>) {
    if let Some(pool) = pool {
        // SAFETY: `create` wrote it, and the caller guarantees that it is not used any more.
        unsafe { pool.drop_in_place() };
        super::unmap(pool.as_ptr().cast(), MAPPING_SIZE);
    }
}

/// [`Pool::alloc`]; returns 0 or a negative errno.
#[unsafe(no_mangle)]
pub extern "C" fn dormouse_percpu_pool_alloc(
    pool: &CPool,
    size_bytes: usize,
    align_bytes: usize,
    object: Option<&mut MaybeUninit<CObject>>,
    error_out: Option<&mut CError>,
) -> c_int {
    let Some(object) = object else {
        let text = &"there is no place to store the object's handle in";
        return report(error_out, &Failure { cause: Cause::BadOption, errno: libc::EINVAL, text });
    };
    // With size 0, `Layout` refuses only bad alignments.
    if Layout::from_size_align(0, align_bytes).is_err() {
        let text = &format_args!("alignment to {align_bytes} bytes cannot be met: it is not a power of two");
        return report(error_out, &Failure { cause: Cause::BadAlignment, errno: libc::EINVAL, text });
    }
    let Ok(layout) = Layout::from_size_align(size_bytes, align_bytes) else {
        let text = &format_args!("an object of {size_bytes} bytes does not fit: there are not so many addresses");
        return report(error_out, &Failure { cause: Cause::TooBig, errno: libc::E2BIG, text });
    };
    let Some(pool) = pool.pool() else { return report(error_out, &ATTACHED) };
    match pool.alloc(layout) {
        Ok(allocated) => {
            object.write(CObject::of(allocated));
            0
        }
        Err(error) => report(error_out, &of_alloc(&error)),
    }
}

/// [`Pool::free`]; returns 0 or a negative errno.
///
/// # Safety
/// The conditions of [`Pool::free`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dormouse_percpu_pool_free(
    pool: &CPool,
    object: CObject,
    error_out: Option<&mut CError>,
) -> c_int {
    let Some(object) = object.get() else {
        let text = &"a handle of zeroes is no object";
        return report(error_out, &Failure { cause: Cause::Foreign, errno: libc::ENOENT, text });
    };
    let Some(pool) = pool.pool() else { return report(error_out, &ATTACHED) };
    // SAFETY: the caller guarantees that the object's bytes are not used from now on.
    answer_of(unsafe { pool.free(object) }, error_out)
}

/// [`View::address`]; NULL for a CPU that the pool does not have.
///
/// # Safety
/// The object lives.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dormouse_percpu_pool_address(pool: &CPool, object: CObject, cpu: u32) -> *mut c_void {
    match object.get().filter(|_| cpu < pool.view.cpu_count()) {
        // SAFETY: the caller guarantees that the object lives, and the pool has the CPU.
        Some(object) => unsafe { pool.view.address(object, cpu) }.cast(),
        None => ptr::null_mut(),
    }
}

/// Returns the area of a pool, for inline operations.
#[unsafe(no_mangle)]
pub extern "C" fn dormouse_percpu_pool_area(pool: &CPool) -> &CArea {
    &pool.area
}

/// [`View::cpu_count`].
#[unsafe(no_mangle)]
pub extern "C" fn dormouse_percpu_pool_cpu_count(pool: &CPool) -> u32 {
    pool.view.cpu_count()
}

/// [`Pool::size_of`]; returns bytes or a negative errno.
#[unsafe(no_mangle)]
pub extern "C" fn dormouse_percpu_pool_size_of(pool: &CPool, object: CObject) -> isize {
    let Some(object) = object.get() else { return -(libc::ENOENT as isize) };
    let Some(pool) = pool.pool() else { return -(libc::EPERM as isize) };
    pool.size_of(object).map_or(-(libc::ENOENT as isize), |size_bytes| size_bytes as isize)
}

/// [`Pool::offset_of`]; returns bytes or a negative errno.
#[unsafe(no_mangle)]
pub extern "C" fn dormouse_percpu_pool_offset_of(pool: &CPool, object: CObject) -> isize {
    let Some(object) = object.get() else { return -(libc::ENOENT as isize) };
    let Some(pool) = pool.pool() else { return -(libc::EPERM as isize) };
    if pool.size_of(object).is_none() {
        return -(libc::ENOENT as isize);
    }
    pool.offset_of(object).map_or(-(libc::ENOTSUP as isize), |offset| offset as isize)
}

/// [`Pool::object_at`], [`Attached::object_at`]; returns 0 or a negative errno.
#[unsafe(no_mangle)]
pub extern "C" fn dormouse_percpu_pool_object_at(
    pool: &CPool,
    offset: usize,
    object: Option<&mut MaybeUninit<CObject>>,
) -> c_int {
    let Some(object) = object else { return -libc::EINVAL };
    let found = match &pool.memory {
        Memory::Pool(pool) => pool.object_at(offset),
        Memory::Attached(attached) => attached.object_at(offset),
    };
    let Some(found) = found else { return -libc::ENOENT };
    object.write(CObject::of(found));
    0
}

/// [`Pool::audit`]; returns 0 or a negative errno.
#[unsafe(no_mangle)]
pub extern "C" fn dormouse_percpu_pool_audit(pool: &CPool, error_out: Option<&mut CError>) -> c_int {
    let Some(pool) = pool.pool() else { return report(error_out, &ATTACHED) };
    answer_of(pool.audit(), error_out)
}

/// [`Pool::usage`]; returns 0 or a negative errno.
#[unsafe(no_mangle)]
pub extern "C" fn dormouse_percpu_pool_usage(pool: &CPool, usage: Option<&mut MaybeUninit<Usage>>) -> c_int {
    let Some(usage) = usage else { return -libc::EINVAL };
    let Some(pool) = pool.pool() else { return -libc::EPERM };
    usage.write(pool.usage());
    0
}

/// [`Pool::leaks`]; returns the number of sizes, or a negative errno.
///
/// # Safety
/// `leaks` has room for `capacity` elements, and is not accessed otherwise during the call.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dormouse_percpu_pool_leaks(pool: &CPool, leaks: *mut Leak, capacity: usize) -> isize {
    let Some(pool) = pool.pool() else { return -(libc::EPERM as isize) };
    // SAFETY: the caller guarantees room for `capacity` elements, not accessed otherwise during the call.
    unsafe { super::fill(leaks, capacity, pool.leaks()) }
}

/// [`Pool::hold`]; returns 0 or a negative errno.
///
/// # Safety
/// `work` may be called with `argument`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dormouse_percpu_pool_hold(
    pool: &CPool,
    work: Option<unsafe extern "C" fn(*mut c_void)>,
    argument: *mut c_void,
) -> c_int {
    let Some(work) = work else { return -libc::EINVAL };
    let Some(pool) = pool.pool() else { return -libc::EPERM };
    // SAFETY: the caller guarantees that `work` may be called with `argument`.
    pool.hold(|| unsafe { work(argument) }).map_or(-libc::EDEADLK, |()| 0)
}

/// Runs an operation on the pool's words, if the handle is not zero and the offsets are multiples of 8. `offsets` is
/// the bitwise OR of all offsets of words.
#[inline]
fn on_words(
    pool: &CPool,
    object: CObject,
    offsets: usize,
    operation: impl FnOnce(Words, Object) -> Result<c_int, WordError>,
) -> c_int {
    let Some(object) = object.get().filter(|_| offsets.is_multiple_of(8)) else { return -libc::EINVAL };
    let Some(words) = pool.words else { return -libc::ENOTSUP };
    operation(words, object).unwrap_or_else(|error| match error {
        WordError::NoCopy { .. } => -libc::ERANGE,
        _ => -libc::ENOTSUP,
    })
}

/// [`Words::add`]; returns 0 or a negative errno.
///
/// # Safety
/// The conditions of [`Words::add`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dormouse_percpu_add(pool: &CPool, object: CObject, offset: usize, n: u64) -> c_int {
    // SAFETY: the caller guarantees the conditions of `Words::add`: a live object, and a word of it at `offset`.
    on_words(pool, object, offset, |words, object| unsafe { words.add(object, offset, n) }.map(|()| 0))
}

/// [`Words::load`]; returns 0 or a negative errno.
///
/// # Safety
/// The conditions of [`Words::load`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dormouse_percpu_load(
    pool: &CPool,
    object: CObject,
    offset: usize,
    value: Option<&mut u64>,
) -> c_int {
    let Some(value) = value else { return -libc::EINVAL };
    on_words(pool, object, offset, |words, object| {
        // SAFETY: the caller guarantees the conditions of `Words::load`: a live object, and a word of it at `offset`.
        *value = unsafe { words.load(object, offset) }?;
        Ok(0)
    })
}

/// [`Words::store`]; returns 0 or a negative errno.
///
/// # Safety
/// The conditions of [`Words::store`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dormouse_percpu_store(pool: &CPool, object: CObject, offset: usize, value: u64) -> c_int {
    // SAFETY: the caller guarantees the conditions of `Words::store`: a live object, and a word of it at `offset`.
    on_words(pool, object, offset, |words, object| unsafe { words.store(object, offset, value) }.map(|()| 0))
}

/// [`Words::compare_and_store`]; returns 0, 1 if the word held another value, or a negative errno.
///
/// # Safety
/// The conditions of [`Words::compare_and_store`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dormouse_percpu_compare_and_store(
    pool: &CPool,
    object: CObject,
    offset: usize,
    expected: u64,
    value: u64,
) -> c_int {
    on_words(pool, object, offset, |words, object| {
        // SAFETY: the caller guarantees the conditions of `Words::compare_and_store`: a live object, and a word of it
        // at `offset`.
        let is_stored = unsafe { words.compare_and_store(object, offset, expected, value) }?;
        Ok(c_int::from(!is_stored))
    })
}

/// [`Words::copy_and_store`]; returns 0, 1 if the guard held another value, or a negative errno.
///
/// # Safety
/// The conditions of [`Words::copy_and_store`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dormouse_percpu_copy_and_store(
    pool: &CPool,
    object: CObject,
    copying: Option<&Copying>,
) -> c_int {
    let Some(copying) = copying else { return -libc::EINVAL };
    on_words(pool, object, copying.guard | copying.last, |words, object| {
        // SAFETY: the caller guarantees the conditions of `Words::copy_and_store`: a live object that contains the
        // words and the destination, and a readable source.
        let is_stored = unsafe { words.copy_and_store(object, copying) }?;
        Ok(c_int::from(!is_stored))
    })
}

/// [`List::push`].
///
/// # Safety
/// The conditions of [`List::of_object`] and [`List::push`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dormouse_percpu_list_push(
    pool: &CPool,
    object: CObject,
    offset: usize,
    node: Option<NonNull<Node>>,
) {
    if let (Some(object), Some(node)) = (object.get(), node) {
        // SAFETY: the caller guarantees that the object lives and has a list's slot at `offset`.
        let list = unsafe { pool.list(object, offset) };
        // SAFETY: the caller guarantees that the node is its own and on no list.
        unsafe { list.push(pool.rseq, node) }
    }
}

/// [`List::pop`].
///
/// # Safety
/// The conditions of [`List::of_object`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dormouse_percpu_list_pop(
    pool: &CPool,
    object: CObject,
    offset: usize,
) -> Option<NonNull<Node>> {
    let object = object.get()?;
    // SAFETY: the caller guarantees that the object lives and has a list's slot at `offset`.
    unsafe { pool.list(object, offset) }.pop(pool.rseq)
}

/// [`List::drain`].
///
/// # Safety
/// The conditions of [`List::of_object`] and [`List::drain`]; `take` may be called with each node and `argument`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dormouse_percpu_list_drain(
    pool: &CPool,
    object: CObject,
    offset: usize,
    take: Option<unsafe extern "C" fn(NonNull<Node>, *mut c_void)>,
    argument: *mut c_void,
) {
    if let (Some(object), Some(take)) = (object.get(), take) {
        // SAFETY: the caller guarantees that the object lives and has a list's slot at `offset`.
        let list = unsafe { pool.list(object, offset) };
        // SAFETY: the caller guarantees that `take` may be called with each node and `argument`.
        let each = |node| unsafe { take(node, argument) };
        // SAFETY: the caller guarantees that no other thread uses the list during the call.
        unsafe { list.drain(each) }
    }
}
