//! Pools for C: handles as words, errors as numbers with a cause and a text, and every scheme behind one interface.
//!
//! ```text
//!   one mapping   │ head: where the body is │ body: pool or attachment, view, words │
//!                 ▲ the pointer that C has
//! ```

use core::alloc::Layout;
use core::ffi::{c_char, c_int, c_uint, c_void};
use core::fmt::{self, Display, Write};
use core::mem::MaybeUninit;
use core::ptr::{self, NonNull};

use dormouse_percpu::{
    AllocError, Attached, Contiguous, Copying, FreeError, Interlaced, Leak, ListSlot, Need, Node, Object, OffsetTable,
    PointerArray, Pool, PoolList, PoolOptions, Region, Relocatable, Rseq, Scheme, Shortage, StaticAreas, Usage, View,
    WordError, Words,
};

/// `enum dormouse_percpu_cause`.
#[derive(Clone, Copy)]
#[repr(u32)]
enum Cause {
    TooBig = 1,
    BadAlignment,
    Fixed,
    Limit,
    NoPlace,
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

/// What went wrong: cause, errno, and the text of the error.
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

/// Writes as much as there is room for, and leaves room for a NUL.
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

/// Stores the failure for the caller, and gives the function's return value.
fn tell(to: Option<&mut CError>, failure: &Failure<'_>) -> c_int {
    if let Some(to) = to {
        (to.error, to.cause, to.text) = (failure.errno, failure.cause as u32, [0; TEXT_SIZE]);
        // A text that is too long is cut off.
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
            Shortage::ChunkTooSmall { .. } => (Cause::NoPlace, libc::ENOSPC),
            Shortage::Chunks { .. } => (Cause::ChunkCount, libc::ENOSPC),
            Shortage::Refused { .. } => (Cause::Refused, libc::ENOMEM),
            _ => (Cause::Other, libc::ENOSPC),
        },
        AllocError::Corrupted(_) => (Cause::Corrupted, libc::EUCLEAN),
        AllocError::BadOption { .. } => (Cause::BadOption, libc::EINVAL),
        AllocError::Reentered => (Cause::Reentered, libc::EDEADLK),
        _ => (Cause::Other, libc::EINVAL),
    };
    Failure { cause, errno, text: error }
}

fn of_free(error: &FreeError) -> Failure<'_> {
    let (cause, errno) = match error {
        FreeError::DoubleFree { .. } => (Cause::DoubleFree, libc::EALREADY),
        FreeError::Foreign { .. } => (Cause::Foreign, libc::ENOENT),
        FreeError::Corrupted(_) => (Cause::Corrupted, libc::EUCLEAN),
        FreeError::Reentered => (Cause::Reentered, libc::EDEADLK),
        _ => (Cause::Other, libc::EINVAL),
    };
    Failure { cause, errno, text: error }
}

const ATTACHED: Failure<'static> = Failure {
    cause: Cause::Attached,
    errno: libc::EPERM,
    text: &"only the pool that was created in this memory allocates and frees; this one is attached",
};

fn of_word(result: Result<c_int, WordError>) -> c_int {
    result.unwrap_or_else(|error| match error {
        WordError::NoCopy { .. } => -libc::ERANGE,
        _ => -libc::ENOTSUP,
    })
}

/// `struct dormouse_percpu_object`.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct CObject {
    word: Option<NonNull<u8>>,
}

/// `struct dormouse_percpu_leak`.
#[repr(C)]
pub struct CLeak {
    size_bytes: usize,
    count: usize,
}

/// `struct dormouse_percpu_usage`.
#[repr(C)]
pub struct CUsage {
    object_count: usize,
    object_bytes: usize,
    chunk_count: usize,
    mapped_bytes: usize,
    withdrawn_bytes: usize,
    size_bytes_max: usize,
    align_bytes_max: usize,
}

/// `struct dormouse_percpu_copy`.
#[repr(C)]
pub struct CCopy {
    guard_offset: usize,
    expected: u64,
    to_offset: usize,
    from: *const u8,
    size_bytes: usize,
    last_offset: usize,
    value: u64,
}

