//! A site and its variable.

use core::sync::atomic::{AtomicI32, AtomicU8, AtomicU16, AtomicU32, AtomicU64, Ordering};

use dormouse_abi::site::{
    SITE_BRANCH, SITE_CALL, SITE_DIRECT_BRANCH, SITE_FORM_MASK, SITE_INDIRECT, SITE_LIKELY, SITE_SIGNED, SITE_VALUE,
    SITE_WIDTH_SHIFT, SiteRecord,
};

/// Maximum number of objects with sites that a registry knows. Sites of further objects stay as they were born.
pub const OBJECT_COUNT_MAX: usize = 1024;

/// Bits of a record's kind that this version understands.
const KNOWN_KIND_BITS: u32 =
    SITE_FORM_MASK | 3 << SITE_WIDTH_SHIFT | SITE_SIGNED | SITE_INDIRECT | SITE_LIKELY | SITE_CALL;

/// The form of a site.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Form {
    /// The gate of a static branch, which jumps to a slow path while its key is enabled.
    Branch,
    /// The gate of a static branch that reads no key once it is patched.
    DirectBranch,
    /// An instruction that loads a value or has it as its immediate.
    Value,
    /// A gate before an instruction with an immediate.
    GatedValue,
    /// The entry of a static call.
    Call,
}

