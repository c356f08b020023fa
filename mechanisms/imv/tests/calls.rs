//! Calls of functions that are exchanged while threads call them.
#![cfg(target_os = "linux")]

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;

use dormouse_imv::static_call;

extern "C" fn once(number: u64, scale: f64) -> f64 {
    number as f64 * scale
}

extern "C" fn twice(number: u64, scale: f64) -> f64 {
    2.0 * number as f64 * scale
}

static DONE: AtomicU64 = AtomicU64::new(0);

extern "C" fn add() {
    DONE.fetch_add(1, Ordering::SeqCst);
}

extern "C" fn add_ten() {
    DONE.fetch_add(10, Ordering::SeqCst);
}

extern "C" fn even() -> u64 {
    0
}

extern "C" fn odd() -> u64 {
    1
}

extern "C" fn near() -> u32 {
    1
}

static_call! {
    mod parity: extern "C" fn() -> u64 = even;
    mod distant: extern "C" fn() -> u32 = near;
    mod scaled: extern "C" fn(number: u64, scale: f64) -> f64 = once;
    mod done: extern "C" fn() = add;
}

#[test]
fn a_call_reaches_the_current_function() {
    for _ in 0..3 {
        assert_eq!(scaled::call(3, 0.5), 1.5);
        scaled::update(twice).unwrap();
        assert_eq!(scaled::call(3, 0.5), 3.0);
        scaled::update(once).unwrap();
    }
    done::call();
    done::update(add_ten).unwrap();
    done::call();
    assert_eq!(DONE.load(Ordering::SeqCst), 11);
    let count = scaled::sites().unwrap();
    let is_patched = cfg!(all(target_arch = "x86_64", not(feature = "generic")));
    assert_eq!((count.sites, count.patched), (is_patched.into(), is_patched.into()));
}

/// Threads call while the function is exchanged; after each exchange every thread must have called the new one first.
#[test]
fn no_thread_calls_the_former_function_after_an_update_has_returned() {
    const UPDATES: u64 = 1_000;
    let reports = [const { AtomicU64::new(0) }; 3];
    let (epoch, wrong, stop) = (AtomicU64::new(0), AtomicU64::new(0), AtomicBool::new(false));
    thread::scope(|scope| {
        for report in &reports {
            let (epoch, wrong, stop) = (&epoch, &wrong, &stop);
            scope.spawn(move || {
                while !stop.load(Ordering::SeqCst) {
                    let before = epoch.load(Ordering::SeqCst);
                    let is_first = before > report.load(Ordering::SeqCst);
                    if parity::call() != before % 2 && is_first {
                        wrong.fetch_add(1, Ordering::SeqCst);
                    }
                    report.store(before, Ordering::SeqCst);
                    if !is_first {
                        thread::yield_now();
                    }
                }
            });
        }
        for number in 1..=UPDATES {
            parity::update(if number % 2 == 1 { odd } else { even }).expect("an update");
            epoch.store(number, Ordering::SeqCst);
            while reports.iter().any(|report| report.load(Ordering::SeqCst) < number) {
                thread::yield_now();
            }
        }
        stop.store(true, Ordering::SeqCst);
    });
    assert_eq!(wrong.into_inner(), 0);
}

/// A function that no `jmp` of five bytes reaches is called through the variable.
#[test]
#[cfg(all(target_arch = "x86_64", not(feature = "generic")))]
fn a_function_out_of_reach_is_called_indirectly() {
    use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous};

    let protection = ProtFlags::READ | ProtFlags::WRITE | ProtFlags::EXEC;
    let wanted = std::ptr::without_provenance_mut(0x1000_0000_0000);
    // SAFETY: a new mapping (mmap(2)), at an address that is only a hint, 16 TiB into the address space.
    let code =
        unsafe { mmap_anonymous(wanted, 4096, protection, MapFlags::PRIVATE) }.expect("memory").cast::<[u8; 6]>();
    assert!(code.addr().abs_diff(near as *const () as usize) > 1 << 31);
    // SAFETY: within the mapping: mov eax, 2; ret.
    unsafe { code.write([0xB8, 2, 0, 0, 0, 0xC3]) };
    // SAFETY: the code is a function of that type.
    let far = unsafe { std::mem::transmute::<*mut [u8; 6], extern "C" fn() -> u32>(code) };
    assert_eq!((distant::call(), distant::sites().unwrap().patched), (1, 1));
    for _ in 0..2 {
        distant::update(far).unwrap();
        assert_eq!((distant::call(), distant::sites().unwrap().patched), (2, 0));
        distant::update(near).unwrap();
        assert_eq!((distant::call(), distant::sites().unwrap().patched), (1, 1));
    }
}
