//! The front end's control plane: messages on the socket, before and beside the data in rings.

use std::net::Shutdown;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::Duration;

use dormouse_backing::Pool;
use dormouse_vring::{AreaLocation, Areas, Features};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use vhost::vhost_user::message::{VhostUserConfigFlags, VhostUserHeaderFlag};
use vhost::vhost_user::{Frontend, VhostUserFrontend, VhostUserProtocolFeatures, VhostUserVirtioFeatures};
use vhost::{VhostBackend, VhostUserMemoryRegionInfo, VringConfigData};
use vmm_sys_util::eventfd::EventFd;

use crate::blk::Config;
use crate::error::Error;

/// Protocol features that are used if they are offered.
const PROTOCOL: VhostUserProtocolFeatures =
    VhostUserProtocolFeatures::MQ.union(VhostUserProtocolFeatures::REPLY_ACK).union(VhostUserProtocolFeatures::CONFIG);

/// Device's address of the front end's memory. It differs from the address in this process, so that a mix-up of the two
/// is noticed.
pub(crate) const MEMORY_ADDR: u64 = 0x10_0000_0000;

/// Maximum number of seconds that one poll waits, for very large timeouts.
const POLL_SECONDS_MAX: u64 = 1 << 30;

/// A connection to a device, with the negotiated features.
pub(crate) struct FrontEnd {
    control: Frontend,
    socket: UnixStream,
    timeout: Duration,
    offered: u64,
    accepted: u64,
    protocol: VhostUserProtocolFeatures,
}

impl FrontEnd {
    /// Connects, and accepts those of the `wanted` feature bits that the device offers.
    ///
    /// # Errors
    /// [`Error::Connect`], [`Error::Silent`], [`Error::Gone`], [`Error::Protocol`]; [`Error::NotOffered`] if a `needed`
    /// feature is not offered.
    pub(crate) fn connect(
        path: &Path,
        timeout: Duration,
        wanted: u64,
        needed: &[(u64, &'static str, &'static str)],
    ) -> Result<FrontEnd, Error> {
        let connect = |error| Error::Connect { path: path.into(), error };
        let socket = UnixStream::connect(path).map_err(connect)?;
        let clone = socket.try_clone().map_err(connect)?;
        // The maximum, until the device has reported its number of queues.
        let control = Frontend::from_stream(socket, u64::from(u8::MAX));
        let protocol = VhostUserProtocolFeatures::empty();
        let mut front = FrontEnd { control, socket: clone, timeout, offered: 0, accepted: 0, protocol };
        front.within(|front| front.negotiate(wanted, needed))?;
        Ok(front)
    }

    /// Runs `work`, which waits for the device's answers, and closes the connection if it takes too long. Otherwise it
    /// could wait for ever.
    pub(crate) fn within<T>(&mut self, work: impl FnOnce(&mut FrontEnd) -> Result<T, Error>) -> Result<T, Error> {
        let socket = self.socket.try_clone().map_err(Error::system("copy a socket"))?;
        let timeout = self.timeout;
        let (done, is_done) = mpsc::channel::<()>();
        std::thread::scope(|scope| {
            let watch = scope.spawn(move || {
                let is_late = is_done.recv_timeout(timeout) == Err(RecvTimeoutError::Timeout);
                if is_late {
                    let _ = socket.shutdown(Shutdown::Both);
                }
                is_late
            });
            let result = work(self);
            drop(done);
            if matches!(watch.join(), Ok(false)) { result } else { Err(Error::Silent) }
        })
    }

    fn negotiate(&mut self, wanted: u64, needed: &[(u64, &'static str, &'static str)]) -> Result<(), Error> {
        self.control.set_owner().map_err(Error::protocol("become the device's owner"))?;
        self.offered = self.control.get_features().map_err(Error::protocol("ask for the device's features"))?;
        let protocol = VhostUserVirtioFeatures::PROTOCOL_FEATURES.bits();
        let needed = [
            (Features::VERSION_1, "VirtIO 1.0", "; legacy devices are not supported"),
            (protocol, "vhost-user protocol features", ""),
        ]
        .into_iter()
        .chain(needed.iter().copied());
        for (bit, feature, remedy) in needed {
            if self.offered & bit == 0 {
                return Err(Error::NotOffered { feature, remedy });
            }
        }
        let offered =
            self.control.get_protocol_features().map_err(Error::protocol("ask for the protocol's features"))?;
        self.protocol = offered & PROTOCOL;
        self.control
            .set_protocol_features(self.protocol)
            .map_err(Error::protocol("agree on the protocol's features"))?;
        if self.protocol.contains(VhostUserProtocolFeatures::REPLY_ACK) {
            self.control.set_hdr_flags(VhostUserHeaderFlag::NEED_REPLY);
        }
        self.accepted = self.offered & (wanted | Features::VERSION_1 | protocol);
        self.control.set_features(self.accepted).map_err(Error::protocol("agree on features"))
    }

    /// Returns the feature bits that both sides have.
    pub(crate) fn accepted(&self) -> u64 {
        self.accepted
    }

