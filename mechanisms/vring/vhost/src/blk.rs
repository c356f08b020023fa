//! The block device's words (5.2), which both ends speak.

use serde::Serialize;

/// Bytes of a sector, whatever the device's blocks are (5.2.4).
pub const SECTOR_BYTES: u32 = 512;

/// Feature bits (5.2.3), those that are used here.
pub(crate) const F_SIZE_MAX: u64 = 1 << 1;
pub(crate) const F_SEG_MAX: u64 = 1 << 2;
pub(crate) const F_RO: u64 = 1 << 5;
pub(crate) const F_BLK_SIZE: u64 = 1 << 6;
pub(crate) const F_FLUSH: u64 = 1 << 9;
pub(crate) const F_MQ: u64 = 1 << 12;

/// Bytes of a request's header: type, reserved, sector (5.2.6).
pub(crate) const HEADER_BYTES: usize = 16;
/// Bytes that `VIRTIO_BLK_T_GET_ID` gives (5.2.6).
pub const ID_BYTES: u32 = 20;

/// What a request does (5.2.6).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Operation {
    /// `VIRTIO_BLK_T_IN`.
    Read = 0,
    /// `VIRTIO_BLK_T_OUT`.
    Write = 1,
    /// `VIRTIO_BLK_T_FLUSH`: what was written before is on the disk afterwards.
    Flush = 4,
    /// `VIRTIO_BLK_T_GET_ID`: the device's name, [`ID_BYTES`] with zeroes behind it.
    GetId = 8,
}

impl Operation {
    pub(crate) const fn code(self) -> u32 {
        self as u32
    }

    pub(crate) fn from_code(code: u32) -> Option<Operation> {
        [Operation::Read, Operation::Write, Operation::Flush, Operation::GetId].into_iter().find(|it| it.code() == code)
    }
}

/// How a request ended (5.2.6).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Status {
    /// `VIRTIO_BLK_S_OK`.
    Ok,
    /// `VIRTIO_BLK_S_IOERR`: an error of the device or of the driver.
    IoError,
    /// `VIRTIO_BLK_S_UNSUPP`: the device does not know such requests.
    Unsupported,
    /// A status that VirtIO does not define.
    Invalid(u8),
}

impl Status {
    pub(crate) const fn code(self) -> u8 {
        match self {
            Status::Ok => 0,
            Status::IoError => 1,
            Status::Unsupported => 2,
            Status::Invalid(code) => code,
        }
    }

    pub(crate) const fn from_code(code: u8) -> Status {
        match code {
            0 => Status::Ok,
            1 => Status::IoError,
            2 => Status::Unsupported,
            code => Status::Invalid(code),
        }
    }
}

/// A request's header, as it is in memory.
pub(crate) fn header(operation: Operation, sector: u64) -> [u8; HEADER_BYTES] {
    let mut bytes = [0; HEADER_BYTES];
    bytes[..4].copy_from_slice(&operation.code().to_le_bytes());
    bytes[8..].copy_from_slice(&sector.to_le_bytes());
    bytes
}

/// Type and sector of a header.
pub(crate) fn parse_header(bytes: [u8; HEADER_BYTES]) -> (u32, u64) {
    let [a, b, c, d, _, _, _, _, sector @ ..] = bytes;
    (u32::from_le_bytes([a, b, c, d]), u64::from_le_bytes(sector))
}

/// What a device says of itself in its configuration space (5.2.4), as far as it is used here.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub struct Config {
    /// Sectors of 512 bytes.
    pub capacity_sectors: u64,
    /// Bytes of a segment at most, if the device says.
    pub size_max: Option<u32>,
    /// Segments of a request's data at most, if the device says.
    pub seg_max: Option<u32>,
    /// Bytes of a block: what requests are multiples of.
    pub block_bytes: u32,
    /// Queues.
    pub queue_count: u16,
    /// Whether it cannot be written.
    pub is_read_only: bool,
    /// Whether it keeps what is written for a while, and writes it when told to.
    pub has_flush: bool,
}

impl Config {
    /// Bytes that are read and written here: up to and with `num_queues`.
    pub(crate) const BYTES: usize = 36;

    /// Fields count only where their feature was accepted.
    pub(crate) fn parse(bytes: &[u8; Config::BYTES], features: u64) -> Config {
        let word = |at: usize| u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
        // qemu-storage-daemon says 0 for the greatest number of bytes in a segment, which means no limit.
        let only = |bit: u64, value: u32| (features & bit != 0 && value > 0).then_some(value);
        Config {
            capacity_sectors: u64::from(word(0)) | u64::from(word(4)) << 32,
            size_max: only(F_SIZE_MAX, word(8)),
            seg_max: only(F_SEG_MAX, word(12)),
            block_bytes: only(F_BLK_SIZE, word(20)).unwrap_or(SECTOR_BYTES),
            queue_count: only(F_MQ, u32::from(u16::from_le_bytes([bytes[34], bytes[35]]))).unwrap_or(1) as u16,
            is_read_only: features & F_RO != 0,
            has_flush: features & F_FLUSH != 0,
        }
    }

    /// As the device shows it.
    pub(crate) fn to_bytes(self) -> [u8; Config::BYTES] {
        let mut bytes = [0; Config::BYTES];
        bytes[..8].copy_from_slice(&self.capacity_sectors.to_le_bytes());
        bytes[8..12].copy_from_slice(&self.size_max.unwrap_or(0).to_le_bytes());
        bytes[12..16].copy_from_slice(&self.seg_max.unwrap_or(0).to_le_bytes());
        bytes[20..24].copy_from_slice(&self.block_bytes.to_le_bytes());
        bytes[34..].copy_from_slice(&self.queue_count.to_le_bytes());
        bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 5.2.4 and 5.2.6, byte by byte.
    #[test]
    fn what_is_written_is_what_is_read() {
        let config = Config {
            capacity_sectors: 0x1_2345_6789,
            size_max: Some(1 << 20),
            seg_max: Some(126),
            block_bytes: 4096,
            queue_count: 3,
            is_read_only: false,
            has_flush: true,
        };
        let bytes = config.to_bytes();
        assert_eq!(bytes[..8], [0x89, 0x67, 0x45, 0x23, 1, 0, 0, 0]);
        assert_eq!((bytes[12], bytes[21], bytes[34]), (126, 16, 3));
        let features = F_SIZE_MAX | F_SEG_MAX | F_BLK_SIZE | F_MQ | F_FLUSH;
        assert_eq!(Config::parse(&bytes, features), config);
        let least = Config::parse(&bytes, 0);
        assert_eq!((least.size_max, least.seg_max, least.block_bytes, least.queue_count), (None, None, 512, 1));

        let header = header(Operation::Flush, 7 << 40);
        assert_eq!(header, [4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 7, 0, 0]);
        assert_eq!(parse_header(header), (4, 7 << 40));
        assert!([0, 1, 2, 9].into_iter().all(|code| Status::from_code(code).code() == code));
    }
}
