//! Queues whose kind, split or packed, is known only at run time.

use crate::buffer::{Chain, Completion, Segment};
use crate::bus::{Areas, Bus};
use crate::error::RingError;
use crate::features::Features;
use crate::in_flight::Resumption;
use crate::memory::{AddressSpace, IndirectTables};
use crate::side::{DeviceSide, DriverSide};
use crate::{packed, split};

/// Calls [`split::size_bytes`] or [`packed::size_bytes`].
///
/// # Errors
/// See these functions.
pub fn size_bytes(is_packed: bool, size: u32) -> Result<usize, RingError> {
    if is_packed { packed::size_bytes(size) } else { split::size_bytes(size) }
}

/// Calls [`split::contiguous`] or [`packed::contiguous`].
///
/// # Errors
/// See these functions.
pub fn contiguous(is_packed: bool, base: *mut u8, size: u32) -> Result<Areas, RingError> {
    if is_packed { packed::contiguous(base, size) } else { split::contiguous(base, size) }
}

/// Calls [`split::init`] or [`packed::init`].
///
/// # Errors
/// See these functions.
pub fn init(is_packed: bool, bus: &impl Bus, size: u32) -> Result<(), RingError> {
    if is_packed { packed::init(bus, size) } else { split::init(bus, size) }
}

/// The driver side of a queue.
#[derive(Debug)]
pub enum Driver<B> {
    /// The driver side of a split queue.
    Split(split::Driver<B>),
    /// The driver side of a packed queue.
    Packed(packed::Driver<B>),
}

/// The device side of a queue.
#[derive(Debug)]
pub enum Device<B> {
    /// The device side of a split queue.
    Split(split::Device<B>),
    /// The device side of a packed queue.
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

/// Defines methods that call the method of the same name on the split or packed side.
macro_rules! passed_on {
    (&mut $queue:ident: $($name:ident($($argument:ident: $type:ty),*) $(-> $result:ty)?;)*) => {
        $(fn $name(&mut $queue $(, $argument: $type)*) $(-> $result)? {
            with!($queue, side => side.$name($($argument),*))
        })*
    };
    (&$queue:ident: $($name:ident() -> $result:ty;)*) => {
        $(fn $name(&$queue) -> $result {
            with!($queue, side => side.$name())
        })*
    };
}

impl<B: Bus> Driver<B> {
    /// Creates the driver of an empty ring (see [`init`]) of `size` descriptors.
    ///
    /// # Errors
    /// See [`split::Driver::new`] and [`packed::Driver::new`].
    pub fn new(is_packed: bool, bus: B, size: u32, features: Features) -> Result<Self, RingError> {
        Ok(if is_packed {
            Driver::Packed(packed::Driver::new(bus, size, features)?)
        } else {
            Driver::Split(split::Driver::new(bus, size, features)?)
        })
    }

    /// Puts buffers of at least two segments into these tables from now on: see [`split::Driver::use_indirect`].
    ///
    /// # Errors
    /// See [`split::Driver::use_indirect`].
    ///
    /// # Safety
    /// See [`split::Driver::use_indirect`].
    pub unsafe fn use_indirect(&mut self, tables: IndirectTables) -> Result<(), RingError> {
        // SAFETY: the caller guarantees the contract of this function, which is that of `use_indirect` for both kinds.
        with!(self, driver => unsafe { driver.use_indirect(tables) })
    }

    /// Makes the queue empty again: see [`split::Driver::reset`].
    pub fn reset(&mut self, each: impl FnMut(u64)) {
        with!(self, driver => driver.reset(each));
    }
}

impl<B: Bus> Device<B> {
    /// Creates the device of an empty ring (see [`init`]) of `size` descriptors.
    ///
    /// # Errors
    /// See [`split::Device::new`] and [`packed::Device::new`].
    pub fn new(is_packed: bool, bus: B, size: u32, features: Features) -> Result<Self, RingError> {
        Ok(if is_packed {
            Device::Packed(packed::Device::new(bus, size, features)?)
        } else {
            Device::Split(split::Device::new(bus, size, features)?)
        })
    }

    /// Creates the device of a ring in which everything before `base` has been taken and used.
    ///
    /// # Errors
    /// See [`split::Device::with_base`] and [`packed::Device::with_base`].
    pub fn with_base(is_packed: bool, bus: B, size: u32, features: Features, base: u16) -> Result<Self, RingError> {
        Ok(if is_packed {
            Device::Packed(packed::Device::with_base(bus, size, features, base)?)
        } else {
            Device::Split(split::Device::with_base(bus, size, features, base)?)
        })
    }

    /// Creates the device that continues where another one was killed: see [`InFlight::resume`](crate::InFlight::resume).
    ///
    /// # Errors
    /// See [`split::Device::with_base`] and [`packed::Device::with_base`].
    pub fn with_in_flight(
        is_packed: bool,
        bus: B,
        size: u32,
        features: Features,
        from: &Resumption,
    ) -> Result<Self, RingError> {
        Ok(if is_packed {
            Device::Packed(packed::Device::with_base(bus, size, features, from.base)?)
        } else {
            let count = from.again.len() as u16;
            Device::Split(split::Device::with_in_flight(bus, size, features, from.base, count)?)
        })
    }

    /// Pops a buffer again: see [`split::Device::pop_again`]. A packed queue has no such buffers.
    ///
    /// # Errors
    /// See [`split::Device::pop_again`].
    pub fn pop_again(&mut self, head: u16, space: &impl AddressSpace, chain: &mut Chain) -> Result<(), RingError> {
        match self {
            Device::Split(device) => device.pop_again(head, space, chain),
            Device::Packed(_) => Err(RingError::AvailId { index: head, value: head }),
        }
    }

    /// Returns the device's position in the ring, in the form that [`Device::with_base`] takes.
    pub fn base(&self) -> u16 {
        with!(self, device => device.base())
    }
}

impl<B: Bus> DriverSide for Driver<B> {
    passed_on! {
        &mut self:
        add(readable: &[Segment], writable: &[Segment], token: u64) -> Result<(), RingError>;
        publish();
        add_and_publish(readable: &[Segment], writable: &[Segment], token: u64) -> Result<(), RingError>;
        needs_kick() -> bool;
        take_used() -> Result<Option<Completion>, RingError>;
        arm_interrupt() -> bool;
        disarm_interrupt();
    }
    passed_on! {
        &self:
        free_count() -> u16;
        in_flight() -> u16;
        unpublished() -> u16;
        violations() -> u64;
    }
}

impl<B: Bus> DeviceSide for Device<B> {
    passed_on! {
        &mut self:
        pop(space: &impl AddressSpace, chain: &mut Chain) -> Result<bool, RingError>;
        push_used(chain: &Chain, len: u32);
        publish_used();
        needs_interrupt() -> bool;
        arm_notification() -> bool;
        disarm_notification();
    }
    passed_on! {
        &self:
        unpublished() -> u16;
        violations() -> u64;
    }
}
