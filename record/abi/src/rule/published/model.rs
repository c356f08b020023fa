//! Tests in a model checker: bytes are read while they are replaced.

use std::sync::Arc;

use loom::thread;

use super::*;
use crate::atomic::{Fault, check};

/// A writer replaces the bytes this often while a reader reads them once.
fn is_read_whole(fault: Fault) {
    // SAFETY: all zeroes is no bytes.
    let published: Arc<Published<2>> = unsafe { Arc::new_zeroed().assume_init() };
    check(Some(3), fault, move || {
        let writer = {
            let published = Arc::clone(&published);
            thread::spawn(move || (1..=3).for_each(|byte| assert!(published.replace(&[byte; 16]))))
        };
        let words = published.read(|words| (words.len(), words.word(0), words.word(1)));
        if let Some((len, first, second)) = words {
            assert!([0, 16].contains(&len) && (first == second), "words of two versions");
        }
        writer.join().unwrap();
    });
}

#[test]
fn words_of_one_version_are_read() {
    is_read_whole(Fault::None);
}

#[test]
#[should_panic(expected = "words of two versions")]
fn what_is_not_released_is_mixed() {
    is_read_whole(Fault::Releases);
}

#[test]
#[should_panic(expected = "words of two versions")]
fn what_is_not_acquired_is_mixed() {
    is_read_whole(Fault::Acquires);
}