/// `struct dormouse_percpu_pool_options`.
#[repr(C)]
pub struct COptions {
    scheme: c_uint,
    flags: c_uint,
    cpu_count: u32,
    reserved: u32,
    stride_bytes: usize,
    limit_bytes: usize,
}

const SCHEME_COUNT: usize = 5;
const ROBUST: c_uint = 1;
const LAZY: c_uint = 2;

// `tests/percpu/pool.c` has the same sizes for the structures of the header.
const _: () = assert!(size_of::<Node>() == 8 && size_of::<ListSlot>() == 24 && align_of::<ListSlot>() == 8);
const _: () = assert!(size_of::<CObject>() == 8 && size_of::<COptions>() == 32 && size_of::<CError>() == 256);
const _: () = assert!(size_of::<CLeak>() == 16 && size_of::<CUsage>() == 56 && size_of::<CCopy>() == 56);

impl COptions {
    const DEFAULT: COptions =
        COptions { scheme: 0, flags: 0, cpu_count: 0, reserved: 0, stride_bytes: 0, limit_bytes: 0 };

    fn to_rust(&self) -> Result<PoolOptions, AllocError> {
        let check = |option, value, most| {
            let need = Need::Between { least: 0, most };
            if value <= most { Ok(()) } else { Err(AllocError::BadOption { option, value, need }) }
        };
        check("scheme", self.scheme as usize, SCHEME_COUNT - 1)?;
        check("flags", self.flags as usize, (ROBUST | LAZY) as usize)?;
        check("reserved", self.reserved as usize, 0)?;
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

/// A pool, or an attachment to a pool.
trait Memory<S: Scheme>: Sized {
    fn view(&self) -> View<S>;
    fn pool(&self) -> Option<&Pool<S>>;
    fn object_at(&self, offset: usize) -> Option<Object<S>>;
}

impl<S: Scheme> Memory<S> for Pool<S> {
    fn view(&self) -> View<S> {
        Pool::view(self)
    }

    fn pool(&self) -> Option<&Pool<S>> {
        Some(self)
    }

    fn object_at(&self, offset: usize) -> Option<Object<S>> {
        Pool::object_at(self, offset)
    }
}

impl<S: Relocatable> Memory<S> for Attached<S> {
    fn view(&self) -> View<S> {
        Attached::view(self)
    }

    fn pool(&self) -> Option<&Pool<S>> {
        None
    }

    fn object_at(&self, offset: usize) -> Option<Object<S>> {
        Attached::object_at(self, offset)
    }
}

/// A pool or an attachment, with what its operations need.
struct Body<S: Scheme, M: Memory<S>> {
    memory: M,
    view: View<S>,
    /// None over memory that processes share if this process has no rseq.
    words: Option<Words<S>>,
    rseq: Option<Rseq>,
}

impl<S: Scheme, M: Memory<S>> Body<S, M> {
    /// # Safety
    /// `object` lives, and a list's slot is there.
    unsafe fn list(&self, object: NonNull<u8>, offset: usize) -> PoolList<S> {
        // SAFETY: the caller's word.
        unsafe { PoolList::new(self.view, Object::from_raw(object), offset) }
    }
}

/// A pool of any scheme.
trait Face {
    fn alloc(&self, layout: Layout, told: Option<&mut CError>) -> Result<NonNull<u8>, c_int>;

    /// # Safety
    /// As [`Pool::free`].
    unsafe fn free(&self, object: NonNull<u8>, told: Option<&mut CError>) -> c_int;

    /// # Safety
    /// As [`View::address`].
    unsafe fn address(&self, object: NonNull<u8>, cpu: u32) -> *mut u8;

    fn cpu_count(&self) -> u32;
    fn size_of(&self, object: NonNull<u8>) -> isize;
    fn offset_of(&self, object: NonNull<u8>) -> isize;
    fn object_at(&self, offset: usize) -> Option<NonNull<u8>>;
    fn audit(&self, told: Option<&mut CError>) -> c_int;
    fn usage(&self) -> Option<Usage>;
    fn leaks(&self, leak: &mut dyn FnMut(Leak)) -> c_int;
    fn hold(&self, work: &mut dyn FnMut()) -> c_int;

    /// # Safety
    /// As [`Words::add`].
    unsafe fn add(&self, object: NonNull<u8>, offset: usize, n: u64) -> c_int;

    /// # Safety
    /// As [`Words::load`].
    unsafe fn load(&self, object: NonNull<u8>, offset: usize) -> Result<u64, c_int>;

    /// # Safety
    /// As [`Words::store`].
    unsafe fn store(&self, object: NonNull<u8>, offset: usize, value: u64) -> c_int;

    /// # Safety
    /// As [`Words::compare_and_store`].
    unsafe fn compare_and_store(&self, object: NonNull<u8>, offset: usize, expected: u64, value: u64) -> c_int;

    /// # Safety
    /// As [`Words::copy_and_store`].
    unsafe fn copy_and_store(&self, object: NonNull<u8>, copying: &Copying) -> c_int;

    /// # Safety
    /// As [`PoolList::new`] and [`PoolList::push`].
    unsafe fn push(&self, object: NonNull<u8>, offset: usize, node: NonNull<Node>);

    /// # Safety
    /// As [`PoolList::new`].
    unsafe fn pop(&self, object: NonNull<u8>, offset: usize) -> Option<NonNull<Node>>;

    /// # Safety
    /// As [`PoolList::new`] and [`PoolList::drain`].
    unsafe fn drain(&self, object: NonNull<u8>, offset: usize, take: &mut dyn FnMut(NonNull<Node>));
}

impl<S: Scheme, M: Memory<S>> Face for Body<S, M> {
    fn alloc(&self, layout: Layout, told: Option<&mut CError>) -> Result<NonNull<u8>, c_int> {
        let Some(pool) = self.memory.pool() else { return Err(tell(told, &ATTACHED)) };
        pool.alloc(layout).map(Object::into_raw).map_err(|error| tell(told, &of_alloc(&error)))
    }

    unsafe fn free(&self, object: NonNull<u8>, told: Option<&mut CError>) -> c_int {
        let Some(pool) = self.memory.pool() else { return tell(told, &ATTACHED) };
        // SAFETY: the caller's word.
        let freed = unsafe { pool.free(Object::from_raw(object)) };
        freed.map_or_else(|error| tell(told, &of_free(&error)), |()| 0)
    }

    unsafe fn address(&self, object: NonNull<u8>, cpu: u32) -> *mut u8 {
        // SAFETY: the caller's word.
        unsafe { self.view.address(Object::from_raw(object), cpu) }
    }

    fn cpu_count(&self) -> u32 {
        self.view.cpu_count()
    }

    fn size_of(&self, object: NonNull<u8>) -> isize {
        let Some(pool) = self.memory.pool() else { return -(libc::EPERM as isize) };
        pool.size_of(Object::from_raw(object)).map_or(-(libc::ENOENT as isize), |size_bytes| size_bytes as isize)
    }

    fn offset_of(&self, object: NonNull<u8>) -> isize {
        let object = Object::from_raw(object);
        let Some(pool) = self.memory.pool() else { return -(libc::EPERM as isize) };
        if pool.size_of(object).is_none() {
            return -(libc::ENOENT as isize);
        }
        pool.offset_of(object).map_or(-(libc::ENOTSUP as isize), |offset| offset as isize)
    }

    fn object_at(&self, offset: usize) -> Option<NonNull<u8>> {
        self.memory.object_at(offset).map(Object::into_raw)
    }

    fn audit(&self, told: Option<&mut CError>) -> c_int {
        let Some(pool) = self.memory.pool() else { return tell(told, &ATTACHED) };
        pool.audit().map_or_else(|error| tell(told, &of_alloc(&error)), |()| 0)
    }

    fn usage(&self) -> Option<Usage> {
        self.memory.pool().map(Pool::usage)
    }

    fn leaks(&self, leak: &mut dyn FnMut(Leak)) -> c_int {
        let Some(pool) = self.memory.pool() else { return -libc::EPERM };
        pool.leaks().for_each(leak);
        0
    }

    fn hold(&self, work: &mut dyn FnMut()) -> c_int {
        let Some(pool) = self.memory.pool() else { return -libc::EPERM };
        pool.hold(work).map_or(-libc::EDEADLK, |()| 0)
    }

    #[inline]
    unsafe fn add(&self, object: NonNull<u8>, offset: usize, n: u64) -> c_int {
        let Some(words) = self.words else { return -libc::ENOTSUP };
        // SAFETY: the caller's word.
        of_word(unsafe { words.add(Object::from_raw(object), offset, n) }.map(|()| 0))
    }

    unsafe fn load(&self, object: NonNull<u8>, offset: usize) -> Result<u64, c_int> {
        let words = self.words.ok_or(-libc::ENOTSUP)?;
        // SAFETY: the caller's word.
        unsafe { words.load(Object::from_raw(object), offset) }.map_err(|error| of_word(Err(error)))
    }

    unsafe fn store(&self, object: NonNull<u8>, offset: usize, value: u64) -> c_int {
        let Some(words) = self.words else { return -libc::ENOTSUP };
        // SAFETY: the caller's word.
        of_word(unsafe { words.store(Object::from_raw(object), offset, value) }.map(|()| 0))
    }

    unsafe fn compare_and_store(&self, object: NonNull<u8>, offset: usize, expected: u64, value: u64) -> c_int {
        let Some(words) = self.words else { return -libc::ENOTSUP };
        // SAFETY: the caller's word.
        let stored = unsafe { words.compare_and_store(Object::from_raw(object), offset, expected, value) };
        of_word(stored.map(|is_stored| c_int::from(!is_stored)))
    }

    unsafe fn copy_and_store(&self, object: NonNull<u8>, copying: &Copying) -> c_int {
        let Some(words) = self.words else { return -libc::ENOTSUP };
        // SAFETY: the caller's word.
        let stored = unsafe { words.copy_and_store(Object::from_raw(object), copying) };
        of_word(stored.map(|is_stored| c_int::from(!is_stored)))
    }

    unsafe fn push(&self, object: NonNull<u8>, offset: usize, node: NonNull<Node>) {
        // SAFETY: the caller's word.
        let list = unsafe { self.list(object, offset) };
        // SAFETY: the caller's word.
        unsafe { list.push(self.rseq, node) }
    }

    unsafe fn pop(&self, object: NonNull<u8>, offset: usize) -> Option<NonNull<Node>> {
        // SAFETY: the caller's word.
        unsafe { self.list(object, offset) }.pop(self.rseq)
    }

    unsafe fn drain(&self, object: NonNull<u8>, offset: usize, take: &mut dyn FnMut(NonNull<Node>)) {
        // SAFETY: the caller's word.
        let list = unsafe { self.list(object, offset) };
        // SAFETY: the caller's word.
        unsafe { list.drain(take) }
    }
}

/// `struct dormouse_percpu_pool`.
pub struct PoolHead {
    body: NonNull<dyn Face>,
}

impl PoolHead {
    fn face(&self) -> &dyn Face {
        // SAFETY: the body lies in the mapping that the head begins, until both are destroyed.
        unsafe { self.body.as_ref() }
    }
}

/// Bytes of a mapping with head and body.
const MAPPING_SIZE: usize = 4096;
/// Where the body begins: a multiple of every alignment.
const BODY: usize = 128;
const _: () = assert!(size_of::<PoolHead>() <= BODY);

/// How C gets a pool.
#[derive(Clone, Copy)]
enum Way {
    Private,
    In(Region),
    To(Region),
}

fn create(options: &COptions, way: Way, told: Option<&mut CError>) -> Result<NonNull<PoolHead>, c_int> {
    let rust = match options.to_rust() {
        Ok(rust) => rust,
        Err(error) => return Err(tell(told, &of_alloc(&error))),
    };
    let made = match (options.scheme, way) {
        (0, Way::To(region)) => attach::<Interlaced>(region, &rust),
        (1, Way::To(region)) => attach::<StaticAreas>(region, &rust),
        (2, Way::To(_)) => {
            let text = &"an array of pointers cannot be attached to: its addresses are the allocating process's";
            return Err(tell(told, &Failure { cause: Cause::BadOption, errno: libc::EINVAL, text }));
        }
        (3, Way::To(region)) => attach::<Contiguous>(region, &rust),
        (_, Way::To(region)) => attach::<OffsetTable>(region, &rust),
        (0, way) => pool::<Interlaced>(way, &rust),
        (1, way) => pool::<StaticAreas>(way, &rust),
        (2, way) => pool::<PointerArray>(way, &rust),
        (3, way) => pool::<Contiguous>(way, &rust),
        (_, way) => pool::<OffsetTable>(way, &rust),
    };
    made.map_err(|error| tell(told, &of_alloc(&error)))
}

fn pool<S: Scheme>(way: Way, options: &PoolOptions) -> Result<NonNull<PoolHead>, AllocError> {
    let (pool, is_shared) = match way {
        Way::Private => (Pool::<S>::new(options)?, false),
        Way::In(region) | Way::To(region) => (Pool::<S>::in_region(region, options)?, true),
    };
    let words = if is_shared { Words::shared(pool.view()) } else { Some(Words::new(&pool)) };
    place(pool, words)
}

fn attach<S: Relocatable>(region: Region, options: &PoolOptions) -> Result<NonNull<PoolHead>, AllocError> {
    let attached = Attached::<S>::new(region, options)?;
    let words = Words::shared(attached.view());
    place(attached, words)
}

/// Puts head and body into a mapping of their own.
fn place<S: Scheme, M: Memory<S> + 'static>(
    memory: M,
    words: Option<Words<S>>,
) -> Result<NonNull<PoolHead>, AllocError> {
    const { assert!(BODY + size_of::<Body<S, M>>() <= MAPPING_SIZE && align_of::<Body<S, M>>() <= BODY) };
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: a new mapping where the kernel likes, so no existing memory is touched (mmap(2)).
    let mapping = unsafe { libc::mmap(ptr::null_mut(), MAPPING_SIZE, protection, flags, -1, 0) };
    let Some(head) = NonNull::new(mapping.cast::<PoolHead>()).filter(|_| mapping != libc::MAP_FAILED) else {
        let shortage = Shortage::Refused { size_bytes: MAPPING_SIZE, errno: libc::ENOMEM };
        return Err(AllocError::Exhausted { size_bytes: 0, align_bytes: 0, shortage });
    };
    let view = memory.view();
    // SAFETY: inside the mapping, which is no null pointer.
    let body = unsafe { NonNull::new_unchecked(mapping.wrapping_byte_add(BODY).cast::<Body<S, M>>()) };
    // SAFETY: there is room in the mapping, which nobody else knows, and the place is aligned: the assertion above.
    unsafe { body.write(Body { memory, view, words, rseq: Rseq::detect() }) };
    // SAFETY: the mapping's start, with room for a head before the body.
    unsafe { head.write(PoolHead { body }) };
    Ok(head)
}

/// What a function that creates returns: a pointer, or NULL and `errno`.
fn answer(created: Result<NonNull<PoolHead>, c_int>) -> Option<NonNull<PoolHead>> {
    created.inspect_err(|&error| super::set_errno(-error)).ok()
}

/// A pool of private memory; NULL and `errno` if that fails.
#[unsafe(no_mangle)]
pub extern "C" fn dormouse_percpu_pool_create(
    options: Option<&COptions>,
    told: Option<&mut CError>,
) -> Option<NonNull<PoolHead>> {
    answer(create(options.unwrap_or(&COptions::DEFAULT), Way::Private, told))
}

/// A pool of the caller's memory; NULL and `errno` if that fails.
///
/// # Safety
/// As [`Region::new`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dormouse_percpu_pool_create_in_region(
    base: *mut u8,
    size_bytes: usize,
    options: Option<&COptions>,
    told: Option<&mut CError>,
) -> Option<NonNull<PoolHead>> {
    // SAFETY: handed on to the caller.
    let region = unsafe { Region::new(base, size_bytes) };
    answer(create(options.unwrap_or(&COptions::DEFAULT), Way::In(region), told))
}

