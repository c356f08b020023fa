//! Dormouse's engine for the experiment `vring`: buffers that go from a driver to a device and back, on two CPUs.
//!
//! ```text
//!   SHAPE_RING_BATCH       shapes as in `dormouse_lab_harness::ring`
//!   RING                   noshadow, shadow            the paper's two: each buffer is published, the peer's index read each time
//!                          noshadow-flags, shadow-flags            and the driver suppresses notifications while it takes buffers back
//!                          noshadow-batch, shadow-batch            published in batches, the peer's index cached
//!                          noshadow-private, shadow-private        and free descriptors listed in private memory
//!                          in-order, packed, packed-in-order       like shadow-private, in other forms of queue
//!                          adaptive, packed-adaptive               like shadow-private; the rings decide when to publish
//!   transfer               a line that goes to the other CPU and back, over and over
//!   width                  independent instructions that wait for nothing, as many at a time as a CPU executes
//!   handed                 like `transfer`, but the first CPU also writes another line each time, which the second reads
//!   handed-reread          … and which the first then reads again
//! ```
//! A buffer is one readable segment, whose content is not read. No ring has event indexes. In the rings that suppress
//! notifications and enable them again, both ends check after each publishing whether the other wants a notification,
//! and none is sent.

mod ring_memory;

use std::process::ExitCode;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use dormouse_lab_harness::ring::{self, DeviceEnd, DriverEnd, Kind, LEN, Ring, SIZE};
use dormouse_lab_harness::{Case, Engine, Seat, opaque, seat};
use dormouse_lab_rings::{AdaptiveDevice, AdaptiveDriver, PlainDevice, PlainDriver, ReadBack};
use dormouse_vring::{
    AreaLocation, Areas, Bus, Chain, DeviceSide, Direct, DriverSide, Features, NoMemory, RingError, Segment, packed,
    split,
};
use ring_memory::{memory, split_bus};

/// An end that publishes in batches, or each buffer by itself. If `IS_ASKING`, it asks after publishing whether the
/// other end wants a notification, and a driver enables notifications when it has taken all buffers, until it takes the
/// next.
struct Publishing<S, const IS_EACH: bool, const IS_ASKING: bool = false> {
    side: S,
    chain: Chain,
    is_armed: bool,
}

fn segment(number: u64) -> [Segment; 1] {
    [Segment { addr: number, len: LEN }]
}

impl<D: DriverSide + Send, const IS_EACH: bool, const IS_ASKING: bool> DriverEnd for Publishing<D, IS_EACH, IS_ASKING> {
    #[inline(always)]
    fn give(&mut self, number: u64) -> bool {
        if IS_EACH {
            return self.give_last(number);
        }
        self.side.add(&segment(number), &[], number).is_ok()
    }

    #[inline(always)]
    fn give_last(&mut self, number: u64) -> bool {
        let is_given = self.side.add_and_publish(&segment(number), &[], number).is_ok();
        if IS_ASKING {
            opaque(self.side.needs_kick().into());
        }
        is_given
    }

    #[inline(always)]
    fn take(&mut self) -> Option<u64> {
        let taken = self.side.take_used().ok().flatten().map(|completion| completion.token);
        if IS_ASKING && taken.is_some() == self.is_armed {
            self.is_armed = !self.is_armed;
            if self.is_armed {
                // Buffers that came back meanwhile are found by the next call.
                self.side.arm_interrupt();
            } else {
                self.side.disarm_interrupt();
            }
        }
        taken
    }

    #[inline(always)]
    fn has_room(&self, count: u64) -> bool {
        u64::from(self.side.free_count()) >= count
    }
}

impl<V: DeviceSide + Send, const IS_EACH: bool> DeviceEnd for Publishing<V, IS_EACH> {
    #[inline(always)]
    fn turn(&mut self) -> Option<u64> {
        if self.side.pop(&NoMemory, &mut self.chain) != Ok(true) {
            return None;
        }
        self.side.push_used(&self.chain, 0);
        if IS_EACH {
            self.side.publish_used();
        }
        self.chain.readable().first().map(|segment| segment.addr)
    }

    #[inline(always)]
    fn end(&mut self) {
        if !IS_EACH {
            self.side.publish_used();
        }
    }
}

