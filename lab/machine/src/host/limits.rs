//! What the control group of this process allows (version 2): for each limit the tightest from its group up to the root, `none` where there is
//! none.

use super::Fact;
use super::source::Source;

/// Processor time, memory, processors.
pub(super) fn read(source: &Source) -> [(&'static str, Fact<String>); 3] {
    let dirs = group_dirs(source);
    let limit = |file: &str, tightest: &dyn Fn(Vec<String>) -> Option<String>| {
        let of_all = |dirs: Vec<String>| {
            let texts = dirs.iter().filter_map(|dir| source.text(&format!("{dir}/{file}")).told().cloned());
            tightest(texts.collect()).unwrap_or_else(|| "none".into())
        };
        dirs.clone().map(of_all)
    };
    let cpu = |texts: Vec<String>| {
        let quota = |text: &String| {
            let (quota, period) = text.split_once(' ')?;
            Some((quota.parse::<u64>().ok()?, period.parse::<u64>().ok().filter(|period| *period > 0)?))
        };
        let (quota, period) =
            texts.iter().filter_map(quota).min_by_key(|(quota, period)| quota * 1_000_000 / period)?;
        Some(format!("{:.2} processors ({quota} of {period} µs)", quota as f64 / period as f64))
    };
    let memory = |texts: Vec<String>| {
        texts.iter().filter_map(|text| text.parse::<u64>().ok()).min().map(|bytes| format!("{bytes} bytes"))
    };
    let cpuset = |texts: Vec<String>| texts.into_iter().find(|cpus| !cpus.is_empty());
    [
        ("limits.cpu", limit("cpu.max", &cpu)),
        ("limits.memory", limit("memory.max", &memory)),
        ("limits.cpuset", limit("cpuset.cpus.effective", &cpuset)),
    ]
}

/// Directories of the process's group, innermost first.
fn group_dirs(source: &Source) -> Fact<Vec<String>> {
    let mut mounts = ["/sys/fs/cgroup", "/sys/fs/cgroup/unified"].into_iter();
    let mount = mounts.find(|mount| source.text(&format!("{mount}/cgroup.controllers")).told().is_some());
    let mount = Fact::from_option(mount, || "no control groups of version 2 are mounted at /sys/fs/cgroup".into());
    let groups = mount.and_then(|mount| source.text("/proc/self/cgroup").map(|groups| (mount, groups)));
    groups.and_then(|(mount, groups)| {
        let path = groups.lines().find_map(|line| line.strip_prefix("0::"));
        let dirs = path.map(|path| {
            // In a container the path may be that of the host, of which only the end is mounted.
            let path = path.trim_end_matches('/');
            let ends = path.rmatch_indices('/').map(|(end, _)| end);
            std::iter::once(path.len()).chain(ends).map(|end| format!("{mount}{}", &path[..end])).collect()
        });
        Fact::from_option(dirs, || "/proc/self/cgroup names no group of version 2".into())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tightest_limit_counts() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let write = |path: &str, text: &str| {
            let path = dir.path().join(path);
            std::fs::create_dir_all(path.parent().expect("a directory")).expect("made");
            std::fs::write(path, text).expect("written");
        };
        let limits = || read(&Source::at(dir.path())).map(|(_, limit)| limit.to_string());
        write("proc/self/cgroup", "0::/outer/inner\n");
        write("sys/fs/cgroup/cgroup.controllers", "cpu memory\n");
        write("sys/fs/cgroup/outer/cpu.max", "150000 100000\n");
        write("sys/fs/cgroup/outer/inner/cpu.max", "max 100000\n");
        write("sys/fs/cgroup/outer/memory.max", "max\n");
        write("sys/fs/cgroup/cpuset.cpus.effective", "0-1\n");
        assert_eq!(limits(), ["1.50 processors (150000 of 100000 µs)", "none", "0-1"]);

        std::fs::remove_file(dir.path().join("sys/fs/cgroup/cgroup.controllers")).expect("it is there");
        let limits = limits();
        assert!(limits.iter().all(|limit| limit.starts_with("not told: no control groups")), "{limits:?}");
    }
}
