//! Rings that decide themselves when to publish: in batches if buffers come faster than they are used, otherwise at
//! once.
//!
//! # The problem
//! Publishing takes a cache line from the other side. If each buffer is published by itself, that is most of a buffer's
//! cost. If batches have a fixed size, the other side waits for a batch to fill. The right size depends on how far
//! behind the other side is, which the queue knows: as long as the device has work left, it needs no further buffers.
//!
//! # The rule
//! ```text
//!   driver   offer      nothing in flight, and as many
//!                       offered as in the last burst ──▶ published
//!                       `limit` not yet published ─────▶ published
//!                       else ──────────────────────────▶ held
//!            take_used  nothing, and nothing in flight ▶ held buffers are published
//!                       nothing, PATIENCE times ───────▶ held buffers are published
//!   device   offer_used `limit` not yet published ─────▶ published
//!            pop        nothing ───────────────────────▶ held buffers are published before the call returns
//! ```
//! A burst is the sequence of buffers that are offered between two moments at which the driver has all buffers back. If
//! a driver waits for each buffer, each is published at once. If a driver offers four and waits for them, all four are
//! published with the fourth: one line is taken from the device, not two or more. Before the first burst ends, a burst
//! is assumed to be one buffer.
//!
//! A driver or device that polls needs nothing else. Before it sleeps it must call `flush`, as `arm_interrupt` and
//! `arm_notification` here do.
//!
//! # Held buffers
//! The driver holds fewer than `limit` buffers back. While the device has others, it holds them until [`PATIENCE`]
//! calls of `take_used` found nothing. Once the device has none, it holds them until a call of `take_used` finds
//! nothing, or until a call of `offer` makes them as many as the last burst had. The device holds fewer than `limit`
//! back, until a call of `pop` finds nothing. A flush publishes everything. Neither side reads a clock: a caller that
//! offers buffers and then calls nothing must flush.

use dormouse_vring::{AddressSpace, Chain, Completion, DeviceSide, DriverSide, RingError, Segment};

/// Number of consecutive calls of `take_used` that find nothing, after which the driver holds nothing back.
pub const PATIENCE: u16 = 4;

/// Returns the number of buffers after which a batch is published, in a queue of `size`. It is large enough that a line
/// of descriptors or used elements is seldom read while it is still written, and small enough that both sides always
/// have some buffers.
const fn limit_of(size: u16) -> u16 {
    let limit = if size / 4 < 64 { size / 4 } else { 64 };
    if limit == 0 { 1 } else { limit }
}

/// A driver that decides itself when to publish.
#[derive(Debug)]
pub struct AdaptiveDriver<D> {
    side: D,
    limit: u16,
    /// Number of consecutive calls that found nothing while buffers are held.
    idle: u16,
    /// Number of buffers published in this burst: since the first that was offered when the driver had all buffers
    /// back.
    burst: u16,
    /// Number of buffers in the burst before, at most `limit`.
    expected: u16,
}

impl<D: DriverSide> AdaptiveDriver<D> {
    /// Takes over a driver. Buffers that it added and did not publish are published. If it has chains under way, the
    /// limit is lower than that of a new driver, because it is not known how many descriptors these chains take.
    pub fn new(side: D) -> AdaptiveDriver<D> {
        let size = side.free_count().saturating_add(side.in_flight()).saturating_add(side.unpublished());
        AdaptiveDriver::with_limit(side, limit_of(size))
    }

    /// Like [`AdaptiveDriver::new`], with this limit; 1 publishes each buffer.
    pub(crate) fn with_limit(side: D, limit: u16) -> AdaptiveDriver<D> {
        let mut driver = AdaptiveDriver { limit, side, idle: 0, burst: 0, expected: 1 };
        driver.flush();
        driver
    }

    /// Returns the driver itself. Adding or publishing through it is harmless.
    pub fn side(&mut self) -> &mut D {
        &mut self.side
    }

    /// Adds a buffer, and publishes it now or later; the module's documentation says how much later that can be.
    /// Returns true if everything is published; then call [`AdaptiveDriver::needs_kick`].
    ///
    /// Wait-free.
    ///
    /// # Errors
    /// See [`DriverSide::add`]. With [`RingError::Full`], all held buffers are published; then call
    /// [`AdaptiveDriver::needs_kick`].
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

