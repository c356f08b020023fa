//! Work for another process, which is killed again and again: every request is answered.
//!
//! ```text
//! cargo run --release --example restart [REQUESTS] [REQUESTS_OF_A_WORKER]
//! ```
//!
//! It prints how many requests there were, how many workers were killed, and how many requests were handed out again.

use std::error::Error;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::process::{Child, Command};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use dormouse_vring::{
    AddressSpace, Areas, Chain, DeviceSide, Direct, DriverSide, Features, Region, Regions, Segment, packed,
};
use rustix::event::{EventfdFlags, eventfd};
use rustix::fs::MemfdFlags;
use rustix::mm::{MapFlags, ProtFlags};

const SIZE: usize = 64;
/// Address of the requests for the worker.
const ADDR: u64 = 0x1000;
const FEATURES: Features = Features { indirect: false, event_idx: true, in_order: false };

struct Request {
    number: AtomicU64,
    answer: AtomicU64,
}

/// Memory that both processes share.
#[repr(C, align(64))]
struct Shared {
    ring: [AtomicU64; 1024],
    requests: [Request; SIZE],
}

impl Shared {
    /// Maps the memory for the rest of the process.
    fn map(memory: BorrowedFd<'_>) -> Result<&'static Shared, Box<dyn Error>> {
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping at an address that the kernel chooses, so that no existing memory is touched.
        let at = unsafe { rustix::mm::mmap(null_mut(), size_of::<Shared>(), protection, MapFlags::SHARED, memory, 0)? };
        // SAFETY: the mapping is large enough, aligned to a page, and is never unmapped; all of its words are atomics,
        // for which every value is valid.
        Ok(unsafe { &*at.cast::<Shared>() })
    }

    fn areas(&self) -> Result<Areas, Box<dyn Error>> {
        Ok(packed::contiguous(self.ring.as_ptr().cast_mut().cast(), SIZE as u32)?)
    }
}

/// Number of steps of the Collatz sequence.
fn steps(mut number: u64) -> u64 {
    let mut count = 0;
    while number > 1 {
        number = if number.is_multiple_of(2) { number / 2 } else { 3 * number + 1 };
        count += 1;
    }
    count
}

fn wake(event: BorrowedFd<'_>) -> Result<(), Box<dyn Error>> {
    rustix::io::write(event, &1_u64.to_ne_bytes())?;
    Ok(())
}

fn sleep_until(event: BorrowedFd<'_>) -> Result<(), Box<dyn Error>> {
    rustix::io::read(event, &mut [0; 8])?;
    Ok(())
}

/// Serves requests until it is killed. Memory, kick and interrupt are the descriptors that the parent has passed.
fn work([memory, kick, interrupt]: [RawFd; 3]) -> Result<(), Box<dyn Error>> {
    rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL))?;
    // SAFETY: the parent has passed these descriptors, and nothing closes them.
    let [memory, kick, interrupt] = [memory, kick, interrupt].map(|fd| unsafe { BorrowedFd::borrow_raw(fd) });
    let shared = Shared::map(memory)?;
    let base = shared.requests.as_ptr().cast_mut().cast();
    let region = Region { addr: ADDR, len: size_of_val(&shared.requests) as u64, base };
    // SAFETY: the mapping stays for the rest of the process.
    let regions = unsafe { Regions::new(vec![region])? };
    // SAFETY: the mapping stays for the rest of the process, and no other code of it writes the device's side.
    let bus = unsafe { Direct::new(shared.areas()?) };
    let mut device: packed::Device<Direct> = packed::Device::new(bus, SIZE as u32, FEATURES)?;
    let mut chain = Chain::default();
    loop {
        while device.pop(&regions, &mut chain)? {
            let at = chain
                .writable()
                .first()
                .and_then(|segment| regions.translate(segment.addr, size_of::<Request>() as u64));
            if let Some(at) = at.filter(|at| at.cast::<Request>().is_aligned()) {
                // SAFETY: the bytes are in the requests, whose words are atomics, and are aligned.
                let request = unsafe { &*at.cast::<Request>() };
                request.answer.store(steps(request.number.load(Relaxed)), Relaxed);
            }
            device.push_used(&chain, size_of::<Request>() as u32);
            device.publish_used();
            if device.needs_interrupt() {
                wake(interrupt)?;
            }
        }
        if !device.arm_notification() {
            sleep_until(kick)?;
        }
    }
}

