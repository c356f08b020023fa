//! Checks that the buffers of an engine are backed by memory. On pages that were never written, its loops would time
//! page faults, or reads of the zero page.

use std::collections::BTreeSet;
use std::sync::{Mutex, PoisonError};

use dormouse_backing::NotBacked;

/// Failed checks: buffers that are not backed, and buffers for which the kernel does not report it.
#[derive(Debug, Default)]
struct Found {
    missing: BTreeSet<String>,
    untold: BTreeSet<String>,
}

impl Found {
    fn add(&mut self, what: &str, error: NotBacked) {
        let lines = if matches!(error, NotBacked::Missing(_)) { &mut self.missing } else { &mut self.untold };
        lines.insert(format!("{what}: {error}"));
    }

    fn verdict(&self) -> Result<Vec<String>, String> {
        match self.missing.first() {
            Some(line) => Err(format!("no figures from buffers that are not there: {line}")),
            None => Ok(self.untold.iter().cloned().collect()),
        }
    }
}

static FOUND: Mutex<Found> = Mutex::new(Found { missing: BTreeSet::new(), untold: BTreeSet::new() });

/// Checks a buffer that loops use, before they are timed. If a part of it is not backed by memory of its own, the
/// engine gives no figures from here on. If the kernel does not report it, each figure says so. It must not be called
/// in a loop, because it asks the kernel.
pub fn assure_backed<T>(what: &str, buffer: &[T]) {
    assure_backed_raw(what, buffer.as_ptr().cast(), size_of_val(buffer));
}

/// Checks memory for which there can be no slice, like [`assure_backed`]. The memory is not accessed.
pub fn assure_backed_raw(what: &str, base: *const u8, size_bytes: usize) {
    if let Err(error) = dormouse_backing::check_backed_raw(base, size_bytes) {
        FOUND.lock().unwrap_or_else(PoisonError::into_inner).add(what, error);
    }
}

/// Returns the remarks for figures, one line for each buffer for which the kernel does not report its backing; or the
/// reason why there are no figures.
pub(crate) fn verdict() -> Result<Vec<String>, String> {
    FOUND.lock().unwrap_or_else(PoisonError::into_inner).verdict()
}

/// Returns the number of page faults of the calling thread, minor and major (getrusage(2)).
pub(crate) fn faults() -> u64 {
    let mut usage = std::mem::MaybeUninit::<libc::rusage>::zeroed();
    // SAFETY: `usage` has room for the answer; with this argument the call does not fail.
    unsafe { libc::getrusage(libc::RUSAGE_THREAD, usage.as_mut_ptr()) };
    // SAFETY: getrusage(2) has filled it in, and zeroes would be valid too.
    let usage = unsafe { usage.assume_init() };
    (usage.ru_minflt + usage.ru_majflt) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unbacked_buffers_have_no_figures() {
        let mut found = Found::default();
        assert_eq!(found.verdict(), Ok(vec![]));
        // Zeroes that were never written.
        let mut buffer = vec![0_u8; 4 << 20];
        let error = dormouse_backing::check_backed(&buffer).unwrap_err();
        let NotBacked::Missing(missing) = error else { panic!("{error}") };
        found.add("a table", NotBacked::ZeroUnseen(missing));
        let untold = found.verdict().unwrap();
        assert!(
            untold.len() == 1 && untold[0].starts_with("a table: ") && untold[0].contains("Linux 6.7"),
            "{untold:?}"
        );
        found.add("a buffer", error);
        let refused = found.verdict().unwrap_err();
        assert!(refused.starts_with("no figures from buffers that are not there: a buffer: "), "{refused}");
        buffer.fill(1);
        assure_backed("a buffer", &buffer);
        assert_eq!(verdict(), Ok(vec![]));
    }

    #[test]
    fn a_touch_is_a_fault() {
        let buffer = vec![0_u8; 4 << 20];
        let before = faults();
        // The content of the buffer must not be known at compile time.
        std::hint::black_box(std::hint::black_box(&buffer)[1 << 20]);
        assert!(faults() > before);
    }
}
