use dormouse_vring::{
    Chain, Completion, DeviceSide, DriverSide, Features, NoMemory, RingError, Segment, packed, split,
};

use super::{Counts, Memory, Moves, Protocol, Side, Tally};

/// How far the driver runs ahead of the device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Schedule {
    /// The driver adds a batch whenever the ring has room for it.
    Stream,
    /// The driver adds one batch at a time; the next when all of it is back.
    Lockstep,
}

/// A workload for a queue: buffers of one segment, which the device reads and gives back in order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Workload {
    /// Number of entries of the ring.
    pub size: u32,
    /// Features that both sides have negotiated.
    pub features: Features,
    /// Number of buffers that are counted. Before them, twice as many as the ring has entries pass uncounted, so that
    /// no line is new.
    pub items: u64,
    /// Buffers that either side publishes at a time; at most `size`. The device publishes fewer when no more are
    /// available.
    pub batch: u32,
    /// How far the driver runs ahead of the device.
    pub schedule: Schedule,
    /// After each publishing, a side asks whether the other wants to be notified. Both sides poll and never want it.
    pub is_notified: bool,
    /// The driver enables notifications whenever it has taken all buffers, and disables them when it takes the next. It
    /// polls all the same.
    pub is_toggled: bool,
}

impl Default for Workload {
    /// 256 entries, published one by one in a stream without notifications.
    fn default() -> Workload {
        let features = Features { event_idx: true, ..Features::default() };
        Workload {
            size: 256,
            features,
            items: 4096,
            batch: 1,
            schedule: Schedule::Stream,
            is_notified: false,
            is_toggled: false,
        }
    }
}

/// Runs a workload through a split queue.
///
/// # Errors
/// [`RingError::Size`].
///
/// # Panics
/// See [`run`].
pub fn run_split(workload: &Workload) -> Result<Counts, RingError> {
    let &Workload { size, features, .. } = workload;
    let memory = Memory::split(size)?;
    let mut driver = split::Driver::new(memory.view(Side::Driver), size, features)?;
    let mut device = split::Device::new(memory.view(Side::Device), size, features)?;
    run(&memory, &mut driver, &mut device, workload)
}

/// Runs a workload through a packed queue.
///
/// # Errors
/// [`RingError::Size`].
///
/// # Panics
/// See [`run`].
pub fn run_packed(workload: &Workload) -> Result<Counts, RingError> {
    let &Workload { size, features, .. } = workload;
    let memory = Memory::packed(size)?;
    let mut driver = packed::Driver::new(memory.view(Side::Driver), size, features)?;
    let mut device = packed::Device::new(memory.view(Side::Device), size, features)?;
    run(&memory, &mut driver, &mut device, workload)
}

/// Runs a workload through two sides that were made of `memory`'s views, in alternating calls of driver and device. At
/// the end the queue is as full as it was when counting started.
///
/// # Errors
/// The protocol violation that one side finds in the other's writes.
///
/// # Panics
/// If a buffer does not come back, or not in order.
pub fn run(
    memory: &Memory,
    driver: &mut impl DriverSide,
    device: &mut impl DeviceSide,
    workload: &Workload,
) -> Result<Counts, RingError> {
    driver.disarm_interrupt();
    device.disarm_notification();
    let mut producer = Producer { driver, workload, phase: Phase::Take, sent: 0, back: 0, batch: 0, is_armed: false };
    let mut consumer = Consumer { device, workload, phase: Phase::Take, chain: Chain::default(), batch: 0 };
    let warm_up = 2 * u64::from(workload.size);
    let idle_max = 64 * (u64::from(workload.size) + 1);
    let (mut back, mut idle) = (0, 0);
    while back < warm_up + workload.items {
        producer.step()?;
        consumer.step()?;
        idle = if producer.back > back { 0 } else { idle + 1 };
        assert!(idle < idle_max, "{} of {} buffers come back, and no more", back, producer.sent);
        if producer.back == warm_up && back < warm_up {
            memory.reset();
        }
        back = producer.back;
    }
    Ok(Counts { items: workload.items, ..memory.counts() })
}

/// Times of a model with a clock for each side.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Pace {
    /// Protocol that moves the lines.
    pub protocol: Protocol,
    /// Time of an access to a word, in ns.
    pub word_ns: f64,
    /// Time that a load waits for a line of the other side, in ns.
    pub transfer_ns: f64,
    /// Whether stores wait as well, as they do where the CPU's buffer for them is full.
    pub stores_wait: bool,
}

impl Pace {
    /// Returns the time of a side's accesses, in ns.
    fn of(self, tally: Tally) -> f64 {
        let Moves { load_misses, store_misses, upgrades, .. } = tally.moves(self.protocol);
        let awaited = load_misses + if self.stores_wait { store_misses + upgrades } else { 0 };
        // A step without an access takes time too.
        (tally.loads + tally.stores).max(1) as f64 * self.word_ns + awaited as f64 * self.transfer_ns
    }
}

/// Counts of a run with clocks.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Timed {
    /// Accesses and moves.
    pub counts: Counts,
    /// Time of a buffer, in ns.
    pub ns: f64,
    /// Buffers that the device finds in a row.
    pub burst: f64,
}