/// A device of 2015, which publishes in batches, or each buffer by itself.
struct Plain<B, const IS_CACHED: bool, const IS_EACH: bool, const IS_ASKING: bool = false>(PlainDevice<B, IS_CACHED>);

impl<B: Bus + Send, const IS_CACHED: bool, const IS_EACH: bool, const IS_ASKING: bool> DeviceEnd
    for Plain<B, IS_CACHED, IS_EACH, IS_ASKING>
{
    #[inline(always)]
    fn turn(&mut self) -> Option<u64> {
        let (id, segment) = self.0.pop().ok().flatten()?;
        self.0.push_used(id, 0);
        if IS_EACH {
            self.0.publish_used();
            if IS_ASKING {
                opaque(self.0.needs_interrupt().into());
            }
        }
        Some(segment.addr)
    }

    #[inline(always)]
    fn end(&mut self) {
        if !IS_EACH {
            self.0.publish_used();
        }
    }
}

/// An end of an adaptive ring, which decides itself when to publish.
struct ByItself<S> {
    side: S,
    chain: Chain,
}

impl<D: DriverSide + Send> DriverEnd for ByItself<AdaptiveDriver<D>> {
    #[inline(always)]
    fn give(&mut self, number: u64) -> bool {
        self.side.offer(&segment(number), &[], number).is_ok()
    }

    #[inline(always)]
    fn give_last(&mut self, number: u64) -> bool {
        self.give(number)
    }

    #[inline(always)]
    fn take(&mut self) -> Option<u64> {
        self.side.take_used().ok().flatten().map(|completion| completion.token)
    }

    #[inline(always)]
    fn has_room(&self, count: u64) -> bool {
        u64::from(self.side.free_count()) >= count
    }
}

impl<V: DeviceSide + Send> DeviceEnd for ByItself<AdaptiveDevice<V>> {
    #[inline(always)]
    fn turn(&mut self) -> Option<u64> {
        if self.side.pop(&NoMemory, &mut self.chain) != Ok(true) {
            return None;
        }
        self.side.offer_used(&self.chain, 0);
        self.chain.readable().first().map(|segment| segment.addr)
    }

    #[inline(always)]
    fn end(&mut self) {}
}

/// A number on a cache line of its own.
#[repr(align(128))]
struct Line(AtomicU64);

/// Number that goes back and forth: odd on its way to the second thread.
static BALL: Line = Line(AtomicU64::new(0));

extern "C" fn transfer(iterations: u64, _: u64) {
    let Seat { index, count } = seat();
    if count != 2 {
        return;
    }
    // The store publishes only the number itself. Both threads have the same number of turns, so it is even again at
    // the end.
    let start = if index == 0 { BALL.0.load(Ordering::Relaxed) } else { 0 };
    for turn in 0..iterations {
        if index == 0 {
            BALL.0.store(start + 2 * turn + 1, Ordering::Relaxed);
            while BALL.0.load(Ordering::Relaxed) & 1 == 1 {}
        } else {
            let mut ball = BALL.0.load(Ordering::Relaxed);
            while ball & 1 == 0 {
                ball = BALL.0.load(Ordering::Relaxed);
            }
            BALL.0.store(ball + 1, Ordering::Relaxed);
        }
    }
}

/// Adds to each of six numbers four times an iteration. Only additions to the same number depend on each other, so a
/// CPU that has its core for itself takes six or seven cycles.
extern "C" fn width(iterations: u64, first: u64) {
    let mut numbers = [first; 6];
    for _ in 0..iterations {
        for _ in 0..4 {
            for number in &mut numbers {
                // The compiler does not know the result, so it cannot merge the additions.
                *number = opaque(number.wrapping_add(1));
            }
        }
    }
    for number in numbers {
        opaque(number);
    }
}

/// Number that one thread writes and the other reads.
static HANDED: Line = Line(AtomicU64::new(0));