/// An attachment to a pool in such memory; NULL and `errno` if that fails.
///
/// # Safety
/// As [`Region::new`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dormouse_percpu_pool_attach(
    base: *mut u8,
    size_bytes: usize,
    options: Option<&COptions>,
    told: Option<&mut CError>,
) -> Option<NonNull<PoolHead>> {
    // SAFETY: handed on to the caller.
    let region = unsafe { Region::new(base, size_bytes) };
    answer(create(options.unwrap_or(&COptions::DEFAULT), Way::To(region), told))
}

/// Frees the pool's memory.
///
/// # Safety
/// NULL, or a pool that was created and not destroyed, and that nobody uses any more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dormouse_percpu_pool_destroy(pool: Option<NonNull<PoolHead>>) {
    if let Some(pool) = pool {
        // SAFETY: the caller's word.
        let body = unsafe { pool.as_ref() }.body;
        // SAFETY: the body was written by `place`, and nobody uses it any more.
        unsafe { body.drop_in_place() };
        super::unmap(pool.as_ptr().cast(), MAPPING_SIZE);
    }
}

/// [`Pool::alloc`]; returns 0 or a negative errno.
#[unsafe(no_mangle)]
pub extern "C" fn dormouse_percpu_pool_alloc(
    pool: &PoolHead,
    size_bytes: usize,
    align_bytes: usize,
    object: Option<&mut MaybeUninit<CObject>>,
    told: Option<&mut CError>,
) -> c_int {
    let Some(object) = object else {
        let text = &"there is no place to store the object's handle in";
        return tell(told, &Failure { cause: Cause::BadOption, errno: libc::EINVAL, text });
    };
    // With the size that is left out here, `Layout` refuses alignments alone.
    if Layout::from_size_align(0, align_bytes).is_err() {
        let text = &format_args!("alignment to {align_bytes} bytes cannot be met: it is not a power of two");
        return tell(told, &Failure { cause: Cause::BadAlignment, errno: libc::EINVAL, text });
    }
    let Ok(layout) = Layout::from_size_align(size_bytes, align_bytes) else {
        let text = &format_args!("an object of {size_bytes} bytes does not fit: there are not so many addresses");
        return tell(told, &Failure { cause: Cause::TooBig, errno: libc::E2BIG, text });
    };
    match pool.face().alloc(layout, told) {
        Ok(word) => {
            object.write(CObject { word: Some(word) });
            0
        }
        Err(error) => error,
    }
}

