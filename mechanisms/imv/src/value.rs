//! Immediate values: variables that are read from the instruction stream.

use core::cell::UnsafeCell;
use core::fmt;
use core::sync::atomic::{AtomicU64, Ordering, compiler_fence, fence};

use crate::registry::{Change, update};
use crate::site::Variable;
use crate::{Error, SiteCount};

/// The type of an immediate: a plain value of 1, 2, 4 or 8 bytes.
///
/// Implemented for integers, `bool`, `char`, floats, pointers, `&'static T` and `Option<&'static T>` of shareable types, and
/// function pointers with up to three arguments, also optional ones.
/// [`imv_enum!`](crate::imv_enum) implements it for enumerations without fields.
///
/// # Safety
/// The type has 1, 2, 4 or 8 bytes, none of them padding, and `from_bits(to_bits(value))` is `value`, whatever the bits
/// above the type's width. Every thread may use the value.
pub unsafe trait Value: Copy + 'static {
    /// Whether a register contains the value sign-extended.
    const SIGNED: bool = false;

    /// Whether what the value refers to is visible to a thread that reads the value: true for references. Other values
    /// order nothing.
    const PUBLISHES: bool = false;

    /// Returns the value's bits, in the lowest bytes.
    fn to_bits(self) -> u64;

    /// Returns the value with these bits; those beyond the type's width are ignored.
    ///
    /// # Safety
    /// The bits within the type's width are those of a valid value.
    unsafe fn from_bits(bits: u64) -> Self;
}

macro_rules! integers {
    ($($type:ty: $signed:literal),*) => {$(
        // SAFETY: an integer; `as` keeps the lowest bytes in both directions.
        unsafe impl Value for $type {
            const SIGNED: bool = $signed;
            fn to_bits(self) -> u64 {
                self as u64
            }
            #[inline(always)]
            unsafe fn from_bits(bits: u64) -> Self {
                bits as Self
            }
        }
    )*};
}
integers!(u8: false, u16: false, u32: false, u64: false, usize: false, i8: true, i16: true, i32: true, i64: true, isize: true);

// SAFETY: one byte, 0 or 1, which `from_bits` returns from the lowest byte.
unsafe impl Value for bool {
    fn to_bits(self) -> u64 {
        self.into()
    }
    #[inline(always)]
    unsafe fn from_bits(bits: u64) -> bool {
        bits as u8 != 0
    }
}

// SAFETY: four bytes without padding; `from_bits` uses only the lowest four.
unsafe impl Value for char {
    fn to_bits(self) -> u64 {
        u32::from(self).into()
    }
    #[inline(always)]
    unsafe fn from_bits(bits: u64) -> char {
        // SAFETY: the caller guarantees that the lowest bytes are those of a valid `char`.
        unsafe { char::from_u32_unchecked(bits as u32) }
    }
}

// SAFETY: four bytes without padding; `from_bits` uses only the lowest four.
unsafe impl Value for f32 {
    fn to_bits(self) -> u64 {
        self.to_bits().into()
    }
    #[inline(always)]
    unsafe fn from_bits(bits: u64) -> f32 {
        f32::from_bits(bits as u32)
    }
}

// SAFETY: eight bytes without padding.
unsafe impl Value for f64 {
    fn to_bits(self) -> u64 {
        self.to_bits()
    }
    #[inline(always)]
    unsafe fn from_bits(bits: u64) -> f64 {
        f64::from_bits(bits)
    }
}

// SAFETY: an address of 4 or 8 bytes. What it points to is accessed by unsafe code only.
unsafe impl<T: 'static> Value for *mut T {
    fn to_bits(self) -> u64 {
        self.expose_provenance() as u64
    }
    #[inline(always)]
    unsafe fn from_bits(bits: u64) -> *mut T {
        core::ptr::with_exposed_provenance_mut(bits as usize)
    }
}

// SAFETY: an address of 4 or 8 bytes. What it points to is accessed by unsafe code only.
unsafe impl<T: 'static> Value for *const T {
    fn to_bits(self) -> u64 {
        self.expose_provenance() as u64
    }
    #[inline(always)]
    unsafe fn from_bits(bits: u64) -> *const T {
        core::ptr::with_exposed_provenance(bits as usize)
    }
}

