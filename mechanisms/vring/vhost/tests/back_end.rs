//! Tests of the device with this crate's driver, with the crate `virtio-driver`, and with drivers that violate the
//! protocol.

mod common;

use std::collections::HashMap;
use std::fs::File;
use std::io::Write;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, IntoRawFd};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use dormouse_backing::{MemoryOptions, Pool};
use dormouse_vring::{Area, AreaLocation, Areas, Bus, Direct, DriverSide, Features, Segment, split};
use dormouse_vring_vhost::{
    BackEnd, BackEndOptions, BlockDevice, Disk, DriverOptions, Error, FileStorage, SECTOR_BYTES, Status, Storage,
};
use rand::rngs::SmallRng;
use rand::{Rng, RngExt, SeedableRng};
use rustix::event::{PollFd, PollFlags, poll};
use tempfile::TempDir;
use vhost::vhost_user::message::{VhostUserHeaderFlag, VhostUserInflight};
use vhost::vhost_user::{Frontend, VhostUserFrontend, VhostUserProtocolFeatures};
use vhost::{VhostBackend, VhostUserMemoryRegionInfo, VringConfigData};
use virtio_driver::{VhostUser, VirtioBlkConfig, VirtioBlkQueue, VirtioBlkReqBuf, VirtioFeatureFlags, VirtioTransport};
use vmm_sys_util::eventfd::EventFd;

use common::{LONG, Oracle};

const DISK_BYTES: usize = 8 << 20;
const REQUEST_SECTORS_MAX: usize = 256;

const RING_FEATURES: u64 = Features::INDIRECT | Features::EVENT_IDX | Features::IN_ORDER;

/// A device with a disk of 8 MiB in memory.
struct Device {
    dir: TempDir,
    back_end: BackEnd,
    disk: Arc<Disk<FileStorage>>,
}

impl Device {
    fn start(queue_count: u16, options: BackEndOptions) -> Device {
        let dir = tempfile::tempdir().unwrap();
        let disk = Arc::new(Disk::new(FileStorage::in_memory(DISK_BYTES as u64).unwrap(), "dormouse", queue_count));
        let back_end = BackEnd::start(&dir.path().join("vh.sock"), Arc::clone(&disk), options).unwrap();
        Device { dir, back_end, disk }
    }

    fn socket(&self) -> PathBuf {
        self.dir.path().join("vh.sock")
    }

    fn bytes(&self) -> Vec<u8> {
        let mut bytes = vec![0; DISK_BYTES];
        self.disk.storage().read(0, &mut bytes).unwrap();
        bytes
    }
}

fn all_features() -> impl Iterator<Item = Features> {
    let bits =
        |number: u8| Features { indirect: number & 1 != 0, event_idx: number & 2 != 0, in_order: number & 4 != 0 };
    (0..8).map(bits)
}

#[test]
fn our_driver_drives_our_device() {
    let mut seed = 0;
    for is_packed in [false, true] {
        for features in all_features() {
            seed += 1;
            let device = Device::start(2, BackEndOptions::default());
            let options = DriverOptions {
                queue_count: 2,
                queue_size: 64,
                depth: [1, 3, 16][seed % 3],
                request_bytes_max: REQUEST_SECTORS_MAX as u32 * SECTOR_BYTES,
                segment_bytes_max: 8 << 10,
                features,
                is_packed,
                ..DriverOptions::default()
            };
            let mut driver = BlockDevice::connect(&device.socket(), options).unwrap();
            let negotiated = driver.negotiated();
            let accepted = Features {
                indirect: negotiated.indirect,
                event_idx: negotiated.event_idx,
                in_order: negotiated.in_order,
            };
            assert_eq!((negotiated.packed, accepted), (is_packed, features));
            let packed = if is_packed { Features::PACKED } else { 0 };
            assert_eq!(device.back_end.accepted() & (RING_FEATURES | Features::PACKED), features.to_bits() | packed);
            let part = DISK_BYTES / 2;
            let oracles = std::thread::scope(|scope| {
                let run = |(index, queue)| {
                    let first_sector = (index * part / 512) as u64;
                    let mut oracle = Oracle::new(first_sector, vec![0; part], (2 * seed + index) as u64);
                    scope.spawn(move || {
                        oracle.run(queue, 8 << 20, REQUEST_SECTORS_MAX).unwrap();
                        oracle
                    })
                };
                let threads: Vec<_> = driver.queues_mut().iter_mut().enumerate().map(run).collect();
                threads.into_iter().map(|thread| thread.join().unwrap().bytes).collect::<Vec<_>>()
            });
            assert!(
                device.bytes() == oracles.concat(),
                "the disk holds something else: packed {is_packed}, {features:?}"
            );
            let counters = device.back_end.counters();
            assert_eq!(
                (counters.connections, counters.violations, counters.refused),
                (1, 0, 0),
                "{:?}",
                device.back_end.refusal()
            );
            let queues: Vec<_> = driver.queues_mut().iter().map(|queue| queue.counters()).collect();
            assert_eq!(counters.buffers, queues.iter().map(|queue| queue.requests).sum::<u64>());
        }
    }
}

