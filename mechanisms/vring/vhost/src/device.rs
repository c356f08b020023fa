//! A block device of another process, accessed through rings.

use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use dormouse_backing::{MemoryOptions, Pool};
use dormouse_vring::{Areas, Direct, DriverSide, Features, IndirectTables, RingError, Segment, either};
use serde::Serialize;
use vmm_sys_util::eventfd::EventFd;

use crate::blk::{self, Config, HEADER_BYTES, ID_BYTES, Operation, SECTOR_BYTES, Status};
use crate::error::Error;
use crate::front::{FrontEnd, MEMORY_ADDR, Ring, WakeReason, wait_for};
use crate::shared::{load_bytes, store_bytes};

/// Options for driving a block device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DriverOptions {
    /// Number of queues, at least one.
    pub queue_count: u16,
    /// Number of entries of each ring, a power of two up to 1024.
    pub queue_size: u16,
    /// Maximum number of requests in flight in each queue.
    pub depth: u16,
    /// Maximum number of bytes of a request's data, a multiple of 512.
    pub request_bytes_max: u32,
    /// Maximum number of bytes of a data segment, a multiple of 512. Segments are larger if the device does not take
    /// that many of them.
    pub segment_bytes_max: u32,
    /// Features to accept if they are offered.
    pub features: Features,
    /// Whether to use packed rings (2.8) instead of split ones (2.7). The device must offer them.
    pub is_packed: bool,
    /// Time to wait for a process to listen on the socket.
    pub patience: Duration,
    /// Timeout for an answer on the socket.
    pub answer_timeout: Duration,
}

impl Default for DriverOptions {
    fn default() -> DriverOptions {
        DriverOptions {
            queue_count: 1,
            queue_size: 256,
            depth: 32,
            request_bytes_max: 64 << 10,
            segment_bytes_max: 64 << 10,
            features: Features { indirect: true, event_idx: true, in_order: true },
            is_packed: false,
            patience: Duration::ZERO,
            answer_timeout: Duration::from_secs(10),
        }
    }
}

/// Maximum number of entries of a ring: the limit of libvhost-user.
const QUEUE_SIZE_MAX: u16 = 1024;
/// Bytes reserved for a request's header, and also for its status, so that each is in a cache line that one side
/// writes.
const LINE_BYTES: usize = 64;
/// Alignment of data: a page, which suits disks.
const DATA_ALIGNMENT: usize = 4096;
/// A status that no device writes. It remains if the device has written none.
const NO_STATUS: u8 = 0xFF;
/// Interval between two attempts to reach a device that is not there yet.
const RETRY: Duration = Duration::from_millis(10);

/// Retries until the attempt succeeds, fails for another reason than a missing device, or `patience` has passed.
fn until_there<T>(patience: Duration, mut attempt: impl FnMut() -> Result<T, Error>) -> Result<T, Error> {
    let start = Instant::now();
    loop {
        match attempt() {
            // The device does not listen yet, or is ending. No event can be waited for: a socket's file exists before a
            // process listens on it, and remains when its owner is killed. So only another attempt tells. The loop ends
            // after `patience`.
            Err(Error::Connect { .. } | Error::Gone) if start.elapsed() < patience => std::thread::sleep(RETRY),
            result => return result,
        }
    }
}

/// Features that were negotiated with the device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Negotiated {
    /// Whether rings are packed.
    pub packed: bool,
    /// `VIRTIO_F_EVENT_IDX`.
    pub event_idx: bool,
    /// `VIRTIO_F_INDIRECT_DESC`.
    pub indirect: bool,
    /// `VIRTIO_F_IN_ORDER`.
    pub in_order: bool,
}

/// A block device of another process: a vhost-user back end, driven by this process.
///
/// ```text
///   connect ─▶ queues: read, write, flush ─▶ submit ─▶ wait, complete ─┐
///                 ▲      ▲                                             │
///                 │      └─────────────────────────────────────────────┘
///                 └── reconnect ◀── Error::Gone
/// ```
pub struct BlockDevice {
    path: PathBuf,
    options: DriverOptions,
    front: FrontEnd,
    config: Config,
    queues: Vec<BlockQueue>,
}