/// Like `transfer`, with a second line that is handed over. If `IS_REREAD`, the first thread's next number depends on
/// what it reads again, so it waits for the line.
extern "C" fn hand<const IS_REREAD: bool>(iterations: u64, _: u64) {
    let Seat { index, count } = seat();
    if count != 2 {
        return;
    }
    let start = if index == 0 { BALL.0.load(Ordering::Relaxed) } else { 0 };
    if index == 0 {
        HANDED.0.store(start, Ordering::Relaxed);
    }
    for turn in 0..iterations {
        if index == 0 {
            let ball = if IS_REREAD { HANDED.0.load(Ordering::Relaxed) } else { start + 2 * turn };
            HANDED.0.store(ball + 2, Ordering::Relaxed);
            // (A) pairs with (B): publishes the handed number.
            BALL.0.store(ball + 1, Ordering::Release);
            while BALL.0.load(Ordering::Relaxed) & 1 == 1 {}
        } else {
            // (B) pairs with (A).
            while BALL.0.load(Ordering::Acquire) & 1 == 0 {}
            BALL.0.store(HANDED.0.load(Ordering::Relaxed), Ordering::Relaxed);
        }
    }
}

extern "C" fn empty(iterations: u64, first: u64) {
    for number in first..first.wrapping_add(iterations) {
        opaque(number);
    }
}

/// Returns a bus whose areas each have lines of their own.
fn packed_bus() -> Result<Direct, RingError> {
    let len = 16 * usize::from(SIZE);
    let areas = Areas {
        descriptor: AreaLocation(memory(len), len),
        driver: AreaLocation(memory(4), 4),
        device: AreaLocation(memory(4), 4),
    };
    // SAFETY: memory of these sizes, which is never freed, consists of atomics, and belongs to this ring alone.
    let bus = unsafe { Direct::new(areas) };
    packed::init(&bus, SIZE.into())?;
    Ok(bus)
}

fn publishing<S, const IS_EACH: bool, const IS_ASKING: bool>(side: S) -> Publishing<S, IS_EACH, IS_ASKING> {
    // A new driver has notifications enabled.
    Publishing { side, chain: Chain::default(), is_armed: true }
}

fn by_itself<S>(side: S) -> ByItself<S> {
    ByItself { side, chain: Chain::default() }
}

const PLAIN: Features = Features { indirect: false, event_idx: false, in_order: false };
const IN_ORDER: Features = Features { in_order: true, ..PLAIN };

/// Defines a kind of ring: the types of its ends, and the functions that make them from each side's access to the
/// memory.
macro_rules! kind {
    ($kind:ident, $bus:ident, $driver:ty, $make_driver:expr, $device:ty, $make_device:expr) => {
        struct $kind;

        impl Kind for $kind {
            type Driver = $driver;
            type Device = $device;

            fn cell() -> &'static OnceLock<Ring<$driver, $device>> {
                static CELL: OnceLock<Ring<$driver, $device>> = OnceLock::new();
                &CELL
            }
        }

        impl $kind {
            fn make() -> Result<Ring<$driver, $device>, RingError> {
                let bus = $bus()?;
                let make_driver: fn(Direct) -> Result<$driver, RingError> = $make_driver;
                let make_device: fn(Direct) -> Result<$device, RingError> = $make_device;
                Ok(Ring::new(make_driver(bus)?, make_device(bus)?))
            }
        }
    };
}

const ENTRIES: u32 = SIZE as u32;

/// Defines a ring of 2015, on a bus that reads back or not. The flags say whether the peer's index is cached, whether
/// each buffer is published by itself, and whether the ends ask for notifications.
macro_rules! plain {
    ($kind:ident, $is:tt) => {
        plain!(@ $kind, $is, Direct, |bus| bus, |bus| bus);
    };
    ($kind:ident, $is:tt, read_back) => {
        plain!(@ $kind, $is, ReadBack<Direct>, |bus| ReadBack::driver(bus, ENTRIES), |bus| ReadBack::device(bus, ENTRIES));
    };
    (@ $kind:ident, ($is_cached:literal, $is_each:literal, $is_asking:literal), $way:ty, $of_driver:expr, $of_device:expr) => {
        kind!(
            $kind, split_bus,
            Publishing<PlainDriver<$way, $is_cached>, $is_each, $is_asking>,
            |bus| Ok(publishing(PlainDriver::new($of_driver(bus), ENTRIES, PLAIN)?)),
            Plain<$way, $is_cached, $is_each, $is_asking>,
            |bus| Ok(Plain(PlainDevice::new($of_device(bus), ENTRIES)?))
        );
    };
}

