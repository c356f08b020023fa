//! A shop with things that a newcomer looks for in a trace: a request that waits for a lock, memory that leaks, and a
//! file that stays open for long.
//!
//! Request 7 waits for a lock that another thread holds while it does all the others, so it is the slowest on any
//! machine. The file `slow` is open all that time. The memory of every fourth of the other requests is not freed.

use std::ffi::CString;
use std::sync::Mutex;
use std::sync::mpsc::channel;

/// Bytes that a request allocates.
const REQUEST_BYTES: usize = 4321;

fn open(dir: &str, name: &str) -> i32 {
    let path = CString::new(format!("{dir}/{name}")).expect("a path");
    // SAFETY: the path ends in NUL and lives as long as the call.
    let fd = unsafe { libc::open(path.as_ptr(), libc::O_CREAT | libc::O_WRONLY, 0o600) };
    assert!(fd >= 0, "{path:?} is opened");
    fd
}

fn close(fd: i32) {
    // SAFETY: close(2) only requires that no other code uses the descriptor: `open` has given it to the caller alone.
    assert_eq!(unsafe { libc::close(fd) }, 0);
}

fn request(dir: &str, id: u64) {
    dormouse::event!(shop.request_begin, id);
    // SAFETY: malloc(3) has no preconditions.
    let memory = unsafe { libc::malloc(REQUEST_BYTES) };
    // Prevents the compiler from removing unused memory.
    std::hint::black_box(memory);
    close(open(dir, if id.is_multiple_of(2) { "even" } else { "odd" }));
    if !id.is_multiple_of(4) {
        // SAFETY: the memory was allocated above and has no other owner.
        unsafe { libc::free(memory) };
    }
    dormouse::event!(shop.request_end, id);
}

fn main() {
    let Some(dir) = std::env::args().nth(1).filter(|dir| !dir.starts_with('-')) else {
        eprintln!("usage: e2e-shop DIR\n\nServes 20 requests of a shop, whose files are in DIR.");
        std::process::exit(2);
    };
    let (lock, (waits, is_waiting)) = (Mutex::new(()), channel());
    let slow = open(&dir, "slow");
    std::thread::scope(|scope| {
        let held = lock.lock().expect("nobody has panicked");
        scope.spawn(|| {
            let id = 7_u64;
            dormouse::event!(shop.request_begin, id);
            dormouse::event!(shop.lock_req, id);
            waits.send(()).expect("it is waited for");
            drop(lock.lock());
            dormouse::event!(shop.lock_acq, id);
            dormouse::event!(shop.request_end, id);
        });
        is_waiting.recv().expect("the other thread comes so far");
        (0..20).filter(|id| *id != 7).for_each(|id| request(&dir, id));
        drop(held);
    });
    close(slow);
}
