//! Our device: driven by ourselves, by the crate `virtio-driver`, which nobody here wrote, and by liars.

mod common;

use std::collections::HashMap;
use std::fs::File;
use std::os::fd::AsRawFd;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use dormouse_vring::{Areas, Direct, DriverSide, Features, Segment, split};
use dormouse_vring_vhost::{
    BackEnd, BackEndCounters, BackEndOptions, BlockDevice, Disk, DriverOptions, Error, FileStorage, MemoryStorage,
    SECTOR_BYTES, Status, Storage,
};
use rand::rngs::SmallRng;
use rand::{Rng, RngCore, SeedableRng};
use rustix::event::{PollFd, PollFlags, poll};
use tempfile::TempDir;
use vhost::vhost_user::message::VhostUserHeaderFlag;
use vhost::vhost_user::{Frontend, VhostUserFrontend, VhostUserProtocolFeatures};
use vhost::{VhostBackend, VhostUserMemoryRegionInfo, VringConfigData};
use virtio_driver::{VhostUser, VirtioBlkConfig, VirtioBlkQueue, VirtioBlkReqBuf, VirtioFeatureFlags, VirtioTransport};
use vmm_sys_util::eventfd::EventFd;

use common::{LONG, Oracle};

const DISK_BYTES: usize = 8 << 20;
const REQUEST_SECTORS_MAX: usize = 256;

/// A device with a disk of 8 MiB in memory.
struct Device {
    dir: TempDir,
    back_end: BackEnd,
    disk: Arc<Disk<MemoryStorage>>,
}

impl Device {
    fn start(queue_count: u16, options: BackEndOptions) -> Device {
        let dir = tempfile::tempdir().unwrap();
        let disk = Arc::new(Disk::new(MemoryStorage::new(DISK_BYTES as u64), "dormouse", queue_count));
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
                (counters.connections, counters.lies, counters.refused),
                (1, 0, 0),
                "{:?}",
                device.back_end.refusal()
            );
            let queues: Vec<_> = driver.queues_mut().iter().map(|queue| queue.counters()).collect();
            assert_eq!(counters.buffers, queues.iter().map(|queue| queue.requests).sum::<u64>());
        }
    }
}

/// What the back end is not to offer is not agreed on, and a driver that needs it is told.
#[test]
fn only_what_is_offered_is_agreed_on() {
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
fn a_disk_in_a_file_is_served_to_one_after_another() {
    let dir = tempfile::tempdir().unwrap();
    let (socket, path) = (dir.path().join("vh.sock"), dir.path().join("disk.raw"));
    let file = File::options().read(true).write(true).create_new(true).open(&path).unwrap();
    file.set_len(DISK_BYTES as u64).unwrap();
    let disk = Arc::new(Disk::new(FileStorage::new(file).unwrap(), "a name that is longer than names are", 1));
    let mut bytes = vec![0; DISK_BYTES];
    for round in 0..3 {
        // Each time another back end, as after a crash.
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

/// Our back end ends while it has requests, and another does them.
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

/// The crate `virtio-driver`, with split and packed queues, event indexes, and memory that comes in when the queues run.
#[test]
fn virtio_driver_drives_our_device() {
    for is_packed in [false, true] {
        for event_idx in [false, true] {
            // It seals nothing.
            let device = Device::start(2, BackEndOptions { requires_seal: false, ..BackEndOptions::default() });
            let mut features = VirtioFeatureFlags::VERSION_1;
            features.set(VirtioFeatureFlags::RING_PACKED, is_packed);
            features.set(VirtioFeatureFlags::RING_EVENT_IDX, event_idx);
            // VIRTIO_BLK_F_MQ, without which it sees one queue.
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
            assert_eq!((counters.lies, counters.refused), (0, 0), "{:?}", device.back_end.refusal());
            assert_eq!(counters.buffers, buffers as u64);
            drop(queues);
            transport.unmap_mem_region(memory.base as usize, memory.len).unwrap();
        }
    }
}

const SLOTS: usize = 8;
const SLOT_BYTES: usize = 64 << 10;

/// Requests for a queue. A split one with event indexes goes past two wraps of 65,536. `virtio-driver` counts a packed one's descriptors,
/// three of each request, in 16 bits, and panics past them when it is built with checks.
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
        // SAFETY: a new mapping at an address that the kernel chooses.
        let base =
            unsafe { rustix::mm::mmap(std::ptr::null_mut(), len, protection, rustix::mm::MapFlags::SHARED, &file, 0) };
        Shared { file, base: base.unwrap().cast(), len }
    }

    /// The slot's bytes, while no request has it.
    #[expect(clippy::mut_from_ref, reason = "slots are apart, and each is used by one at a time")]
    fn slot(&self, slot: usize, len: usize) -> &mut [u8] {
        assert!(slot < SLOTS && len <= SLOT_BYTES);
        // SAFETY: inside of the mapping, and nobody else's while no request has it, as callers see to.
        unsafe { std::slice::from_raw_parts_mut(self.base.wrapping_add(slot * SLOT_BYTES), len) }
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        // SAFETY: this value's own mapping.
        unsafe { rustix::mm::munmap(self.base.cast(), self.len) }.unwrap();
    }
}

/// Random requests through a queue of `virtio-driver`'s, against bytes.
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
            // Its event file is one that blocks: it is looked at first.
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