/// Defines a ring of today, published in batches.
macro_rules! refined {
    ($kind:ident, $bus:ident, $room:ident, $features:expr) => {
        kind!(
            $kind,
            $bus,
            Publishing<$room::Driver<Direct>, false>,
            |bus| Ok(publishing($room::Driver::new(bus, ENTRIES, $features)?)),
            Publishing<$room::Device<Direct>, false>,
            |bus| Ok(publishing($room::Device::new(bus, ENTRIES, $features)?))
        );
    };
}

/// Defines an adaptive ring of today.
macro_rules! adaptive {
    ($kind:ident, $bus:ident, $room:ident) => {
        kind!(
            $kind,
            $bus,
            ByItself<AdaptiveDriver<$room::Driver<Direct>>>,
            |bus| Ok(by_itself(AdaptiveDriver::new($room::Driver::new(bus, ENTRIES, PLAIN)?))),
            ByItself<AdaptiveDevice<$room::Device<Direct>>>,
            |bus| Ok(by_itself(AdaptiveDevice::new($room::Device::new(bus, ENTRIES, PLAIN)?, SIZE)))
        );
    };
}

plain!(NoShadow, (false, true, false), read_back);
plain!(Shadow, (false, true, false));
plain!(NoShadowFlags, (false, true, true), read_back);
plain!(ShadowFlags, (false, true, true));
plain!(NoShadowBatch, (true, false, false), read_back);
plain!(ShadowBatch, (true, false, false));
kind!(
    NoShadowPrivate,
    split_bus,
    Publishing<split::Driver<ReadBack<Direct>>, false>,
    |bus| Ok(publishing(split::Driver::new(ReadBack::driver(bus, ENTRIES), ENTRIES, PLAIN)?)),
    Publishing<split::Device<ReadBack<Direct>>, false>,
    |bus| Ok(publishing(split::Device::new(ReadBack::device(bus, ENTRIES), ENTRIES, PLAIN)?))
);
refined!(ShadowPrivate, split_bus, split, PLAIN);
refined!(InOrder, split_bus, split, IN_ORDER);
refined!(Packed, packed_bus, packed, PLAIN);
refined!(PackedInOrder, packed_bus, packed, IN_ORDER);
adaptive!(Adaptive, split_bus, split);
adaptive!(PackedAdaptive, packed_bus, packed);

fn prepare() -> Result<Vec<Case>, String> {
    let mut cases = vec![
        Case { name: "empty", run: empty, events_per_iteration: 0 },
        Case { name: "transfer", run: transfer, events_per_iteration: 0 },
        Case { name: "width", run: width, events_per_iteration: 0 },
        Case { name: "handed", run: hand::<false>, events_per_iteration: 0 },
        Case { name: "handed-reread", run: hand::<true>, events_per_iteration: 0 },
    ];
    macro_rules! enter {
        ($($kind:ident, $name:literal;)+) => {$(
            let ring = $kind::make().map_err(|error| format!("{}: {error}", $name))?;
            ring::enter::<$kind>(ring, $name, &mut cases)?;
        )+};
    }
    enter! {
        NoShadow, "noshadow";
        Shadow, "shadow";
        NoShadowFlags, "noshadow-flags";
        ShadowFlags, "shadow-flags";
        NoShadowBatch, "noshadow-batch";
        ShadowBatch, "shadow-batch";
        NoShadowPrivate, "noshadow-private";
        ShadowPrivate, "shadow-private";
        InOrder, "in-order";
        Packed, "packed";
        PackedInOrder, "packed-in-order";
        Adaptive, "adaptive";
        PackedAdaptive, "packed-adaptive";
    }
    Ok(cases)
}

fn main() -> ExitCode {
    match prepare() {
        Ok(cases) => dormouse_lab_harness::main(&Engine {
            name: "dormouse",
            version: env!("CARGO_PKG_VERSION").into(),
            cases,
            arrived: Some(ring::verify),
        }),
        Err(error) => {
            eprintln!("dormouse: {error}");
            ExitCode::FAILURE
        }
    }
}
