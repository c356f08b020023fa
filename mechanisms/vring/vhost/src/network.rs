//! A network device that a back end serves.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use dormouse_vring::Chain;
use rustix::io::Errno;
use serde::Serialize;

use crate::back::ServedDevice;
use crate::served::{Cursor, InvalidBuffer, Memory};

/// `VIRTIO_NET_F_MAC` (5.1.3).
const F_MAC: u64 = 1 << 5;
/// Numbers of the queues (5.1.2).
const RECEIVE: u16 = 0;
const TRANSMIT: u16 = 1;
/// Bytes of `struct virtio_net_hdr` (5.1.6), which ends with `num_buffers`.
const HEADER_BYTES: usize = 12;
/// Maximum number of bytes of a frame: an Ethernet header and 1,500 bytes. A driver's buffers have room for it (5.1.6.3.1).
pub const FRAME_BYTES_MAX: usize = 1514;

/// Counters of a network device, over all of its drivers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub struct NetworkCounters {
    /// Number of frames that went from the link to a driver.
    pub received: u64,
    /// Number of frames that went from a driver to the link.
    pub sent: u64,
    /// Number of frames that were dropped: longer than [`FRAME_BYTES_MAX`], or not taken by the link.
    pub dropped: u64,
}

/// A vhost-user network device with one receive queue and one transmit queue.
///
/// ```text
///   link: a datagram socket, a tap device          driver
///     read one frame ──▶ header, frame ──▶ next buffer of the receive queue
///     write one frame ◀── frame ◀───────── each buffer of the transmit queue
/// ```
/// A frame that is there before a buffer is waits for it; further frames wait in the link. A frame that the link does not
/// take is dropped, as by any network.
///
/// `VIRTIO_NET_F_MRG_RXBUF` and offloads are not offered, so a frame is in one buffer, and checksums are complete.
#[derive(Debug)]
pub struct Network {
    link: OwnedFd,
    mac: [u8; 6],
    received: AtomicU64,
    sent: AtomicU64,
    dropped: AtomicU64,
}

impl Network {
    /// Creates a network device whose frames come from and go to `link`: a socket or a file on which each read and each write
    /// has one frame. It becomes non-blocking. Several back ends must not use one link.
    ///
    /// # Errors
    /// Errors of the kernel.
    pub fn new(link: impl Into<OwnedFd>, mac: [u8; 6]) -> io::Result<Network> {
        let link = link.into();
        let flags = rustix::fs::fcntl_getfl(&link)?;
        rustix::fs::fcntl_setfl(&link, flags | rustix::fs::OFlags::NONBLOCK)?;
        Ok(Network { link, mac, received: AtomicU64::new(0), sent: AtomicU64::new(0), dropped: AtomicU64::new(0) })
    }

    /// Returns the counters so far.
    pub fn counters(&self) -> NetworkCounters {
        NetworkCounters {
            received: self.received.load(Relaxed),
            sent: self.sent.load(Relaxed),
            dropped: self.dropped.load(Relaxed),
        }
    }

    fn receive(&self, chain: &Chain, memory: &Memory, frame: &[u8]) -> Result<u32, InvalidBuffer> {
        let len = HEADER_BYTES + frame.len();
        if chain.writable_len() < len as u64 {
            return Err(InvalidBuffer);
        }
        // No flags, no offload; the frame is in one buffer (5.1.6.4.1).
        let mut header = [0; HEADER_BYTES];
        header[10] = 1;
        let mut to = Cursor::writable(chain, memory);
        to.store(&header)?;
        to.store(frame)?;
        self.received.fetch_add(1, Relaxed);
        Ok(len as u32)
    }

    fn transmit(&self, chain: &Chain, memory: &Memory, scratch: &mut Vec<u8>) -> Result<u32, InvalidBuffer> {
        let len = chain.readable_len().checked_sub(HEADER_BYTES as u64).ok_or(InvalidBuffer)?;
        let mut from = Cursor::readable(chain, memory);
        from.skip(HEADER_BYTES as u64);
        let is_sent = len <= FRAME_BYTES_MAX as u64 && {
            scratch.resize(len as usize, 0);
            from.load(scratch)?;
            rustix::io::write(&self.link, scratch).is_ok()
        };
        let counter = if is_sent { &self.sent } else { &self.dropped };
        counter.fetch_add(1, Relaxed);
        Ok(0)
    }
}

impl ServedDevice for Network {
    fn features(&self) -> u64 {
        F_MAC
    }

    fn queue_count(&self) -> u16 {
        2
    }

    fn config(&self) -> Vec<u8> {
        self.mac.to_vec()
    }

    fn source(&self, queue: u16) -> Option<BorrowedFd<'_>> {
        (queue == RECEIVE).then(|| self.link.as_fd())
    }

    fn fetch(&self, _queue: u16, scratch: &mut Vec<u8>) -> bool {
        loop {
            // One byte more tells a frame that is too long.
            scratch.resize(FRAME_BYTES_MAX + 1, 0);
            match rustix::io::read(&self.link, &mut scratch[..]) {
                Ok(len @ 1..=FRAME_BYTES_MAX) => {
                    scratch.truncate(len);
                    return true;
                }
                Ok(0) => return false,
                Ok(_) => _ = self.dropped.fetch_add(1, Relaxed),
                Err(Errno::INTR) => {}
                Err(_) => return false,
            }
        }
    }

    fn serve(&self, queue: u16, chain: &Chain, memory: &Memory, scratch: &mut Vec<u8>) -> Result<u32, InvalidBuffer> {
        debug_assert!([RECEIVE, TRANSMIT].contains(&queue));
        match queue {
            RECEIVE => self.receive(chain, memory, scratch),
            _ => self.transmit(chain, memory, scratch),
        }
    }
}
