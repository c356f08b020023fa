//! Rings: the loops of engines that send buffers to another thread and have them back.
//!
//! ```text
//!   SHAPE_RING_BATCH       stream      the driver has as many buffers under way as the ring takes
//!                          lockstep    it waits for a batch to come back before it gives the next
//!   BATCH                  1, 4, 16, 64: buffers that the program gives, or takes, in one go
//! ```
//! What both sides do between is the same for every ring: the driver takes all that came back, then gives a batch if there is room; the
//! device takes up to a batch, and gives it back. Both poll.
//!
//! Of two threads the first is the driver, the second the device. One thread alone is both in turn.
//!
//! # Counts
//! An event is a buffer at one of its ends. It has arrived when the sum of all that came there in a loop is that of what was sent.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, OnceLock};

use crate::{Case, Loop, Seat, seat};

/// Buffers that a ring takes at a time.
pub const SIZE: u16 = 256;
/// Bytes of a buffer, which nobody reads.
pub const LEN: u32 = 64;

/// The driver's end of a ring, and how it publishes.
pub trait DriverEnd: Send {
    /// Gives a buffer; false: there is no room.
    fn give(&mut self, number: u64) -> bool;
    /// Likewise the last of a batch, which is then given.
    fn give_last(&mut self, number: u64) -> bool;
    /// A buffer that came back.
    fn take(&mut self) -> Option<u64>;
    /// Whether there is room for so many.
    fn has_room(&self, count: u64) -> bool;
}

/// The device's end of a ring, and how it publishes.
pub trait DeviceEnd: Send {
    /// Takes a buffer and gives it back at once.
    fn turn(&mut self) -> Option<u64>;
    /// The batch is taken, or there is no more.
    fn end(&mut self);
}

/// What one thread uses: on lines of its own, two of them, for processors that fetch pairs.
#[derive(Debug)]
#[repr(align(128))]
struct Apart<T>(T);

/// Both ends of a ring, each one thread's while a loop runs. Whatever is measured, no line of one thread's end is one of the other's:
/// otherwise each would be charged for its place in this program.
#[derive(Debug)]
pub struct Ring<D, V> {
    driver: Apart<Mutex<D>>,
    device: Apart<Mutex<V>>,
}

impl<D, V> Ring<D, V> {
    /// Of its ends.
    pub fn new(driver: D, device: V) -> Ring<D, V> {
        Ring { driver: Apart(Mutex::new(driver)), device: Apart(Mutex::new(device)) }
    }
}

/// A ring that is measured.
pub trait Kind: 'static {
    /// Its driver's end.
    type Driver: DriverEnd;
    /// Its device's end.
    type Device: DeviceEnd;
    /// The ring, made before the first loop.
    fn cell() -> &'static OnceLock<Ring<Self::Driver, Self::Device>>;
}

/// Events that arrived.
static ARRIVED: AtomicU64 = AtomicU64::new(0);

/// Takes down what came to one end: the numbers from 0 to `count`, in whatever order.
fn arrived(sum: u64, count: u64) {
    if sum == (u128::from(count) * u128::from(count.saturating_sub(1)) / 2) as u64 {
        ARRIVED.fetch_add(count, Ordering::Relaxed);
    }
}

/// Polls in vain before the processor is offered to others.
const VAIN: u32 = 1 << 14;

#[inline(always)]
fn relax(vain: &mut u32) {
    std::hint::spin_loop();
    *vain += 1;
    if *vain == VAIN {
        *vain = 0;
        std::thread::yield_now();
    }
}

/// Gives a batch, which is not empty. Returns how many were given.
#[inline(always)]
fn give(driver: &mut impl DriverEnd, first: u64, count: u64) -> u64 {
    let mut given = 0;
    for _ in 1..count {
        given += u64::from(driver.give(first + given));
    }
    given + u64::from(driver.give_last(first + given))
}

/// The driver's work: so many buffers there and back.
#[inline(always)]
fn drive(driver: &mut impl DriverEnd, count: u64, batch: u64, is_lockstep: bool) -> u64 {
    let (mut given, mut taken, mut sum, mut vain) = (0, 0, 0_u64, 0);
    while taken < count {
        let before = given + taken;
        while let Some(number) = driver.take() {
            sum = sum.wrapping_add(number);
            taken += 1;
        }
        let next = batch.min(count - given);
        if next > 0 && (!is_lockstep || given == taken) && driver.has_room(next) {
            given += give(driver, given, next);
        }
        if given + taken == before {
            relax(&mut vain);
        }
    }
    sum
}

