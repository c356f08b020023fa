//! The back end: a device for drivers in other processes.

use std::fs::File;
use std::io::{self, ErrorKind};
use std::net::Shutdown;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use dormouse_vring::{Area, Areas, Bus, Chain, DeviceSide, Direct, Features, InFlight, Resumption, either};
use rustix::event::epoll;
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::fs::{MemfdFlags, SealFlags};
use serde::Serialize;
use vhost::vhost_user::message::{
    VhostTransferStateDirection, VhostTransferStatePhase, VhostUserConfigFlags, VhostUserInflight, VhostUserLog,
    VhostUserMemoryRegion, VhostUserShMemConfig, VhostUserSharedMsg, VhostUserSingleMemoryRegion,
    VhostUserVringAddrFlags, VhostUserVringState,
};
use vhost::vhost_user::{
    BackendReqHandler, Error as Message, GpuBackend, Result, VhostUserBackendReqHandlerMut, VhostUserProtocolFeatures,
    VhostUserVirtioFeatures,
};

use crate::error::Error;
use crate::served::{InvalidBuffer, Mapped, Memory};

/// A device, which defines the meaning of a buffer in each queue.
pub trait ServedDevice: Send + Sync + 'static {
    /// Returns the feature bits of this kind of device, without those of rings.
    fn features(&self) -> u64;
    /// Returns the number of queues.
    fn queue_count(&self) -> u16;
    /// Returns the configuration space, from its beginning. Later bytes read as zeroes.
    fn config(&self) -> Vec<u8>;
    /// Returns a file that becomes readable when there is something for the buffers of a queue, such as a frame from a
    /// network. `None`: each buffer is served as soon as it is available.
    fn source(&self, _queue: u16) -> Option<BorrowedFd<'_>> {
        None
    }
    /// Takes what the next buffer of a queue with a source is to hold, and keeps it in `scratch` until
    /// [`ServedDevice::serve`]. False: there is nothing, and buffers stay in the queue until the source becomes readable.
    fn fetch(&self, _queue: u16, _scratch: &mut Vec<u8>) -> bool {
        true
    }
    /// Executes the request of a buffer. Returns the number of bytes written to it. `scratch` is memory for temporary
    /// use.
    ///
    /// # Errors
    /// The buffer is invalid, or not in the driver's memory. It is returned to the driver nevertheless.
    fn serve(
        &self,
        queue: u16,
        chain: &Chain,
        memory: &Memory,
        scratch: &mut Vec<u8>,
    ) -> std::result::Result<u32, InvalidBuffer>;
}

/// Options of a back end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BackEndOptions {
    /// Ring features that are offered.
    pub features: Features,
    /// Whether packed rings are offered.
    pub has_packed: bool,
    /// Whether the driver's memory must be sealed against shrinking (`F_SEAL_SHRINK`). If it is not sealed, a driver can kill this process
    /// by truncating it.
    pub requires_seal: bool,
    /// Whether queues are polled. Drivers are asked not to kick, and each queue keeps a CPU busy. A queue without a kick file is
    /// polled in any case.
    pub is_polling: bool,
}

impl Default for BackEndOptions {
    fn default() -> BackEndOptions {
        BackEndOptions {
            features: Features { indirect: true, event_idx: true, in_order: true },
            has_packed: true,
            requires_seal: true,
            is_polling: false,
        }
    }
}

/// Counters of a back end, over all of its drivers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub struct BackEndCounters {
    /// Number of drivers that connected.
    pub connections: u64,
    /// Number of buffers that were served.
    pub buffers: u64,
    /// Number of protocol violations by drivers, in rings.
    pub violations: u64,
    /// Number of messages that were refused. Each ended its connection.
    pub refused: u64,
    /// Number of interrupts that were sent.
    pub interrupts: u64,
    /// Number of times that a driver woke this back end.
    pub kicks: u64,
}

/// State that all threads of a back end share.
#[derive(Debug, Default)]
struct SharedState {
    counters: Mutex<BackEndCounters>,
    /// Feature bits that the last driver accepted.
    accepted: Mutex<u64>,
    /// Reason for the last refusal of a message.
    refusal: Mutex<Option<String>>,
    is_stopping: AtomicBool,
    connection: Mutex<Option<UnixStream>>,
}

impl SharedState {
    fn count(&self, change: impl FnOnce(&mut BackEndCounters)) {
        change(&mut lock(&self.counters));
    }
}

