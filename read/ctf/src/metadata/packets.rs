//! Metadata in packets (clause 7.1), a form that some tracers store and send. Each packet has a header and a part of
//! the text.

use super::MetadataError;

/// Magic at the start of a packet, in the writer's byte order.
const MAGIC: u32 = 0x75D1_1D57;
/// Size of a packet header: magic, uuid, checksum, two sizes in bits, three schemes, two version numbers.
const HEADER_SIZE_BYTES: usize = 37;
const OFFSET_UUID: usize = 4;
const OFFSET_CONTENT_SIZE: usize = 24;
const OFFSET_PACKET_SIZE: usize = 28;
/// Offset of the schemes for compression, encryption and checksum; 0 means none.
const OFFSET_SCHEMES: usize = 32;
const OFFSET_VERSION: usize = 35;

/// Returns the text without headers and padding, or `None` if `bytes` do not begin with a packet.
pub(super) fn text(bytes: &[u8]) -> Result<Option<Vec<u8>>, MetadataError> {
    let number: fn([u8; 4]) -> u32 = match bytes.first_chunk() {
        Some(magic) if u32::from_le_bytes(*magic) == MAGIC => u32::from_le_bytes,
        Some(magic) if u32::from_be_bytes(*magic) == MAGIC => u32::from_be_bytes,
        _ => return Ok(None),
    };
    let (mut text, mut rest) = (Vec::new(), bytes);
    while !rest.is_empty() {
        let offset_bytes = bytes.len() - rest.len();
        let (content, tail) = packet(bytes, rest, number).map_err(|what| {
            MetadataError::Unreadable(format!("the packet of metadata at byte {offset_bytes} {what}"))
        })?;
        text.extend(content);
        rest = tail;
    }
    Ok(Some(text))
}

/// Returns the content of the packet at the start of `rest`, and the rest after it. `bytes` starts with the first
/// packet.
fn packet<'a>(bytes: &[u8], rest: &'a [u8], number: fn([u8; 4]) -> u32) -> Result<(&'a [u8], &'a [u8]), &'static str> {
    let header: &[u8; HEADER_SIZE_BYTES] = rest.first_chunk().ok_or("is cut off within its header")?;
    let number_at = |offset| number(std::array::from_fn(|index| header[offset + index]));
    if number_at(0) != MAGIC {
        return Err("does not start with the magic of metadata");
    }
    if header[OFFSET_UUID..][..16] != bytes[OFFSET_UUID..][..16] {
        return Err("belongs to another trace than the first: its uuid is another");
    }
    if header[OFFSET_SCHEMES..][..3] != [0; 3] {
        return Err("is compressed, encrypted or has a checksum, which is not read");
    }
    if header[OFFSET_VERSION..] != [1, 8] {
        return Err("is of another version than CTF 1.8");
    }
    let size = |offset| (number_at(offset) as usize).is_multiple_of(8).then_some(number_at(offset) as usize / 8);
    let (Some(content), Some(size)) = (size(OFFSET_CONTENT_SIZE), size(OFFSET_PACKET_SIZE)) else {
        return Err("has a size that is no whole number of bytes");
    };
    if !(HEADER_SIZE_BYTES..=size).contains(&content) {
        return Err("claims more content than it has room for, or less than its header");
    }
    let (packet, tail) = rest.split_at_checked(size).ok_or("is cut off")?;
    Ok((&packet[HEADER_SIZE_BYTES..content], tail))
}
