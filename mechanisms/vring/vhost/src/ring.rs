//! Rings of either layout, behind one type.

use std::sync::atomic::Ordering::Relaxed;

use dormouse_vring::{
    AddressSpace, Area, Areas, Bus, Chain, Completion, DeviceSide, Direct, DriverSide, Features, IndirectTables,
    RingError, Segment, packed, split,
};

/// Bytes of a cache line, on which each part of a ring begins.
const LINE_BYTES: usize = 64;

/// Bytes of a ring of `size` entries, from a multiple of 64 on.
pub(crate) fn size_bytes(is_packed: bool, size: u16) -> usize {
    let descriptors = 16 * usize::from(size);
    if is_packed {
        descriptors.next_multiple_of(LINE_BYTES) + 2 * LINE_BYTES
    } else {
        (descriptors + 6 + 2 * usize::from(size)).next_multiple_of(LINE_BYTES)
            + (6 + 8 * usize::from(size)).next_multiple_of(LINE_BYTES)
    }
}

/// The parts of a ring that lies at `base`.
pub(crate) fn areas(is_packed: bool, base: *mut u8, size: u16) -> Result<Areas, RingError> {
    if !is_packed {
        return split::contiguous(base, size.into());
    }
    let descriptors = 16 * usize::from(size);
    let driver = base.wrapping_add(descriptors.next_multiple_of(LINE_BYTES));
    Ok(Areas { descriptor: (base, descriptors), driver: (driver, 4), device: (driver.wrapping_add(LINE_BYTES), 4) })
}

/// The driver side of a ring.
#[derive(Debug)]
pub(crate) enum DriverRing {
    Split(split::Driver<Direct>),
    Packed(packed::Driver<Direct>),
}

macro_rules! with {
    ($ring:expr, $side:ident => $do:expr) => {
        match $ring {
            Self::Split($side) => $do,
            Self::Packed($side) => $do,
        }
    };
}

impl DriverRing {
    /// Empties the ring's memory and makes its driver.
    pub(crate) fn new(is_packed: bool, bus: Direct, size: u16, features: Features) -> Result<DriverRing, RingError> {
        Ok(if is_packed {
            packed::init(&bus, size.into())?;
            DriverRing::Packed(packed::Driver::new(bus, size.into(), features)?)
        } else {
            split::init(&bus, size.into())?;
            DriverRing::Split(split::Driver::new(bus, size.into(), features)?)
        })
    }

    /// As [`split::Driver::use_indirect`].
    ///
    /// # Safety
    /// As there.
    pub(crate) unsafe fn use_indirect(&mut self, tables: IndirectTables) -> Result<(), RingError> {
        // SAFETY: the caller's promise.
        with!(self, driver => unsafe { driver.use_indirect(tables) })
    }
}

impl DriverSide for DriverRing {
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

/// The device side of a ring.
#[derive(Debug)]
pub(crate) enum DeviceRing {
    Split(split::Device<Direct>),
    Packed(packed::Device<Direct>),
}

impl DeviceRing {
    /// The device of a ring of which everything before `base` has been used: see the two kinds.
    pub(crate) fn with_base(
        is_packed: bool,
        bus: Direct,
        size: u32,
        features: Features,
        base: u16,
    ) -> Result<DeviceRing, RingError> {
        if !is_packed {
            return Ok(DeviceRing::Split(split::Device::with_base(bus, size, features, base)?));
        }
        // Offset 0 with a wrap counter of 0 is where the second lap begins. Some front ends, such as the crate `virtio-driver`, mean a
        // ring that nobody has used: then the first descriptor is not marked as used, as it would be in the second lap (2.8.1).
        let is_first_lap = || bus.load::<u64>(Area::Descriptor, 8, Relaxed) >> 63 == 0;
        let base = if base == 0 && bus.len(Area::Descriptor) >= 16 && is_first_lap() { 1 << 15 } else { base };
        Ok(DeviceRing::Packed(packed::Device::with_base(bus, size, features, base)?))
    }

    /// Where it is, as [`DeviceRing::with_base`] takes it.
    pub(crate) fn base(&self) -> u16 {
        with!(self, device => device.base())
    }
}

impl DeviceSide for DeviceRing {
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