/// [`Pool::free`]; returns 0 or a negative errno.
///
/// # Safety
/// As there.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dormouse_percpu_pool_free(
    pool: &PoolHead,
    object: CObject,
    told: Option<&mut CError>,
) -> c_int {
    let Some(word) = object.word else {
        let text = &"a handle of zeroes is no object";
        return tell(told, &Failure { cause: Cause::Foreign, errno: libc::ENOENT, text });
    };
    // SAFETY: handed on to the caller.
    unsafe { pool.face().free(word, told) }
}

/// [`View::address`]; NULL for a CPU that the pool does not have.
///
/// # Safety
/// The object lives.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dormouse_percpu_pool_address(pool: &PoolHead, object: CObject, cpu: u32) -> *mut c_void {
    match object.word.filter(|_| cpu < pool.face().cpu_count()) {
        // SAFETY: the caller's word, and the pool has the CPU.
        Some(word) => unsafe { pool.face().address(word, cpu) }.cast(),
        None => ptr::null_mut(),
    }
}

/// [`View::cpu_count`].
#[unsafe(no_mangle)]
pub extern "C" fn dormouse_percpu_pool_cpu_count(pool: &PoolHead) -> u32 {
    pool.face().cpu_count()
}

/// [`Pool::size_of`]; returns bytes or a negative errno.
#[unsafe(no_mangle)]
pub extern "C" fn dormouse_percpu_pool_size_of(pool: &PoolHead, object: CObject) -> isize {
    object.word.map_or(-(libc::ENOENT as isize), |word| pool.face().size_of(word))
}

