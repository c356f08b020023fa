//! Whether memory is there: what reading costs where it is, and where it is not.

use std::hint::black_box;
use std::time::Instant;

use super::memory::{Buffer, sum};
use super::{Plan, Probes};

/// Whether the buffer for reading memory that is there is written before.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Written {
    Yes,
    /// A mistake, as the paper's.
    #[cfg_attr(not(test), expect(dead_code, reason = "planted by tests"))]
    No,
}

/// What the first touch of a small page costs to read it, and bytes read in a nanosecond of what nobody has written and of what somebody has.
pub(super) fn backing(plan: &Plan, written: Written, probes: &mut Probes) {
    let bytes = plan.memory_bytes();
    let pages = (bytes / rustix::param::page_size()) as f64;
    let (mut touches, mut unwritten, mut there) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..plan.count {
        let Some(mut buffer) = Buffer::new(bytes, false) else {
            probes.notes.push(format!("page backing: no memory for {bytes} bytes"));
            return;
        };
        let read = |buffer: &Buffer| {
            let begun = Instant::now();
            black_box(sum(buffer.words()));
            begun.elapsed().as_nanos() as f64
        };
        let first = read(&buffer);
        let later = read(&buffer).min(read(&buffer));
        touches.push((first - later) / pages);
        unwritten.push(bytes as f64 / later);
        if written == Written::Yes {
            buffer.words_mut().fill(1);
        }
        let later = read(&buffer).min(read(&buffer));
        there.push(bytes as f64 / later);
    }
    probes.add("page backing.first_touch", "ns", &touches);
    probes.add("page backing.reading", "B/ns", &there);
    probes.add("page backing.reading_unwritten", "B/ns", &unwritten);
}
