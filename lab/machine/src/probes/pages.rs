//! Whether memory is there: what reading costs where it is, and where it is not.

use std::hint::black_box;
use std::time::Instant;

use super::Looks;
use super::memory::{Buffer, sum};

/// What the first touch of a small page costs to read it, and bytes read in a nanosecond of what nobody has written and of what somebody has.
/// That nobody has written the latter either is a mistake, as the paper's: tests make it.
pub(super) fn backing(is_written: bool, looks: &mut Looks) {
    let bytes = looks.memory_bytes();
    let Some(mut buffer) = Buffer::new(bytes, false) else {
        return looks.note(format!("page backing: no memory for {bytes} bytes"));
    };
    let read = |buffer: &Buffer| {
        let begun = Instant::now();
        black_box(sum(buffer.words()));
        begun.elapsed().as_nanos() as f64
    };
    let first = read(&buffer);
    let later = read(&buffer).min(read(&buffer));
    looks.add("page backing.first_touch", "ns", &[(first - later) / (bytes / rustix::param::page_size()) as f64]);
    looks.add("page backing.reading_unwritten", "B/ns", &[bytes as f64 / later]);
    if is_written {
        buffer.words_mut().fill(1);
    }
    let later = read(&buffer).min(read(&buffer));
    looks.add("page backing.reading", "B/ns", &[bytes as f64 / later]);
}