/// A value's variable. All access is relaxed: a value orders no other data, so code that sets it orders the data that
/// belongs to it.
#[derive(Clone, Copy)]
pub(crate) enum Variable<'a> {
    Byte(&'a AtomicU8),
    Half(&'a AtomicU16),
    Word(&'a AtomicU32),
    Double(&'a AtomicU64),
}

impl Variable<'_> {
    /// Returns the variable of 1, 2, 4 or 8 bytes at an address.
    ///
    /// # Safety
    /// `address` is the address of a live variable of this size, aligned to it, which changes only atomically.
    #[inline]
    pub(crate) unsafe fn at(address: usize, size_bytes: usize) -> Variable<'static> {
        match size_bytes {
            // SAFETY: the caller guarantees a live variable of one byte, which changes only atomically.
            1 => Variable::Byte(unsafe { AtomicU8::from_ptr(address as *mut u8) }),
            // SAFETY: the caller guarantees a live, aligned variable of two bytes, which changes only atomically.
            2 => Variable::Half(unsafe { AtomicU16::from_ptr(address as *mut u16) }),
            // SAFETY: the caller guarantees a live, aligned variable of four bytes, which changes only atomically.
            4 => Variable::Word(unsafe { AtomicU32::from_ptr(address as *mut u32) }),
            // SAFETY: the caller guarantees a live, aligned variable of eight bytes, which changes only atomically.
            _ => Variable::Double(unsafe { AtomicU64::from_ptr(address as *mut u64) }),
        }
    }

    /// Returns the value, zero-extended.
    #[inline]
    pub(crate) fn load(self) -> u64 {
        match self {
            Variable::Byte(variable) => variable.load(Ordering::Relaxed).into(),
            Variable::Half(variable) => variable.load(Ordering::Relaxed).into(),
            Variable::Word(variable) => variable.load(Ordering::Relaxed).into(),
            Variable::Double(variable) => variable.load(Ordering::Relaxed),
        }
    }

    /// Returns the value, sign-extended.
    pub(crate) fn load_signed(self) -> u64 {
        let bits = self.load();
        match self {
            Variable::Byte(_) => bits as i8 as u64,
            Variable::Half(_) => bits as i16 as u64,
            Variable::Word(_) => bits as i32 as u64,
            Variable::Double(_) => bits,
        }
    }

    /// Stores the lowest bytes of `bits`.
    pub(crate) fn store(self, bits: u64) {
        match self {
            Variable::Byte(variable) => variable.store(bits as u8, Ordering::Relaxed),
            Variable::Half(variable) => variable.store(bits as u16, Ordering::Relaxed),
            Variable::Word(variable) => variable.store(bits as u32, Ordering::Relaxed),
            Variable::Double(variable) => variable.store(bits, Ordering::Relaxed),
        }
    }
}

/// Addresses of a site, of its key or variable, and of the code to which a patched branch, or a call as it was born, jumps.
#[derive(Clone, Copy)]
pub(crate) struct Site {
    pub(crate) address: usize,
    pub(crate) key: usize,
    #[allow(dead_code, reason = "of architectures with sites")]
    pub(crate) target: usize,
    pub(crate) kind: u32,
}

impl Site {
    /// Returns the site of a record; `None` for kinds that this version does not know.
    pub(crate) fn of(record: &SiteRecord) -> Option<Site> {
        if record.kind & !KNOWN_KIND_BITS != 0 {
            return None;
        }
        let named_by = |field: &i32| core::ptr::from_ref(field).addr().wrapping_add_signed(*field as isize);
        let named = named_by(&record.key);
        let key = if record.kind & SITE_INDIRECT == 0 {
            named
        } else {
            // SAFETY: `register_object`'s caller guarantees that records name words that the loader has filled in.
            unsafe { (named as *const usize).read() }
        };
        Some(Site { address: named_by(&record.site), key, target: named_by(&record.target), kind: record.kind })
    }

    pub(crate) fn form(self) -> Form {
        if self.kind == SITE_CALL {
            return Form::Call;
        }
        match self.kind & SITE_FORM_MASK {
            SITE_BRANCH => Form::Branch,
            SITE_DIRECT_BRANCH => Form::DirectBranch,
            SITE_VALUE => Form::Value,
            _ => Form::GatedValue,
        }
    }

    /// Whether the site is a gate.
    pub(crate) fn is_branch(self) -> bool {
        matches!(self.form(), Form::Branch | Form::DirectBranch)
    }

    /// Whether the gate falls through while its key is enabled, and jumps while it is disabled.
    pub(crate) fn is_likely(self) -> bool {
        self.kind & SITE_LIKELY != 0
    }

    /// Returns the value that the site should have: 0 or 1 for a key, or a value's bits as they are in a register.
    pub(crate) fn wanted(self) -> u64 {
        if self.is_branch() {
            // SAFETY: `register_object`'s caller guarantees that records name static keys that stay loaded.
            let count = unsafe { AtomicI32::from_ptr(self.key as *mut i32) }.load(Ordering::Relaxed);
            return u64::from(count > 0);
        }
        // SAFETY: `register_object`'s caller guarantees that records name values that stay loaded.
        let variable = unsafe { Variable::at(self.key, 1 << (self.kind >> SITE_WIDTH_SHIFT & 3)) };
        if self.kind & SITE_SIGNED != 0 { variable.load_signed() } else { variable.load() }
    }

    /// Returns the site's current bytes of code.
    pub(crate) fn bytes<const LEN: usize>(self) -> [u8; LEN] {
        // SAFETY: `register_object`'s caller guarantees that records name readable sites that stay loaded; no caller
        // reads more bytes than the form has. Volatile, because other threads' view of code is outside the language;
        // only the lock's owner writes it.
        unsafe { (self.address as *const [u8; LEN]).read_volatile() }
    }
}

/// A change of program text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Store {
    /// A byte at any address.
    Byte(usize, u8),
    /// Four bytes at any address, which may become visible in any order.
    #[allow(dead_code, reason = "of architectures with such instructions")]
    Loose(usize, [u8; 4]),
    /// Four bytes, aligned.
    #[allow(dead_code, reason = "of architectures with such instructions")]
    Word(usize, u32),
    /// Eight bytes, aligned.
    Double(usize, u64),
}

impl Store {
    /// Returns its start, and one past its end.
    pub(crate) fn span(self) -> core::ops::Range<usize> {
        match self {
            Store::Byte(address, _) => address..address + 1,
            Store::Word(address, _) | Store::Loose(address, _) => address..address + 4,
            Store::Double(address, _) => address..address + 8,
        }
    }
}