    /// Returns the next used buffer, if there is one. If there is none, or an error, the call may publish held buffers;
    /// then call [`AdaptiveDriver::needs_kick`].
    ///
    /// Wait-free.
    ///
    /// # Errors
    /// See [`DriverSide::take_used`].
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

    /// While the device has nothing: whether as many buffers are held as the last burst had.
    #[inline(always)]
    fn ends_burst(&mut self, held: u16) -> bool {
        if held == 1 && self.burst > 0 {
            self.expected = self.burst.min(self.limit);
            self.burst = 0;
        }
        held >= self.expected
    }

    /// Handles a call that found nothing.
    fn wait(&mut self) {
        if self.side.unpublished() > 0 {
            self.idle += 1;
            if self.idle >= PATIENCE || self.side.in_flight() == 0 {
                self.publish();
            }
        }
    }

    /// Number of free descriptors.
    pub fn free_count(&self) -> u16 {
        self.side.free_count()
    }

    #[inline]
    fn publish(&mut self) {
        self.idle = 0;
        self.burst = self.burst.saturating_add(self.side.unpublished());
        self.side.publish();
    }

    /// Publishes all offered buffers.
    ///
    /// Wait-free.
    #[inline]
    pub fn flush(&mut self) {
        if self.side.unpublished() > 0 {
            self.publish();
        }
    }

    /// Whether the device wants a notification of the buffers that were published since the last call.
    ///
    /// Wait-free.
    #[inline]
    pub fn needs_kick(&mut self) -> bool {
        self.side.needs_kick()
    }

    /// Flushes, and enables notifications. Returns true if there are buffers to take first. A kick may be due.
    ///
    /// Wait-free.
    pub fn arm_interrupt(&mut self) -> bool {
        self.flush();
        self.side.arm_interrupt()
    }
}

/// A device that decides itself when to publish.
#[derive(Debug)]
pub struct AdaptiveDevice<V> {
    side: V,
    limit: u16,
}

impl<V: DeviceSide> AdaptiveDevice<V> {
    /// Takes over a device of a queue of `size`, the size that it was made with. Buffers that it pushed and did not
    /// publish are published.
    pub fn new(side: V, size: u16) -> AdaptiveDevice<V> {
        AdaptiveDevice::with_limit(side, limit_of(size))
    }

    /// Like [`AdaptiveDevice::new`], with this limit; 1 publishes each buffer.
    pub(crate) fn with_limit(mut side: V, limit: u16) -> AdaptiveDevice<V> {
        side.publish_used();
        AdaptiveDevice { side, limit }
    }

    /// Returns the device itself. Pushing or publishing through it is harmless.
    pub fn side(&mut self) -> &mut V {
        &mut self.side
    }

    /// Pops the next available buffer. Returns false if there is none; then all held buffers are published.
    ///
    /// Wait-free.
    ///
    /// # Errors
    /// See [`DeviceSide::pop`]; all held buffers are published.
    #[inline(always)]
    pub fn pop(&mut self, space: &impl AddressSpace, chain: &mut Chain) -> Result<bool, RingError> {
        let found = self.side.pop(space, chain);
        if found != Ok(true) {
            self.flush();
        }
        found
    }

    /// Gives a buffer back, with the number of bytes written, and publishes it now or later; the module's documentation
    /// says how much later that can be. Returns true if everything is published; then call
    /// [`AdaptiveDevice::needs_interrupt`].
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

    /// Publishes all offered buffers.
    ///
    /// Wait-free.
    #[inline]
    pub fn flush(&mut self) {
        if self.side.unpublished() > 0 {
            self.side.publish_used();
        }
    }

    /// Whether the driver wants a notification of the buffers that were published since the last call.
    ///
    /// Wait-free.
    #[inline]
    pub fn needs_interrupt(&mut self) -> bool {
        self.side.needs_interrupt()
    }

    /// Flushes, and enables notifications. Returns true if there are buffers to pop first. An interrupt may be due.
    ///
    /// Wait-free.
    pub fn arm_notification(&mut self) -> bool {
        self.flush();
        self.side.arm_notification()
    }
}