/// A device that listens on a socket, in its own thread, and serves one driver after another. Dropping it stops it.
///
/// ```text
///   listen ─▶ accept ─▶ features ─▶ memory ─▶ rings ──▶ one thread for each, while it is enabled
///      ▲                               ▲        │           pop, serve, push; sleep until a kick
///      │                               └────────┘ SET_MEM_TABLE: threads end, memory is unmapped, all is found anew
///      └── the driver is gone, or sent an invalid message: threads end, memory is unmapped
/// ```
#[derive(Debug)]
pub struct BackEnd {
    path: PathBuf,
    listener: UnixListener,
    shared: Arc<SharedState>,
    thread: Option<JoinHandle<()>>,
}

impl BackEnd {
    /// Creates a socket at `path` and serves the device there.
    ///
    /// # Errors
    /// [`Error::Listen`], for instance if another process already listens there; [`Error::System`].
    pub fn start(
        path: &Path,
        device: Arc<impl ServedDevice>,
        options: BackEndOptions,
    ) -> std::result::Result<BackEnd, Error> {
        let listen = |error| Error::Listen { path: path.into(), error };
        let listener = match UnixListener::bind(path) {
            // The socket is left over from a back end that was killed: no process listens.
            Err(error) if error.kind() == ErrorKind::AddrInUse && is_left_over(path) => {
                std::fs::remove_file(path).map_err(listen)?;
                UnixListener::bind(path)
            }
            result => result,
        }
        .map_err(listen)?;
        let shared = Arc::<SharedState>::default();
        let server =
            Server { listener: listener.try_clone().map_err(listen)?, device, options, shared: Arc::clone(&shared) };
        let thread = std::thread::Builder::new().name("dormouse-vhost".into()).spawn(move || server.run());
        let thread = Some(thread.map_err(Error::system("start a thread"))?);
        Ok(BackEnd { path: path.into(), listener, shared, thread })
    }

    /// Returns the counters so far.
    pub fn counters(&self) -> BackEndCounters {
        *lock(&self.shared.counters)
    }

    /// Returns the feature bits that the last driver accepted, or 0 if none did yet.
    pub fn accepted(&self) -> u64 {
        *lock(&self.shared.accepted)
    }

    /// Returns the reason for the last refusal of a message, if there was one.
    pub fn refusal(&self) -> Option<String> {
        lock(&self.shared.refusal).clone()
    }
}

impl Drop for BackEnd {
    fn drop(&mut self) {
        self.shared.is_stopping.store(true, Relaxed);
        // A thread that waits in `accept` gets EINVAL (Linux's `unix_accept`).
        let _ = rustix::net::shutdown(&self.listener, rustix::net::Shutdown::Both);
        if let Some(connection) = lock(&self.shared.connection).as_ref() {
            let _ = connection.shutdown(Shutdown::Both);
        }
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
        let _ = std::fs::remove_file(&self.path);
    }
}

fn is_left_over(path: &Path) -> bool {
    matches!(UnixStream::connect(path), Err(error) if error.kind() == ErrorKind::ConnectionRefused)
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn new_event() -> std::result::Result<OwnedFd, Error> {
    eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).map_err(Error::system("make an event file"))
}

/// Signals an event file, unless that would block. A write to an event file does not block; a driver that gave another
/// kind of file may get no signals.
fn signal(event: &impl AsFd) {
    let mut fds = [PollFd::new(event, PollFlags::OUT)];
    if poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).is_ok_and(|count| count > 0) {
        let _ = rustix::io::write(event, &1_u64.to_ne_bytes());
    }
}

struct Server<D> {
    listener: UnixListener,
    device: Arc<D>,
    options: BackEndOptions,
    shared: Arc<SharedState>,
}

impl<D: ServedDevice> Server<D> {
    fn run(self) {
        while let Some(socket) = self.accept() {
            // A connection that cannot be ended from outside is not served.
            let Ok(clone) = socket.try_clone() else { continue };
            *lock(&self.shared.connection) = Some(clone);
            // Either `drop` shuts down the connection that is now registered, or this thread sees the flag.
            if !self.shared.is_stopping.load(Relaxed) {
                self.serve(socket);
            }
            *lock(&self.shared.connection) = None;
        }
    }

    /// Accepts the next driver. `None`: the back end is being stopped.
    fn accept(&self) -> Option<UnixStream> {
        loop {
            match self.listener.accept() {
                Ok((socket, _)) => return Some(socket),
                Err(error) if error.kind() == ErrorKind::ConnectionAborted => {}
                Err(_) => return None,
            }
        }
    }

