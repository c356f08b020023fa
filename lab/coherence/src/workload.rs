use dormouse_vring::{
    Chain, Completion, DeviceSide, DriverSide, Features, NoMemory, RingError, Segment, packed, split,
};

use super::{Counts, Memory, Side};

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