/// Features that the back end does not offer are not negotiated, and a driver that needs one gets an error.
#[test]
fn only_offered_features_are_negotiated() {
    let none = Features::default();
    let device = Device::start(1, BackEndOptions { features: none, has_packed: false, ..BackEndOptions::default() });
    let driver = BlockDevice::connect(&device.socket(), DriverOptions::default()).unwrap();
    let negotiated = driver.negotiated();
    assert!(!(negotiated.packed || negotiated.event_idx || negotiated.indirect || negotiated.in_order));
    drop(driver);
    let packed = DriverOptions { is_packed: true, ..DriverOptions::default() };
    assert!(matches!(BlockDevice::connect(&device.socket(), packed), Err(Error::NotOffered { .. })));
}

#[test]
fn a_disk_in_a_file_is_served_to_successive_drivers() {
    let dir = tempfile::tempdir().unwrap();
    let (socket, path) = (dir.path().join("vh.sock"), dir.path().join("disk.raw"));
    let file = File::options().read(true).write(true).create_new(true).open(&path).unwrap();
    file.set_len(DISK_BYTES as u64).unwrap();
    let disk = Arc::new(Disk::new(FileStorage::new(file).unwrap(), "a name that is longer than names are", 1));
    let mut bytes = vec![0; DISK_BYTES];
    for round in 0..3 {
        // Each round starts another back end, as after a crash.
        let back_end = BackEnd::start(&socket, Arc::clone(&disk), BackEndOptions::default()).unwrap();
        assert!(matches!(
            BackEnd::start(&socket, Arc::clone(&disk), BackEndOptions::default()),
            Err(Error::Listen { .. })
        ));
        let options = DriverOptions { is_packed: round % 2 == 0, ..DriverOptions::default() };
        let mut driver = BlockDevice::connect(&socket, options).unwrap();
        let queue = &mut driver.queues_mut()[0];
        let mut oracle = Oracle::new(0, bytes, round);
        oracle.run(queue, 4 << 20, 64).unwrap();
        queue.get_id(0).unwrap();
        queue.flush(1).unwrap();
        queue.submit().unwrap();
        for _ in 0..2 {
            let completed = loop {
                assert!(queue.wait(LONG).unwrap());
                if let Some(completed) = queue.complete().unwrap() {
                    break completed;
                }
            };
            assert_eq!(completed.status, Status::Ok);
            let mut id = [0; 20];
            if completed.token == 0 {
                completed.copy_to(&mut id);
                assert_eq!(&id, b"a name that is longe");
            }
        }
        bytes = oracle.bytes;
        drop(back_end);
        assert!(std::fs::read(&path).unwrap() == bytes);
    }
}

/// The back end ends while it has requests, and another one executes them.
#[test]
fn our_driver_reconnects_to_our_device() {
    for is_packed in [false, true] {
        let mut device = Device::start(1, BackEndOptions::default());
        let options = DriverOptions { is_packed, depth: 16, ..DriverOptions::default() };
        let mut driver = BlockDevice::connect(&device.socket(), options).unwrap();
        let mut oracle = Oracle::new(0, vec![0; DISK_BYTES], 3);
        for _ in 0..4 {
            let queue = &mut driver.queues_mut()[0];
            oracle.run(queue, 1 << 20, 64).unwrap();
            oracle.fill(queue, 64).unwrap();
            let (socket, disk) = (device.socket(), Arc::clone(&device.disk));
            drop(device.back_end);
            let gone = loop {
                oracle.complete(queue);
                match queue.wait(LONG) {
                    Ok(is_done) => assert!(is_done),
                    Err(error) => break error,
                }
            };
            assert!(matches!(gone, Error::Gone), "{gone}");
            let back_end = BackEnd::start(&socket, disk, BackEndOptions::default()).unwrap();
            device.back_end = back_end;
            let in_flight = oracle.in_flight.len();
            assert_eq!(driver.reconnect(LONG).unwrap(), in_flight);
            oracle.drain(&mut driver.queues_mut()[0]).unwrap();
        }
        assert!(device.bytes() == oracle.bytes);
    }
}