    fn serve(&self, socket: UnixStream) {
        self.shared.count(|counters| counters.connections += 1);
        *lock(&self.shared.accepted) = 0;
        let connection = Arc::new(Mutex::new(Connection {
            device: Arc::clone(&self.device),
            options: self.options,
            shared: Arc::clone(&self.shared),
            accepted: 0,
            memory: Arc::default(),
            record: None,
            rings: (0..self.device.queue_count()).map(|_| RingState::default()).collect(),
        }));
        // A socket whose early messages cannot be read is one that was closed.
        let Ok(early) = socket.try_clone() else { return };
        let mut handler = BackendReqHandler::from_stream(socket, Arc::clone(&connection));
        let end = loop {
            let result = match lock(&connection).enable_early(&early) {
                Ok(false) => None,
                Ok(true) => Some(Ok(())),
                Err(error) => Some(Err(error)),
            };
            if let Err(error) = result.unwrap_or_else(|| handler.handle_request()) {
                break error;
            }
        };
        lock(&connection).stop_all();
        drop((handler, connection));
        if !matches!(end, Message::Disconnected | Message::SocketBroken(_) | Message::PartialMessage) {
            self.shared.count(|counters| counters.refused += 1);
            *lock(&self.shared.refusal) = Some(end.to_string());
        }
    }
}

/// A ring, as described by the front end.
#[derive(Debug, Default)]
struct RingState {
    size: u32,
    base: u16,
    /// Addresses of the descriptor, driver's and device's area in the front end's process.
    addrs: Option<[u64; 3]>,
    kick: Option<Kick>,
    call: Option<Arc<File>>,
    is_enabled: bool,
    worker: Option<Worker>,
}

/// The way in which a driver announces buffers.
#[derive(Debug)]
enum Kick {
    /// It signals this file.
    File(File),
    /// It does not: the ring is polled.
    Never,
}

/// A thread that serves a ring.
#[derive(Debug)]
struct Worker {
    stop: Arc<OwnedFd>,
    /// Thread that serves the ring. Returns the base from which the next thread continues.
    thread: JoinHandle<u16>,
}

/// A driver's connection.
struct Connection<D> {
    device: Arc<D>,
    options: BackEndOptions,
    shared: Arc<SharedState>,
    accepted: u64,
    memory: Arc<Memory>,
    /// Record of the buffers in flight, if the front end has one, and the number and the size of the queues that it has room for.
    record: Option<(Arc<Mapped>, u16, u16)>,
    rings: Vec<RingState>,
}

/// Maximum number of memory regions of a driver.
const REGION_COUNT_MAX: usize = 32;

impl<D: ServedDevice> Connection<D> {
    fn offered(&self) -> u64 {
        let packed = if self.options.has_packed { Features::PACKED } else { 0 };
        let protocol = VhostUserVirtioFeatures::PROTOCOL_FEATURES.bits();
        self.device.features() | self.options.features.to_bits() | packed | protocol | Features::VERSION_1
    }

    /// Executes `SET_VRING_ENABLE` if it is the next message and no features were accepted yet: QEMU's network devices
    /// send it then, and the crate `vhost` refuses it until `VHOST_USER_F_PROTOCOL_FEATURES` is accepted. False: the next
    /// message is another one.
    fn enable_early(&mut self, socket: &UnixStream) -> Result<bool> {
        use rustix::net::{RecvFlags, recv};
        const HEADER_BYTES: usize = 12;
        const BYTES: usize = HEADER_BYTES + 8;
        const SET_VRING_ENABLE: u32 = 18;
        // Flags: version 1, an answer; a message that asks for an answer.
        const REPLY: u32 = 1 | 1 << 2;
        const NEEDS_REPLY: u32 = 1 << 3;
        if self.accepted != 0 {
            return Ok(false);
        }
        let mut bytes = [0_u8; BYTES];
        let peek = RecvFlags::PEEK | RecvFlags::WAITALL;
        let seen = recv(socket, &mut bytes[..HEADER_BYTES], peek);
        let word = |bytes: &[u8; BYTES], index: usize| {
            let [a, b, c, d] = [0, 1, 2, 3].map(|byte| bytes[4 * index + byte]);
            u32::from_ne_bytes([a, b, c, d])
        };
        let is_it = word(&bytes, 0) == SET_VRING_ENABLE && word(&bytes, 2) as usize == BYTES - HEADER_BYTES;
        if !seen.is_ok_and(|(_, len)| len == HEADER_BYTES) || !is_it {
            return Ok(false);
        }
        match recv(socket, &mut bytes[..], RecvFlags::WAITALL) {
            Ok((_, BYTES)) => {}
            _ => return Err(Message::PartialMessage),
        }
        let (flags, index, value) = (word(&bytes, 1), word(&bytes, 3), word(&bytes, 4));
        self.set_vring_enable(index, value == 1)?;
        if flags & NEEDS_REPLY != 0 {
            bytes[4..8].copy_from_slice(&REPLY.to_ne_bytes());
            bytes[HEADER_BYTES..].fill(0);
            io::Write::write_all(&mut &*socket, &bytes).map_err(Message::SocketError)?;
        }
        Ok(true)
    }

