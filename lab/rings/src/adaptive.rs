//! Publishing by itself: in batches where buffers come faster than they are used, at once where they do not.
//!
//! # The problem
//! Publishing takes a cache line from the other side. If each buffer is published by itself, that is most of what a buffer costs. If
//! batches have a fixed size, somebody waits for a batch to fill. The right size depends on how far behind the other side is, which
//! the queue knows: as long as the device has work left, it needs no further buffers.
//!
//! # The rule
//! ```text
//!   driver   offer      nothing in flight, and as many
//!                       offered as in the last burst ──▶ published
//!                       `limit` not yet published ─────▶ published
//!                       else ──────────────────────────▶ held
//!            take_used  nothing, and nothing in flight ▶ what is held is published
//!                       nothing, PATIENCE times ───────▶ likewise
//!   device   offer_used `limit` not yet published ─────▶ published
//!            pop        nothing ───────────────────────▶ what is held is published, and only then is that said
//! ```
//! A burst is all that is offered between two moments at which the driver has every buffer back. A driver that waits for each buffer has it
//! published at once. A driver that offers four and waits for them has all four published with the fourth: one line is taken from the
//! device, not two or more. Before the first burst ends, a burst is assumed to be one buffer.
//!
//! A driver or device that polls needs nothing else. One that sleeps calls `flush` first, as `arm_interrupt` and `arm_notification` here do.
//!
//! # What may be held, and how long
//! The driver holds fewer than `limit` buffers back. While the device has others, it holds them until [`PATIENCE`] calls of `take_used`
//! found nothing. Once the device has none, it holds them until a call of `take_used` finds nothing, or until a call of `offer` makes them as
//! many as the last burst had. The device holds fewer than `limit` back, until a call of `pop` finds nothing. A flush publishes everything.
//! Neither side reads a clock: whoever offers buffers and then calls nothing has to flush.

use dormouse_vring::{AddressSpace, Chain, Completion, DeviceSide, DriverSide, RingError, Segment};

/// Calls of `take_used` in a row that find nothing, after which the driver holds nothing back.
pub const PATIENCE: u16 = 4;

/// Buffers after which a batch is published, in a queue of `size`. So many that a line of descriptors or used elements
/// is seldom read while it is still written, and so few that both sides always have some.
const fn limit_of(size: u16) -> u16 {
    let limit = if size / 4 < 64 { size / 4 } else { 64 };
    if limit == 0 { 1 } else { limit }
}

/// A driver that publishes by itself.
#[derive(Debug)]
pub struct AdaptiveDriver<D> {
    side: D,
    limit: u16,
    /// Calls in a row that found nothing while something is held.
    idle: u16,
    /// Buffers published since the first that was offered when the driver had all of them back; and in the burst before, at most `limit`.
    burst: u16,
    expected: u16,
}

impl<D: DriverSide> AdaptiveDriver<D> {
    /// Takes over a driver. What it added and did not publish is published. If it has chains under way, the limit is lower than that of a
    /// new driver, because it is not known how many descriptors these chains take; see [`AdaptiveDriver::with_limit`].
    pub fn new(side: D) -> AdaptiveDriver<D> {
        let size = side.free_count().saturating_add(side.in_flight()).saturating_add(side.unpublished());
        let mut driver = AdaptiveDriver { limit: limit_of(size), side, idle: 0, burst: 0, expected: 1 };
        driver.flush();
        driver
    }

    /// With another limit, of at least 1 buffer: 1 publishes each buffer. It holds from the next call on.
    pub fn with_limit(mut self, limit: u16) -> AdaptiveDriver<D> {
        self.limit = limit.max(1);
        self.expected = self.expected.min(self.limit);
        self
    }

    /// The driver itself. Adding or publishing there is harmless.
    pub fn side(&mut self) -> &mut D {
        &mut self.side
    }

    /// Adds a buffer, and shows it to the device now or later: see the module's documentation for how much later that can be. `true`:
    /// everything is published; ask [`AdaptiveDriver::needs_kick`].
    ///
    /// Wait-free.
    ///
    /// # Errors
    /// As [`DriverSide::add`]. With [`RingError::Full`], all that was held is published: ask [`AdaptiveDriver::needs_kick`].
    #[inline(always)]
    pub fn offer(&mut self, readable: &[Segment], writable: &[Segment], token: u64) -> Result<bool, RingError> {
        let held = self.side.unpublished() + 1;
        let is_due = held >= self.limit || self.side.in_flight() == 0 && self.ends_burst(held);
        let added = if is_due {
            self.side.add_and_publish(readable, writable, token)
        } else {
            self.side.add(readable, writable, token)
        };
        if let Err(error) = added {
            return Err(self.refused(error));
        }
        if is_due {
            self.idle = 0;
            self.burst = self.burst.saturating_add(held);
        }
        Ok(is_due)
    }

