use dormouse_vring::{
    Chain, Completion, DeviceSide, DriverSide, Features, NoMemory, RingError, Segment, packed, split,
};

use super::{Counts, Memory, Side};

/// How far the driver goes ahead.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Schedule {
    /// As far as the ring has room for a batch.
    Stream,
    /// One batch; the next when all of it is back.
    Lockstep,
}

/// What is driven through a queue: buffers of one segment, which the device reads and gives back in order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Workload {
    /// Entries of the ring.
    pub size: u32,
    /// What both sides have negotiated.
    pub features: Features,
    /// Buffers that are counted. Before them, as many as go twice around the ring are not counted, so that no line is new.
    pub items: u64,
    /// Buffers that are published at a time, by either side; at most `size`. The device publishes fewer where there are no more.
    pub batch: u32,
    /// How far the driver goes ahead.
    pub schedule: Schedule,
    /// After each publishing, a side asks whether the other wants to be notified. Both poll, and never want it.
    pub is_notified: bool,
    /// The driver wants to be notified whenever it has taken all, until it takes the next. It polls all the same.
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

/// Through a split queue.
///
/// # Errors
/// [`RingError::Size`].
///
/// # Panics
/// As [`run`].
pub fn run_split(workload: &Workload) -> Result<Counts, RingError> {
    let &Workload { size, features, .. } = workload;
    let memory = Memory::split(size)?;
    let mut driver = split::Driver::new(memory.view(Side::Driver), size, features)?;
    let mut device = split::Device::new(memory.view(Side::Device), size, features)?;
    run(&memory, &mut driver, &mut device, workload)
}

/// Through a packed queue.
///
/// # Errors
/// [`RingError::Size`].
///
/// # Panics
/// As [`run`].
pub fn run_packed(workload: &Workload) -> Result<Counts, RingError> {
    let &Workload { size, features, .. } = workload;
    let memory = Memory::packed(size)?;
    let mut driver = packed::Driver::new(memory.view(Side::Driver), size, features)?;
    let mut device = packed::Device::new(memory.view(Side::Device), size, features)?;
    run(&memory, &mut driver, &mut device, workload)
}

/// Through two sides that were made of `memory`'s views, a call of the driver's and a call of the device's in turn. At the end the
/// queue is as full as it was when counting began.
///
/// # Errors
/// What one side says of the other.
///
/// # Panics
/// A buffer does not come back, or not in order.
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

/// What a side is about to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// Take used buffers back, or pop available ones.
    Take,
    /// Add a buffer, or give the popped one back.
    Give,
    Publish,
}

struct Producer<'a, D> {
    driver: &'a mut D,
    workload: &'a Workload,
    phase: Phase,
    /// Buffers added, and taken back.
    sent: u64,
    back: u64,
    /// Buffers added and not published.
    batch: u32,
    /// Whether it wants to be notified.
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
    /// Buffers given back and not published.
    batch: u32,
}

impl<D: DeviceSide> Consumer<'_, D> {
    fn step(&mut self) -> Result<(), RingError> {
        match self.phase {
            Phase::Take if self.device.pop(&NoMemory, &mut self.chain)? => self.phase = Phase::Give,
            // What was given back is published before it is polled again.
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