    fn ring(&mut self, index: u32) -> Result<&mut RingState> {
        self.rings.get_mut(index as usize).ok_or(Message::InvalidOperation("a queue that the device does not have"))
    }

    /// Stops the ring, applies a change that cannot be made while it is served, and restarts it if it can be served
    /// now.
    fn change<T>(&mut self, index: u32, change: impl FnOnce(&mut RingState) -> T) -> Result<T> {
        self.stop(index as usize);
        let result = change(self.ring(index)?);
        self.start(index as usize)?;
        Ok(result)
    }

    fn stop(&mut self, index: usize) {
        let Some(ring) = self.rings.get_mut(index) else { return };
        if let Some(Worker { stop, thread }) = ring.worker.take() {
            signal(&stop);
            // If the thread panicked, the ring restarts from its previous base.
            ring.base = thread.join().unwrap_or(ring.base);
        }
    }

    fn stop_all(&mut self) {
        (0..self.rings.len()).for_each(|index| self.stop(index));
    }

    /// Starts each ring that is completely described and not served yet.
    fn start_all(&mut self) -> Result<()> {
        (0..self.rings.len()).try_for_each(|index| self.start(index))
    }

    fn start(&mut self, index: usize) -> Result<()> {
        let is_always_enabled = self.accepted & VhostUserVirtioFeatures::PROTOCOL_FEATURES.bits() == 0;
        let is_packed = self.accepted & Features::PACKED != 0;
        let features = Features::from_bits(self.accepted);
        let Some(ring) = self.rings.get_mut(index) else { return Ok(()) };
        let (Some(addrs), Some(kick), None) = (ring.addrs, &ring.kick, &ring.worker) else { return Ok(()) };
        if self.memory.mapped.is_empty() || ring.size == 0 || !(ring.is_enabled || is_always_enabled) {
            return Ok(());
        }
        let size = ring.size as usize;
        let lens = if is_packed { [16 * size, 4, 4] } else { [16 * size, 6 + 2 * size, 6 + 8 * size] };
        let location = |index: usize| {
            let found = self.memory.ring_area(addrs[index], lens[index]);
            found.ok_or(Message::InvalidOperation("a queue outside of the memory that was shared"))
        };
        let areas = Areas { descriptor: location(0)?, driver: location(1)?, device: location(2)? };
        // SAFETY: the areas are in the driver's memory, which the worker keeps mapped as long as the ring; Rust code
        // accesses it only atomically.
        let bus = unsafe { Direct::new(areas) };
        // Offset 0 with a wrap counter of 0 is the beginning of a packed ring's second lap. Some front ends, such as the
        // crate `virtio-driver`, mean an unused ring by it. In an unused ring the first descriptor is not marked as
        // used, as it would be in the second lap (2.8.1).
        let is_first_lap = || bus.load::<u64>(Area::Descriptor, 8, Relaxed) >> 63 == 0;
        let base = if is_packed && ring.base == 0 && is_first_lap() { 1 << 15 } else { ring.base };
        let mut record = match &self.record {
            Some((mapped, count, record_size)) if index < (*count).into() && ring.size == u32::from(*record_size) => {
                let offset = index * InFlight::size_bytes(is_packed, *record_size);
                // SAFETY: the record is in the mapping, as `set_inflight_fd` has checked. The worker keeps the mapping, which Rust
                // code accesses only atomically.
                unsafe { InFlight::new(mapped.start().wrapping_add(offset), is_packed, *record_size) }.ok()
            }
            _ => None,
        };
        let resumption = match &mut record {
            Some(record) => record.resume(&bus, base),
            None => Ok(Resumption { base, again: Vec::new() }),
        };
        let device = resumption.and_then(|mut from| {
            let device = either::Device::with_in_flight(is_packed, bus, ring.size, features, &from)?;
            from.again.reverse();
            Ok((device, from.again))
        });
        let (device, again) =
            device.map_err(|_| Message::InvalidOperation("a queue whose size or place is impossible"))?;
        let stop = Arc::new(new_event().map_err(|_| Message::BackendInternalError)?);
        let source = self.device.source(index as u16);
        let serving = Serving {
            index: index as u16,
            ring: device,
            is_packed,
            record: record.zip(self.record.as_ref().map(|(mapped, ..)| Arc::clone(mapped))),
            again,
            memory: Arc::clone(&self.memory),
            served: Arc::clone(&self.device),
            call: ring.call.clone(),
            epoll: watch(kick, source, &stop)
                .map_err(|_| Message::InvalidOperation("a kick that cannot be waited for"))?,
            is_polling: self.options.is_polling || matches!(kick, Kick::Never),
            has_source: source.is_some(),
            is_fetched: false,
            shared: Arc::clone(&self.shared),
            chain: Chain::default(),
            scratch: Vec::new(),
            violations: 0,
        };
        let thread = std::thread::Builder::new().name(format!("dormouse-vq{index}")).spawn(move || serving.run());
        let thread = thread.map_err(|_| Message::BackendInternalError)?;
        ring.worker = Some(Worker { stop, thread });
        Ok(())
    }