/// Drives the device with the crate `virtio-driver`, with split and packed queues, event indexes, and memory that is
/// added while the queues run.
#[test]
fn virtio_driver_drives_our_device() {
    for is_packed in [false, true] {
        for event_idx in [false, true] {
            // The crate does not seal its memory.
            let device = Device::start(2, BackEndOptions { requires_seal: false, ..BackEndOptions::default() });
            let mut features = VirtioFeatureFlags::VERSION_1;
            features.set(VirtioFeatureFlags::RING_PACKED, is_packed);
            features.set(VirtioFeatureFlags::RING_EVENT_IDX, event_idx);
            // VIRTIO_BLK_F_MQ, without which the crate uses one queue.
            let bits = features.bits() | 1 << 12;
            let socket = device.socket();
            let transport = VhostUser::<VirtioBlkConfig, VirtioBlkReqBuf>::new(socket.to_str().unwrap(), bits).unwrap();
            let mut transport: Box<dyn VirtioTransport<VirtioBlkConfig, VirtioBlkReqBuf>> = Box::new(transport);
            assert_eq!(transport.get_features() & features.bits(), features.bits());
            let capacity: u64 = transport.get_config().unwrap().capacity.into();
            assert_eq!(capacity, (DISK_BYTES / 512) as u64);
            let mut queues = VirtioBlkQueue::<usize>::setup_queues(&mut *transport, 2, 32).unwrap();

            let memory = Shared::new(SLOTS * SLOT_BYTES);
            transport.map_mem_region(memory.base as usize, memory.len, memory.file.as_raw_fd(), 0).unwrap();
            let mut bytes = vec![0; DISK_BYTES];
            let mut buffers = 0;
            for (index, queue) in queues.iter_mut().enumerate() {
                let mut rng = SmallRng::seed_from_u64(index as u64);
                let count = request_count(is_packed, event_idx, index);
                drive(queue, &*transport, index, count, &memory, &mut bytes, &mut rng);
                buffers += count;
            }
            assert!(device.bytes() == bytes, "packed {is_packed}, event indexes {event_idx}");
            let counters = device.back_end.counters();
            assert_eq!((counters.violations, counters.refused), (0, 0), "{:?}", device.back_end.refusal());
            assert_eq!(counters.buffers, buffers as u64);
            drop(queues);
            transport.unmap_mem_region(memory.base as usize, memory.len).unwrap();
        }
    }
}

const SLOTS: usize = 8;
const SLOT_BYTES: usize = 64 << 10;

/// Returns the number of requests for a queue. A split one with event indexes exceeds two wraps of 65,536.
/// `virtio-driver` counts a packed queue's descriptors, three for each request, in 16 bits, and panics on overflow if
/// it is built with checks.
fn request_count(is_packed: bool, event_idx: bool, index: usize) -> usize {
    match (is_packed, event_idx, index) {
        (true, _, _) => 20_000,
        (false, true, 0) => 140_000,
        _ => 5_000,
    }
}

/// Memory that is not sealed.
struct Shared {
    file: File,
    base: *mut u8,
    len: usize,
}

impl Shared {
    fn new(len: usize) -> Shared {
        let file: File = rustix::fs::memfd_create("virtio-driver", rustix::fs::MemfdFlags::CLOEXEC).unwrap().into();
        file.set_len(len as u64).unwrap();
        let protection = rustix::mm::ProtFlags::READ | rustix::mm::ProtFlags::WRITE;
        // SAFETY: a new mapping at an address that the kernel chooses, so that no existing memory is touched.
        let base =
            unsafe { rustix::mm::mmap(std::ptr::null_mut(), len, protection, rustix::mm::MapFlags::SHARED, &file, 0) };
        Shared { file, base: base.unwrap().cast(), len }
    }

    /// Returns the slot's bytes. No request may have the slot.
    #[expect(clippy::mut_from_ref, reason = "slots are apart, and each is used by one at a time")]
    fn slot(&self, slot: usize, len: usize) -> &mut [u8] {
        assert!(slot < SLOTS && len <= SLOT_BYTES);
        // SAFETY: the bytes are inside the mapping, and the callers use a slot only while no request has it.
        unsafe { std::slice::from_raw_parts_mut(self.base.wrapping_add(slot * SLOT_BYTES), len) }
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        // SAFETY: the whole mapping, which this value owns.
        unsafe { rustix::mm::munmap(self.base.cast(), self.len) }.unwrap();
    }
}