    #[cold]
    fn refused(&mut self, error: RingError) -> RingError {
        if matches!(error, RingError::Full { .. }) {
            self.flush();
        }
        error
    }

    /// The next used buffer, if there is one. If there is none, or an error, the call may publish what is held: ask
    /// [`AdaptiveDriver::needs_kick`] if [`AdaptiveDriver::held`] was not zero before, and is now.
    ///
    /// Wait-free.
    ///
    /// # Errors
    /// As [`DriverSide::take_used`].
    #[inline(always)]
    pub fn take_used(&mut self) -> Result<Option<Completion>, RingError> {
        let found = self.side.take_used();
        if !matches!(found, Ok(Some(_))) {
            self.wait();
        } else if self.idle != 0 {
            self.idle = 0;
        }
        found
    }

    /// While the device has nothing: whether as many are held as the last burst had.
    #[inline(always)]
    fn ends_burst(&mut self, held: u16) -> bool {
        if held == 1 && self.burst > 0 {
            self.expected = self.burst.min(self.limit);
            self.burst = 0;
        }
        held >= self.expected
    }

    /// Nothing was found.
    fn wait(&mut self) {
        if self.side.unpublished() > 0 {
            self.idle += 1;
            if self.idle >= PATIENCE || self.side.in_flight() == 0 {
                self.publish();
            }
        }
    }

    /// Descriptors that are free.
    pub fn free_count(&self) -> u16 {
        self.side.free_count()
    }

    /// Buffers that are held back.
    pub fn held(&self) -> u16 {
        self.side.unpublished()
    }

    #[inline]
    fn publish(&mut self) {
        self.idle = 0;
        self.burst = self.burst.saturating_add(self.side.unpublished());
        self.side.publish();
    }

    /// Shows the device all that was offered.
    ///
    /// Wait-free.
    #[inline]
    pub fn flush(&mut self) {
        if self.side.unpublished() > 0 {
            self.publish();
        }
    }

    /// Whether the device wants to be notified of what was published since the last call.
    ///
    /// Wait-free.
    #[inline]
    pub fn needs_kick(&mut self) -> bool {
        self.side.needs_kick()
    }

    /// Flushes, and asks to be notified; true: there is something to be taken first. A kick may be due.
    ///
    /// Wait-free.
    pub fn arm_interrupt(&mut self) -> bool {
        self.flush();
        self.side.arm_interrupt()
    }
}

/// A device that publishes by itself.
#[derive(Debug)]
pub struct AdaptiveDevice<V> {
    side: V,
    limit: u16,
}

impl<V: DeviceSide> AdaptiveDevice<V> {
    /// Takes over a device of a queue of `size`, as it was made with. What it pushed and did not publish is published.
    pub fn new(mut side: V, size: u16) -> AdaptiveDevice<V> {
        side.publish_used();
        AdaptiveDevice { side, limit: limit_of(size) }
    }

    /// With another limit, of at least 1 buffer: 1 publishes each buffer.
    pub fn with_limit(mut self, limit: u16) -> AdaptiveDevice<V> {
        self.limit = limit.max(1);
        self
    }

    /// The device itself. Pushing or publishing there is harmless.
    pub fn side(&mut self) -> &mut V {
        &mut self.side
    }

    /// The next available buffer; false: there is none, and all that was held is published.
    ///
    /// Wait-free.
    ///
    /// # Errors
    /// As [`DeviceSide::pop`]; all that was held is published.
    #[inline(always)]
    pub fn pop(&mut self, space: &impl AddressSpace, chain: &mut Chain) -> Result<bool, RingError> {
        let found = self.side.pop(space, chain);
        if found != Ok(true) {
            self.flush();
        }
        found
    }

    /// Gives a buffer back, with the number of bytes written, and shows it to the driver now or later: see the module's documentation for
    /// how much later that can be. `true`: all is published; ask [`AdaptiveDevice::needs_interrupt`].
    ///
    /// Wait-free.
    #[inline(always)]
    pub fn offer_used(&mut self, chain: &Chain, len: u32) -> bool {
        self.side.push_used(chain, len);
        let is_due = self.side.unpublished() >= self.limit;
        if is_due {
            self.side.publish_used();
        }
        is_due
    }

    /// Buffers that are held back.
    pub fn held(&self) -> u16 {
        self.side.unpublished()
    }

    /// Shows the driver all that was offered.
    ///
    /// Wait-free.
    #[inline]
    pub fn flush(&mut self) {
        if self.side.unpublished() > 0 {
            self.side.publish_used();
        }
    }

    /// Whether the driver wants to be notified of what was published since the last call.
    ///
    /// Wait-free.
    #[inline]
    pub fn needs_interrupt(&mut self) -> bool {
        self.side.needs_interrupt()
    }

    /// Flushes, and asks to be notified; true: there is something to be popped first. An interrupt may be due.
    ///
    /// Wait-free.
    pub fn arm_notification(&mut self) -> bool {
        self.flush();
        self.side.arm_notification()
    }
}