    /// Replaces the memory, and restarts the rings.
    fn remap(&mut self, mapped: Vec<Arc<Mapped>>) -> Result<()> {
        let memory = Memory::new(mapped)?;
        self.stop_all();
        self.memory = Arc::new(memory);
        self.start_all()
    }

    /// Returns the number of bytes of the record of buffers in flight.
    fn record_bytes(&self, queue_count: u16, queue_size: u16) -> usize {
        usize::from(queue_count) * InFlight::size_bytes(self.accepted & Features::PACKED != 0, queue_size)
    }

    fn map(&self, region: &VhostUserMemoryRegion, file: &File) -> Result<Arc<Mapped>> {
        Mapped::new(region, file, self.options.requires_seal).map(Arc::new)
    }
}

/// Numbers by which an epoll file names what has happened.
const KICKED: u64 = 0;
const STOPPED: u64 = 1;
const READABLE: u64 = 2;

/// Creates an epoll file that waits for kicks, for the device's source and for the stop event. A kick is never read: with
/// `EPOLLET`, each one is a separate event (epoll(7)), and reading from a file that another process gave could block. A
/// source is read until it is empty before it is waited for.
fn watch(kick: &Kick, source: Option<BorrowedFd<'_>>, stop: &OwnedFd) -> io::Result<OwnedFd> {
    let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
    let edges = epoll::EventFlags::IN | epoll::EventFlags::ET;
    if let Kick::File(kick) = kick {
        epoll::add(&epoll, kick, epoll::EventData::new_u64(KICKED), edges)?;
    }
    if let Some(source) = source {
        epoll::add(&epoll, source, epoll::EventData::new_u64(READABLE), edges)?;
    }
    epoll::add(&epoll, stop, epoll::EventData::new_u64(STOPPED), epoll::EventFlags::IN)?;
    Ok(epoll)
}

/// A ring while it is served.
struct Serving<D> {
    index: u16,
    ring: either::Device<Direct>,
    is_packed: bool,
    /// Record of the buffers in flight, with its mapping.
    record: Option<(InFlight, Arc<Mapped>)>,
    /// Buffers that an earlier back end had when it was killed, the oldest last.
    again: Vec<u16>,
    memory: Arc<Memory>,
    served: Arc<D>,
    call: Option<Arc<File>>,
    epoll: OwnedFd,
    is_polling: bool,
    has_source: bool,
    /// Whether `scratch` holds what the next buffer is to hold.
    is_fetched: bool,
    shared: Arc<SharedState>,
    chain: Chain,
    scratch: Vec<u8>,
    /// Number of protocol violations of the ring that were already added to the counters.
    violations: u64,
}

/// Result of a turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum TurnResult {
    /// There may be more buffers.
    More,
    /// There were no more buffers.
    Empty,
    /// There may be buffers, but the device has nothing for them.
    Idle,
    /// The driver has violated the protocol in a way that cannot be skipped.
    Stuck,
}

/// Maximum number of buffers that are served between two checks of the stop event.
const TURN_BUFFERS_MAX: u32 = 256;

/// Number of turns without a buffer after which a polled ring's thread checks the stop event.
const IDLE_TURNS_MAX: u32 = 64;