/// [`Pool::offset_of`]; returns bytes or a negative errno.
#[unsafe(no_mangle)]
pub extern "C" fn dormouse_percpu_pool_offset_of(pool: &PoolHead, object: CObject) -> isize {
    object.word.map_or(-(libc::ENOENT as isize), |word| pool.face().offset_of(word))
}

/// [`Pool::object_at`], [`Attached::object_at`]; answers 0 or a negative errno.
#[unsafe(no_mangle)]
pub extern "C" fn dormouse_percpu_pool_object_at(
    pool: &PoolHead,
    offset: usize,
    object: Option<&mut MaybeUninit<CObject>>,
) -> c_int {
    let Some(object) = object else { return -libc::EINVAL };
    let Some(word) = pool.face().object_at(offset) else { return -libc::ENOENT };
    object.write(CObject { word: Some(word) });
    0
}

/// [`Pool::audit`]; answers 0 or a negative errno.
#[unsafe(no_mangle)]
pub extern "C" fn dormouse_percpu_pool_audit(pool: &PoolHead, told: Option<&mut CError>) -> c_int {
    pool.face().audit(told)
}

/// [`Pool::usage`]; answers 0 or a negative errno.
#[unsafe(no_mangle)]
pub extern "C" fn dormouse_percpu_pool_usage(pool: &PoolHead, usage: Option<&mut MaybeUninit<CUsage>>) -> c_int {
    let Some(to) = usage else { return -libc::EINVAL };
    let Some(usage) = pool.face().usage() else { return -libc::EPERM };
    to.write(CUsage {
        object_count: usage.object_count,
        object_bytes: usage.object_bytes,
        chunk_count: usage.chunk_count,
        mapped_bytes: usage.mapped_bytes,
        withdrawn_bytes: usage.withdrawn_bytes,
        size_bytes_max: usage.size_bytes_max,
        align_bytes_max: usage.align_bytes_max,
    });
    0
}

