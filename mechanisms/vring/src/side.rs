//! The two sides of a queue of either kind.

use crate::buffer::{Chain, Completion, Segment};
use crate::error::RingError;
use crate::memory::AddressSpace;

/// The driver side of a queue: [`split::Driver`](crate::split::Driver) or [`packed::Driver`](crate::packed::Driver).
pub trait DriverSide {
    /// Writes a buffer's descriptors without showing them to the device.
    ///
    /// # Errors
    /// [`RingError::Full`], [`RingError::Empty`], [`RingError::TooLong`], [`RingError::TotalLength`]; nothing was changed.
    fn add(&mut self, readable: &[Segment], writable: &[Segment], token: u64) -> Result<(), RingError>;
    /// Shows the device everything that was added.
    fn publish(&mut self);
    /// Writes a buffer's descriptors, and shows the device everything that was added. Use it for the last buffer of a
    /// batch.
    ///
    /// # Errors
    /// See [`DriverSide::add`]; nothing was published.
    #[inline(always)]
    fn add_and_publish(&mut self, readable: &[Segment], writable: &[Segment], token: u64) -> Result<(), RingError> {
        self.add(readable, writable, token)?;
        self.publish();
        Ok(())
    }
    /// Whether the device wants to be notified of what was published since the last call.
    fn needs_kick(&mut self) -> bool;
    /// Returns the next used buffer, if there is one.
    ///
    /// # Errors
    /// The device has violated the protocol; the driver continues.
    fn take_used(&mut self) -> Result<Option<Completion>, RingError>;
    /// Asks to be notified. True: a used buffer is already there and should be taken first.
    fn arm_interrupt(&mut self) -> bool;
    /// Asks not to be notified for now.
    fn disarm_interrupt(&mut self);
    /// Returns the number of free descriptors.
    fn free_count(&self) -> u16;
    /// Returns the number of buffers that were published and not yet taken back, without those that the device has lost
    /// (see the split driver).
    fn in_flight(&self) -> u16;
    /// Returns the number of buffers that were added and not yet published.
    fn unpublished(&self) -> u16;
    /// Returns the number of times that the device has violated the protocol.
    fn violations(&self) -> u64;
}

/// The device side of a queue: [`split::Device`](crate::split::Device) or [`packed::Device`](crate::packed::Device).
pub trait DeviceSide {
    /// Pops the next available buffer into `chain`. False: there is none.
    ///
    /// # Errors
    /// The driver has violated the protocol; the device continues.
    fn pop(&mut self, space: &impl AddressSpace, chain: &mut Chain) -> Result<bool, RingError>;
    /// Returns a buffer and the number of bytes written to it, without showing it to the driver.
    fn push_used(&mut self, chain: &Chain, len: u32);
    /// Shows the driver everything that was pushed.
    fn publish_used(&mut self);
    /// Whether the driver wants to be notified of what was published since the last call.
    fn needs_interrupt(&mut self) -> bool;
    /// Asks to be notified. True: a buffer is already there and should be popped first.
    fn arm_notification(&mut self) -> bool;
    /// Asks not to be notified for now.
    fn disarm_notification(&mut self);
    /// Returns the number of buffers that were pushed and not yet published.
    fn unpublished(&self) -> u16;
    /// Returns the number of times that the driver has violated the protocol.
    fn violations(&self) -> u64;
}