const AT_ONCE: Timespec = Timespec { tv_sec: 0, tv_nsec: 0 };

impl<D: ServedDevice> Serving<D> {
    fn run(mut self) -> u16 {
        // A back end that was killed may have returned buffers without an interrupt, and with event indexes the driver
        // asks for none after the one that it misses.
        if let Some(call) = &self.call {
            signal(call);
            self.shared.count(|counters| counters.interrupts += 1);
        }
        self.serve_until_stopped();
        // The next thread's device starts with a shadow in which notifications are enabled, so the ring must agree.
        self.ring.arm_notification();
        // Nothing is in flight, so the next thread needs no record.
        if let Some((record, _)) = self.record.as_mut().filter(|_| self.again.is_empty()) {
            record.forget();
        }
        self.ring.base()
    }

    fn serve_until_stopped(&mut self) {
        while !self.is_polling {
            self.ring.disarm_notification();
            let end = loop {
                let end = self.serve_some();
                if end != TurnResult::More {
                    break end;
                }
                if self.is_woken(Some(&AT_ONCE)).is_none() {
                    return;
                }
            };
            // A violation that is not skipped makes the ring always look non-empty. A driver that repairs it must kick.
            // Without anything for them, buffers need no kick.
            let has_more = end != TurnResult::Idle && self.ring.arm_notification() && end != TurnResult::Stuck;
            if !self.wait(has_more.then_some(&AT_ONCE)) {
                return;
            }
        }
        let mut idle_turns = 0;
        loop {
            // With event indexes, the request covers the next 65,535 buffers.
            self.ring.disarm_notification();
            let end = self.serve_some();
            idle_turns = if end == TurnResult::More { IDLE_TURNS_MAX } else { idle_turns + 1 };
            if idle_turns >= IDLE_TURNS_MAX {
                idle_turns = 0;
                if !self.wait(Some(&AT_ONCE)) {
                    return;
                }
            }
            std::hint::spin_loop();
        }
    }

    /// Waits for a kick or for the device's source, and counts a kick. False: the thread must stop.
    fn wait(&self, timeout: Option<&Timespec>) -> bool {
        let Some(is_kicked) = self.is_woken(timeout) else { return false };
        if is_kicked {
            self.shared.count(|counters| counters.kicks += 1);
        }
        true
    }

    /// Waits for a kick or for the device's source, and returns whether a kick came. `None`: the thread must stop.
    fn is_woken(&self, timeout: Option<&Timespec>) -> Option<bool> {
        let mut events = [epoll::Event { flags: epoll::EventFlags::empty(), data: epoll::EventData::new_u64(0) }; 3];
        let count = match epoll::wait(&self.epoll, &mut events[..], timeout) {
            Ok(count) => count,
            Err(rustix::io::Errno::INTR) => 0,
            Err(_) => return None,
        };
        let happened = |number| events[..count].iter().any(|event| { event.data }.u64() == number);
        (!happened(STOPPED)).then(|| happened(KICKED))
    }

    /// Serves at most [`TURN_BUFFERS_MAX`] buffers.
    fn serve_some(&mut self) -> TurnResult {
        let mut end = TurnResult::More;
        let (mut buffers, mut invalid) = (0, 0);
        let mut last_lie = None;
        for _ in 0..TURN_BUFFERS_MAX {
            if self.has_source && !self.is_fetched {
                self.is_fetched = self.served.fetch(self.index, &mut self.scratch);
                if !self.is_fetched {
                    end = TurnResult::Idle;
                    break;
                }
            }
            let popped = match self.again.pop() {
                Some(head) => self.ring.pop_again(head, &*self.memory, &mut self.chain).map(|()| true),
                None => self.ring.pop(&*self.memory, &mut self.chain),
            };
            match popped {
                Ok(true) => {}
                Ok(false) => {
                    end = TurnResult::Empty;
                    break;
                }
                // A violation that can be skipped differs from the next one.
                Err(lie) if last_lie.replace(lie) == Some(lie) => {
                    end = TurnResult::Stuck;
                    break;
                }
                Err(_) => continue,
            }
            if let Some((record, _)) = &mut self.record {
                record.take(self.chain.id());
            }
            let served = self.served.serve(self.index, &self.chain, &self.memory, &mut self.scratch);
            self.ring.push_used(&self.chain, served.unwrap_or(0));
            self.is_fetched = false;
            if let Some((record, _)) = &mut self.record {
                record.give_back(self.chain.id(), self.ring.base());
                // The record of a packed queue needs each buffer published by itself.
                if self.is_packed {
                    self.ring.publish_used();
                    record.published();
                }
            }
            buffers += 1;
            invalid += u64::from(served.is_err());
        }
        if buffers > 0 {
            self.ring.publish_used();
            if let Some((record, _)) = &mut self.record {
                record.published();
            }
        }
        let call = self.call.as_ref().filter(|_| buffers > 0 && self.ring.needs_interrupt());
        let violations = self.ring.violations();
        // A polled ring has many turns in which nothing happens.
        if buffers + invalid + violations > self.violations {
            self.shared.count(|counters| {
                counters.buffers += buffers;
                counters.violations += invalid + violations - self.violations;
                counters.interrupts += u64::from(call.is_some());
            });
        }
        self.violations = violations;
        if let Some(call) = call {
            signal(call);
        }
        end
    }
}

