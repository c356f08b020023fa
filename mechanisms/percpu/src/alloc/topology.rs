//! The CPUs that may exist, and the NUMA node of each.

use core::ffi::CStr;

use rustix::fs::{Mode, OFlags};
use rustix::path::DecInt;

/// Returns the number of CPUs that this machine may ever have, from 0 on: present or not, online or not, allowed to
/// this process or not.
///
/// Reads `/sys/devices/system/cpu/possible`. If that cannot be read, or lacks a CPU that the thread may run on (some
/// containers show fewer), returns the size of the kernel's CPU masks, which is never too small.
pub fn possible_cpus() -> u32 {
    let mask = Mask::of_thread();
    count_in(c"/sys/devices/system/cpu/possible").filter(|told| *told >= mask.used()).unwrap_or(mask.bits)
}

/// Returns the number of CPUs from 0 to the last one of a list, including those that the list leaves out.
fn count_in(list: &CStr) -> Option<u32> {
    let mut last = None;
    read_list(list, |_, to| last = last.max(Some(to)));
    last.and_then(|last: u32| last.checked_add(1))
}

/// The CPUs that a thread may run on.
struct Mask {
    words: [u64; 1024],
    /// Number of bits in the kernel's CPU masks.
    bits: u32,
}

impl Mask {
    fn of_thread() -> Mask {
        let mut words = [0; 1024];
        // SAFETY: `words` is as long as stated. The call copies whole masks and returns their size in bytes
        // (sched_getaffinity(2)).
        let bytes = unsafe { libc::syscall(libc::SYS_sched_getaffinity, 0, size_of_val(&words), words.as_mut_ptr()) };
        Mask { words, bits: if bytes > 0 { bytes as u32 * 8 } else { 64 } }
    }

    /// Returns the number of CPUs from 0 to the last one in the mask.
    fn used(&self) -> u32 {
        let last = self.words.iter().rposition(|word| *word != 0);
        last.map_or(0, |index| index as u32 * 64 + self.words[index].ilog2() + 1)
    }
}

/// Calls `node_of(cpu, node)` for each CPU of each online node, and returns the number of nodes: at least one.
pub(crate) fn nodes(node_of: &mut dyn FnMut(u32, u32)) -> u32 {
    let mut count = 0;
    read_list(c"/sys/devices/system/node/online", |from, to| {
        for node in from..=to {
            count += 1;
            let mut path = *b"/sys/devices/system/node/node0000000000/cpulist\0";
            if let Some(path) = cpulist_path(node, &mut path) {
                read_list(path, |from, to| (from..=to).for_each(|cpu| node_of(cpu, node)));
            }
        }
    });
    count.max(1)
}

/// Writes the path of a node's CPU list, in which the number has no leading zeroes.
fn cpulist_path(node: u32, path: &mut [u8; 48]) -> Option<&CStr> {
    const PREFIX: &[u8] = b"/sys/devices/system/node/node";
    let number = DecInt::new(node);
    let parts = [PREFIX, number.as_bytes(), b"/cpulist\0"];
    let mut at = 0;
    for part in parts {
        path.get_mut(at..at + part.len())?.copy_from_slice(part);
        at += part.len();
    }
    CStr::from_bytes_with_nul(&path[..at]).ok()
}

/// Calls `range(from, to)` for each part of a list such as `0-3,8`, both ends included. A file that cannot be read
/// counts as an empty list.
fn read_list(path: &CStr, range: impl FnMut(u32, u32)) {
    let Ok(file) = rustix::fs::open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()) else { return };
    let mut parser = Parser { from: None, number: None, range };
    let mut text = [0; 256];
    loop {
        match rustix::io::read(&file, &mut text) {
            Ok(0) | Err(_) => break,
            Ok(len) => text[..len].iter().for_each(|byte| parser.push(*byte)),
        }
    }
    parser.push(b'\n');
}

/// Parses a list byte by byte, so its length does not matter.
struct Parser<F: FnMut(u32, u32)> {
    from: Option<u32>,
    number: Option<u32>,
    range: F,
}

impl<F: FnMut(u32, u32)> Parser<F> {
    fn push(&mut self, byte: u8) {
        match byte {
            b'0'..=b'9' => {
                let digit = u32::from(byte - b'0');
                self.number = Some(self.number.unwrap_or(0).saturating_mul(10).saturating_add(digit));
            }
            b'-' => self.from = self.number.take(),
            _ => {
                if let Some(to) = self.number.take() {
                    (self.range)(self.from.take().unwrap_or(to), to);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(list: &str) -> Vec<(u32, u32)> {
        let mut ranges = Vec::new();
        let mut parser = Parser { from: None, number: None, range: |from, to| ranges.push((from, to)) };
        list.bytes().for_each(|byte| parser.push(byte));
        ranges
    }

    #[test]
    fn cpu_lists_of_the_kernel_are_parsed() {
        assert_eq!(parse("0-3,8,10-11\n"), [(0, 3), (8, 8), (10, 11)]);
        assert_eq!(parse("0\n"), [(0, 0)]);
        assert_eq!(parse("\n"), []);
    }

    /// Returns the count in a file with the contents `list`.
    fn count_of(list: &str) -> Option<u32> {
        let file = rustix::fs::memfd_create(c"possible", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
        assert_eq!(rustix::io::write(&file, list.as_bytes()), Ok(list.len()));
        let path = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&file));
        count_in(&std::ffi::CString::new(path).unwrap())
    }

    #[test]
    fn possible_cpus_are_counted_up_to_the_last() {
        assert_eq!(count_of("0-3,8\n"), Some(9));
        assert_eq!(count_of("0\n"), Some(1));
        assert_eq!(count_of("0-127\n"), Some(128));
        // The longest list, which takes more than one read.
        let sparse: String = (0..500).map(|cpu| format!("{},", 2 * cpu)).collect();
        assert_eq!(count_of(&sparse), Some(999));
        assert_eq!(count_of("\n"), None);
        assert_eq!(count_of("0-4294967295\n"), None);
        assert_eq!(count_in(c"/proc/self/no such file"), None);
    }

    #[test]
    fn paths_have_the_node_s_number() {
        let mut path = [0; 48];
        assert_eq!(cpulist_path(0, &mut path).unwrap(), c"/sys/devices/system/node/node0/cpulist");
        assert_eq!(cpulist_path(u32::MAX, &mut path).unwrap(), c"/sys/devices/system/node/node4294967295/cpulist");
    }

    #[test]
    fn at_least_the_online_cpus_are_possible() {
        let online = std::thread::available_parallelism().unwrap().get() as u32;
        assert!(possible_cpus() >= online);
        let mask = Mask::of_thread();
        assert!(mask.bits >= mask.used() && mask.used() >= online);
        let mut cpus = Vec::new();
        assert!(nodes(&mut |cpu, _| cpus.push(cpu)) >= 1);
        assert!(cpus.iter().all(|cpu| *cpu < mask.bits));
    }
}
