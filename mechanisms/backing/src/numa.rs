//! The NUMA nodes that memory comes from.

use std::fs;
use std::ops::Range;
use std::path::Path;

use crate::error::{BackingError, last_errno};
use crate::options::{Nodes, NumaPolicy};
use crate::os_page_size;

/// Returns the NUMA node of a CPU, from `/sys/devices/system/cpu`; `None` if the kernel reports no nodes.
///
/// # Errors
/// [`BackingError::NoCpu`].
pub fn node_of_cpu(cpu: u32) -> Result<Option<u32>, BackingError> {
    node_in(Path::new("/sys/devices/system/cpu"), cpu)
}

pub(crate) fn node_in(cpus: &Path, cpu: u32) -> Result<Option<u32>, BackingError> {
    let entries = fs::read_dir(cpus.join(format!("cpu{cpu}"))).map_err(|_| BackingError::NoCpu { cpu })?;
    let names = entries.flatten().filter_map(|entry| entry.file_name().into_string().ok());
    Ok(names.filter_map(|name| name.strip_prefix("node")?.parse().ok()).next())
}

/// Returns the number of nodes that have memory; 1 if the kernel reports none.
fn node_count(nodes: &Path) -> usize {
    let list = fs::read_to_string(nodes.join("has_memory")).unwrap_or_default();
    let number = |text: &str| text.parse::<usize>().ok();
    let counts = list.trim().split(',').filter_map(|part| match part.split_once('-') {
        Some((first, last)) => Some(number(last)?.checked_sub(number(first)?)? + 1),
        None => number(part).map(|_| 1),
    });
    counts.sum::<usize>().max(1)
}

/// Number of words of a mask of nodes, enough for the maximum number of nodes of a kernel.
const MASK_WORDS: usize = 1024 / 64;

/// Tells the kernel from which node to take new `os_page`s of a range. If a node is only preferred, an error (a kernel
/// that does not support it, or a sandbox that forbids it with `EPERM`) leaves the memory as it would have been.
pub(crate) fn bind(start: *mut u8, len: usize, policy: NumaPolicy) -> Result<(), BackingError> {
    let (cpu, mode) = match policy {
        NumaPolicy::Anywhere => return Ok(()),
        NumaPolicy::Near(cpu) => (cpu, libc::MPOL_PREFERRED),
        NumaPolicy::At(cpu) => (cpu, libc::MPOL_BIND),
    };
    let Some(node) = node_of_cpu(cpu)? else { return Ok(()) };
    let mut mask = [0_u64; MASK_WORDS];
    if let Some(word) = mask.get_mut(node as usize / 64) {
        *word |= 1 << (node % 64);
    }
    // One more than the number of bits: the kernel ignores the last one (mbind(2), BUGS).
    let bits = 64 * MASK_WORDS + 1;
    // SAFETY: the caller has mapped the range, and it is not used yet. The mask has one bit less than `bits`, and is
    // only read (mbind(2)). The memory's contents do not change.
    let result = unsafe { libc::syscall(libc::SYS_mbind, start, len, mode, mask.as_ptr(), bits, 0_usize) };
    if result == 0 || matches!(policy, NumaPolicy::Near(_)) {
        return Ok(());
    }
    Err(BackingError::System { purpose: "take the memory from a CPU's NUMA node", errno: last_errno() })
}

/// Checks whether the memory of a range of addresses is on the requested node.
pub(crate) fn nodes_of(range: Range<usize>, policy: NumaPolicy) -> Nodes {
    let cpu = match policy {
        NumaPolicy::Anywhere => return Nodes::NotAsked,
        NumaPolicy::Near(cpu) | NumaPolicy::At(cpu) => cpu,
    };
    if node_count(Path::new("/sys/devices/system/node")) == 1 {
        return Nodes::OnlyOne;
    }
    match (node_of_cpu(cpu), away_bytes(range, cpu)) {
        (Ok(Some(node)), Some(away_bytes)) => Nodes::Checked { node, away_bytes },
        _ => Nodes::NotTold,
    }
}

/// Returns the number of bytes of a range that are on another node than a CPU's. Memory that is not present is on no
/// node.
pub(crate) fn away_bytes(range: Range<usize>, cpu: u32) -> Option<usize> {
    let node = node_of_cpu(cpu).ok()?? as i32;
    let mut away = 0;
    let addresses: Vec<usize> = range.step_by(os_page_size()).collect();
    for part in addresses.chunks(4096) {
        let mut found = vec![0_i32; part.len()];
        let nowhere = std::ptr::null::<i32>();
        // SAFETY: both arrays have `part.len()` entries. The addresses are only looked up; without a list of nodes the
        // call moves nothing (move_pages(2)).
        let result = unsafe {
            libc::syscall(
                libc::SYS_move_pages,
                0_usize,
                part.len(),
                part.as_ptr(),
                nowhere,
                found.as_mut_ptr(),
                0_usize,
            )
        };
        if result != 0 {
            return None;
        }
        away += found.iter().filter(|found| **found >= 0 && **found != node).count();
    }
    Some(away * os_page_size())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_are_read() {
        let sys = tempfile::tempdir().unwrap();
        for (cpu, node) in [("cpu0", "node0"), ("cpu7", "node12")] {
            fs::create_dir_all(sys.path().join(cpu).join(node)).unwrap();
            fs::create_dir(sys.path().join(cpu).join("topology")).unwrap();
        }
        fs::create_dir(sys.path().join("cpu8")).unwrap();
        assert_eq!(node_in(sys.path(), 0), Ok(Some(0)));
        assert_eq!(node_in(sys.path(), 7), Ok(Some(12)));
        assert_eq!(node_in(sys.path(), 8), Ok(None));
        assert_eq!(node_in(sys.path(), 9), Err(BackingError::NoCpu { cpu: 9 }));
        for (list, count) in [("0\n", 1), ("0-3\n", 4), ("0,2-3,9\n", 4), ("", 1)] {
            fs::write(sys.path().join("has_memory"), list).unwrap();
            assert_eq!(node_count(sys.path()), count, "{list}");
        }
    }
}
