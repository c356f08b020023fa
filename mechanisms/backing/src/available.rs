//! The available memory, on the machine and in each control group of this process.
//!
//! `fallocate` alone is not enough: within a control group, and on a machine without a limit on memory files, it wakes
//! the OOM killer before it fails.

use std::fs;
use std::path::{Path, PathBuf};

/// Returns the number of bytes that this process may still take: the minimum of what the machine and each control group
/// has left. `None` if nothing can be read.
pub fn available_bytes() -> Option<u64> {
    let machine = fs::read_to_string("/proc/meminfo").ok().and_then(|text| machine_available_bytes(&text));
    let groups = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let groups = group_directories(&groups).into_iter().filter_map(|directory| group_available_bytes(&directory));
    machine.into_iter().chain(groups).min()
}

/// Returns `MemAvailable` of `/proc/meminfo`, in bytes.
fn machine_available_bytes(meminfo: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kib.checked_mul(1024)
}

/// Returns the directories of the memory controller's groups, innermost first, of versions 2 and 1. The text is
/// `/proc/self/cgroup`.
fn group_directories(proc_self_cgroup: &str) -> Vec<PathBuf> {
    let mut directories = Vec::new();
    for line in proc_self_cgroup.lines() {
        let mut fields = line.splitn(3, ':').skip(1);
        let (Some(controllers), Some(path)) = (fields.next(), fields.next()) else { continue };
        let root = match controllers {
            "" => Path::new("/sys/fs/cgroup"),
            _ if controllers.split(',').any(|name| name == "memory") => Path::new("/sys/fs/cgroup/memory"),
            _ => continue,
        };
        let inner = root.join(path.trim_start_matches('/'));
        directories.extend(inner.ancestors().take_while(|at| at.starts_with(root)).map(Path::to_path_buf));
    }
    directories
}

/// Returns the number of bytes that a group's limit leaves; `None` if the group has no limit.
fn group_available_bytes(directory: &Path) -> Option<u64> {
    let number = |name: &str| fs::read_to_string(directory.join(name)).ok()?.trim().parse::<u64>().ok();
    // "max" does not parse as a number.
    let limit = number("memory.max").or_else(|| number("memory.limit_in_bytes"))?;
    let usage = number("memory.current").or_else(|| number("memory.usage_in_bytes"))?;
    let stat = fs::read_to_string(directory.join("memory.stat")).unwrap_or_default();
    Some(limit.saturating_sub(usage.saturating_sub(reclaimable_bytes(&stat))))
}

/// Returns the size of the page cache of ordinary files in `memory.stat`. Memory files count as `shmem` and are not
/// included.
fn reclaimable_bytes(memory_stat: &str) -> u64 {
    let value = |name: &str| {
        let mut lines = memory_stat.lines().filter_map(|line| line.split_once(' '));
        lines.find(|(key, _)| *key == name).and_then(|(_, value)| value.trim().parse::<u64>().ok())
    };
    // Version 1 has the sums over the group's descendants under other names.
    ["active_file", "inactive_file"]
        .iter()
        .map(|name| value(&format!("total_{name}")).or_else(|| value(name)).unwrap_or(0))
        .sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_machine_and_its_groups_are_read() {
        assert_eq!(machine_available_bytes("MemTotal: 9 kB\nMemAvailable:   24361092 kB\n"), Some(24_361_092 << 10));
        assert_eq!(machine_available_bytes("MemTotal: 9 kB\n"), None);
        let directories = group_directories("4:cpu,memory:/a/b\n2:cpu:/c\n0::/d\n");
        let expected = ["memory/a/b", "memory/a", "memory", "d", ""].map(|name| Path::new("/sys/fs/cgroup").join(name));
        assert_eq!(directories, expected);
        assert_eq!(reclaimable_bytes("anon 5\nactive_file 7\ninactive_file 8\n"), 15);
        assert_eq!(reclaimable_bytes("active_file 7\ntotal_active_file 9\ntotal_inactive_file 1\n"), 10);
    }

    #[test]
    fn a_group_leaves_its_limit_less_what_it_cannot_reclaim() {
        let group = tempfile::tempdir().unwrap();
        let put = |name: &str, text: &str| fs::write(group.path().join(name), text).unwrap();
        assert_eq!(group_available_bytes(group.path()), None);
        put("memory.max", "max\n");
        put("memory.current", "700\n");
        assert_eq!(group_available_bytes(group.path()), None);
        put("memory.max", "1000\n");
        assert_eq!(group_available_bytes(group.path()), Some(300));
        put("memory.stat", "shmem 500\ninactive_file 60\nactive_file 40\n");
        assert_eq!(group_available_bytes(group.path()), Some(400));
        put("memory.max", "10\n");
        assert_eq!(group_available_bytes(group.path()), Some(0));
    }

    #[test]
    fn available_memory_can_be_read_here() {
        assert!(available_bytes().is_some());
    }
}