/// Runs random requests through a queue of `virtio-driver`, and compares with `bytes`.
fn drive(
    queue: &mut VirtioBlkQueue<'_, usize>,
    transport: &dyn VirtioTransport<VirtioBlkConfig, VirtioBlkReqBuf>,
    index: usize,
    count: usize,
    memory: &Shared,
    bytes: &mut [u8],
    rng: &mut SmallRng,
) {
    let (kick, call) = (transport.get_submission_notifier(index), transport.get_completion_fd(index));
    let mut free: Vec<usize> = (0..SLOTS).collect();
    let mut in_flight = HashMap::new();
    let (mut made, mut done) = (0, 0);
    while done < count {
        while made < count
            && let Some(slot) = free.pop()
        {
            let len =
                512 * if rng.random_range(0..16) == 0 { rng.random_range(1..=128) } else { rng.random_range(1..=4) };
            let start = 512 * rng.random_range(0..=(DISK_BYTES - len) / 512);
            let range = start..start + len;
            if in_flight
                .values()
                .any(|(_, other): &(bool, std::ops::Range<usize>)| other.start < range.end && range.start < other.end)
            {
                free.push(slot);
                break;
            }
            let is_write: bool = rng.random();
            let data = memory.slot(slot, len);
            if is_write {
                rng.fill_bytes(data);
                bytes[range.clone()].copy_from_slice(data);
                queue.write(start as u64, data, slot).unwrap();
            } else {
                queue.read(start as u64, data, slot).unwrap();
            }
            in_flight.insert(slot, (is_write, range));
            made += 1;
        }
        queue.set_used_notif_enabled(true);
        if queue.avail_notif_needed() {
            kick.notify().unwrap();
        }
        let mut completed: Vec<_> = queue.completions().collect();
        if completed.is_empty() {
            // A read of its event file blocks, so it is polled first.
            let mut fds = [PollFd::new(&*call, PollFlags::IN)];
            let long = rustix::event::Timespec { tv_sec: LONG.as_secs() as i64, tv_nsec: 0 };
            assert_eq!(poll(&mut fds, Some(&long)), Ok(1), "the device does not answer: {done} of {made} done");
            call.read().unwrap();
            completed = queue.completions().collect();
        }
        for completion in completed {
            assert_eq!(completion.ret, 0);
            let (is_write, range) = in_flight.remove(&completion.context).unwrap();
            if !is_write {
                assert!(
                    *memory.slot(completion.context, range.len()) == bytes[range.clone()],
                    "bytes {range:?} are others"
                );
            }
            free.push(completion.context);
            done += 1;
        }
    }
}

/// A front end that sends and writes arbitrary values.
struct Liar {
    front: Frontend,
    /// The front end's socket, for messages that it does not send.
    socket: UnixStream,
    pool: Pool,
    kick: EventFd,
    call: EventFd,
}

/// Device's address of the liar's memory.
const LIAR_ADDR: u64 = 0x4000_0000;
const LIAR_BYTES: usize = 1 << 20;
const LIAR_QUEUE: u16 = 16;

impl Liar {
    /// Connects and agrees on features. The device does not know the memory yet.
    fn connect(device: &Device, features: u64, name: &str) -> Liar {
        let socket = UnixStream::connect(device.socket()).unwrap();
        let mut front = Frontend::from_stream(socket.try_clone().unwrap(), 255);
        front.set_owner().unwrap();
        let offered = front.get_features().unwrap();
        assert_eq!(offered & features, features);
        front.get_protocol_features().unwrap();
        front.set_protocol_features(PROTOCOL_ACCEPTED).unwrap();
        front.set_hdr_flags(VhostUserHeaderFlag::NEED_REPLY);
        front.set_features(features | Features::VERSION_1 | PROTOCOL).unwrap();
        let pool = Pool::new(name, LIAR_BYTES, MemoryOptions::new()).unwrap();
        Liar { front, socket, pool, kick: EventFd::new(0).unwrap(), call: EventFd::new(0).unwrap() }
    }

    fn region(&self) -> VhostUserMemoryRegionInfo {
        VhostUserMemoryRegionInfo {
            guest_phys_addr: LIAR_ADDR,
            memory_size: LIAR_BYTES as u64,
            userspace_addr: self.pool.base().addr() as u64,
            mmap_offset: 0,
            mmap_handle: self.pool.file().as_raw_fd(),
        }
    }

    fn share(&self) -> vhost::Result<()> {
        self.front.set_mem_table(&[self.region()]).map(drop)
    }

    /// Returns the areas of a ring of either kind: descriptors, driver's and device's, a page each.
    fn areas(&self) -> Areas {
        let at = |page: usize| AreaLocation(self.pool.base().wrapping_add(4096 * page), 4096);
        Areas { descriptor: at(0), driver: at(1), device: at(2) }
    }

    fn addrs(&self) -> VringConfigData {
        let areas = self.areas();
        let here = |AreaLocation(at, _)| at.addr() as u64;
        VringConfigData {
            queue_max_size: LIAR_QUEUE,
            queue_size: LIAR_QUEUE,
            flags: 0,
            desc_table_addr: here(areas.descriptor),
            used_ring_addr: here(areas.device),
            avail_ring_addr: here(areas.driver),
            log_addr: None,
        }
    }

    fn start(&mut self, size: u16, addrs: VringConfigData, base: u16) -> vhost::Result<()> {
        self.front.set_vring_num(0, size)?;
        self.front.set_vring_base(0, base)?;
        self.front.set_vring_addr(0, &addrs)?;
        self.front.set_vring_call(0, &self.call)?;
        self.front.set_vring_kick(0, &self.kick)?;
        self.front.set_vring_enable(0, true)
    }

    fn bus(&self) -> Direct {
        // SAFETY: the areas are in the pool, which outlives every use in these tests; it is accessed only atomically.
        unsafe { Direct::new(self.areas()) }
    }
}

const PROTOCOL: u64 = 1 << 30;
const PROTOCOL_ACCEPTED: VhostUserProtocolFeatures = VhostUserProtocolFeatures::MQ
    .union(VhostUserProtocolFeatures::REPLY_ACK)
    .union(VhostUserProtocolFeatures::INFLIGHT_SHMFD);