impl BlockDevice {
    /// Connects to the device that listens on a socket, negotiates features, and starts the queues.
    ///
    /// # Errors
    /// All errors except [`Error::Full`], [`Error::Request`] and [`Error::Changed`].
    pub fn connect(path: &Path, options: DriverOptions) -> Result<BlockDevice, Error> {
        options.check()?;
        until_there(options.patience, || {
            let mut front = options.open(path)?;
            let config = front.config()?;
            let mut device = BlockDevice { path: path.into(), options, config, queues: Vec::new(), front };
            device.queues = device.make_queues()?;
            device.start()?;
            Ok(device)
        })
    }

    /// Returns the device's configuration.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// Returns the negotiated features.
    pub fn negotiated(&self) -> Negotiated {
        let accepted = self.front.accepted();
        let Features { indirect, event_idx, in_order } = Features::from_bits(accepted);
        Negotiated { packed: accepted & Features::PACKED != 0, event_idx, indirect, in_order }
    }

    /// Returns the queues. One thread at a time may use a queue.
    pub fn queues_mut(&mut self) -> &mut [BlockQueue] {
        &mut self.queues
    }

    /// Recovers from [`Error::Gone`]: waits up to `patience` for a device to listen on the socket again, and gives it
    /// all requests that are in flight, in the order in which they were made. Returns their number.
    ///
    /// The requests are then in new memory. A device that only seemed to be gone has the old memory, and nothing else.
    /// It is unknown whether it has executed its requests, so a write may happen twice.
    ///
    /// # Errors
    /// See [`BlockDevice::connect`]; also [`Error::Changed`]. The call can be repeated.
    pub fn reconnect(&mut self, patience: Duration) -> Result<usize, Error> {
        until_there(patience, || self.try_reconnect())
    }

    fn try_reconnect(&mut self) -> Result<usize, Error> {
        let mut front = self.options.open(&self.path)?;
        let config = front.config()?;
        if front.accepted() != self.front.accepted() {
            return Err(Error::Changed("other features"));
        }
        if config != self.config {
            return Err(Error::Changed("another configuration"));
        }
        let old = std::mem::replace(&mut self.front, front);
        let result = self.make_queues().and_then(|mut queues| {
            let mut count = 0;
            for (queue, before) in queues.iter_mut().zip(&self.queues) {
                count += queue.take_over(before)?;
            }
            let before = std::mem::replace(&mut self.queues, queues);
            self.start().inspect_err(|_| self.queues = before)?;
            Ok(count)
        });
        if result.is_err() {
            self.front = old;
        }
        result
    }

    /// Creates new rings and buffers, which the device does not know yet.
    fn make_queues(&mut self) -> Result<Vec<BlockQueue>, Error> {
        let offered = self.front.queue_count()?;
        let wanted = self.options.queue_count;
        if u64::from(wanted) > offered {
            return Err(Error::Queues { wanted, offered });
        }
        let negotiated = self.negotiated();
        let features = Features::from_bits(self.front.accepted());
        let segment_bytes = self.options.segment_bytes(&self.config)?;
        let plan = Plan::new(&self.options, negotiated, segment_bytes)?;
        let size_bytes = plan.size_bytes * usize::from(wanted);
        let pool = Pool::new("dormouse-vring", size_bytes, MemoryOptions::new()).map_err(Error::memory(size_bytes))?;
        let pool = Arc::new(pool);
        let make = |index: u16| {
            BlockQueue::new(
                Arc::clone(&pool),
                plan.size_bytes * usize::from(index),
                plan,
                features,
                self.config,
                self.front.socket()?,
            )
        };
        (0..wanted).map(make).collect()
    }

    /// Gives memory and rings to the device, and starts them.
    fn start(&mut self) -> Result<(), Error> {
        let Some(first) = self.queues.first() else { return Ok(()) };
        let pool = Arc::clone(&first.pool);
        let queues = &self.queues;
        self.front.within(|front| {
            front.share(&pool)?;
            for (index, queue) in queues.iter().enumerate() {
                // Both wrap counters of a packed ring are initially 1 (2.8.1).
                let base = if queue.plan.options.is_packed { 1 << 15 } else { 0 };
                let ring = Ring {
                    areas: queue.areas,
                    size: queue.plan.options.queue_size,
                    base,
                    kick: &queue.kick,
                    call: &queue.call,
                };
                front.start_queue(index, ring)?;
            }
            Ok(())
        })?;
        self.queues.iter_mut().try_for_each(BlockQueue::kick)
    }
}