/// The side that hands out requests.
struct Desk {
    memory: OwnedFd,
    kick: OwnedFd,
    interrupt: OwnedFd,
    driver: packed::Driver<Direct>,
}

impl Desk {
    fn worker(&self) -> Result<Child, Box<dyn Error>> {
        let fds = [&self.memory, &self.kick, &self.interrupt].map(|fd| fd.as_raw_fd().to_string());
        Ok(Command::new(std::env::current_exe()?).arg("work").args(fds).spawn()?)
    }

    fn hand_out(&mut self, slot: u64) -> Result<(), Box<dyn Error>> {
        let len = size_of::<Request>() as u32;
        self.driver.add_and_publish(&[], &[Segment { addr: ADDR + slot * u64::from(len), len }], slot)?;
        if self.driver.needs_kick() {
            wake(self.kick.as_fd())?;
        }
        Ok(())
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if let [mode, memory, kick, interrupt] = &arguments[..]
        && mode == "work"
    {
        return work([memory.parse()?, kick.parse()?, interrupt.parse()?]);
    }
    let number = |at: usize, default| arguments.get(at).map_or(Ok(default), |text| text.parse());
    let (requests, each): (u64, u64) = (number(0, 100_000)?, number(1, 1000)?);
    // Workers inherit the descriptors.
    let memory = rustix::fs::memfd_create("requests", MemfdFlags::empty())?;
    rustix::fs::ftruncate(&memory, size_of::<Shared>() as u64)?;
    let shared = Shared::map(memory.as_fd())?;
    // SAFETY: the mapping stays for the rest of the process, and no other code of it writes the driver's side.
    let bus = unsafe { Direct::new(shared.areas()?) };
    packed::init(&bus, SIZE as u32)?;
    let driver = packed::Driver::new(bus, SIZE as u32, FEATURES)?;
    let [kick, interrupt] = [eventfd(0, EventfdFlags::empty())?, eventfd(0, EventfdFlags::empty())?];
    let mut desk = Desk { memory, kick, interrupt, driver };
    let mut worker = Some(desk.worker()?);
    let (mut next, mut answered, mut wrong, mut killed, mut again) = (0, 0, 0, 0, 0);
    while next < requests.min(SIZE as u64) {
        shared.requests[next as usize].number.store(next + 1, Relaxed);
        desk.hand_out(next)?;
        next += 1;
    }
    while answered < requests {
        if let Some(done) = desk.driver.take_used()? {
            let request = &shared.requests[done.token as usize];
            wrong += u64::from(request.answer.load(Relaxed) != steps(request.number.load(Relaxed)));
            if next < requests {
                next += 1;
                request.number.store(next, Relaxed);
                desk.hand_out(done.token)?;
            }
            answered += 1;
            if answered % each == 0
                && answered < requests
                && let Some(mut worker) = worker.take()
            {
                worker.kill()?;
                worker.wait()?;
                killed += 1;
            }
            continue;
        }
        if worker.is_none() {
            // What the worker had finished was taken.
            let mut tokens = Vec::new();
            desk.driver.reset(|token| tokens.push(token));
            worker = Some(desk.worker()?);
            again += tokens.len();
            tokens.into_iter().try_for_each(|slot| desk.hand_out(slot))?;
        }
        if !desk.driver.arm_interrupt() {
            sleep_until(desk.interrupt.as_fd())?;
        }
    }
    if let Some(mut worker) = worker {
        worker.kill()?;
        worker.wait()?;
    }
    println!("{answered} requests, {killed} workers killed, {again} requests handed out again, {wrong} wrong answers");
    if wrong > 0 { Err("a worker gave a wrong answer".into()) } else { Ok(()) }
}
