//! Unpacks compressed data into unnamed files, within limits.

use std::fs::File;
use std::io::{BufRead, BufReader, Read, Write};
use std::path::Path;
use std::sync::Arc;

use crate::extent::Extent;
use dormouse_directory::Error;

/// First bytes of compressed data.
const GZIP: &[u8] = &[0x1F, 0x8B];
const ZSTD: &[u8] = &[0x28, 0xB5, 0x2F, 0xFD];
/// Magic of skippable zstd frames, after a byte `0x5x` with `x` from 0 to 15. The length of the frame follows.
const ZSTD_PASSED_OVER: &[u8] = &[0x2A, 0x4D, 0x18];

/// Largest window that a frame may need. Levels up to 19 need 8 MiB.
const ZSTD_WINDOW_BYTES_MAX: u64 = 32 << 20;

/// Number of bytes that are unpacked at a time.
const CHUNK_BYTES: usize = 128 << 10;

/// Whether data with these first bytes is compressed as a whole.
pub fn is_compressed(start: &[u8]) -> bool {
    start.starts_with(GZIP) || start.starts_with(ZSTD)
}

/// Returns the file, or its unpacked contents if it was compressed by zstd.
pub(crate) fn unpacked(extent: Extent, path: &Path) -> Result<Extent, Error> {
    match extent.start::<4>() {
        Ok(start) if start.starts_with(ZSTD) => spool(Reading { extent: &extent, offset: 0 }, path, bytes_max()),
        _ => Ok(extent),
    }
}

/// Returns half of the free space where unnamed files are created.
pub(crate) fn bytes_max() -> u64 {
    let free = rustix::fs::statvfs(std::env::temp_dir()).map(|stat| stat.f_bavail.saturating_mul(stat.f_frsize));
    free.unwrap_or(0) / 2
}

/// Copies everything from `reader` to an unnamed file, unpacked if it is compressed, up to `bytes_max`.
///
/// # Errors
/// One line: there is more data, or it cannot be unpacked or written.
pub fn spool(reader: impl Read, path: &Path, bytes_max: u64) -> Result<Extent, Error> {
    let shown = path.display();
    let place = std::env::temp_dir();
    let failed = |error: std::io::Error| Error(format!("cannot unpack {shown} into {}: {error}", place.display()));
    let mut file = tempfile::tempfile_in(&place).map_err(failed)?;
    let mut reader = BufReader::with_capacity(CHUNK_BYTES, reader);
    let start = reader.fill_buf().map_err(failed)?;
    let mut unpacker: Box<dyn Read> = match () {
        () if start.starts_with(GZIP) => Box::new(flate2::bufread::MultiGzDecoder::new(reader)),
        () if start.starts_with(ZSTD) => Box::new(Frames { reader: Some(reader), frame: None }),
        () => Box::new(reader),
    };
    let (mut bytes, mut size_bytes) = (vec![0; CHUNK_BYTES], 0u64);
    loop {
        let count = match unpacker.read(&mut bytes) {
            Ok(0) => break,
            Ok(count) => count,
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(failed(error)),
        };
        size_bytes += count as u64;
        if size_bytes > bytes_max {
            return Err(Error(format!(
                "cannot unpack {shown}: it has more than {bytes_max} bytes, half of what is free in {}; set TMPDIR to another directory",
                place.display()
            )));
        }
        file.write_all(&bytes[..count]).map_err(failed)?;
    }
    Ok(Extent::new(Arc::new(file), 0, size_bytes))
}

/// Reads an extent from its start.
pub(crate) struct Reading<'a> {
    pub extent: &'a Extent,
    pub offset: u64,
}

impl Read for Reading<'_> {
    fn read(&mut self, bytes: &mut [u8]) -> std::io::Result<usize> {
        let count = self.extent.read_at(bytes, self.offset)?;
        self.offset += count as u64;
        Ok(count)
    }
}

impl std::io::Seek for Reading<'_> {
    fn seek(&mut self, position: std::io::SeekFrom) -> std::io::Result<u64> {
        let offset = match position {
            std::io::SeekFrom::Start(offset) => Some(offset),
            std::io::SeekFrom::Current(by) => self.offset.checked_add_signed(by),
            std::io::SeekFrom::End(by) => self.extent.size_bytes.checked_add_signed(by),
        };
        self.offset = offset.ok_or(std::io::ErrorKind::InvalidInput)?;
        Ok(self.offset)
    }
}

type Frame<R> = ruzstd::decoding::StreamingDecoder<BufReader<R>, ruzstd::decoding::FrameDecoder>;

/// Contents of the zstd frames of a file, one after another.
struct Frames<R: Read> {
    reader: Option<BufReader<R>>,
    frame: Option<Frame<R>>,
}

impl<R: Read> Frames<R> {
    /// Opens the next frame; false at the end.
    fn open(&mut self) -> std::io::Result<bool> {
        let Some(mut reader) = self.reader.take() else { return Ok(false) };
        loop {
            let start = reader.fill_buf()?;
            if start.is_empty() {
                return Ok(false);
            }
            if !(start.len() >= 4 && start[0] & 0xF0 == 0x50 && start[1..4] == *ZSTD_PASSED_OVER) {
                break;
            }
            let mut header = [0; 8];
            reader.read_exact(&mut header)?;
            let size_bytes = u32::from_le_bytes([header[4], header[5], header[6], header[7]]);
            std::io::copy(&mut (&mut reader).take(size_bytes.into()), &mut std::io::sink())?;
        }
        let frame = ruzstd::decoding::StreamingDecoder::new_with_max_window_size(reader, ZSTD_WINDOW_BYTES_MAX);
        self.frame = Some(frame.map_err(|error| std::io::Error::other(error.to_string()))?);
        Ok(true)
    }
}

impl<R: Read> Read for Frames<R> {
    fn read(&mut self, bytes: &mut [u8]) -> std::io::Result<usize> {
        loop {
            if let Some(frame) = &mut self.frame {
                let count = frame.read(bytes)?;
                if count > 0 {
                    return Ok(count);
                }
                let (stated, found) = (frame.decoder.get_checksum_from_data(), frame.decoder.get_calculated_checksum());
                if stated.is_some_and(|stated| found != Some(stated)) {
                    return Err(std::io::Error::other("its checksum is not that of what is in it"));
                }
                self.reader = self.frame.take().map(Frame::into_inner);
            }
            if !self.open()? {
                return Ok(0);
            }
        }
    }
}

/// Returns all of standard input, unpacked if it is compressed.
pub(crate) fn standard_input() -> Result<Extent, Error> {
    let input = std::io::stdin();
    spool(input.lock(), Path::new("standard input"), bytes_max())
}

/// Returns the contents of a file that a user has named, unpacked if it is compressed.
pub(crate) fn file(path: &Path, file: File) -> Result<Extent, Error> {
    let failed = dormouse_directory::not_read(path);
    let extent = Extent::all(file).and_then(|extent| Ok((extent.start::<4>()?, extent)));
    let (start, extent) = extent.map_err(failed)?;
    match is_compressed(&start) {
        true => spool(Reading { extent: &extent, offset: 0 }, path, bytes_max()),
        false => Ok(extent),
    }
}