/// A record of buffers in flight, in the liar's pool from this offset on.
const RECORD: VhostUserInflight =
    VhostUserInflight { mmap_size: 8192, mmap_offset: 0x20000, num_queues: 2, queue_size: LIAR_QUEUE };

/// An invalid message from a front end is refused, the connection ends, and the next driver is served.
#[test]
fn invalid_messages_are_refused() {
    type Say = fn(&mut Liar) -> vhost::Result<()>;
    let violations: [(&str, Say); 16] = [
        ("not sealed", |liar| {
            let file = File::from(rustix::fs::memfd_create("liar", rustix::fs::MemfdFlags::CLOEXEC).unwrap());
            file.set_len(LIAR_BYTES as u64).unwrap();
            let region = VhostUserMemoryRegionInfo { mmap_handle: file.as_raw_fd(), ..liar.region() };
            liar.front.set_mem_table(&[region]).map(drop)
        }),
        ("beyond its file's end", |liar| {
            let region = VhostUserMemoryRegionInfo { memory_size: 1 + LIAR_BYTES as u64, ..liar.region() };
            liar.front.set_mem_table(&[region]).map(drop)
        }),
        ("beyond its file's end", |liar| {
            let region = VhostUserMemoryRegionInfo { mmap_offset: LIAR_BYTES as u64, ..liar.region() };
            liar.front.set_mem_table(&[region]).map(drop)
        }),
        ("overlap", |liar| {
            let other = VhostUserMemoryRegionInfo { guest_phys_addr: LIAR_ADDR + 4096, ..liar.region() };
            liar.front.set_mem_table(&[liar.region(), other]).map(drop)
        }),
        ("too small or not aligned", |liar| {
            let record = VhostUserInflight { mmap_size: 64, ..RECORD };
            liar.front.set_inflight_fd(&record, liar.pool.file().as_raw_fd())
        }),
        ("too small or not aligned", |liar| {
            let record = VhostUserInflight { mmap_offset: 0x20008, ..RECORD };
            liar.front.set_inflight_fd(&record, liar.pool.file().as_raw_fd())
        }),
        ("not offered", |liar| liar.front.set_features(Features::VERSION_1 | 1 << 40)),
        ("legacy", |liar| liar.front.set_features(PROTOCOL)),
        ("does not have", |liar| liar.front.set_vring_num(2, 16)),
        ("outside of the memory", |liar| {
            liar.share()?;
            let addrs = VringConfigData { desc_table_addr: 4096, ..liar.addrs() };
            liar.start(LIAR_QUEUE, addrs, 0)
        }),
        ("outside of the memory", |liar| {
            liar.share()?;
            let end = liar.pool.base().addr() + LIAR_BYTES - 64;
            let addrs = VringConfigData { used_ring_addr: end as u64, ..liar.addrs() };
            liar.start(LIAR_QUEUE, addrs, 0)
        }),
        ("outside of the memory", |liar| {
            liar.share()?;
            let addrs = VringConfigData { avail_ring_addr: u64::MAX - 1, ..liar.addrs() };
            liar.start(LIAR_QUEUE, addrs, 0)
        }),
        ("size or place", |liar| {
            liar.share()?;
            liar.start(3, liar.addrs(), 0)
        }),
        ("size or place", |liar| {
            liar.share()?;
            let (base, addrs) = (liar.pool.base().addr() as u64, liar.addrs());
            liar.start(LIAR_QUEUE, VringConfigData { avail_ring_addr: base + 4098, ..addrs }, 0)
        }),
        ("size or place", |liar| {
            liar.front.set_features(Features::VERSION_1 | Features::PACKED | PROTOCOL)?;
            liar.share()?;
            liar.start(LIAR_QUEUE, liar.addrs(), LIAR_QUEUE)
        }),
        ("cannot be waited for", |liar| {
            liar.share()?;
            let file = tempfile::tempfile().unwrap();
            // SAFETY: the file's descriptor is given up by `into_raw_fd`, so the `EventFd` is its only owner. It is
            // deliberately no event file.
            liar.kick = unsafe { EventFd::from_raw_fd(file.into_raw_fd()) };
            liar.start(LIAR_QUEUE, liar.addrs(), 0)
        }),
    ];
    let device = Device::start(2, BackEndOptions::default());
    for (index, (reason, violate)) in violations.into_iter().enumerate() {
        let mut liar = Liar::connect(&device, 0, "liar");
        let refused = violate(&mut liar).expect_err(reason);
        assert!(matches!(refused, vhost::Error::VhostUserProtocol(_)), "{reason}: {refused}");
        // The back end closed the connection: it answers no further message.
        assert!(liar.front.get_features().is_err(), "{reason}");
        // The next connection is accepted only after this one has ended completely.
        BlockDevice::connect(&device.socket(), DriverOptions::default()).unwrap();
        assert_eq!(device.back_end.counters().refused, index as u64 + 1, "{reason}");
        let told = device.back_end.refusal().unwrap();
        assert!(told.contains(reason), "{told}, not {reason}");
    }
    // An invalid message, and then half of one.
    let refused = device.back_end.counters().refused;
    UnixStream::connect(device.socket()).unwrap().write_all(&[0xFF; 64]).unwrap();
    BlockDevice::connect(&device.socket(), DriverOptions::default()).unwrap();
    assert_eq!(device.back_end.counters().refused, refused + 1);
    UnixStream::connect(device.socket()).unwrap().write_all(&[1, 0, 0]).unwrap();
    let mut driver = BlockDevice::connect(&device.socket(), DriverOptions::default()).unwrap();
    Oracle::new(0, vec![0; DISK_BYTES], 1).run(&mut driver.queues_mut()[0], 1 << 20, 64).unwrap();
    assert_eq!(device.back_end.counters().refused, refused + 1);
}

