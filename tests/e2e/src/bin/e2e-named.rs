//! A program with named threads. It prints their ids and names, and goes on when the test makes files in its directory:
//! one thread takes another name at `rename`, and all end at `end`, each after one more event.

use std::path::{Path, PathBuf};
use std::time::Duration;

fn wait_for(file: &Path) {
    while !file.exists() {
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn main() {
    let dir = PathBuf::from(std::env::args_os().nth(1).expect("a directory"));
    let start = |name: &str, rename: bool| {
        let (dir, own_name) = (dir.clone(), name.to_string());
        let run = move || {
            // SAFETY: gettid(2) has no conditions.
            println!("{own_name} {}", unsafe { libc::gettid() });
            dormouse::event!(named.first);
            if rename {
                wait_for(&dir.join("rename"));
                // SAFETY: prctl(2) reads a text that ends in NUL.
                unsafe { libc::prctl(libc::PR_SET_NAME, c"gamma".as_ptr()) };
            }
            wait_for(&dir.join("end"));
            dormouse::event!(named.last);
        };
        std::thread::Builder::new().name(name.into()).spawn(run).expect("a thread")
    };
    let threads = [start("alpha", true), start("beta", false)];
    wait_for(&dir.join("end"));
    dormouse::event!(named.last);
    threads.into_iter().for_each(|thread| thread.join().expect("it does not panic"));
}