/// The device's work: so many buffers taken and given back.
#[inline(always)]
fn serve(device: &mut impl DeviceEnd, count: u64, batch: u64) -> u64 {
    let (mut taken, mut sum, mut vain) = (0, 0_u64, 0);
    while taken < count {
        let before = taken;
        while taken < before + batch
            && let Some(number) = device.turn()
        {
            sum = sum.wrapping_add(number);
            taken += 1;
        }
        if taken == before {
            relax(&mut vain);
        } else {
            device.end();
        }
    }
    // What a device holds back it gives when it finds nothing more.
    device.turn();
    sum
}

/// Both in turn.
fn alone(driver: &mut impl DriverEnd, device: &mut impl DeviceEnd, count: u64, batch: u64) -> [u64; 2] {
    let (mut given, mut taken, mut sums) = (0, 0, [0_u64; 2]);
    while taken < count {
        let next = batch.min(count - given);
        if next > 0 && driver.has_room(next) {
            given += give(driver, given, next);
        }
        while let Some(number) = device.turn() {
            sums[0] = sums[0].wrapping_add(number);
        }
        device.end();
        while let Some(number) = driver.take() {
            sums[1] = sums[1].wrapping_add(number);
            taken += 1;
        }
    }
    sums
}

/// A loop of a ring. Compiled once for each ring: its shape and its batch are asked at run time, in every ring alike.
#[inline(never)]
fn run<K: Kind>(count: u64, batch: u64, is_lockstep: bool) {
    // Of a ring that another loop has broken nothing arrives, which is found in the end.
    let Some(ring) = K::cell().get() else { return };
    match seat() {
        Seat { count: 1, .. } => {
            let (Ok(mut driver), Ok(mut device)) = (ring.driver.0.lock(), ring.device.0.lock()) else { return };
            let sums = alone(&mut *driver, &mut *device, count, batch);
            if sums[0] == sums[1] {
                arrived(sums[1], count);
            }
        }
        Seat { index: 0, .. } => {
            let Ok(mut driver) = ring.driver.0.lock() else { return };
            arrived(drive(&mut *driver, count, batch, is_lockstep), count);
        }
        Seat { index: 1, .. } => {
            let Ok(mut device) = ring.device.0.lock() else { return };
            arrived(serve(&mut *device, count, batch), count);
        }
        Seat { .. } => {}
    }
}

/// The loop of the shape `stream`.
extern "C" fn stream<K: Kind, const BATCH: u64>(iterations: u64, _: u64) {
    run::<K>(iterations, BATCH, false);
}

/// The loop of the shape `lockstep`.
extern "C" fn lockstep<K: Kind, const BATCH: u64>(iterations: u64, _: u64) {
    run::<K>(iterations, BATCH, true);
}

/// Sets up a ring, and names its cases: `stream_NAME_1` and so on.
///
/// # Errors
/// It was set up before.
pub fn enter<K: Kind>(
    ring: Ring<K::Driver, K::Device>,
    name: &'static str,
    cases: &mut Vec<Case>,
) -> Result<(), String> {
    K::cell().set(ring).map_err(|_| format!("{name}: made twice"))?;
    let loops: [(&str, u32, Loop); 8] = [
        ("stream", 1, stream::<K, 1>),
        ("lockstep", 1, lockstep::<K, 1>),
        ("stream", 4, stream::<K, 4>),
        ("lockstep", 4, lockstep::<K, 4>),
        ("stream", 16, stream::<K, 16>),
        ("lockstep", 16, lockstep::<K, 16>),
        ("stream", 64, stream::<K, 64>),
        ("lockstep", 64, lockstep::<K, 64>),
    ];
    for (shape, batch, run) in loops {
        // As many as there are cases, for as long as the engine.
        let name = format!("{shape}_{name}_{batch}").leak();
        cases.push(Case { name, run, events_per_iteration: 1 });
    }
    Ok(())
}

/// Buffers that arrived, for [`Engine::arrived`](crate::Engine::arrived).
///
/// # Errors
/// See [`report`](crate::report).
pub fn verify() -> Result<u64, String> {
    crate::report(
        ARRIVED.load(Ordering::Relaxed),
        0,
        "each loop's buffers came to the device, and back, all of them once",
    )
}