/// [`Pool::leaks`]; answers how many sizes there are, or a negative errno.
///
/// # Safety
/// `leaks` has room for `capacity`, and nobody else uses it meanwhile.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dormouse_percpu_pool_leaks(pool: &PoolHead, leaks: *mut CLeak, capacity: usize) -> isize {
    if leaks.is_null() && capacity > 0 {
        return -(libc::EINVAL as isize);
    }
    let mut len = 0;
    let mut store = |leak: Leak| {
        if len < capacity {
            // SAFETY: below the capacity, which is the caller's word.
            unsafe { leaks.wrapping_add(len).write(CLeak { size_bytes: leak.size_bytes, count: leak.count }) };
        }
        len += 1;
    };
    match pool.face().leaks(&mut store) {
        0 => len as isize,
        error => error as isize,
    }
}

/// [`Pool::hold`]; answers 0 or a negative errno.
///
/// # Safety
/// `work` may be called with `argument`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dormouse_percpu_pool_hold(
    pool: &PoolHead,
    work: Option<unsafe extern "C" fn(*mut c_void)>,
    argument: *mut c_void,
) -> c_int {
    let Some(work) = work else { return -libc::EINVAL };
    // SAFETY: the caller's word.
    pool.face().hold(&mut || unsafe { work(argument) })
}

