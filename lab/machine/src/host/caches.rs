//! The caches of processor 0, from `/sys`, else from the processor itself.

use serde::{Deserialize, Serialize};

use super::Fact;
use super::source::Source;

/// One cache.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Cache {
    /// 1, 2, 3.
    pub level: u32,
    /// `Data`, `Instruction`, `Unified`.
    pub kind: String,
    /// All of it.
    pub size_bytes: u64,
    /// Processors that share it, as the kernel lists them; empty where it does not.
    pub shared_cpus: String,
}

pub(super) fn read(source: &Source) -> Fact<Vec<Cache>> {
    let dir = "/sys/devices/system/cpu/cpu0/cache";
    let indices = source.names(dir).into_iter().filter(|name| name.starts_with("index"));
    let cache = |index: String| {
        let file = |name: &str| source.text(&format!("{dir}/{index}/{name}")).told().cloned();
        Some(Cache {
            level: file("level")?.parse().ok()?,
            kind: file("type")?,
            size_bytes: file("size")?.strip_suffix('K')?.parse::<u64>().ok()? << 10,
            shared_cpus: file("shared_cpu_list").unwrap_or_default(),
        })
    };
    let caches: Vec<Cache> = indices.filter_map(cache).collect();
    let caches = if caches.is_empty() { by_cpuid() } else { caches };
    let cause = || format!("the kernel has no {dir}, and the processor names no cache (a hypervisor hides them)");
    Fact::from_option(Some(caches).filter(|caches| !caches.is_empty()), cause)
}

#[cfg(target_arch = "x86_64")]
fn by_cpuid() -> Vec<Cache> {
    use raw_cpuid::CacheType;
    let caches = raw_cpuid::CpuId::new().get_cache_parameters().into_iter().flatten();
    let caches = caches.map(|cache| {
        let kind = match cache.cache_type() {
            CacheType::Data => "Data",
            CacheType::Instruction => "Instruction",
            _ => "Unified",
        };
        let size =
            cache.associativity() * cache.physical_line_partitions() * cache.coherency_line_size() * cache.sets();
        Cache { level: cache.level().into(), kind: kind.into(), size_bytes: size as u64, ..Cache::default() }
    });
    caches.filter(|cache| cache.size_bytes > 0).collect()
}

#[cfg(not(target_arch = "x86_64"))]
fn by_cpuid() -> Vec<Cache> {
    Vec::new()
}
