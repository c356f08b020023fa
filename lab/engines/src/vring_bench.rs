//! The program of Srinivas (2015), by its name and arguments: N buffers of one segment go from a driver on one CPU to a
//! device on another, and back. It can run under `perf stat`.
//!
//! ```text
//!   vring-bench {shadow|noshadow} N --cpus A,B [--repeat R]
//!     driver on A    takes what is back, adds one buffer and publishes it       ring of 256, no notifications
//!     device on B    takes a buffer and gives it back
//! ```
//! The two rings are the engine's `shadow` and `noshadow`. Each repetition is timed from the moment that both threads are
//! ready. Besides its time the program counts what no counter of a CPU shows: how many buffers a side finds in a row after
//! it had found none, which is how many share the transfers of the index lines.

mod ring_memory;

use std::process::ExitCode;
use std::sync::Barrier;
use std::time::Instant;

use dormouse_lab_harness::ring::{LEN, SIZE};
use dormouse_lab_rings::{PlainDevice, PlainDriver, ReadBack};
use dormouse_lab_statistics::{median, median_ci95};
use dormouse_vring::{Bus, DriverSide, Features, RingError, Segment};
use rustix::thread::{CpuSet, sched_setaffinity};

const USAGE: &str = "usage: vring-bench {shadow|noshadow} N --cpus A,B [--repeat R]";
const ENTRIES: u32 = SIZE as u32;
const PLAIN: Features = Features { indirect: false, event_idx: false, in_order: false };
/// Number of polls in vain before a thread yields its CPU.
const VAIN: u64 = 1 << 14;

/// Arguments of the command line.
#[derive(Debug, PartialEq, Eq)]
struct Arguments {
    has_shadow: bool,
    count: u64,
    cpus: [usize; 2],
    repetitions: usize,
}

impl Arguments {
    fn parse(words: &[&str]) -> Result<Arguments, String> {
        let [ring, count, options @ ..] = words else { return Err(USAGE.into()) };
        let has_shadow = match *ring {
            "shadow" => true,
            "noshadow" => false,
            _ => return Err(format!("no ring `{ring}`; {USAGE}")),
        };
        let number = |text: &str| text.parse::<u64>().ok().filter(|number| *number > 0);
        let count = number(count).ok_or_else(|| format!("`{count}` is no number of buffers; {USAGE}"))?;
        let (mut cpus, mut repetitions) = (None, 1);
        for option in options.chunks(2) {
            match *option {
                ["--cpus", pair] => {
                    let pair =
                        pair.split_once(',').and_then(|(a, b)| Some([a.parse::<usize>().ok()?, b.parse().ok()?]));
                    cpus = pair.filter(|[a, b]| a != b && *a.max(b) < CpuSet::MAX_CPU);
                }
                ["--repeat", times] => repetitions = number(times).ok_or(USAGE)? as usize,
                _ => return Err(USAGE.into()),
            }
        }
        let cpus = cpus.ok_or_else(|| format!("--cpus takes two CPUs, such as 0,1; {USAGE}"))?;
        Ok(Arguments { has_shadow, count, cpus, repetitions })
    }
}

/// Polls of a side.
#[derive(Debug, Clone, Copy, Default)]
struct Polls {
    /// Number of times that a buffer was found after none had been found.
    bursts: u64,
    /// Number of polls that found nothing.
    in_vain: u64,
    /// Whether the last poll found nothing.
    is_idle: bool,
}

impl Polls {
    #[inline(always)]
    fn add(&mut self, is_found: bool) {
        self.bursts += u64::from(is_found && self.is_idle);
        self.in_vain += u64::from(!is_found);
        self.is_idle = !is_found;
    }

    /// Waits a moment.
    fn relax(&self) {
        std::hint::spin_loop();
        if self.in_vain.is_multiple_of(VAIN) {
            std::thread::yield_now();
        }
    }
}

/// Returns the sum of the numbers from 0 to `count`.
fn sum_of(count: u64) -> u64 {
    (u128::from(count) * u128::from(count - 1) / 2) as u64
}

/// Sends `count` buffers and takes them back.
fn drive<B: Bus>(driver: &mut PlainDriver<B, false>, count: u64) -> Result<Polls, RingError> {
    let (mut given, mut taken, mut sum, mut polls) = (0, 0, 0_u64, Polls { is_idle: true, ..Polls::default() });
    while taken < count {
        let before = given + taken;
        while let Some(completion) = driver.take_used()? {
            polls.add(true);
            sum = sum.wrapping_add(completion.token);
            taken += 1;
        }
        if given < count && driver.free_count() > 0 {
            driver.add_and_publish(&[Segment { addr: given, len: LEN }], &[], given)?;
            given += 1;
        }
        polls.add(false);
        if given + taken == before {
            polls.relax();
        }
    }
    assert_eq!(sum, sum_of(count), "each buffer is back once");
    Ok(polls)
}

/// Takes `count` buffers and gives them back.
fn serve<B: Bus>(device: &mut PlainDevice<B, false>, count: u64) -> Result<Polls, RingError> {
    let (mut taken, mut sum, mut polls) = (0, 0_u64, Polls { is_idle: true, ..Polls::default() });
    while taken < count {
        let found = device.pop()?;
        polls.add(found.is_some());
        match found {
            Some((id, segment)) => {
                device.push_used(id, 0);
                device.publish_used();
                sum = sum.wrapping_add(segment.addr);
                taken += 1;
            }
            None => polls.relax(),
        }
    }
    assert_eq!(sum, sum_of(count), "each buffer came once");
    Ok(polls)
}