/// Runs a workload like [`run`], but each side has a clock, and the side whose clock is behind takes the next step. So a
/// side that waits for lines lets the other get ahead.
///
/// # Errors
/// The protocol violation that one side finds in the other's writes.
pub fn run_timed(
    memory: &Memory,
    driver: &mut impl DriverSide,
    device: &mut impl DeviceSide,
    workload: &Workload,
    pace: Pace,
) -> Result<Timed, RingError> {
    driver.disarm_interrupt();
    device.disarm_notification();
    let mut producer = Producer { driver, workload, phase: Phase::Take, sent: 0, back: 0, batch: 0, is_armed: false };
    let mut consumer = Consumer { device, workload, phase: Phase::Take, chain: Chain::default(), batch: 0 };
    let warm_up = 2 * u64::from(workload.size);
    for side in Side::ALL {
        memory.take_recent(side);
    }
    let (mut clocks, mut begun, mut bursts, mut is_idle) = ([0.0_f64; 2], 0.0, 0_u64, true);
    let mut is_counted = false;
    while producer.back < warm_up + workload.items {
        let side = if clocks[0] <= clocks[1] { Side::Driver } else { Side::Device };
        if side == Side::Driver {
            producer.step()?;
        } else {
            let was_take = consumer.phase == Phase::Take;
            consumer.step()?;
            if was_take {
                let is_found = consumer.phase == Phase::Give;
                bursts += u64::from(is_counted && is_found && is_idle);
                is_idle = !is_found;
            }
        }
        clocks[side as usize] += pace.of(memory.take_recent(side));
        if !is_counted && producer.back >= warm_up {
            is_counted = true;
            begun = clocks[0];
            memory.reset();
        }
    }
    let counts = Counts { items: workload.items, ..memory.counts() };
    let items = workload.items as f64;
    Ok(Timed { counts, ns: (clocks[0] - begun) / items, burst: items / bursts.max(1) as f64 })
}

/// Next step of a side.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// Taking used buffers back, or popping available ones.
    Take,
    /// Adding a buffer, or giving the popped one back.
    Give,
    Publish,
}

struct Producer<'a, D> {
    driver: &'a mut D,
    workload: &'a Workload,
    phase: Phase,
    /// Number of buffers added.
    sent: u64,
    /// Number of buffers taken back.
    back: u64,
    /// Number of buffers added and not published.
    batch: u32,
    /// Whether notifications are enabled.
    is_armed: bool,
}

impl<D: DriverSide> Producer<'_, D> {
    fn taken(&mut self) -> Result<Option<Completion>, RingError> {
        let taken = self.driver.take_used()?;
        if self.workload.is_toggled && taken.is_some() == self.is_armed {
            self.is_armed = !self.is_armed;
            if self.is_armed {
                self.driver.arm_interrupt();
            } else {
                self.driver.disarm_interrupt();
            }
        }
        Ok(taken)
    }

    fn step(&mut self) -> Result<(), RingError> {
        match self.phase {
            Phase::Take => match self.taken()? {
                Some(completion) => {
                    assert_eq!(completion.token, self.back, "buffers come back in order");
                    self.back += 1;
                }
                None => {
                    let may_go_on = match self.workload.schedule {
                        Schedule::Stream => u32::from(self.driver.free_count()) >= self.workload.batch,
                        Schedule::Lockstep => self.back == self.sent,
                    };
                    if may_go_on {
                        self.phase = Phase::Give;
                    }
                }
            },
            Phase::Give => {
                let segment = Segment { addr: self.sent * 64, len: 64 };
                self.driver.add(&[segment], &[], self.sent)?;
                self.sent += 1;
                self.batch += 1;
                if self.batch == self.workload.batch {
                    self.phase = Phase::Publish;
                }
            }
            Phase::Publish => {
                self.driver.publish();
                if self.workload.is_notified {
                    self.driver.needs_kick();
                }
                self.batch = 0;
                self.phase = Phase::Take;
            }
        }
        Ok(())
    }
}

struct Consumer<'a, D> {
    device: &'a mut D,
    workload: &'a Workload,
    phase: Phase,
    chain: Chain,
    /// Number of buffers given back and not published.
    batch: u32,
}

impl<D: DeviceSide> Consumer<'_, D> {
    fn step(&mut self) -> Result<(), RingError> {
        match self.phase {
            Phase::Take if self.device.pop(&NoMemory, &mut self.chain)? => self.phase = Phase::Give,
            // Buffers that were given back are published before the ring is polled again.
            Phase::Take if self.batch > 0 => self.phase = Phase::Publish,
            Phase::Take => {}
            Phase::Give => {
                self.device.push_used(&self.chain, 0);
                self.batch += 1;
                self.phase = if self.batch == self.workload.batch { Phase::Publish } else { Phase::Take };
            }
            Phase::Publish => {
                self.device.publish_used();
                if self.workload.is_notified {
                    self.device.needs_interrupt();
                }
                self.batch = 0;
                self.phase = Phase::Take;
            }
        }
        Ok(())
    }
}
