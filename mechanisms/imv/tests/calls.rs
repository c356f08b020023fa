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
    let is_patched = cfg!(all(any(target_arch = "x86_64", target_arch = "aarch64"), not(feature = "generic")));
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

/// Code of a function that returns 2: `mov eax, 2; ret`, or `mov w0, #2; ret`.
#[cfg(all(any(target_arch = "x86_64", target_arch = "aarch64"), not(feature = "generic")))]
const RETURN_2: &[u8] = if cfg!(target_arch = "x86_64") {
    &[0xB8, 2, 0, 0, 0, 0xC3]
} else {
    &[0x40, 0, 0x80, 0x52, 0xC0, 0x03, 0x5F, 0xD6]
};

/// Maps a function that returns 2, at an address that is only a hint.
#[cfg(all(any(target_arch = "x86_64", target_arch = "aarch64"), not(feature = "generic")))]
fn function_at(wanted: usize) -> extern "C" fn() -> u32 {
    use rustix::mm::{MapFlags, MprotectFlags, ProtFlags, mmap_anonymous, mprotect};

    let wanted = std::ptr::without_provenance_mut(wanted);
    let protection = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: a new mapping (mmap(2)), where nothing is.
    let code = unsafe { mmap_anonymous(wanted, 4096, protection, MapFlags::PRIVATE) }.expect("memory");
    // SAFETY: the mapping is longer than the code.
    unsafe { code.cast::<u8>().copy_from_nonoverlapping(RETURN_2.as_ptr(), RETURN_2.len()) };
    // An os_page that becomes executable for the first time is fetched from memory. SAFETY: the mapping is this
    // function's.
    unsafe { mprotect(code, 4096, MprotectFlags::READ | MprotectFlags::EXEC) }.expect("a change");
    // SAFETY: the code is a function of that type.
    unsafe { std::mem::transmute::<*mut std::ffi::c_void, extern "C" fn() -> u32>(code) }
}

/// A function that no jump of one instruction reaches is called through the variable: on x86-64 one that is more than 2 GiB
/// away, on AArch64 more than 128 MiB.
#[test]
#[cfg(all(any(target_arch = "x86_64", target_arch = "aarch64"), not(feature = "generic")))]
fn a_function_out_of_reach_is_called_indirectly() {
    let own = near as *const () as usize;
    let reach: usize = if cfg!(target_arch = "x86_64") { 1 << 31 } else { 1 << 27 };
    let (just_beyond, far) = (function_at(own.wrapping_add(reach + (reach >> 2))), function_at(0x1000_0000_0000));
    assert_eq!((distant::call(), distant::sites().unwrap().patched), (1, 1));
    for function in [far, just_beyond, far] {
        let distance = (function as *const () as usize).abs_diff(own);
        assert!(distance > reach, "{distance:#x}");
        distant::update(function).unwrap();
        assert_eq!((distant::call(), distant::sites().unwrap().patched), (2, 0));
        distant::update(near).unwrap();
        assert_eq!((distant::call(), distant::sites().unwrap().patched), (1, 1));
    }
}