fn pin(cpu: usize) -> Result<(), String> {
    let mut set = CpuSet::new();
    set.set(cpu);
    sched_setaffinity(None, &set).map_err(|error| format!("CPU {cpu}: {error}"))
}

/// Runs all repetitions over one ring. Returns the time of each, in ns for a buffer, and the polls of both sides.
fn run<B: Bus + Send>(arguments: &Arguments, driver: B, device: B) -> Result<(Vec<f64>, [Polls; 2]), String> {
    let &Arguments { count, cpus: [first, second], repetitions, .. } = arguments;
    let failed = |error: RingError| error.to_string();
    let mut driver = PlainDriver::<B, false>::new(driver, ENTRIES, PLAIN).map_err(failed)?;
    let mut device = PlainDevice::<B, false>::new(device, ENTRIES).map_err(failed)?;
    let (mut times, mut polls) = (Vec::new(), [Polls::default(); 2]);
    // The calling thread is the driver.
    pin(first)?;
    let ready = Barrier::new(2);
    std::thread::scope(|scope| {
        let serving = scope.spawn(|| {
            let pinned = pin(second);
            let mut polls = Polls::default();
            for _ in 0..repetitions {
                ready.wait();
                let more = serve(&mut device, count).map_err(failed)?;
                polls = Polls { bursts: polls.bursts + more.bursts, in_vain: polls.in_vain + more.in_vain, ..more };
            }
            pinned.map(|()| polls)
        });
        for _ in 0..repetitions {
            ready.wait();
            let begun = Instant::now();
            let more = drive(&mut driver, count).map_err(failed)?;
            times.push(begun.elapsed().as_nanos() as f64 / count as f64);
            polls[0].bursts += more.bursts;
            polls[0].in_vain += more.in_vain;
        }
        polls[1] = serving.join().map_err(|_| "the device panicked".to_string())??;
        Ok((times, polls))
    })
}

fn report(arguments: &Arguments) -> Result<(), String> {
    let &Arguments { has_shadow, count, cpus, repetitions } = arguments;
    let bus = ring_memory::split_bus().map_err(|error| error.to_string())?;
    let (times, polls) = if has_shadow {
        run(arguments, bus, bus)
    } else {
        run(arguments, ReadBack::driver(bus, ENTRIES), ReadBack::device(bus, ENTRIES))
    }?;
    for ns in &times {
        println!("{:.9} s, {ns:.2} ns a buffer", ns * count as f64 / 1e9);
    }
    let name = if has_shadow { "shadow" } else { "noshadow" };
    let interval = median_ci95(&times).map(|[low, high]| format!(" [{low:.2}, {high:.2}]")).unwrap_or_default();
    println!("{name}, CPUs {} and {}: median {:.2}{interval} ns a buffer", cpus[0], cpus[1], median(&times));
    let all = count as f64 * repetitions as f64;
    for (side, Polls { bursts, in_vain, .. }) in ["driver", "device"].into_iter().zip(polls) {
        let in_a_row = all / bursts as f64;
        println!("{side}: {in_a_row:.2} buffers found in a row, {:.2} polls in vain a buffer", in_vain as f64 / all);
    }
    Ok(())
}

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    match Arguments::parse(&words).and_then(|arguments| report(&arguments)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("vring-bench: {error}");
            ExitCode::from(2)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_papers_arguments_are_parsed() {
        let parse = |text: &str| Arguments::parse(&text.split_whitespace().collect::<Vec<_>>());
        let expected = Arguments { has_shadow: true, count: 1_000_000_000, cpus: [2, 0], repetitions: 7 };
        assert_eq!(parse("shadow 1000000000 --cpus 2,0 --repeat 7"), Ok(expected));
        assert_eq!(parse("noshadow 5 --cpus 0,1").map(|found| (found.has_shadow, found.repetitions)), Ok((false, 1)));
        for wrong in [
            "",
            "shadow",
            "shade 5 --cpus 0,1",
            "shadow 0 --cpus 0,1",
            "shadow 5",
            "shadow 5 --cpus 1,1",
            "shadow 5 --cpus 1",
            "shadow 5 --cpus 0,1 --repeat 0",
            "shadow 5 --cpus 0,1 --repeat",
            "shadow 5 --cpu 0,1",
        ] {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn bursts_are_runs_of_polls_that_find_something() {
        let mut polls = Polls { is_idle: true, ..Polls::default() };
        [true, true, false, false, true, false].into_iter().for_each(|is_found| polls.add(is_found));
        assert_eq!((polls.bursts, polls.in_vain), (2, 3));
    }

    #[test]
    fn both_rings_carry_every_buffer() {
        // The sums are checked by both sides. The same CPU for both: a test needs no two.
        for has_shadow in [true, false] {
            let arguments = Arguments { has_shadow, count: 1_000, cpus: [0, 0], repetitions: 3 };
            assert_eq!(report(&arguments), Ok(()));
        }
    }
}
