//! Settings of a session: the options that a user gives, and the plan made of them on this machine.

use std::path::{Path, PathBuf};

use dormouse_abi::record::RecordKind;
use dormouse_abi::session::{Geometry, MODE_DISCARD, MODE_OVERWRITE, PAGE_COUNT_MAX, STREAM_COUNT_MAX};
use dormouse_abi::tag::TagNames;
use dormouse_format::Format;

use crate::error::Error;
use crate::quota::DISK_BYTES_MIN;
use crate::rules::RuleSet;

/// Behaviour when no page is free.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[repr(u32)]
pub enum Mode {
    /// New events are dropped and counted.
    #[default]
    Discard = MODE_DISCARD,
    /// The oldest page is overwritten.
    Overwrite = MODE_OVERWRITE,
}

impl Mode {
    /// Returns the name on the command line and in the trace.
    pub fn name(self) -> &'static str {
        match self {
            Mode::Discard => "discard",
            Mode::Overwrite => "overwrite",
        }
    }
}

/// Settings of a session.
#[derive(Debug, Clone)]
pub struct Options {
    /// Path of the trace's directory, which must be empty or not exist.
    pub dir: PathBuf,
    /// Memory of all pages, in bytes.
    pub budget_bytes: u64,
    /// Maximum to which the budget may grow while the session is live, in bytes
    /// ([`dormouse_abi::message::ToolToOwner::Budget`]). `None`: four times the budget, or the budget itself if there
    /// are many CPUs.
    pub budget_max_bytes: Option<u64>,
    /// The machine's CPUs, or pretended ones.
    pub cpus: Cpus,
    /// Behaviour when no page is free.
    pub mode: Mode,
    /// Context of records: process and thread of the writer, or nothing.
    pub context: RecordKind,
    /// Tags of records, for which these need a context.
    pub tags: TagNames,
    /// Format of the metadata.
    pub format: Format,
    /// Rules that say which events are recorded, such as `http:* where bytes > 4K`: see [`RuleSet::parse`].
    pub rules: Vec<String>,
    /// The traced command, for the trace.
    pub command_line: String,
    /// Whether a tool may end the session ([`dormouse_abi::message::ToolToOwner::Stop`]).
    pub may_be_stopped: bool,
    /// Path of the memory on a file system, so that it outlives the owner: a new file, or a directory for one. `None`:
    /// a memory file without a name, which ends with the last process that maps it.
    pub buffers: Option<PathBuf>,
    /// Whether core dumps of the session's programs include its memory.
    pub dump_buffers: bool,
    /// Maximum number of bytes that the trace and its snapshots together may have on disk; events beyond that are lost,
    /// and counted. `None`: any number.
    pub disk_bytes_max: Option<u64>,
    /// Maximum number of bytes that all live sessions of the user with this option may have on disk together. `None`:
    /// any number.
    pub disk_bytes_user_max: Option<u64>,
}

impl Options {
    /// Returns options for a trace in `dir` of all classes, in discard mode, with a budget of 16 MiB and this machine's
    /// CPUs.
    pub fn new(dir: PathBuf) -> Options {
        Options {
            dir,
            budget_bytes: 16 << 20,
            budget_max_bytes: None,
            cpus: Cpus::of_machine(),
            mode: Mode::Discard,
            context: RecordKind::default(),
            tags: TagNames::NONE,
            format: Format::default(),
            rules: vec!["*".into()],
            command_line: String::new(),
            may_be_stopped: false,
            buffers: None,
            dump_buffers: false,
            disk_bytes_max: None,
            disk_bytes_user_max: None,
        }
    }
}

/// Smallest budget: sixteen pages of 4 KiB.
pub const BUDGET_BYTES_MIN: u64 = 64 << 10;
/// Largest budget that is possible with any number of CPUs.
const BUDGET_BYTES_MAX: u64 = 32 << 30;

/// The CPUs that a session has streams for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cpus {
    /// Number of CPUs that there may ever be.
    pub possible_count: u32,
    /// CPUs whose streams have memory from the beginning, and kept pages.
    pub online: Vec<u32>,
}

impl Cpus {
    /// Returns this machine's CPUs.
    pub fn of_machine() -> Cpus {
        let read = |name: &str| {
            let text = std::fs::read_to_string(format!("/sys/devices/system/cpu/{name}")).unwrap_or_default();
            parse_cpus(&text)
        };
        let some = || (0..std::thread::available_parallelism().map_or(1, |count| count.get() as u32)).collect();
        let online = Some(read("online")).filter(|cpus| !cpus.is_empty()).unwrap_or_else(some);
        let last = read("possible").into_iter().chain(online.iter().copied()).max().unwrap_or(0);
        Cpus { possible_count: last + 1, online }
    }

