//! The two sides of a queue of either kind.

use crate::buffer::{Chain, Completion, Segment};
use crate::error::RingError;
use crate::memory::AddressSpace;

/// The driver side of a queue, split or packed. See the inherent methods of [`crate::split::Driver`] and [`crate::packed::Driver`].
pub trait DriverSide {
    /// Writes a buffer's descriptors, without showing them to the device.
    ///
    /// # Errors
    /// [`RingError::Full`], [`RingError::Empty`], [`RingError::TooLong`], [`RingError::TotalLength`]; nothing was changed.
    fn add(&mut self, readable: &[Segment], writable: &[Segment], token: u64) -> Result<(), RingError>;
    /// Shows the device all that was added.
    fn publish(&mut self);
    /// Whether the device wants to be notified of what was published since the last call.
    fn needs_kick(&mut self) -> bool;
    /// The next used buffer, if there is one.
    ///
    /// # Errors
    /// The device lied, and the driver goes on.
    fn take_used(&mut self) -> Result<Option<Completion>, RingError>;
    /// Asks to be notified; true: there is something to be taken first.
    fn arm_interrupt(&mut self) -> bool;
    /// Wants no notifications for now.
    fn disarm_interrupt(&mut self);
    /// Descriptors that are free.
    fn free_count(&self) -> u16;
    /// Buffers that were published and not yet taken back.
    fn in_flight(&self) -> u16;
    /// Buffers that were added and not yet published.
    fn unpublished(&self) -> u16;
    /// What the device did that no honest one does, so often.
    fn lies(&self) -> u64;
}

/// The device side of a queue, split or packed. See the inherent methods of [`crate::split::Device`] and [`crate::packed::Device`].
pub trait DeviceSide {
    /// The next available buffer; false: there is none.
    ///
    /// # Errors
    /// The driver lied, and the device goes on.
    fn pop(&mut self, space: &impl AddressSpace, chain: &mut Chain) -> Result<bool, RingError>;
    /// Gives a buffer back, with the number of bytes written, without showing it to the driver.
    fn push_used(&mut self, chain: &Chain, len: u32);
    /// Shows the driver all that was pushed.
    fn publish_used(&mut self);
    /// Whether the driver wants to be notified of what was published since the last call.
    fn needs_interrupt(&mut self) -> bool;
    /// Asks to be notified; true: there is something to be popped first.
    fn arm_notification(&mut self) -> bool;
    /// Wants no notifications for now.
    fn disarm_notification(&mut self);
    /// What the driver did that no honest one does, so often.
    fn lies(&self) -> u64;
}