// SAFETY: an address of 4 or 8 bytes, never null, of something that all threads may share.
unsafe impl<T: Sync + 'static> Value for &'static T {
    const PUBLISHES: bool = true;
    fn to_bits(self) -> u64 {
        core::ptr::from_ref(self).expose_provenance() as u64
    }
    #[inline(always)]
    unsafe fn from_bits(bits: u64) -> &'static T {
        // SAFETY: the caller guarantees that the bits are those of a reference that lives for ever.
        unsafe { &*core::ptr::with_exposed_provenance::<T>(bits as usize) }
    }
}

// SAFETY: an address of 4 or 8 bytes of something that all threads may share, or null, which is `None`.
unsafe impl<T: Sync + 'static> Value for Option<&'static T> {
    const PUBLISHES: bool = true;
    fn to_bits(self) -> u64 {
        self.map_or(0, Value::to_bits)
    }
    #[inline(always)]
    unsafe fn from_bits(bits: u64) -> Option<&'static T> {
        // SAFETY: the caller guarantees that the bits are those of a reference that lives for ever, or 0.
        unsafe { core::ptr::with_exposed_provenance::<T>(bits as usize).as_ref() }
    }
}

macro_rules! function_pointers {
    ($(($($abi:tt)*) ($($argument:ident),*)),*) => {$(
        // SAFETY: an address of 4 or 8 bytes, never null.
        unsafe impl<R: 'static $(, $argument: 'static)*> Value for $($abi)* fn($($argument),*) -> R {
            fn to_bits(self) -> u64 {
                (self as *const ()).expose_provenance() as u64
            }
            #[inline(always)]
            unsafe fn from_bits(bits: u64) -> Self {
                // SAFETY: the caller guarantees that the bits are those of a function pointer of this type.
                unsafe { core::mem::transmute(core::ptr::with_exposed_provenance::<()>(bits as usize)) }
            }
        }

        // SAFETY: an address of 4 or 8 bytes, null for `None`.
        unsafe impl<R: 'static $(, $argument: 'static)*> Value for Option<$($abi)* fn($($argument),*) -> R> {
            fn to_bits(self) -> u64 {
                self.map_or(0, Value::to_bits)
            }
            #[inline(always)]
            unsafe fn from_bits(bits: u64) -> Self {
                // SAFETY: the caller guarantees that the bits are those of a function pointer of this type, or 0, which
                // is `None`.
                unsafe { core::mem::transmute(core::ptr::with_exposed_provenance::<()>(bits as usize)) }
            }
        }
    )*};
}
function_pointers!(() (), () (A), () (A, B), () (A, B, C), (extern "C") (), (extern "C") (A), (extern "C") (A, B), (extern "C") (A, B, C));

/// Makes a field-less enumeration of a primitive representation a [`Value`].
///
/// ```
/// use dormouse_imv::{imv, imv_enum, imv_read};
///
/// #[derive(Debug, Clone, Copy, PartialEq)]
/// #[repr(u8)]
/// enum Level { Error = 1, Info = 3 }
/// imv_enum!(Level: u8);
///
/// imv! { static LEVEL: Level = Level::Error; }
/// LEVEL.set(Level::Info).unwrap();
/// assert_eq!(imv_read!(LEVEL), Level::Info);
/// ```
#[macro_export]
macro_rules! imv_enum {
    ($type:ty: $repr:ty) => {
        const _: () = assert!(::core::mem::size_of::<$type>() == ::core::mem::size_of::<$repr>());
        // SAFETY: the type is exactly as wide as its representation, to which `as` converts it; `from_bits` is only
        // given bits that `to_bits` made.
        unsafe impl $crate::Value for $type {
            const SIGNED: bool = <$repr as $crate::Value>::SIGNED;
            fn to_bits(self) -> u64 {
                self as $repr as u64
            }
            #[inline(always)]
            unsafe fn from_bits(bits: u64) -> Self {
                // SAFETY: the caller guarantees that the lowest bytes are those of a valid value, and the widths are
                // equal.
                unsafe { ::core::mem::transmute::<$repr, $type>(bits as $repr) }
            }
        }
    };
}

/// A variable that is read from the instruction stream by [`imv_read!`](crate::imv_read). Shared with C as the variable that
/// `DEFINE_IMV` makes.
///
/// It must be a `static`, because its sites refer to it by address: [`imv!`](crate::imv) defines one.
#[repr(C)]
pub struct Imv<T: Value> {
    value: UnsafeCell<T>,
    /// Aligns the variable to 8 bytes, also if the type is not, because it changes by one store.
    aligned: [AtomicU64; 0],
}