    /// Pretends that there are this many CPUs.
    pub fn pretended(possible_count: u32, online_count: u32) -> Cpus {
        Cpus { possible_count, online: (0..online_count.min(possible_count)).collect() }
    }
}

/// Parses a list such as `0-3,8`, which Linux writes. Skips parts that are not numbers.
fn parse_cpus(text: &str) -> Vec<u32> {
    let range = |part: &str| -> Option<std::ops::RangeInclusive<u32>> {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        Some(first.parse().ok()?..=last.parse().ok()?)
    };
    text.trim().split(',').filter_map(range).flatten().take(STREAM_COUNT_MAX as usize).collect()
}

/// Options that are consistent with one another and with this machine, and the settings derived from them. Made once;
/// all settings of a session are read from it.
#[derive(Debug, Clone)]
pub(crate) struct Plan {
    /// The options, limited to CPUs that have streams, and with the new file for the buffers.
    pub(crate) options: Options,
    /// The options' rules.
    pub(crate) rules: RuleSet,
    /// Geometry with room for the maximum budget.
    pub(crate) geometry: Geometry,
    /// Number of pages of the initial budget.
    pub(crate) page_count_limit: u32,
    /// Number of pages kept for each CPU that is online.
    pub(crate) kept_each: u32,
}

impl Options {
    /// Makes the plan of these options on this machine.
    pub(crate) fn plan(&self) -> Result<Plan, Error> {
        let rules = RuleSet::parse(&self.rules)?;
        rules.check_tails(self.mode == Mode::Overwrite, &self.tags)?;
        let (geometry, page_count_limit) = geometry(self)?;
        for (bytes, name) in [(self.disk_bytes_max, "--disk-max"), (self.disk_bytes_user_max, "--disk-max-user")] {
            if let Some(bytes) = bytes.filter(|bytes| *bytes < DISK_BYTES_MIN) {
                return Err(
                    format!("a trace of at most {bytes} bytes is too small; give at least 256K with {name}").into()
                );
            }
        }
        let mut options = self.clone();
        options.cpus.online.retain(|cpu| *cpu < geometry.cpu_count);
        options.buffers = self.buffers.as_deref().map(buffers_file).transpose()?;
        let kept_each = kept_each(page_count_limit, options.cpus.online.len());
        Ok(Plan { options, rules, geometry, page_count_limit, kept_each })
    }
}

/// Returns the file for buffers: `place` itself, or a new file in the directory `place`. The path is absolute, because
/// processes with other working directories look for it.
fn buffers_file(place: &Path) -> Result<PathBuf, Error> {
    let failed = |error| format!("cannot put the buffers into {}: {error}", place.display());
    let place = std::path::absolute(place).map_err(failed)?;
    if !place.is_dir() {
        return Ok(place);
    }
    let numbered = |number: u32| place.join(format!("dormouse-{}-{number}.buffers", std::process::id()));
    Ok(first_free(0, numbered))
}

/// Returns the first of numbered paths at which nothing exists, not even a dangling link.
pub(crate) fn first_free(first: u32, numbered: impl Fn(u32) -> PathBuf) -> PathBuf {
    let is_free = |path: &PathBuf| path.symlink_metadata().is_err();
    (first..u32::MAX).map(&numbered).find(is_free).unwrap_or_else(|| numbered(u32::MAX))
}

/// Returns the number of pages kept for each online CPU: together at most an eighth of all pages.
fn kept_each(page_count_limit: u32, online_count: usize) -> u32 {
    (page_count_limit as usize / 8 / online_count.max(1)).min(RESERVE_EACH_MAX) as u32
}

/// Maximum of kept pages for each CPU: one that is written to, and one that the consumer has.
const RESERVE_EACH_MAX: usize = 2;

/// Maximum number of streams with which the budget may grow by default. With more streams, the rings, which have room
/// for the maximum number of pages, would cost too much.
const GROWING_STREAM_COUNT_MAX: u32 = 64;

