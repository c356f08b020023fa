//! The machine that figures were measured on.

use serde::{Deserialize, Serialize};

/// What a reader needs to place a figure.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Host {
    /// Model name of the processor.
    pub cpu: String,
    /// Processors that are online.
    pub cpu_count: usize,
    /// Kernel release.
    pub kernel: String,
    /// The kernel's clock source.
    pub clock_source: String,
    /// Whether the processor says that it runs under a hypervisor.
    pub virtualised: bool,
    /// Load average of the last minute, before the run.
    pub load: String,
}

impl Host {
    /// Reads `/proc` and `/sys`; what is not there is empty.
    pub fn read() -> Host {
        let file = |path: &str| std::fs::read_to_string(path).unwrap_or_default().trim().to_string();
        let cpuinfo = file("/proc/cpuinfo");
        let field = |name: &str| {
            let line = cpuinfo.lines().find(|line| line.split(':').next().is_some_and(|key| key.trim() == name));
            line.and_then(|line| line.split_once(':')).map(|(_, value)| value.trim().to_string()).unwrap_or_default()
        };
        Host {
            cpu: field("model name"),
            cpu_count: std::thread::available_parallelism().map_or(0, usize::from),
            kernel: file("/proc/sys/kernel/osrelease"),
            clock_source: file("/sys/devices/system/clocksource/clocksource0/current_clocksource"),
            virtualised: field("flags").split_whitespace().any(|flag| flag == "hypervisor"),
            load: file("/proc/loadavg").split_whitespace().next().unwrap_or_default().into(),
        }
    }
}

/// Sizes of the first processor's data caches of level 1, 2 and 3.
pub fn cache_sizes() -> [Option<u64>; 3] {
    [1, 2, 3].map(|level| {
        (0..8).find_map(|index| {
            let read = |name: &str| {
                std::fs::read_to_string(format!("/sys/devices/system/cpu/cpu0/cache/index{index}/{name}")).ok()
            };
            let kind = read("type")?;
            if read("level")?.trim() != format!("{level}") || kind.trim() == "Instruction" {
                return None;
            }
            let size = read("size")?;
            size.trim().strip_suffix('K').and_then(|kib| kib.parse::<u64>().ok()).map(|kib| kib << 10)
        })
    })
}
