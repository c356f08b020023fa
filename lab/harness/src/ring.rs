//! Rings: the loops of engines that send buffers to another thread and get them back.
//!
//! ```text
//!   SHAPE_RING_BATCH       stream      the driver has as many buffers under way as the ring takes
//!                          lockstep    it waits for a batch to come back before it gives the next one
//!   BATCH                  1, 4, 16, 64: number of buffers that the program gives, or takes, at once
//! ```
//! The rest is the same for every ring: the driver takes all buffers that came back, then gives a batch if there is
//! room. The device takes up to a batch and gives it back. Both poll.
//!
//! With two threads, the first is the driver and the second the device. A single thread does the work of both in turn.
//!
//! # Counts
//! An event is a buffer that reaches one of its ends. A loop's events have arrived if the sum of all numbers that
//! reached that end equals the sum of those that were sent.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, OnceLock};

use crate::{Case, Loop, Seat, seat};

/// Number of buffers that a ring holds.
pub const SIZE: u16 = 256;
/// Size of a buffer, in bytes. Its content is not read.
pub const LEN: u32 = 64;

/// The driver's end of a ring, with its way of publishing.
pub trait DriverEnd: Send {
    /// Gives a buffer. Returns false if there is no room.
    fn give(&mut self, number: u64) -> bool;
    /// Gives the last buffer of a batch, and publishes the batch. Returns false if there is no room.
    fn give_last(&mut self, number: u64) -> bool;
    /// Returns the number of a buffer that came back, if there is one.
    fn take(&mut self) -> Option<u64>;
    /// Whether there is room for `count` buffers.
    fn has_room(&self, count: u64) -> bool;
}

/// The device's end of a ring, with its way of publishing.
pub trait DeviceEnd: Send {
    /// Takes a buffer and gives it back at once. Returns its number, if there is one.
    fn turn(&mut self) -> Option<u64>;
    /// Called when the batch is taken or no more buffers are available.
    fn end(&mut self);
}

/// Data of one thread, on lines of its own: two of them, for CPUs that fetch pairs.
#[derive(Debug)]
#[repr(align(128))]
struct Apart<T>(T);

/// Both ends of a ring. Each is used by one thread while a loop runs. No line of one end is a line of the other,
/// whatever the queue, because otherwise the figure would include the effect of its place in this program.
#[derive(Debug)]
pub struct Ring<D, V> {
    driver: Apart<Mutex<D>>,
    device: Apart<Mutex<V>>,
}

impl<D, V> Ring<D, V> {
    /// Makes a ring of its ends.
    pub fn new(driver: D, device: V) -> Ring<D, V> {
        Ring { driver: Apart(Mutex::new(driver)), device: Apart(Mutex::new(device)) }
    }
}

/// A kind of ring to measure.
pub trait Kind: 'static {
    /// Type of the driver's end.
    type Driver: DriverEnd;
    /// Type of the device's end.
    type Device: DeviceEnd;
    /// Returns the cell of the ring, which is set before the first loop.
    fn cell() -> &'static OnceLock<Ring<Self::Driver, Self::Device>>;
}

/// Number of events that arrived.
static ARRIVED: AtomicU64 = AtomicU64::new(0);

/// Counts `count` buffers as arrived at one end, if `sum` is that of the numbers from 0 to `count`, in any order.
fn arrived(sum: u64, count: u64) {
    if sum == (u128::from(count) * u128::from(count.saturating_sub(1)) / 2) as u64 {
        ARRIVED.fetch_add(count, Ordering::Relaxed);
    }
}

/// Number of polls in vain before the thread yields its CPU.
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

/// Gives a batch, which is not empty. Returns the number of buffers that were given.
#[inline(always)]
fn give(driver: &mut impl DriverEnd, first: u64, count: u64) -> u64 {
    let mut given = 0;
    for _ in 1..count {
        given += u64::from(driver.give(first + given));
    }
    given + u64::from(driver.give_last(first + given))
}

/// The driver's work: sends `count` buffers and takes them back. Returns the sum of their numbers.
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

/// The device's work: takes `count` buffers and gives them back. Returns the sum of their numbers.
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
    // An adaptive device publishes the buffers that it holds when it finds no more.
    device.turn();
    sum
}

/// Does the work of driver and device in turn, on one thread.
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

/// Runs a loop of a ring. It is compiled once for each ring; shape and batch are parameters at run time, in the same
/// way for every ring.
#[inline(never)]
fn run<K: Kind>(count: u64, batch: u64, is_lockstep: bool) {
    // A ring that another loop has broken delivers nothing, which the final check finds.
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

/// Sets up a ring and adds its cases: `stream_NAME_1` and so on.
///
/// # Errors
/// If it was set up before.
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
        // Leaked: there are as many names as cases, and they live as long as the engine.
        let name = format!("{shape}_{name}_{batch}").leak();
        cases.push(Case { name, run, events_per_iteration: 1 });
    }
    Ok(())
}

/// Returns the number of buffers that arrived, for [`Engine::arrived`](crate::Engine::arrived).
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