/// The handle, if it is one and the offset may be a word's.
fn place_of(object: CObject, offsets: usize) -> Result<NonNull<u8>, c_int> {
    object.word.filter(|_| offsets.is_multiple_of(8)).ok_or(-libc::EINVAL)
}

/// [`Words::add`]; answers 0 or a negative errno.
///
/// # Safety
/// As there.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dormouse_percpu_add(pool: &PoolHead, object: CObject, offset: usize, n: u64) -> c_int {
    match place_of(object, offset) {
        // SAFETY: handed on to the caller.
        Ok(word) => unsafe { pool.face().add(word, offset, n) },
        Err(error) => error,
    }
}

/// [`Words::load`]; answers 0 or a negative errno.
///
/// # Safety
/// As there.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dormouse_percpu_load(
    pool: &PoolHead,
    object: CObject,
    offset: usize,
    value: Option<&mut u64>,
) -> c_int {
    let (Ok(word), Some(value)) = (place_of(object, offset), value) else { return -libc::EINVAL };
    // SAFETY: handed on to the caller.
    match unsafe { pool.face().load(word, offset) } {
        Ok(loaded) => {
            *value = loaded;
            0
        }
        Err(error) => error,
    }
}

/// [`Words::store`]; answers 0 or a negative errno.
///
/// # Safety
/// As there.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dormouse_percpu_store(pool: &PoolHead, object: CObject, offset: usize, value: u64) -> c_int {
    match place_of(object, offset) {
        // SAFETY: handed on to the caller.
        Ok(word) => unsafe { pool.face().store(word, offset, value) },
        Err(error) => error,
    }
}