impl DriverOptions {
    fn check(&self) -> Result<(), Error> {
        let wrong = |text: &str| Err(Error::Options(text.into()));
        if self.queue_count == 0 || self.depth == 0 {
            return wrong("--queues and --depth must be at least 1");
        }
        if !self.queue_size.is_power_of_two() || self.queue_size > QUEUE_SIZE_MAX {
            return wrong("--entries must be a power of two, at most 1024");
        }
        for bytes in [self.request_bytes_max, self.segment_bytes_max] {
            if bytes == 0 || !bytes.is_multiple_of(SECTOR_BYTES) {
                return wrong("the size of a request must be a multiple of 512 bytes");
            }
        }
        Ok(())
    }

    /// Connects and negotiates features.
    fn open(&self, path: &Path) -> Result<FrontEnd, Error> {
        let device = blk::F_SIZE_MAX | blk::F_SEG_MAX | blk::F_RO | blk::F_BLK_SIZE | blk::F_FLUSH | blk::F_MQ;
        let packed = if self.is_packed { Features::PACKED } else { 0 };
        let needed = [(Features::PACKED, "packed queues", "; leave --packed out")];
        let needed = if self.is_packed { &needed[..] } else { &[] };
        FrontEnd::connect(path, self.answer_timeout, device | packed | self.features.to_bits(), needed)
    }

    /// Returns the number of bytes of a segment with which the largest request has no more segments than the device
    /// takes, and fits into a ring.
    fn segment_bytes(&self, config: &Config) -> Result<u32, Error> {
        // Header and status take two more segments.
        let count_max = config.seg_max.unwrap_or(u32::MAX).min(u32::from(self.queue_size).saturating_sub(2));
        let least = self.request_bytes_max.checked_div(count_max).map(|_| self.request_bytes_max.div_ceil(count_max));
        let bytes = least.map(|least| self.segment_bytes_max.max(least.next_multiple_of(SECTOR_BYTES)));
        match (bytes, config.size_max.unwrap_or(u32::MAX)) {
            (Some(bytes), max) if bytes <= max => Ok(bytes),
            _ => Err(Error::Options(format!(
                "the device does not take requests of {} bytes; choose a smaller --size, or more --entries",
                self.request_bytes_max
            ))),
        }
    }
}

/// Layout of a queue's memory. Positions are byte offsets from its beginning.
#[derive(Debug, Clone, Copy)]
struct Plan {
    options: DriverOptions,
    segment_bytes: u32,
    tables: usize,
    /// Number of descriptors of an indirect table; 0: there are no tables.
    table_entries: u16,
    slots: usize,
    slot_bytes: usize,
    size_bytes: usize,
}

impl Plan {
    fn new(options: &DriverOptions, negotiated: Negotiated, segment_bytes: u32) -> Result<Plan, Error> {
        let data_segments = options.request_bytes_max.div_ceil(segment_bytes);
        let table_entries = if negotiated.indirect { data_segments as u16 + 2 } else { 0 };
        let tables = either::size_bytes(negotiated.packed, options.queue_size.into())?;
        let table_bytes = IndirectTables::size_bytes(options.queue_size.into(), table_entries);
        let slots = (tables + table_bytes).next_multiple_of(DATA_ALIGNMENT);
        // Header, status and the device's name have lines before the data.
        let slot_bytes = DATA_ALIGNMENT + (options.request_bytes_max as usize).next_multiple_of(DATA_ALIGNMENT);
        let size_bytes = slots + usize::from(options.depth) * slot_bytes;
        Ok(Plan { options: *options, segment_bytes, tables, table_entries, slots, slot_bytes, size_bytes })
    }

    fn header(&self, slot: u16) -> usize {
        self.slots + usize::from(slot) * self.slot_bytes
    }

    fn status(&self, slot: u16) -> usize {
        self.header(slot) + LINE_BYTES
    }

    fn data(&self, slot: u16) -> usize {
        self.header(slot) + DATA_ALIGNMENT
    }
}

/// A request to a block device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Request {
    /// Type of the request.
    pub operation: Operation,
    /// First sector, in sectors of 512 bytes.
    pub sector: u64,
    /// Number of bytes of data.
    pub len: u32,
}

#[derive(Debug, Clone, Copy)]
struct InFlight {
    request: Request,
    token: u64,
    /// Number of the request in the queue, in order of creation.
    number: u64,
}

