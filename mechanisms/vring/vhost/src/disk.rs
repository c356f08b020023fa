//! A block device that a back end serves.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use dormouse_vring::Chain;
use rustix::fs::MemfdFlags;

use crate::back::ServedDevice;
use crate::blk::{self, Config, HEADER_BYTES, ID_BYTES, Operation, SECTOR_BYTES, Status};
use crate::served::{Cursor, InvalidBuffer, Memory};

/// Storage of a [`Disk`]. Several queues use it concurrently.
pub trait Storage: Send + Sync {
    /// Returns the size in bytes, a multiple of 512.
    fn len_bytes(&self) -> u64;
    /// Reads from `offset` on. All bytes are inside the storage.
    ///
    /// # Errors
    /// Errors of the medium.
    fn read(&self, offset: u64, to: &mut [u8]) -> io::Result<()>;
    /// Writes from `offset` on. All bytes are inside the storage.
    ///
    /// # Errors
    /// Errors of the medium.
    fn write(&self, offset: u64, from: &[u8]) -> io::Result<()>;
    /// Makes all completed writes permanent.
    ///
    /// # Errors
    /// Errors of the medium.
    fn flush(&self) -> io::Result<()>;
}

/// Storage in a file, in a block device of this machine, or in memory.
#[derive(Debug)]
pub struct FileStorage {
    file: File,
    len_bytes: u64,
}

impl FileStorage {
    /// Uses all whole sectors of a file that is open for reading and writing.
    ///
    /// # Errors
    /// Errors of the kernel.
    pub fn new(file: File) -> io::Result<FileStorage> {
        let len_bytes = io::Seek::seek(&mut &file, io::SeekFrom::End(0))?;
        Ok(FileStorage { file, len_bytes: len_bytes / u64::from(SECTOR_BYTES) * u64::from(SECTOR_BYTES) })
    }

    /// Creates storage of `len_bytes` bytes in memory (in an unnamed file), rounded down to whole sectors. All bytes
    /// are initially zero.
    ///
    /// # Errors
    /// Errors of the kernel.
    pub fn in_memory(len_bytes: u64) -> io::Result<FileStorage> {
        let file = File::from(rustix::fs::memfd_create("dormouse-disk", MemfdFlags::CLOEXEC)?);
        file.set_len(len_bytes)?;
        FileStorage::new(file)
    }
}

impl Storage for FileStorage {
    fn len_bytes(&self) -> u64 {
        self.len_bytes
    }

    fn read(&self, offset: u64, to: &mut [u8]) -> io::Result<()> {
        self.file.read_exact_at(to, offset)
    }

    fn write(&self, offset: u64, from: &[u8]) -> io::Result<()> {
        self.file.write_all_at(from, offset)
    }

    fn flush(&self) -> io::Result<()> {
        self.file.sync_data()
    }
}

/// A vhost-user block device.
#[derive(Debug)]
pub struct Disk<S> {
    storage: S,
    id: [u8; ID_BYTES as usize],
    queue_count: u16,
}

/// Maximum number of bytes that are copied at once.
const STEP_BYTES: usize = 64 << 10;

impl<S: Storage> Disk<S> {
    /// Creates a disk with `queue_count` queues, at least one. The first 20 bytes of `id` are its name.
    pub fn new(storage: S, id: &str, queue_count: u16) -> Disk<S> {
        let mut bytes = [0; ID_BYTES as usize];
        bytes.iter_mut().zip(id.bytes()).for_each(|(to, byte)| *to = byte);
        Disk { storage, id: bytes, queue_count: queue_count.max(1) }
    }

    /// Returns the disk's storage.
    pub fn storage(&self) -> &S {
        &self.storage
    }

    /// Executes a request. Returns its status, and the number of data bytes written to the driver's memory.
    fn execute(
        &self,
        (code, sector): (u32, u64),
        from: &mut Cursor<'_>,
        readable_len: u64,
        to: &mut Cursor<'_>,
        writable_len: u64,
        scratch: &mut Vec<u8>,
    ) -> Result<(Status, u64), InvalidBuffer> {
        let inside = |len: u64| {
            let end = sector.checked_mul(SECTOR_BYTES.into())?.checked_add(len)?;
            (len.is_multiple_of(SECTOR_BYTES.into()) && end <= self.storage.len_bytes()).then(|| end - len)
        };
        match Operation::from_code(code) {
            Some(Operation::Read) => {
                let Some(start) = inside(writable_len) else { return Ok((Status::IoError, 0)) };
                for at in (0..writable_len).step_by(STEP_BYTES) {
                    scratch.resize((writable_len - at).min(STEP_BYTES as u64) as usize, 0);
                    if self.storage.read(start + at, scratch).is_err() {
                        return Ok((Status::IoError, at));
                    }
                    to.store(scratch)?;
                }
                Ok((Status::Ok, writable_len))
            }
            Some(Operation::Write) => {
                let Some(start) = inside(readable_len) else { return Ok((Status::IoError, 0)) };
                for at in (0..readable_len).step_by(STEP_BYTES) {
                    scratch.resize((readable_len - at).min(STEP_BYTES as u64) as usize, 0);
                    from.load(scratch)?;
                    if self.storage.write(start + at, scratch).is_err() {
                        return Ok((Status::IoError, 0));
                    }
                }
                Ok((Status::Ok, 0))
            }
            Some(Operation::Flush) => Ok((self.storage.flush().map_or(Status::IoError, |()| Status::Ok), 0)),
            Some(Operation::GetId) => {
                let id = &self.id[..self.id.len().min(writable_len as usize)];
                to.store(id)?;
                Ok((Status::Ok, id.len() as u64))
            }
            None => Ok((Status::Unsupported, 0)),
        }
    }
}

impl<S: Storage + 'static> ServedDevice for Disk<S> {
    fn features(&self) -> u64 {
        blk::F_SEG_MAX | blk::F_BLK_SIZE | blk::F_FLUSH | blk::F_MQ
    }

    fn queue_count(&self) -> u16 {
        self.queue_count
    }

    fn config(&self) -> Vec<u8> {
        let config = Config {
            capacity_sectors: self.storage.len_bytes() / u64::from(SECTOR_BYTES),
            seg_max: Some(126),
            block_bytes: SECTOR_BYTES,
            queue_count: self.queue_count,
            ..Config::default()
        };
        config.to_bytes().to_vec()
    }

    /// Serves a request. The last byte is the status, and the bytes before it are the data (5.2.6.1).
    fn serve(&self, _queue: u16, chain: &Chain, memory: &Memory, scratch: &mut Vec<u8>) -> Result<u32, InvalidBuffer> {
        let mut from = Cursor::readable(chain, memory);
        let mut to = Cursor::writable(chain, memory);
        let Some(writable_len) = chain.writable_len().checked_sub(1) else { return Err(InvalidBuffer) };
        let mut status_at = to.clone();
        status_at.skip(writable_len);
        let mut header = [0; HEADER_BYTES];
        let executed = from.load(&mut header).and_then(|()| {
            let readable_len = chain.readable_len() - HEADER_BYTES as u64;
            self.execute(blk::parse_header(header), &mut from, readable_len, &mut to, writable_len, scratch)
        });
        let (status, len) = executed.unwrap_or((Status::IoError, 0));
        status_at.store(&[status.code()])?;
        executed?;
        // The count covers the status byte only if no byte before it was left out (2.7.8.2).
        Ok(if len == writable_len { (len + 1).min(u32::MAX.into()) as u32 } else { len as u32 })
    }
}
