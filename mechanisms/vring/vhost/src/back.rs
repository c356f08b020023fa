//! The back end: a device for drivers in other processes.

use std::fs::File;
use std::io::{self, ErrorKind};
use std::net::Shutdown;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use dormouse_vring::{Area, Areas, Bus, Chain, DeviceSide, Direct, Features, either};
use rustix::event::epoll;
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
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
}

impl Default for BackEndOptions {
    fn default() -> BackEndOptions {
        BackEndOptions {
            features: Features { indirect: true, event_idx: true, in_order: true },
            has_packed: true,
            requires_seal: true,
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
            rings: (0..self.device.queue_count()).map(|_| RingState::default()).collect(),
        }));
        let mut handler = BackendReqHandler::from_stream(socket, Arc::clone(&connection));
        let end = loop {
            if let Err(error) = handler.handle_request() {
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
    kick: Option<File>,
    call: Option<Arc<File>>,
    is_enabled: bool,
    worker: Option<Worker>,
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
        let device = either::Device::with_base(is_packed, bus, ring.size, features, base);
        let device = device.map_err(|_| Message::InvalidOperation("a queue whose size or place is impossible"))?;
        let stop = Arc::new(new_event().map_err(|_| Message::BackendInternalError)?);
        let serving = Serving {
            index: index as u16,
            ring: device,
            memory: Arc::clone(&self.memory),
            served: Arc::clone(&self.device),
            call: ring.call.clone(),
            epoll: watch(kick, &stop).map_err(|_| Message::InvalidOperation("a kick that cannot be waited for"))?,
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

    fn map(&self, region: &VhostUserMemoryRegion, file: &File) -> Result<Arc<Mapped>> {
        Mapped::new(region, file, self.options.requires_seal).map(Arc::new)
    }
}

/// Creates an epoll file that waits for kicks and for the stop event. A kick is never read: with `EPOLLET`, each one is
/// a separate event (epoll(7)), and reading from a file that another process gave could block.
fn watch(kick: &File, stop: &OwnedFd) -> io::Result<OwnedFd> {
    let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
    epoll::add(&epoll, kick, epoll::EventData::new_u64(0), epoll::EventFlags::IN | epoll::EventFlags::ET)?;
    epoll::add(&epoll, stop, epoll::EventData::new_u64(1), epoll::EventFlags::IN)?;
    Ok(epoll)
}

/// A ring while it is served.
struct Serving<D> {
    index: u16,
    ring: either::Device<Direct>,
    memory: Arc<Memory>,
    served: Arc<D>,
    call: Option<Arc<File>>,
    epoll: OwnedFd,
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
    /// The driver has violated the protocol in a way that cannot be skipped.
    Stuck,
}

/// Maximum number of buffers that are served between two checks of the stop event.
const TURN_BUFFERS_MAX: u32 = 256;

impl<D: ServedDevice> Serving<D> {
    fn run(mut self) -> u16 {
        self.serve_until_stopped();
        // The next thread's device starts with a shadow in which notifications are enabled, so the ring must agree.
        self.ring.arm_notification();
        self.ring.base()
    }

    fn serve_until_stopped(&mut self) {
        const AT_ONCE: Timespec = Timespec { tv_sec: 0, tv_nsec: 0 };
        loop {
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
            let has_more = self.ring.arm_notification() && end != TurnResult::Stuck;
            match self.is_woken(has_more.then_some(&AT_ONCE)) {
                None => return,
                Some(is_kicked) => self.shared.count(|counters| counters.kicks += u64::from(is_kicked)),
            }
        }
    }

    /// Waits, and returns whether a kick came. `None`: the thread must stop.
    fn is_woken(&self, timeout: Option<&Timespec>) -> Option<bool> {
        let mut events = [epoll::Event { flags: epoll::EventFlags::empty(), data: epoll::EventData::new_u64(0) }; 2];
        match epoll::wait(&self.epoll, &mut events[..], timeout) {
            Ok(count) if events[..count].iter().any(|event| { event.data }.u64() == 1) => None,
            Ok(count) => Some(count > 0),
            Err(rustix::io::Errno::INTR) => Some(false),
            Err(_) => None,
        }
    }

    /// Serves at most [`TURN_BUFFERS_MAX`] buffers.
    fn serve_some(&mut self) -> TurnResult {
        let mut end = TurnResult::More;
        let (mut buffers, mut invalid) = (0, 0);
        let mut last_lie = None;
        for _ in 0..TURN_BUFFERS_MAX {
            match self.ring.pop(&*self.memory, &mut self.chain) {
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
            let served = self.served.serve(self.index, &self.chain, &self.memory, &mut self.scratch);
            self.ring.push_used(&self.chain, served.unwrap_or(0));
            buffers += 1;
            invalid += u64::from(served.is_err());
        }
        if buffers > 0 {
            self.ring.publish_used();
        }
        let call = self.call.as_ref().filter(|_| buffers > 0 && self.ring.needs_interrupt());
        let violations = self.ring.violations();
        self.shared.count(|counters| {
            counters.buffers += buffers;
            counters.violations += invalid + violations - self.violations;
            counters.interrupts += u64::from(call.is_some());
        });
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
        let kick = fd.ok_or(Message::InvalidOperation("a queue without kicks, which would have to be polled"))?;
        self.change(index.into(), |ring| ring.kick = Some(kick))
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
            | VhostUserProtocolFeatures::CONFIGURE_MEM_SLOTS)
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

    unsupported! {
        reset_device() -> ();
        set_config(u32, &[u8], VhostUserConfigFlags) -> ();
        set_gpu_socket(GpuBackend) -> ();
        get_shared_object(VhostUserSharedMsg) -> File;
        get_inflight_fd(&VhostUserInflight) -> (VhostUserInflight, File);
        set_inflight_fd(&VhostUserInflight, File) -> ();
        set_device_state_fd(VhostTransferStateDirection, VhostTransferStatePhase, File) -> Option<File>;
        check_device_state() -> ();
        get_shmem_config() -> VhostUserShMemConfig;
        set_log_base(&VhostUserLog, File) -> ();
    }
}