/// A header, the segments to read, the segments to write, whether the buffer violates the protocol, and the status if
/// there is a place for it.
type Case = ([u8; 16], Vec<Segment>, Vec<Segment>, bool, Option<Status>);

/// Buffers that violate the protocol: each one is returned, is counted, and changes nothing.
#[test]
fn invalid_buffers_are_returned() {
    let device = Device::start(1, BackEndOptions::default());
    let mut liar = Liar::connect(&device, 0, "liar");
    liar.share().unwrap();
    let bus = liar.bus();
    split::init(&bus, LIAR_QUEUE.into()).unwrap();
    let mut driver: split::Driver<Direct> = split::Driver::new(bus, LIAR_QUEUE.into(), Features::default()).unwrap();
    liar.start(LIAR_QUEUE, liar.addrs(), 0).unwrap();

    let (end, elsewhere) = (LIAR_ADDR + LIAR_BYTES as u64, 0x7FFF_0000_0000);
    let (header, data, status) = (LIAR_ADDR + 0x8000, LIAR_ADDR + 0x9000, LIAR_ADDR + 0x8100);
    let segment = |addr, len| Segment { addr, len };
    let write = |bytes: [u8; 16]| {
        let at = liar.pool.base().wrapping_add((header - LIAR_ADDR) as usize);
        for (index, byte) in bytes.into_iter().enumerate() {
            // SAFETY: the address is in the pool; the device reads it only after it is published.
            unsafe { at.wrapping_add(index).write_volatile(byte) };
        }
    };
    let with_type = |code: u8, sector: u8| {
        let mut bytes = [0; 16];
        (bytes[0], bytes[8]) = (code, sector);
        bytes
    };
    let (read, flush) = (with_type(0, 0), with_type(4, 0));
    let to_status = |data: &[Segment]| [data, &[segment(status, 1)]].concat();
    let from_header = |data: &[Segment]| [&[segment(header, 16)], data].concat();
    let mut cases: Vec<Case> = vec![
        (read, vec![segment(elsewhere, 16)], to_status(&[segment(data, 512)]), true, Some(Status::IoError)),
        (read, vec![segment(end - 8, 16)], to_status(&[segment(data, 512)]), true, Some(Status::IoError)),
        (read, vec![segment(u64::MAX - 8, 16)], to_status(&[segment(data, 512)]), true, Some(Status::IoError)),
        (read, vec![segment(header, 15)], to_status(&[segment(data, 512)]), true, Some(Status::IoError)),
        (read, vec![], to_status(&[segment(data, 512)]), true, Some(Status::IoError)),
        (read, from_header(&[]), vec![], true, None),
        (read, from_header(&[]), vec![segment(data, 512), segment(elsewhere, 1)], true, None),
        (read, from_header(&[]), to_status(&[segment(elsewhere, 512)]), true, Some(Status::IoError)),
        (read, from_header(&[]), to_status(&[segment(end - 256, 512)]), true, Some(Status::IoError)),
        (read, from_header(&[]), to_status(&[segment(data, 100)]), false, Some(Status::IoError)),
        (with_type(1, 0), from_header(&[segment(elsewhere, 512)]), to_status(&[]), true, Some(Status::IoError)),
        (with_type(1, 0), from_header(&[segment(data, 100)]), to_status(&[]), false, Some(Status::IoError)),
        (with_type(77, 0), from_header(&[]), to_status(&[]), false, Some(Status::Unsupported)),
        ([0xFF; 16], from_header(&[]), to_status(&[segment(data, 512)]), false, Some(Status::Unsupported)),
        (flush, vec![segment(header, 7), segment(header + 7, 9)], to_status(&[]), false, Some(Status::Ok)),
        (read, from_header(&[]), to_status(&[segment(data, 0), segment(data, 512)]), false, Some(Status::Ok)),
    ];
    // Sectors beyond the end, including some that overflow.
    for sector in [[0, 0x40, 0, 0, 0, 0, 0, 0], [0xFF; 8], [0, 0, 0, 0, 0, 0, 0x80, 0]] {
        let mut header = read;
        header[8..].copy_from_slice(&sector);
        cases.push((header, from_header(&[]), to_status(&[segment(data, 512)]), false, Some(Status::IoError)));
    }
    let mut violations = 0;
    for (index, (header, readable, writable, is_violation, expected)) in cases.into_iter().enumerate() {
        write(header);
        let at = liar.pool.base().wrapping_add((status - LIAR_ADDR) as usize);
        // SAFETY: the status is in the liar's pool, which is mapped.
        unsafe { at.write_volatile(0xEE) };
        driver.add(&readable, &writable, index as u64).unwrap();
        driver.publish();
        liar.kick.write(1).unwrap();
        let completion = loop {
            if let Some(completion) = driver.take_used().unwrap() {
                break completion;
            }
            if !driver.arm_interrupt() {
                let mut fds = [PollFd::from_borrowed_fd(borrow(&liar.call), PollFlags::IN)];
                let long = rustix::event::Timespec { tv_sec: LONG.as_secs() as i64, tv_nsec: 0 };
                assert_eq!(poll(&mut fds, Some(&long)), Ok(1), "case {index} does not come back");
                liar.call.read().unwrap();
            }
        };
        assert_eq!(completion.token, index as u64);
        // SAFETY: the status is in the liar's pool, which is mapped; the device has finished with it.
        let found = unsafe { at.read_volatile() };
        let code = |status| match status {
            Status::Ok => 0,
            Status::IoError => 1,
            Status::Unsupported => 2,
            Status::Invalid(code) => code,
        };
        assert_eq!(found, expected.map_or(0xEE, code), "case {index}");
        violations += u64::from(is_violation);
        assert_eq!(device.back_end.counters().violations, violations, "case {index}");
    }
    assert_eq!(driver.violations(), 0);
    assert!(device.bytes() == vec![0; DISK_BYTES]);
}

