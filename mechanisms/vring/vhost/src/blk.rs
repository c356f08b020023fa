//! Definitions of the block device (5.2), for both ends.

use serde::Serialize;

/// Bytes of a sector, independent of the device's block size (5.2.4).
pub const SECTOR_BYTES: u32 = 512;

/// Feature bits (5.2.3) that this crate uses.
pub(crate) const F_SIZE_MAX: u64 = 1 << 1;
pub(crate) const F_SEG_MAX: u64 = 1 << 2;
pub(crate) const F_RO: u64 = 1 << 5;
pub(crate) const F_BLK_SIZE: u64 = 1 << 6;
pub(crate) const F_FLUSH: u64 = 1 << 9;
pub(crate) const F_MQ: u64 = 1 << 12;

/// Bytes of a request's header: type, reserved, sector (5.2.6).
pub(crate) const HEADER_BYTES: usize = 16;
/// Bytes that `VIRTIO_BLK_T_GET_ID` returns (5.2.6).
pub const ID_BYTES: u32 = 20;

/// Type of a request (5.2.6).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Operation {
    /// `VIRTIO_BLK_T_IN`.
    Read = 0,
    /// `VIRTIO_BLK_T_OUT`.
    Write = 1,
    /// `VIRTIO_BLK_T_FLUSH`: makes everything that was written before permanent.
    Flush = 4,
    /// `VIRTIO_BLK_T_GET_ID`: returns the device's name, [`ID_BYTES`] bytes padded with zeroes.
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

/// Result of a request (5.2.6).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Status {
    /// `VIRTIO_BLK_S_OK`.
    Ok,
    /// `VIRTIO_BLK_S_IOERR`: an error of the device or of the driver.
    IoError,
    /// `VIRTIO_BLK_S_UNSUPP`: the device does not support the request.
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

/// Returns a request's header, in its format in memory.
pub(crate) fn header(operation: Operation, sector: u64) -> [u8; HEADER_BYTES] {
    let mut bytes = [0; HEADER_BYTES];
    bytes[..4].copy_from_slice(&operation.code().to_le_bytes());
    bytes[8..].copy_from_slice(&sector.to_le_bytes());
    bytes
}

/// Returns type and sector of a header.
pub(crate) fn parse_header(bytes: [u8; HEADER_BYTES]) -> (u32, u64) {
    let [a, b, c, d, _, _, _, _, sector @ ..] = bytes;
    (u32::from_le_bytes([a, b, c, d]), u64::from_le_bytes(sector))
}

/// The fields of a device's configuration space (5.2.4) that this crate uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub struct Config {
    /// Capacity, in sectors of 512 bytes.
    pub capacity_sectors: u64,
    /// Maximum number of bytes of a segment, if the device has a limit.
    pub size_max: Option<u32>,
    /// Maximum number of segments of a request's data, if the device has a limit.
    pub seg_max: Option<u32>,
    /// Bytes of a block. Request sizes are multiples of it.
    pub block_bytes: u32,
    /// Number of queues.
    pub queue_count: u16,
    /// Whether the device is read-only.
    pub is_read_only: bool,
    /// Whether the device caches writes, and supports flush requests.
    pub has_flush: bool,
}

impl Config {
    /// Number of bytes that this crate reads and writes: up to and including `num_queues`.
    pub(crate) const BYTES: usize = 36;

    /// Parses a configuration space. A field is used only if its feature was accepted.
    pub(crate) fn parse(bytes: &[u8; Config::BYTES], features: u64) -> Config {
        let word = |at: usize| u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
        // qemu-storage-daemon gives 0 for the maximum number of bytes of a segment, which means no limit.
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

    /// Returns the configuration space, as a device shows it.
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

    /// Checks the formats of 5.2.4 and 5.2.6 byte by byte.
    #[test]
    fn a_request_is_read_back_as_written() {
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
