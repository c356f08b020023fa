//! Whether the buffers of an engine are memory: on pages that nobody has written, its loops would time page faults, or the one page of zeroes.

use std::collections::BTreeSet;
use std::sync::{Mutex, PoisonError};

use dormouse_backing::NotBacked;

/// What was found: buffers that are not there, and such of which the kernel does not tell.
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

/// Looks at a buffer that loops use, before they are timed. Where some of it is no memory of its own, the engine has no figures from here on;
/// where the kernel does not tell, each figure says so. Not in a loop: it asks the kernel.
pub fn assure_backed<T>(what: &str, buffer: &[T]) {
    assure_backed_raw(what, buffer.as_ptr().cast(), size_of_val(buffer));
}

/// As [`assure_backed`], of memory of which there can be no slice. It is not accessed.
pub fn assure_backed_raw(what: &str, base: *const u8, size_bytes: usize) {
    if let Err(error) = dormouse_backing::check_backed_raw(base, size_bytes) {
        FOUND.lock().unwrap_or_else(PoisonError::into_inner).add(what, error);
    }
}

/// What is to be said of figures, one line for each buffer of which the kernel does not tell; or why there are none.
pub(crate) fn verdict() -> Result<Vec<String>, String> {
    FOUND.lock().unwrap_or_else(PoisonError::into_inner).verdict()
}

/// Page faults that the calling thread has had, of either kind (getrusage(2)).
pub(crate) fn faults() -> u64 {
    let mut usage = std::mem::MaybeUninit::<libc::rusage>::zeroed();
    // SAFETY: room for the answer; with this argument it does not fail.
    unsafe { libc::getrusage(libc::RUSAGE_THREAD, usage.as_mut_ptr()) };
    // SAFETY: filled in, and all zeroes would be plain data too.
    let usage = unsafe { usage.assume_init() };
    (usage.ru_minflt + usage.ru_majflt) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_that_are_not_there_have_no_figures() {
        let mut found = Found::default();
        assert_eq!(found.verdict(), Ok(vec![]));
        // Zeroes that nobody has written.
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
        // What is in the buffer is not to be known at compile time.
        std::hint::black_box(std::hint::black_box(&buffer)[1 << 20]);
        assert!(faults() > before);
    }
}