// SAFETY: the value is read and written atomically, and `Value` promises that every thread may use it.
unsafe impl<T: Value> Sync for Imv<T> {}

impl<T: Value> Imv<T> {
    /// Returns an immediate with this initial value.
    pub const fn new(value: T) -> Imv<T> {
        const { assert!(matches!(size_of::<T>(), 1 | 2 | 4 | 8), "an immediate has 1, 2, 4 or 8 bytes") };
        Imv { value: UnsafeCell::new(value), aligned: [] }
    }

    /// Returns the variable's value, by an atomic load: for code that runs before the constructors or too seldom to
    /// matter, and for code that does not know which immediate it reads. Wait-free; async-signal-safe.
    #[inline(always)]
    pub fn read(&self) -> T {
        // SAFETY: the value is aligned to its size, and changes only atomically.
        let bits = unsafe { Variable::at(self.address(), size_of::<T>()) }.load();
        if T::PUBLISHES {
            // (F) pairs with (G): what the value refers to is visible.
            fence(Ordering::Acquire);
        }
        // SAFETY: only values of the type are stored.
        unsafe { T::from_bits(bits) }
    }

    /// Sets the value. When this returns `Ok`, every later read in every thread returns it; until then threads may see
    /// the old value or the new one.
    ///
    /// A thread that reads a reference sees the data behind it. Values of other types order no other data: data that must
    /// be visible before a thread reads the new value needs an ordering of its own.
    ///
    /// Errors: [`Error::Reentered`], [`Error::Stale`]; then the value is the old one. Blocking; async-signal-safe.
    pub fn set(&'static self, value: T) -> Result<(), Error> {
        update(&[self.to(value)])
    }

    /// Returns the change to a value, to be made together with others by [`update`](crate::update).
    pub fn to(&'static self, value: T) -> Change {
        // SAFETY: the variable is static, and `Imv` gives no other code access to it.
        unsafe { Change::value_of_kind(self.address(), size_of::<T>(), value.to_bits(), T::PUBLISHES) }
    }

    /// Returns the change to a value, after which a thread that has read it sees what was written before the change.
    #[doc(hidden)]
    pub fn to_published(&'static self, value: T) -> Change {
        // SAFETY: the variable is static, and `Imv` gives no other code access to it.
        unsafe { Change::value_of_kind(self.address(), size_of::<T>(), value.to_bits(), true) }
    }

    /// Counts its sites. Errors: [`Error::Reentered`]. Blocking; async-signal-safe.
    pub fn sites(&self) -> Result<SiteCount, Error> {
        crate::registry::sites_of(self.address())
    }

    fn address(&self) -> usize {
        self.value.get().addr()
    }
}

impl<T: Value + fmt::Debug> fmt::Debug for Imv<T> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_tuple("Imv").field(&self.read()).finish()
    }
}

/// Returns the size in bytes, and whether a read extends the sign, for [`imv_read!`](crate::imv_read).
#[doc(hidden)]
pub const fn shape_of<T: Value>(_: &Imv<T>) -> (usize, bool) {
    (size_of::<T>(), T::SIGNED)
}

/// Returns the value of bits that [`imv_read!`](crate::imv_read) has read.
///
/// # Safety
/// The lowest bytes are those of a value of the type.
#[doc(hidden)]
#[inline(always)]
pub unsafe fn value_of<T: Value>(_: &Imv<T>, bits: u64) -> T {
    if T::PUBLISHES {
        // (H) pairs with (I): code that uses the reference stays behind the site. Its slow path is a load, which is an
        // acquire on x86-64.
        compiler_fence(Ordering::Acquire);
    }
    // SAFETY: the caller guarantees that the lowest bytes are those of a value of the type.
    unsafe { T::from_bits(bits) }
}

/// Defines immediates: `static` items of type [`Imv`].
///
/// ```
/// dormouse_imv::imv! {
///     /// How much is logged.
///     pub static LEVEL: u8 = 3;
///     static LIMIT: i64 = -1;
/// }
/// # assert_eq!(dormouse_imv::imv_read!(LIMIT), -1);
/// ```
#[macro_export]
macro_rules! imv {
    ($($(#[$meta:meta])* $vis:vis static $name:ident: $type:ty = $value:expr;)*) => {$(
        $(#[$meta])*
        $vis static $name: $crate::Imv<$type> = $crate::Imv::new($value);
    )*};
}
