//! Queues of either kind, where the program learns only as it runs which one it has.

use crate::buffer::{Chain, Completion, Segment};
use crate::bus::{Areas, Bus};
use crate::error::RingError;
use crate::features::Features;
use crate::memory::{AddressSpace, IndirectTables};
use crate::side::{DeviceSide, DriverSide};
use crate::{packed, split};

/// As [`split::size_bytes`] or [`packed::size_bytes`].
///
/// # Errors
/// As there.
pub fn size_bytes(is_packed: bool, size: u32) -> Result<usize, RingError> {
    if is_packed { packed::size_bytes(size) } else { split::size_bytes(size) }
}

/// As [`split::contiguous`] or [`packed::contiguous`].
///
/// # Errors
/// As there.
pub fn contiguous(is_packed: bool, base: *mut u8, size: u32) -> Result<Areas, RingError> {
    if is_packed { packed::contiguous(base, size) } else { split::contiguous(base, size) }
}

/// As [`split::init`] or [`packed::init`].
///
/// # Errors
/// As there.
pub fn init(is_packed: bool, bus: &impl Bus, size: u32) -> Result<(), RingError> {
    if is_packed { packed::init(bus, size) } else { split::init(bus, size) }
}

/// The driver side of a queue.
#[derive(Debug)]
pub enum Driver<B> {
    /// Of a split one.
    Split(split::Driver<B>),
    /// Of a packed one.
    Packed(packed::Driver<B>),
}

/// The device side of a queue.
#[derive(Debug)]
pub enum Device<B> {
    /// Of a split one.
    Split(split::Device<B>),
    /// Of a packed one.
    Packed(packed::Device<B>),
}

macro_rules! with {
    ($queue:expr, $side:ident => $do:expr) => {
        match $queue {
            Self::Split($side) => $do,
            Self::Packed($side) => $do,
        }
    };
}

impl<B: Bus> Driver<B> {
    /// The driver of an empty ring (see [`init`]) of `size` descriptors.
    ///
    /// # Errors
    /// As [`split::Driver::new`] or [`packed::Driver::new`].
    pub fn new(is_packed: bool, bus: B, size: u32, features: Features) -> Result<Self, RingError> {
        Ok(if is_packed {
            Driver::Packed(packed::Driver::new(bus, size, features)?)
        } else {
            Driver::Split(split::Driver::new(bus, size, features)?)
        })
    }

    /// As [`split::Driver::use_indirect`].
    ///
    /// # Errors
    /// As there.
    ///
    /// # Safety
    /// As there.
    pub unsafe fn use_indirect(&mut self, tables: IndirectTables) -> Result<(), RingError> {
        // SAFETY: the caller's promise, which is the same for both kinds.
        with!(self, driver => unsafe { driver.use_indirect(tables) })
    }
}

impl<B: Bus> Device<B> {
    /// The device of an empty ring (see [`init`]) of `size` descriptors.
    ///
    /// # Errors
    /// As [`split::Device::new`] or [`packed::Device::new`].
    pub fn new(is_packed: bool, bus: B, size: u32, features: Features) -> Result<Self, RingError> {
        Ok(if is_packed {
            Device::Packed(packed::Device::new(bus, size, features)?)
        } else {
            Device::Split(split::Device::new(bus, size, features)?)
        })
    }

    /// The device of a ring of which everything before `base` has been taken and used.
    ///
    /// # Errors
    /// As [`split::Device::with_base`] or [`packed::Device::with_base`].
    pub fn with_base(is_packed: bool, bus: B, size: u32, features: Features, base: u16) -> Result<Self, RingError> {
        Ok(if is_packed {
            Device::Packed(packed::Device::with_base(bus, size, features, base)?)
        } else {
            Device::Split(split::Device::with_base(bus, size, features, base)?)
        })
    }

    /// Where it is, as [`Device::with_base`] takes it.
    pub fn base(&self) -> u16 {
        with!(self, device => device.base())
    }
}

impl<B: Bus> DriverSide for Driver<B> {
    fn add(&mut self, readable: &[Segment], writable: &[Segment], token: u64) -> Result<(), RingError> {
        with!(self, driver => driver.add(readable, writable, token))
    }

    fn publish(&mut self) {
        with!(self, driver => driver.publish());
    }

    fn add_and_publish(&mut self, readable: &[Segment], writable: &[Segment], token: u64) -> Result<(), RingError> {
        with!(self, driver => driver.add_and_publish(readable, writable, token))
    }

    fn needs_kick(&mut self) -> bool {
        with!(self, driver => driver.needs_kick())
    }

    fn take_used(&mut self) -> Result<Option<Completion>, RingError> {
        with!(self, driver => driver.take_used())
    }

    fn arm_interrupt(&mut self) -> bool {
        with!(self, driver => driver.arm_interrupt())
    }

    fn disarm_interrupt(&mut self) {
        with!(self, driver => driver.disarm_interrupt());
    }

    fn free_count(&self) -> u16 {
        with!(self, driver => driver.free_count())
    }

    fn in_flight(&self) -> u16 {
        with!(self, driver => driver.in_flight())
    }

    fn unpublished(&self) -> u16 {
        with!(self, driver => driver.unpublished())
    }

    fn violations(&self) -> u64 {
        with!(self, driver => driver.violations())
    }
}

impl<B: Bus> DeviceSide for Device<B> {
    fn pop(&mut self, space: &impl AddressSpace, chain: &mut Chain) -> Result<bool, RingError> {
        with!(self, device => device.pop(space, chain))
    }

    fn push_used(&mut self, chain: &Chain, len: u32) {
        with!(self, device => device.push_used(chain, len));
    }

    fn publish_used(&mut self) {
        with!(self, device => device.publish_used());
    }

    fn needs_interrupt(&mut self) -> bool {
        with!(self, device => device.needs_interrupt())
    }

    fn arm_notification(&mut self) -> bool {
        with!(self, device => device.arm_notification())
    }

    fn disarm_notification(&mut self) {
        with!(self, device => device.disarm_notification());
    }

    fn unpublished(&self) -> u16 {
        with!(self, device => device.unpublished())
    }

    fn violations(&self) -> u64 {
        with!(self, device => device.violations())
    }
}