/// A queue of a block device.
#[derive(Debug)]
pub struct BlockQueue {
    pool: Arc<Pool>,
    base: *mut u8,
    addr: u64,
    plan: Plan,
    areas: Areas,
    config: Config,
    ring: either::Driver<Direct>,
    kick: EventFd,
    call: EventFd,
    socket: UnixStream,
    slots: Box<[Option<InFlight>]>,
    free: Vec<u16>,
    /// Segments of a request while it is added to the ring.
    readable: Vec<Segment>,
    writable: Vec<Segment>,
    counters: QueueCounters,
}

// SAFETY: `base` and the areas are addresses in the pool, which the queue keeps alive; all accesses to it are atomic.
unsafe impl Send for BlockQueue {}

/// Counters of a queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub struct QueueCounters {
    /// Number of requests that were made.
    pub requests: u64,
    /// Number of kicks that were sent.
    pub kicks: u64,
    /// Number of times that the device woke this side.
    pub interrupts: u64,
    /// Number of protocol violations of the device.
    pub violations: u64,
}

/// A completed request. Its data is valid until the queue is used again.
#[derive(Debug)]
pub struct Completed<'a> {
    /// Token that the caller gave with the request.
    pub token: u64,
    /// The request.
    pub request: Request,
    /// Status that the device wrote.
    pub status: Status,
    queue: &'a BlockQueue,
    slot: u16,
}

impl Completed<'_> {
    /// Copies the data that was read to `to`, as far as it fits.
    pub fn copy_to(&self, to: &mut [u8]) {
        let len = to.len().min(self.request.len as usize);
        // SAFETY: the slot's data area in the pool is as long as the longest request, so it has these bytes; they are
        // accessed only atomically.
        unsafe { load_bytes(self.queue.at(self.queue.plan.data(self.slot)), &mut to[..len]) };
    }
}

impl BlockQueue {
    fn new(
        pool: Arc<Pool>,
        offset: usize,
        plan: Plan,
        features: Features,
        config: Config,
        socket: UnixStream,
    ) -> Result<BlockQueue, Error> {
        let base = pool.base().wrapping_add(offset);
        let addr = MEMORY_ADDR + offset as u64;
        let (is_packed, size) = (plan.options.is_packed, plan.options.queue_size.into());
        let areas = either::contiguous(is_packed, base, size)?;
        // SAFETY: the areas are in the pool, which lives as long as the queue; Rust code accesses them only atomically.
        let bus = unsafe { Direct::new(areas) };
        either::init(is_packed, &bus, size)?;
        let mut ring = either::Driver::new(is_packed, bus, size, features)?;
        if plan.table_entries > 0 {
            let tables = IndirectTables {
                base: base.wrapping_add(plan.tables),
                addr: addr + plan.tables as u64,
                entries: plan.table_entries,
            };
            // SAFETY: the plan reserves the tables' bytes in the pool, aligned to 64, for nothing else, and the queue
            // keeps the pool mapped.
            unsafe { ring.use_indirect(tables) }?;
        }
        let event =
            || EventFd::new(libc::EFD_NONBLOCK | libc::EFD_CLOEXEC).map_err(Error::system("make an event file"));
        Ok(BlockQueue {
            base,
            addr,
            areas,
            config,
            ring,
            kick: event()?,
            call: event()?,
            socket,
            slots: vec![None; plan.options.depth.into()].into(),
            free: (0..plan.options.depth).rev().collect(),
            readable: Vec::new(),
            writable: Vec::new(),
            counters: QueueCounters::default(),
            plan,
            pool,
        })
    }

    fn at(&self, offset: usize) -> *mut u8 {
        self.base.wrapping_add(offset)
    }