    /// Returns the number of queues that the device has.
    pub(crate) fn queue_count(&mut self) -> Result<u64, Error> {
        if !self.protocol.contains(VhostUserProtocolFeatures::MQ) {
            return Ok(1);
        }
        self.within(|front| front.control.get_queue_num().map_err(Error::protocol("ask for the number of queues")))
    }

    /// Returns the block device's configuration space.
    pub(crate) fn config(&mut self) -> Result<Config, Error> {
        if !self.protocol.contains(VhostUserProtocolFeatures::CONFIG) {
            return Err(Error::NotOffered { feature: "configuration space", remedy: "; is it a block device?" });
        }
        let (bytes, none) = ([0; Config::BYTES], VhostUserConfigFlags::empty());
        let answer = self.within(|front| {
            let answer = front.control.get_config(0, Config::BYTES as u32, none, &bytes);
            answer.map_err(Error::protocol("read the device's configuration"))
        });
        let bytes =
            answer?.1.try_into().map_err(|_| Error::NotOffered { feature: "whole configuration space", remedy: "" })?;
        Ok(Config::parse(&bytes, self.accepted))
    }

    /// Gives the device the whole memory.
    pub(crate) fn share(&mut self, pool: &Pool) -> Result<(), Error> {
        let region = VhostUserMemoryRegionInfo {
            guest_phys_addr: MEMORY_ADDR,
            memory_size: pool.size_bytes() as u64,
            userspace_addr: pool.base().addr() as u64,
            mmap_offset: 0,
            mmap_handle: pool.file().as_raw_fd(),
        };
        self.control.set_mem_table(&[region]).map_err(Error::protocol("share memory")).map(drop)
    }

    /// Gives the device a ring, and starts it. `base` is the device's first position: see
    /// [`either::Device`](dormouse_vring::either::Device).
    pub(crate) fn start_queue(&mut self, index: usize, ring: Ring<'_>) -> Result<(), Error> {
        // A ring's own addresses are those of the front end's process, unlike the addresses in it.
        let here = |AreaLocation(at, _)| at.addr() as u64;
        let config = VringConfigData {
            queue_max_size: ring.size,
            queue_size: ring.size,
            flags: 0,
            desc_table_addr: here(ring.areas.descriptor),
            used_ring_addr: here(ring.areas.device),
            avail_ring_addr: here(ring.areas.driver),
            log_addr: None,
        };
        let control = &mut self.control;
        control.set_vring_num(index, ring.size).map_err(Error::protocol("set a queue's size"))?;
        control.set_vring_base(index, ring.base).map_err(Error::protocol("set a queue's base"))?;
        control.set_vring_addr(index, &config).map_err(Error::protocol("set a queue's addresses"))?;
        control.set_vring_call(index, ring.call).map_err(Error::protocol("send a queue's call descriptor"))?;
        control.set_vring_kick(index, ring.kick).map_err(Error::protocol("send a queue's kick descriptor"))?;
        control.set_vring_enable(index, true).map_err(Error::protocol("start a queue"))
    }

    /// Returns a copy of the socket, on which the end of the connection can be noticed.
    pub(crate) fn socket(&self) -> Result<UnixStream, Error> {
        self.socket.try_clone().map_err(Error::system("copy a socket"))
    }
}

/// Description of a ring for the device.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Ring<'a> {
    pub(crate) areas: Areas,
    pub(crate) size: u16,
    pub(crate) base: u16,
    pub(crate) kick: &'a EventFd,
    pub(crate) call: &'a EventFd,
}

/// Reason for the end of a wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum WakeReason {
    /// The event file was signalled.
    Event,
    /// The other file has something to read, or its other end is closed.
    Other,
    /// Neither happened within the timeout.
    Timeout,
}

/// Waits until an event file is signalled, and takes the signal, or until something happens at another file.
pub(crate) fn wait_for(event: &EventFd, other: BorrowedFd<'_>, timeout: Duration) -> Result<WakeReason, Error> {
    // SAFETY: the descriptor stays open, because the event file is borrowed for longer than `event_fd` is used.
    let event_fd = unsafe { BorrowedFd::borrow_raw(event.as_raw_fd()) };
    let seconds = timeout.as_secs().min(POLL_SECONDS_MAX) as i64;
    let timeout = Timespec { tv_sec: seconds, tv_nsec: timeout.subsec_nanos().into() };
    let mut fds = [
        PollFd::from_borrowed_fd(event_fd, PollFlags::IN),
        PollFd::from_borrowed_fd(other.as_fd(), PollFlags::IN | PollFlags::RDHUP),
    ];
    match poll(&mut fds, Some(&timeout)) {
        // The caller checks again.
        Err(Errno::INTR) => return Ok(WakeReason::Event),
        result => result.map_err(Error::system("wait for the device"))?,
    };
    if fds[0].revents().contains(PollFlags::IN) {
        return match event.read() {
            Err(error) if error.kind() != std::io::ErrorKind::WouldBlock => Err(Error::system("read an event")(error)),
            _ => Ok(WakeReason::Event),
        };
    }
    Ok(if fds[1].revents().is_empty() { WakeReason::Timeout } else { WakeReason::Other })
}