/// [`Words::compare_and_store`]; answers 0, 1 if the word held something else, or a negative errno.
///
/// # Safety
/// As there.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dormouse_percpu_compare_and_store(
    pool: &PoolHead,
    object: CObject,
    offset: usize,
    expected: u64,
    value: u64,
) -> c_int {
    match place_of(object, offset) {
        // SAFETY: handed on to the caller.
        Ok(word) => unsafe { pool.face().compare_and_store(word, offset, expected, value) },
        Err(error) => error,
    }
}

/// [`Words::copy_and_store`]; answers 0, 1 if the guard held something else, or a negative errno.
///
/// # Safety
/// As there.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dormouse_percpu_copy_and_store(
    pool: &PoolHead,
    object: CObject,
    copy: Option<&CCopy>,
) -> c_int {
    let Some(copy) = copy else { return -libc::EINVAL };
    let &CCopy { guard_offset, expected, to_offset, from, size_bytes, last_offset, value } = copy;
    let copying = Copying { guard: guard_offset, expected, to: to_offset, from, size_bytes, last: last_offset, value };
    match place_of(object, guard_offset | last_offset) {
        // SAFETY: handed on to the caller.
        Ok(word) => unsafe { pool.face().copy_and_store(word, &copying) },
        Err(error) => error,
    }
}

/// [`PoolList::push`].
///
/// # Safety
/// As [`PoolList::new`] and there.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dormouse_percpu_list_push(
    pool: &PoolHead,
    object: CObject,
    offset: usize,
    node: Option<NonNull<Node>>,
) {
    if let (Some(word), Some(node)) = (object.word, node) {
        // SAFETY: handed on to the caller.
        unsafe { pool.face().push(word, offset, node) }
    }
}

/// [`PoolList::pop`].
///
/// # Safety
/// As [`PoolList::new`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dormouse_percpu_list_pop(
    pool: &PoolHead,
    object: CObject,
    offset: usize,
) -> Option<NonNull<Node>> {
    // SAFETY: handed on to the caller.
    object.word.and_then(|word| unsafe { pool.face().pop(word, offset) })
}

/// [`PoolList::drain`].
///
/// # Safety
/// As [`PoolList::new`] and there; `take` may be called with each node and `argument`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dormouse_percpu_list_drain(
    pool: &PoolHead,
    object: CObject,
    offset: usize,
    take: Option<unsafe extern "C" fn(NonNull<Node>, *mut c_void)>,
    argument: *mut c_void,
) {
    if let (Some(word), Some(take)) = (object.word, take) {
        // SAFETY: the caller's word.
        let mut each = |node| unsafe { take(node, argument) };
        // SAFETY: handed on to the caller.
        unsafe { pool.face().drain(word, offset, &mut each) }
    }
}