/// Refuses a request that was not offered. A well-behaved front end does not send one.
fn unsupported<T>() -> Result<T> {
    Err(Message::InvalidOperation("a request that was not offered"))
}

macro_rules! unsupported {
    ($($name:ident($($type:ty),*) -> $result:ty;)*) => {
        $(fn $name(&mut self $(, _: $type)*) -> Result<$result> {
            unsupported()
        })*
    };
}

impl<D: ServedDevice> VhostUserBackendReqHandlerMut for Connection<D> {
    fn set_owner(&mut self) -> Result<()> {
        Ok(())
    }

    fn reset_owner(&mut self) -> Result<()> {
        // Deprecated: disables all rings, as some back ends do.
        self.stop_all();
        self.rings.iter_mut().for_each(|ring| ring.is_enabled = false);
        Ok(())
    }

    fn get_features(&mut self) -> Result<u64> {
        Ok(self.offered())
    }

    fn set_features(&mut self, features: u64) -> Result<()> {
        if features & !self.offered() != 0 {
            return Err(Message::InvalidOperation("features that were not offered"));
        }
        if features & Features::VERSION_1 == 0 {
            return Err(Message::InvalidOperation("a legacy driver (VIRTIO_F_VERSION_1 is not among its features)"));
        }
        self.stop_all();
        self.accepted = features;
        *lock(&self.shared.accepted) = features;
        self.start_all()
    }

    fn set_mem_table(
        &mut self,
        regions: &[VhostUserMemoryRegion],
        files: Vec<File>,
        _postcopy_listening: Option<bool>,
    ) -> Result<Option<Vec<u64>>> {
        if regions.len() != files.len() || regions.len() > REGION_COUNT_MAX {
            return Err(Message::IncorrectFds);
        }
        let mapped = regions.iter().zip(&files).map(|(region, file)| self.map(region, file));
        let mapped = mapped.collect::<Result<_>>()?;
        self.remap(mapped)?;
        Ok(None)
    }

    fn get_max_mem_slots(&mut self) -> Result<u64> {
        Ok(REGION_COUNT_MAX as u64)
    }

    fn add_mem_region(
        &mut self,
        region: &VhostUserSingleMemoryRegion,
        file: File,
        _postcopy_listening: Option<bool>,
    ) -> Result<Option<u64>> {
        if self.memory.mapped.len() >= REGION_COUNT_MAX {
            return Err(Message::InvalidOperation("more memory regions than there are slots"));
        }
        let mut mapped = self.memory.mapped.clone();
        mapped.push(self.map(region, &file)?);
        self.remap(mapped)?;
        Ok(None)
    }

    fn remove_mem_region(&mut self, region: &VhostUserSingleMemoryRegion) -> Result<()> {
        let mut mapped = self.memory.mapped.clone();
        let index = mapped.iter().position(|it| it.is(region));
        mapped.remove(index.ok_or(Message::InvalidOperation("a memory region that is not there"))?);
        self.remap(mapped)
    }

    fn set_vring_num(&mut self, index: u32, num: u32) -> Result<()> {
        self.change(index, |ring| ring.size = num)
    }

    fn set_vring_addr(
        &mut self,
        index: u32,
        flags: VhostUserVringAddrFlags,
        descriptor: u64,
        used: u64,
        available: u64,
        _log: u64,
    ) -> Result<()> {
        if !flags.is_empty() {
            return unsupported();
        }
        self.change(index, |ring| ring.addrs = Some([descriptor, available, used]))
    }

    /// In a packed ring, the upper half is the position of used descriptors. It equals the position of taken ones, as
    /// long as nothing is in flight.
    fn set_vring_base(&mut self, index: u32, base: u32) -> Result<()> {
        self.change(index, |ring| ring.base = base as u16)
    }