    /// Returns the number of requests that the device has, or will have after [`BlockQueue::submit`].
    pub fn in_flight(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    /// Whether there is room for another request. Adding it can still fail if its segments do not fit.
    pub fn has_room(&self) -> bool {
        !self.free.is_empty()
    }

    /// Returns the queue's counters so far.
    pub fn counters(&self) -> QueueCounters {
        QueueCounters { violations: self.counters.violations + self.ring.violations(), ..self.counters }
    }

    /// Adds a request to read `len` bytes from `sector` on. [`BlockQueue::submit`] shows it to the device. `token` is
    /// returned with its completion.
    ///
    /// # Errors
    /// [`Error::Full`] and [`Error::Request`]; nothing was changed.
    pub fn read(&mut self, sector: u64, len: u32, token: u64) -> Result<(), Error> {
        self.add(Request { operation: Operation::Read, sector, len }, &[], token)
    }

    /// Adds a request to write `data`, which is copied, from `sector` on. See [`BlockQueue::read`].
    ///
    /// # Errors
    /// See [`BlockQueue::read`].
    pub fn write(&mut self, sector: u64, data: &[u8], token: u64) -> Result<(), Error> {
        let len = u32::try_from(data.len()).unwrap_or(u32::MAX);
        self.add(Request { operation: Operation::Write, sector, len }, data, token)
    }

    /// Adds a request to make all writes that completed before permanent. See [`BlockQueue::read`].
    ///
    /// # Errors
    /// See [`BlockQueue::read`].
    pub fn flush(&mut self, token: u64) -> Result<(), Error> {
        self.add(Request { operation: Operation::Flush, sector: 0, len: 0 }, &[], token)
    }

    /// Adds a request for the device's name. See [`BlockQueue::read`].
    ///
    /// # Errors
    /// See [`BlockQueue::read`].
    pub fn get_id(&mut self, token: u64) -> Result<(), Error> {
        self.add(Request { operation: Operation::GetId, sector: 0, len: ID_BYTES }, &[], token)
    }

    fn check(&self, request: Request) -> Result<(), Error> {
        let Request { operation, sector, len } = request;
        let wrong = |reason| Err(Error::Request { sector, len: len.into(), reason });
        let sectors = u64::from(len.div_ceil(SECTOR_BYTES));
        match operation {
            Operation::GetId => Ok(()),
            Operation::Flush if !self.config.has_flush => wrong("the device has nothing to flush"),
            Operation::Flush => Ok(()),
            Operation::Write if self.config.is_read_only => wrong("the device is read-only"),
            _ if len == 0 || len > self.plan.options.request_bytes_max => {
                wrong("it is empty, or larger than announced")
            }
            _ if !len.is_multiple_of(self.config.block_bytes.max(SECTOR_BYTES)) => {
                wrong("it is not a multiple of the device's block size")
            }
            _ if sector.checked_add(sectors).is_none_or(|end| end > self.config.capacity_sectors) => {
                wrong("it is beyond the device's end")
            }
            _ => Ok(()),
        }
    }

    fn add(&mut self, request: Request, data: &[u8], token: u64) -> Result<(), Error> {
        self.check(request)?;
        let slot = *self.free.last().ok_or(Error::Full)?;
        // SAFETY: the slot's data area in the pool is as long as the longest request, and `check` has refused longer
        // ones.
        unsafe { store_bytes(self.at(self.plan.data(slot)), data) };
        self.add_slot(slot, InFlight { request, token, number: self.counters.requests })?;
        self.free.pop();
        self.counters.requests += 1;
        Ok(())
    }

    /// Adds the request of a slot, which already contains the data, to the ring.
    fn add_slot(&mut self, slot: u16, in_flight: InFlight) -> Result<(), Error> {
        let Request { operation, sector, len } = in_flight.request;
        let (plan, addr) = (self.plan, self.addr);
        let segment = |offset: usize, len: u32| Segment { addr: addr + offset as u64, len };
        let header = segment(plan.header(slot), HEADER_BYTES as u32);
        let status = segment(plan.status(slot), 1);
        let data = (0..len)
            .step_by(plan.segment_bytes as usize)
            .map(|start| segment(plan.data(slot) + start as usize, plan.segment_bytes.min(len - start)));
        let (readable, writable) = (&mut self.readable, &mut self.writable);
        readable.clear();
        writable.clear();
        readable.push(header);
        if operation == Operation::Write {
            readable.extend(data)
        } else {
            writable.extend(data)
        }
        writable.push(status);
        // SAFETY: the slot has this line in the pool for its header.
        unsafe { store_bytes(self.at(self.plan.header(slot)), &blk::header(operation, sector)) };
        // SAFETY: the slot's status line is in the pool; the device does not have it, because the request is not queued
        // yet.
        unsafe { store_bytes(self.at(self.plan.status(slot)), &[NO_STATUS]) };
        self.ring.add(&self.readable, &self.writable, slot.into()).map_err(|error| match error {
            RingError::Full { .. } => Error::Full,
            error => error.into(),
        })?;
        self.slots[usize::from(slot)] = Some(in_flight);
        Ok(())
    }

    /// Shows the device all added requests, and wakes it if it wants to be woken.
    ///
    /// # Errors
    /// [`Error::System`].
    pub fn submit(&mut self) -> Result<(), Error> {
        self.ring.publish();
        if self.ring.needs_kick() { self.kick() } else { Ok(()) }
    }

    /// Wakes the device.
    fn kick(&mut self) -> Result<(), Error> {
        self.counters.kicks += 1;
        self.kick.write(1).map_err(Error::system("kick the device"))
    }

    /// Returns the next completed request, if there is one.
    ///
    /// # Errors
    /// [`Error::Ring`]: the device has violated the protocol. It is then unknown which requests it has, except for
    /// those that come back. Reconnect, or stop using it.
    pub fn complete(&mut self) -> Result<Option<Completed<'_>>, Error> {
        let Some(used) = self.ring.take_used()? else { return Ok(None) };
        // Tokens are this side's own slot numbers; each comes back once.
        let slot = used.token as u16;
        let Some(InFlight { request, token, .. }) = self.slots[usize::from(slot)].take() else { return Ok(None) };
        self.free.push(slot);
        let mut status = [NO_STATUS];
        // SAFETY: the slot has this line in the pool for its status.
        unsafe { load_bytes(self.at(self.plan.status(slot)), &mut status) };
        let status = Status::from_code(status[0]);
        self.counters.violations += u64::from(matches!(status, Status::Invalid(_)));
        Ok(Some(Completed { token, request, status, queue: self, slot }))
    }