/// Returns the geometry with room for the maximum budget, and the number of pages of the initial budget. Pages have 64
/// KiB; smaller ones are used if there would be fewer than 64, or fewer than four for each CPU that is online.
fn geometry(options: &Options) -> Result<(Geometry, u32), Error> {
    let (budget, cpus) = (options.budget_bytes, &options.cpus);
    if budget < BUDGET_BYTES_MIN {
        return Err(format!("a budget of {budget} bytes is too small; give at least 64K").into());
    }
    let cpu_count = cpus.possible_count.min(STREAM_COUNT_MAX - CLAIMED_COUNT_MAX);
    let stream_count = cpu_count + cpu_count.clamp(16, CLAIMED_COUNT_MAX);
    let grown = if stream_count <= GROWING_STREAM_COUNT_MAX {
        budget.saturating_mul(4).min(BUDGET_BYTES_MAX.max(budget))
    } else {
        budget
    };
    let max = options.budget_max_bytes.unwrap_or(grown);
    if budget > max {
        let text = format!(
            "a budget of {budget} bytes is more than the {max} bytes that it may grow to; give a larger --budget-max"
        );
        return Err(text.into());
    }
    let page_count_min = 64.max(4 * cpus.online.len() as u64);
    let mut page_size_bytes = (64u64 << 10).min((budget / page_count_min + 1).next_power_of_two() / 2).max(4096);
    while max / page_size_bytes > PAGE_COUNT_MAX as u64 && page_size_bytes < 2 << 20 {
        page_size_bytes *= 2;
    }
    let page_count = |bytes: u64| (bytes / page_size_bytes).min(u32::MAX as u64) as u32;
    let geometry = Geometry {
        page_size_bytes: page_size_bytes as u32,
        page_count: page_count(max),
        cpu_count,
        stream_count,
        has_register: true,
    };
    if !geometry.is_valid() {
        return Err(format!("a budget of {max} bytes is more than a session can address; give at most 32G").into());
    }
    Ok((geometry, page_count(budget)))
}

/// Maximum number of streams for writers without rseq.
const CLAIMED_COUNT_MAX: u32 = 64;

#[cfg(test)]
mod tests {
    use super::*;

    fn of(budget_bytes: u64, cpus: Cpus) -> Options {
        Options { budget_bytes, cpus, ..Options::new(PathBuf::new()) }
    }

    #[test]
    fn every_budget_has_a_geometry_or_an_error() {
        for budget in [64u64 << 10, 100_000, 1 << 20, 16 << 20, (16 << 20) + 1, 1 << 30, 32 << 30] {
            for (possible, online) in [(1, 1), (2, 2), (256, 4), (256, 256), (1_000, 2), (20_000, 20_000)] {
                let (geometry, page_count_limit) = geometry(&of(budget, Cpus::pretended(possible, online))).unwrap();
                assert!((16..=geometry.page_count).contains(&page_count_limit), "{budget}: {geometry:?}");
                assert!(page_count_limit as u64 * geometry.page_size_bytes as u64 <= budget);
                let kept = kept_each(page_count_limit, online as usize) * online;
                assert!(kept <= page_count_limit / 8);
            }
        }
        let two = Cpus::pretended(2, 2);
        assert!(geometry(&of(1, two.clone())).is_err());
        assert!(geometry(&of(1 << 40, two.clone())).is_err());
        let options = Options { budget_max_bytes: Some(1 << 20), ..of(2 << 20, two) };
        assert!(geometry(&options).unwrap_err().to_string().contains("--budget-max"));
    }

    #[test]
    fn a_plan_has_rules_or_says_what_is_wrong() {
        let of = |rules: &[&str]| {
            let rules = rules.iter().map(|rule| rule.to_string()).collect();
            Options { rules, ..Options::new(PathBuf::new()) }.plan()
        };
        assert!(of(&["*"]).unwrap().rules.is_all());
        assert_eq!(of(&["!a:b"]).unwrap().rules.text(), "*\n!a:b");
        let error = of(&["a:b", "a:c where bytes >"]).unwrap_err().to_string();
        assert!(error.contains("bytes >") && error.contains('^'), "{error}");
    }

    #[test]
    fn lists_of_cpus_are_parsed() {
        assert_eq!(parse_cpus("0-3,8\n"), [0, 1, 2, 3, 8]);
        assert_eq!(parse_cpus("5"), [5]);
        assert_eq!(parse_cpus("").len(), 0);
        assert_eq!(parse_cpus("0-4294967295").len(), STREAM_COUNT_MAX as usize);
    }

    #[test]
    fn buffers_get_a_file_of_their_own() {
        let dir = tempfile::tempdir().unwrap();
        let first = buffers_file(dir.path()).unwrap();
        assert_eq!(first.parent(), Some(dir.path()));
        std::fs::write(&first, "").unwrap();
        assert_ne!(buffers_file(dir.path()).unwrap(), first);
        assert_eq!(buffers_file(&dir.path().join("new")).unwrap(), dir.path().join("new"));
        assert!(buffers_file(Path::new("")).is_err());
    }
}
