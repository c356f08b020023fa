//! The header of a page. A page is a CTF packet: packet header and packet context in the form that the metadata
//! declare, byte-packed, little-endian.
//!
//! | offset | size | field | written |
//! | ---: | ---: | --- | --- |
//! | 0 | 4 | magic | when the page is drawn |
//! | 4 | 16 | uuid | when the page is drawn |
//! | 20 | 4 | stream_id | when the page is drawn |
//! | 24 | 4 | stream_instance_id | when the page is drawn |
//! | 28 | 4 | cpu_id | when the page is drawn |
//! | 32 | 8 | timestamp_begin | when the page becomes current |
//! | 40 | 8 | timestamp_end | when the page is closed |
//! | 48 | 8 | content_size, bits | when the page is closed |
//! | 56 | 8 | packet_size, bits | when the page is drawn |
//! | 64 | 8 | packet_seq_num | when the page becomes current |
//! | 72 | 8 | events_discarded, cumulative for the stream | when the page is closed |
#![allow(missing_docs)]

/// CTF's packet magic.
pub const MAGIC: u32 = 0xC1FC_1FC1;
/// `stream_id` of event streams.
pub const STREAM_EVENTS: u32 = 0;
/// `stream_id` of the state stream that the session owner writes.
pub const STREAM_STATE: u32 = 1;
/// `cpu_id` if the CPU is not known (streams of programs without rseq, the state stream).
pub const CPU_UNKNOWN: u32 = u32::MAX;

pub const OFFSET_MAGIC: usize = 0;
pub const OFFSET_UUID: usize = 4;
pub const OFFSET_STREAM_ID: usize = 20;
pub const OFFSET_INSTANCE: usize = 24;
pub const OFFSET_CPU_ID: usize = 28;
pub const OFFSET_TIMESTAMP_BEGIN: usize = 32;
pub const OFFSET_TIMESTAMP_END: usize = 40;
pub const OFFSET_CONTENT_SIZE: usize = 48;
pub const OFFSET_PACKET_SIZE: usize = 56;
pub const OFFSET_SEQ: usize = 64;
pub const OFFSET_DISCARDED: usize = 72;
/// Size of the header, in bytes; the first record follows.
pub const HEADER_SIZE_BYTES: usize = 80;

/// Minimum size of a page.
pub const PAGE_SIZE_MIN: usize = 4096;
/// Maximum size of a page.
pub const PAGE_SIZE_MAX: usize = 2 << 20;
/// Number of bytes at a page's end that no record reaches, so that a copy by whole words cannot leave the page.
pub const SLACK_BYTES: usize = 8;

/// Returns the maximum size of a record, including its header, in a page of this size, in bytes.
pub const fn record_size_max_bytes(page_size_bytes: usize) -> usize {
    page_size_bytes - HEADER_SIZE_BYTES - SLACK_BYTES
}