/// A driver that sends no kick file (bit 8 of the message's payload) is served without kicks.
#[test]
fn a_queue_without_a_kick_file_is_polled() {
    let device = Device::start(1, BackEndOptions::default());
    let mut liar = Liar::connect(&device, 0, "liar");
    liar.share().unwrap();
    let bus = liar.bus();
    split::init(&bus, LIAR_QUEUE.into()).unwrap();
    let mut driver: split::Driver<Direct> = split::Driver::new(bus, LIAR_QUEUE.into(), Features::default()).unwrap();
    liar.front.set_vring_num(0, LIAR_QUEUE).unwrap();
    liar.front.set_vring_addr(0, &liar.addrs()).unwrap();
    liar.front.set_vring_call(0, &liar.call).unwrap();
    // SET_VRING_KICK of queue 0, version 1, with a payload of 8 bytes.
    let message: Vec<u8> = [12_u32, 1, 8, 0x100, 0].into_iter().flat_map(u32::to_ne_bytes).collect();
    liar.socket.write_all(&message).unwrap();
    liar.front.set_vring_enable(0, true).unwrap();
    // The header of a flush request, and its status.
    let (header, status) = (LIAR_ADDR + 0x8000, LIAR_ADDR + 0x9000);
    // SAFETY: the address is in the pool; the device reads it only after it is published.
    unsafe { liar.pool.base().wrapping_add(0x8000).write_volatile(4) };
    for number in 0..100 {
        driver
            .add_and_publish(&[Segment { addr: header, len: 16 }], &[Segment { addr: status, len: 1 }], number)
            .unwrap();
        let start = std::time::Instant::now();
        while driver.take_used().unwrap().is_none() {
            assert!(start.elapsed() < LONG, "request {number} does not come back");
            std::thread::yield_now();
        }
    }
    let counters = device.back_end.counters();
    assert_eq!((counters.buffers, counters.kicks, counters.refused), (100, 0, 0), "{:?}", device.back_end.refusal());
}

/// A back end that is killed between the return of a buffer and its interrupt leaves a driver that waits for it. The next
/// one wakes the driver.
#[test]
fn a_driver_whose_interrupt_was_lost_is_woken() {
    let device = Device::start(1, BackEndOptions::default());
    for accepted in [0, Features::EVENT_IDX] {
        let mut liar = Liar::connect(&device, accepted, "liar");
        liar.share().unwrap();
        let bus = liar.bus();
        split::init(&bus, LIAR_QUEUE.into()).unwrap();
        // One buffer was made available and was returned.
        bus.store::<u16>(Area::Driver, 2, 1, Relaxed);
        bus.store::<u16>(Area::Device, 2, 1, Relaxed);
        liar.start(LIAR_QUEUE, liar.addrs(), 1).unwrap();
        let call = borrow(&liar.call);
        let woken = poll(&mut [PollFd::new(&call, PollFlags::IN)], Some(&LONG.try_into().unwrap()));
        assert_eq!(woken, Ok(1), "features {accepted:#x}");
    }
}

