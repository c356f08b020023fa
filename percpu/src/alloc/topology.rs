//! Which CPUs there may be, and on which node each is.

/// CPUs that this machine may ever have, from 0 on: present or not, online or not, allowed to this process or not.
///
/// Reads `/sys/devices/system/cpu/possible`. Where that cannot be read, the size of the kernel's CPU masks, which is
/// never too small.
pub fn possible_cpus() -> u32 {
    let mut text = [0; 256];
    let len = read(c"/sys/devices/system/cpu/possible", &mut text);
    last_in_list(&text[..len]).map_or_else(mask_bits, |last| last + 1)
}

/// The largest number of a list like `0-3,8`.
fn last_in_list(list: &[u8]) -> Option<u32> {
    let list = list.trim_ascii();
    let digits = list.iter().rev().take_while(|byte| byte.is_ascii_digit()).count();
    core::str::from_utf8(&list[list.len() - digits..]).ok()?.parse().ok()
}

/// The kernel copies out whole masks, and says how many bytes those are (sched_getaffinity(2)).
fn mask_bits() -> u32 {
    let mut mask = [0u64; 1024];
    // SAFETY: `mask` is as long as stated.
    let bytes = unsafe { libc::syscall(libc::SYS_sched_getaffinity, 0, size_of_val(&mask), mask.as_mut_ptr()) };
    if bytes > 0 { bytes as u32 * 8 } else { 64 }
}

fn read(path: &core::ffi::CStr, text: &mut [u8]) -> usize {
    use rustix::fs::{Mode, OFlags};
    let Ok(file) = rustix::fs::open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()) else { return 0 };
    rustix::io::read(&file, text).unwrap_or(0)
}