    fn get_vring_base(&mut self, index: u32) -> Result<VhostUserVringState> {
        let is_packed = self.accepted & Features::PACKED != 0;
        let base = self.change(index, |ring| {
            // A new kick file starts the ring again.
            ring.kick = None;
            u32::from(ring.base)
        })?;
        Ok(VhostUserVringState::new(index, if is_packed { base << 16 | base } else { base }))
    }

    fn set_vring_kick(&mut self, index: u8, fd: Option<File>) -> Result<()> {
        self.change(index.into(), |ring| ring.kick = Some(fd.map_or(Kick::Never, Kick::File)))
    }

    fn set_vring_call(&mut self, index: u8, fd: Option<File>) -> Result<()> {
        self.change(index.into(), |ring| ring.call = fd.map(Arc::new))
    }

    fn set_vring_err(&mut self, index: u8, _fd: Option<File>) -> Result<()> {
        self.ring(index.into()).map(drop)
    }

    fn get_protocol_features(&mut self) -> Result<VhostUserProtocolFeatures> {
        Ok(VhostUserProtocolFeatures::MQ
            | VhostUserProtocolFeatures::REPLY_ACK
            | VhostUserProtocolFeatures::CONFIG
            | VhostUserProtocolFeatures::CONFIGURE_MEM_SLOTS
            | VhostUserProtocolFeatures::INFLIGHT_SHMFD)
    }

    fn set_protocol_features(&mut self, features: u64) -> Result<()> {
        if features & !self.get_protocol_features()?.bits() != 0 {
            return Err(Message::InvalidOperation("protocol features that were not offered"));
        }
        Ok(())
    }

    fn get_queue_num(&mut self) -> Result<u64> {
        Ok(self.rings.len() as u64)
    }

    fn set_vring_enable(&mut self, index: u32, enable: bool) -> Result<()> {
        self.change(index, |ring| ring.is_enabled = enable)
    }

    fn get_config(&mut self, offset: u32, size: u32, _flags: VhostUserConfigFlags) -> Result<Vec<u8>> {
        let mut config = self.device.config();
        let end = offset.checked_add(size).ok_or(Message::InvalidParam)? as usize;
        config.resize(config.len().max(end), 0);
        Ok(config[offset as usize..end].to_vec())
    }

    /// Creates a record of buffers in flight, which the front end keeps when this process is killed.
    fn get_inflight_fd(&mut self, wanted: &VhostUserInflight) -> Result<(VhostUserInflight, File)> {
        let mmap_size = self.record_bytes(wanted.num_queues, wanted.queue_size) as u64;
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let file = rustix::fs::memfd_create("dormouse-inflight", flags).map(File::from);
        let file = file.map_err(|_| Message::BackendInternalError)?;
        file.set_len(mmap_size).map_err(|_| Message::BackendInternalError)?;
        let seals = SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL;
        rustix::fs::fcntl_add_seals(&file, seals).map_err(|_| Message::BackendInternalError)?;
        let given = VhostUserInflight { mmap_size, mmap_offset: 0, ..*wanted };
        self.set_inflight_fd(&given, file.try_clone().map_err(|_| Message::BackendInternalError)?)?;
        Ok((given, file))
    }

    fn set_inflight_fd(&mut self, given: &VhostUserInflight, file: File) -> Result<()> {
        let VhostUserInflight { mmap_size, mmap_offset, num_queues, queue_size } = *given;
        let needed = self.record_bytes(num_queues, queue_size) as u64;
        if mmap_size < needed || mmap_offset % 64 != 0 {
            return Err(Message::InvalidOperation("a record of buffers in flight that is too small or not aligned"));
        }
        let region = VhostUserMemoryRegion::new(0, mmap_size, 0, mmap_offset);
        let mapped = self.map(&region, &file)?;
        self.stop_all();
        self.record = Some((mapped, num_queues, queue_size));
        self.start_all()
    }

    unsupported! {
        reset_device() -> ();
        set_config(u32, &[u8], VhostUserConfigFlags) -> ();
        set_gpu_socket(GpuBackend) -> ();
        get_shared_object(VhostUserSharedMsg) -> File;
        set_device_state_fd(VhostTransferStateDirection, VhostTransferStatePhase, File) -> Option<File>;
        check_device_state() -> ();
        get_shmem_config() -> VhostUserShMemConfig;
        set_log_base(&VhostUserLog, File) -> ();
    }
}