    /// Whether the device has closed the connection, for callers that do not wait. Requests that it completed before
    /// can still be taken.
    ///
    /// # Errors
    /// [`Error::System`].
    pub fn is_gone(&self) -> Result<bool, Error> {
        Ok(wait_for(&self.call, self.socket.as_fd(), Duration::ZERO)? == WakeReason::Other)
    }

    /// Waits until a request is done. False: none was within the timeout.
    ///
    /// # Errors
    /// [`Error::Gone`], once all requests that were done before are taken; [`Error::System`].
    pub fn wait(&mut self, timeout: Duration) -> Result<bool, Error> {
        let deadline = Instant::now().checked_add(timeout);
        loop {
            let is_done = self.ring.arm_interrupt();
            let left = deadline.map_or(Duration::MAX, |deadline| deadline.saturating_duration_since(Instant::now()));
            let woken = if is_done { WakeReason::Event } else { wait_for(&self.call, self.socket.as_fd(), left)? };
            // After any wake-up, check again: a request that was done between the two checks is seen here.
            if is_done || self.ring.arm_interrupt() {
                self.ring.disarm_interrupt();
                self.counters.interrupts += u64::from(!is_done);
                return Ok(true);
            }
            match woken {
                WakeReason::Event => {}
                WakeReason::Other => return Err(Error::Gone),
                WakeReason::Timeout => return Ok(false),
            }
        }
    }

    /// Takes over the requests that another queue has in flight, in their order, with copies of the data.
    fn take_over(&mut self, before: &BlockQueue) -> Result<usize, Error> {
        let of = |slot: &u16| before.slots[usize::from(*slot)];
        let mut slots: Vec<u16> = (0..self.plan.options.depth).filter(|slot| of(slot).is_some()).collect();
        slots.sort_unstable_by_key(|slot| of(slot).map(|in_flight| in_flight.number));
        let mut data = vec![0; self.plan.options.request_bytes_max as usize];
        for slot in &slots {
            let Some(in_flight) = of(slot) else { continue };
            if in_flight.request.operation == Operation::Write {
                let data = &mut data[..in_flight.request.len as usize];
                // SAFETY: the slot's data area is in the old pool, which its queue keeps mapped.
                unsafe { load_bytes(before.at(before.plan.data(*slot)), data) };
                // SAFETY: the plans are equal, so the slot's data area is at the same place in this queue's pool, which
                // is mapped.
                unsafe { store_bytes(self.at(self.plan.data(*slot)), data) };
            }
            self.add_slot(*slot, in_flight)?;
        }
        self.free.retain(|slot| of(slot).is_none());
        self.counters = before.counters();
        self.ring.publish();
        Ok(slots.len())
    }
}