fn borrow(event: &EventFd) -> BorrowedFd<'_> {
    // SAFETY: the event file is borrowed, and so stays open, as long as the result.
    unsafe { BorrowedFd::borrow_raw(event.as_raw_fd()) }
}

/// Rings of either kind that are full of random words and change while they are served: the device continues, and
/// serves the next driver.
#[test]
fn random_rings_are_survived() {
    let device = Device::start(1, BackEndOptions::default());
    for seed in 0..60_u64 {
        let mut rng = SmallRng::seed_from_u64(seed);
        let mut features = 0;
        for bit in [Features::PACKED, Features::EVENT_IDX, Features::INDIRECT, Features::IN_ORDER] {
            features |= if rng.random() { bit } else { 0 };
        }
        let mut liar = Liar::connect(&device, features, "liar");
        liar.share().unwrap();
        // A record of buffers in flight that another device could not have left.
        if rng.random() {
            for word in 0..1024 {
                let at = liar.pool.base().wrapping_add(0x20000 + 8 * word);
                // SAFETY: the word is in the pool, which is mapped; the device does not have the record yet.
                unsafe { at.cast::<u64>().write_volatile(if rng.random() { rng.random() } else { 0x10_0001 }) };
            }
            liar.front.set_inflight_fd(&RECORD, liar.pool.file().as_raw_fd()).unwrap();
        }
        let base = if features & Features::PACKED != 0 { 1 << 15 } else { 0 };
        liar.start(LIAR_QUEUE, liar.addrs(), base).unwrap();
        let bus = liar.bus();
        for round in 0..400_u16 {
            let slot = 16 * rng.random_range(0..usize::from(LIAR_QUEUE));
            let addr = if rng.random_range(0..8) == 0 {
                rng.random()
            } else {
                LIAR_ADDR + rng.random_range(0..LIAR_BYTES as u64)
            };
            let len = if rng.random_range(0..16) == 0 { rng.random() } else { rng.random_range(0..2048_u32) };
            let flags = rng.random_range(0..8_u64) | [0, 1 << 7, 1 << 15][rng.random_range(0..3)];
            let last = rng.random_range(0..u64::from(LIAR_QUEUE) + 1);
            let rest = u64::from(len)
                | if features & Features::PACKED != 0 {
                    flags << 48 | last << 32
                } else {
                    (flags & 7) << 32 | last << 48
                };
            bus.store(Area::Descriptor, slot, addr, Relaxed);
            bus.store(Area::Descriptor, slot + 8, rest, Relaxed);
            let entry = 4 + 2 * rng.random_range(0..usize::from(LIAR_QUEUE));
            bus.store(Area::Driver, entry, rng.random_range(0..LIAR_QUEUE + 1), Relaxed);
            // Usually near the correct index.
            let index = if rng.random_range(0..64) == 0 { rng.random() } else { round };
            bus.store(Area::Driver, 2, if features & Features::PACKED != 0 { 0 } else { index }, Relaxed);
            liar.kick.write(1).unwrap();
        }
        // The ring's thread ends on this message.
        liar.front.get_vring_base(0).unwrap();
    }
    let counters = device.back_end.counters();
    assert!(counters.violations > 0 && counters.buffers > 0, "{counters:?}");
    assert_eq!(device.back_end.counters().refused, 0, "{:?}", device.back_end.refusal());
    let mut driver = BlockDevice::connect(&device.socket(), DriverOptions::default()).unwrap();
    Oracle::new(0, device.bytes(), 1).run(&mut driver.queues_mut()[0], 1 << 20, 64).unwrap();
}

/// The driver's memory is mapped as long as it belongs to the driver, and no longer.
#[test]
fn removed_memory_regions_are_unmapped() {
    let device = Device::start(1, BackEndOptions::default());
    // Both ends are in this process, so the liar's own mapping is counted too.
    let count = |name: &str| {
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        maps.lines().filter(|line| line.contains(&format!("memfd:{name} "))).count()
    };
    let mut liar = Liar::connect(&device, 0, "liar-first");
    liar.share().unwrap();
    liar.start(LIAR_QUEUE, liar.addrs(), 0).unwrap();
    assert_eq!(count("liar-first"), 2);
    let other = Pool::new("liar-other", LIAR_BYTES, MemoryOptions::new()).unwrap();
    let userspace_addr = liar.pool.base().addr() as u64;
    let region = VhostUserMemoryRegionInfo { mmap_handle: other.file().as_raw_fd(), userspace_addr, ..liar.region() };
    liar.front.set_mem_table(&[region]).unwrap();
    assert_eq!((count("liar-first"), count("liar-other")), (1, 2));
    drop((liar.front, liar.socket));
    BlockDevice::connect(&device.socket(), DriverOptions::default()).unwrap();
    assert_eq!((count("liar-first"), count("liar-other")), (1, 1));
}
