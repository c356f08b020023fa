//! Gives a traced program's memory pages of its own as the program obtains it, so that no read finds the zero page.
//!
//! ```text
//!   the program                                        this
//!   mmap, brk, mremap, mprotect ── stop ─────────────▶ what was asked for
//!        the call returns ── stop ───────────────────▶ which addresses are new ─▶ madvise(MADV_POPULATE_WRITE) in the program
//!   first such call after an exec ── stop ───────────▶ also its `.bss`
//! ```

use std::collections::BTreeMap;
use std::io;
use std::ops::Range;
use std::time::Instant;

use dormouse_backing::maps::{self, Map};
use dormouse_backing::{available_bytes, os_page_size};
use libc::{c_int, c_long, pid_t};
use serde::Serialize;

use crate::inject::{self, Injected};

/// Value from `linux/mman.h` (Linux 5.14).
const MADV_POPULATE_WRITE: u64 = 23;
/// Minimum size for which the available memory is checked first, in bytes.
const CHECKED_BYTES_MIN: u64 = 1 << 20;

/// Action at each call by which a program obtains memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fix {
    /// Nothing. The program is stopped there as with [`Fix::Populate`], so that the times of both can be compared.
    Observe,
    /// The memory is populated.
    Populate,
}

/// Memory that was populated as a command and its descendants obtained it.
#[derive(Debug, Clone, PartialEq, Default, Serialize)]
pub struct Populated {
    /// Number of bytes.
    pub size: u64,
    /// Number of calls of `madvise(2)` that this took.
    pub calls: u64,
    /// Time that these calls took, in milliseconds. It is part of the command's time.
    pub duration_ms: f64,
    /// Memory that was not populated, by reason.
    pub left_alone: Vec<LeftAlone>,
}

/// Memory that was not populated.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct LeftAlone {
    /// Reason why it was not.
    pub reason: String,
    /// Number of such ranges.
    pub count: u64,
    /// Number of bytes.
    pub size: u64,
}

impl Populated {
    fn leave_alone(&mut self, reason: &str, size: u64) {
        match self.left_alone.iter_mut().find(|known| known.reason == reason) {
            Some(known) => (known.count, known.size) = (known.count + 1, known.size + size),
            None => self.left_alone.push(LeftAlone { reason: reason.into(), count: 1, size }),
        }
    }
}

/// The memory of a process, as far as it must be known.
#[derive(Debug, Clone, Default)]
struct Space {
    /// Whether the memory from before its first call is handled.
    is_begun: bool,
    /// End of the heap that grows by `brk`.
    heap_end: Option<u64>,
    /// Stacks of threads.
    stacks: Vec<Range<u64>>,
}

/// A system call that obtains memory, and its arguments.
pub(crate) type Call = (c_long, [u64; 6]);

/// Populates the memory of a program and its descendants.
#[derive(Debug)]
pub(crate) struct Populator {
    fix: Fix,
    spaces: BTreeMap<pid_t, Space>,
    /// Call that each thread makes at the moment.
    calls: BTreeMap<pid_t, Call>,
    pub(crate) populated: Populated,
}

impl Populator {
    pub(crate) fn new(fix: Fix) -> Populator {
        Populator { fix, spaces: BTreeMap::new(), calls: BTreeMap::new(), populated: Populated::default() }
    }

    /// Notes that a child has a copy of its parent's memory.
    pub(crate) fn forked(&mut self, parent: pid_t, child: pid_t) {
        if let Some(space) = self.spaces.get(&parent).cloned() {
            self.spaces.insert(child, space);
        }
    }

    /// Notes that the memory of a process is gone.
    pub(crate) fn emptied(&mut self, pid: pid_t) {
        self.spaces.remove(&pid);
    }

    /// Notes which call a thread is about to make.
    pub(crate) fn asked(&mut self, thread: pid_t, number: u64, arguments: [u64; 6]) {
        self.calls.insert(thread, (number as c_long, arguments));
    }

    /// Returns the call that a thread has made, and which returns.
    pub(crate) fn returned(&mut self, thread: pid_t) -> Option<Call> {
        self.calls.remove(&thread)
    }

    /// Populates what a call has obtained, which returns in the stopped thread. Returns the thread's status if it was killed
    /// meanwhile and the status was not handled.
    pub(crate) fn answered(&mut self, pid: pid_t, thread: pid_t, call: Call, value: i64) -> Option<c_int> {
        if self.fix == Fix::Observe {
            return None;
        }
        let space = self.spaces.entry(pid).or_default();
        let read_maps = || maps::read(thread as u32).unwrap_or_default();
        let mut ranges = obtained(space, call, value, read_maps);
        if !std::mem::replace(&mut space.is_begun, true) {
            ranges = populatable(&read_maps(), &(0..u64::MAX), &space.stacks);
        }
        if let (libc::SYS_mmap, Some(stack)) = (call.0, space.stacks.last())
            && value == stack.start.cast_signed()
        {
            self.populated.leave_alone(STACKS, stack.end - stack.start);
        }
        for range in ranges {
            match self.populate(pid, thread, &range) {
                Ok(None) => {}
                Ok(status) => return status,
                // The thread was killed; its end will be reported.
                Err(_) => return None,
            }
        }
        None
    }

    fn populate(&mut self, pid: pid_t, thread: pid_t, range: &Range<u64>) -> io::Result<Option<c_int>> {
        let size = range.end - range.start;
        if size >= CHECKED_BYTES_MIN && available_bytes().is_some_and(|available| size > available / 2) {
            self.populated.leave_alone("more than half of the available memory", size);
            return Ok(None);
        }
        let start = Instant::now();
        let result = inject::call(pid, thread, libc::SYS_madvise, [range.start, size, MADV_POPULATE_WRITE])?;
        self.populated.duration_ms += start.elapsed().as_secs_f64() * 1e3;
        self.populated.calls += 1;
        match result {
            Injected::Answered(0) => self.populated.size += size,
            Injected::Answered(answer) => {
                let reason = match (-answer) as c_int {
                    libc::EINVAL => "the kernel is older than Linux 5.14, or does not allow it there".into(),
                    errno => io::Error::from_raw_os_error(errno).to_string(),
                };
                self.populated.leave_alone(&reason, size);
            }
            Injected::Interrupted(status) => return Ok(Some(status)),
        }
        Ok(None)
    }
}

const STACKS: &str = "stacks of threads";

/// Returns the pages that `size` bytes from `start` on overlap. Both may be anything that a program passes to the kernel.
fn whole_pages(start: u64, size: u64) -> Range<u64> {
    let page = os_page_size() as u64;
    let end = start.saturating_add(size).checked_next_multiple_of(page);
    start / page * page..end.unwrap_or(u64::MAX / page * page)
}

/// Returns the addresses that a call has mapped, in whole pages; `None` if it has mapped nothing new. `value` is what it
/// returned.
pub(crate) fn mapped(call: Call, value: i64) -> Option<Range<u64>> {
    let (number, [_, size, new_size, flags, ..]) = call;
    let size = match number {
        libc::SYS_mmap if flags & libc::MAP_ANONYMOUS as u64 != 0 => size,
        libc::SYS_mremap => new_size,
        _ => return None,
    };
    Some(whole_pages(u64::try_from(value).ok()?, size))
}

/// Returns the addresses that a call is about to give back, if there are any, in whole pages. A heap that shrinks by `brk` is
/// not included.
pub(crate) fn given_back(number: u64, arguments: [u64; 6]) -> Option<Range<u64>> {
    let [start, size, advice, ..] = arguments;
    let is_given_back = match number as c_long {
        libc::SYS_munmap => true,
        libc::SYS_madvise => [libc::MADV_DONTNEED, libc::MADV_FREE].contains(&(advice as c_int)),
        _ => false,
    };
    let range = whole_pages(start, size);
    (is_given_back && !range.is_empty()).then_some(range)
}

/// Returns the addresses that a call has obtained and that can be populated, in whole pages. `value` is what it returned.
fn obtained(space: &mut Space, call: Call, value: i64, maps: impl Fn() -> Vec<Map>) -> Vec<Range<u64>> {
    let (number, arguments) = call;
    if (-4095..0).contains(&value) {
        return Vec::new();
    }
    let value = value.cast_unsigned();
    match number {
        libc::SYS_mmap => {
            let [_, size, protection, flags, ..] = arguments;
            let range = whole_pages(value, size);
            // Other memory may have been there before.
            space.stacks.retain(|stack| stack.end <= range.start || range.end <= stack.start);
            let has = |flag: c_int| flags & flag as u64 != 0;
            if has(libc::MAP_STACK | libc::MAP_GROWSDOWN) {
                space.stacks.push(range);
                return Vec::new();
            }
            let is_writable = protection & libc::PROT_WRITE as u64 != 0;
            let is_own = has(libc::MAP_PRIVATE) && has(libc::MAP_ANONYMOUS);
            if is_writable && is_own { vec![range] } else { Vec::new() }
        }
        libc::SYS_brk => {
            let before = space.heap_end.replace(value).unwrap_or(value);
            if value > before { vec![whole_pages(before, value - before)] } else { Vec::new() }
        }
        libc::SYS_mremap => {
            let [_, old_size, new_size, ..] = arguments;
            let (old, new) = (whole_pages(value, old_size), whole_pages(value, new_size));
            if new.end > old.end { populatable(&maps(), &(old.end..new.end), &space.stacks) } else { Vec::new() }
        }
        libc::SYS_mprotect => {
            let [start, size, protection, ..] = arguments;
            let is_writable = protection & libc::PROT_WRITE as u64 != 0;
            if is_writable { populatable(&maps(), &whole_pages(start, size), &space.stacks) } else { Vec::new() }
        }
        _ => Vec::new(),
    }
}

/// Returns the parts of `range` that can be on the zero page: memory of this process alone, without a file, writable, and
/// not a stack.
fn populatable(maps: &[Map], range: &Range<u64>, stacks: &[Range<u64>]) -> Vec<Range<u64>> {
    let is_own = |map: &&Map| {
        let is_special = map.name.first() == Some(&b'[') && map.name != b"[heap]" && !map.name.starts_with(b"[anon:");
        let is_stack = stacks.iter().any(|stack| stack.start < map.range.end && map.range.start < stack.end);
        map.is_writable() && !map.is_shared() && map.inode == 0 && !is_special && !is_stack
    };
    let inside = |map: &Map| map.range.start.max(range.start)..map.range.end.min(range.end);
    maps.iter().filter(is_own).map(inside).filter(|part| !part.is_empty()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: u64 = 4096;
    const OWN: u64 = (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS) as u64;
    const WRITABLE: u64 = (libc::PROT_READ | libc::PROT_WRITE) as u64;

    fn map(range: Range<u64>, access: &[u8; 4], inode: u64, name: &[u8]) -> Map {
        Map { range, access: *access, offset: 0, inode, name: name.to_vec() }
    }

    fn maps() -> Vec<Map> {
        vec![
            map(0x1_0000..0x2_0000, b"rw-p", 7, b"/bin/program"),
            map(0x2_0000..0x3_0000, b"rw-p", 0, b""),
            map(0x3_0000..0x4_0000, b"rw-p", 0, b"[heap]"),
            map(0x5_0000..0x6_0000, b"---p", 0, b""),
            map(0x6_0000..0x7_0000, b"rw-p", 0, b"[anon:arena]"),
            map(0x7_0000..0x8_0000, b"rw-s", 0, b""),
            map(0x8_0000..0x9_0000, b"rw-p", 0, b"[stack]"),
        ]
    }

    #[test]
    fn only_own_writable_memory_without_a_file_is_populated() {
        let all = populatable(&maps(), &(0..u64::MAX), &[]);
        assert_eq!(all, [0x2_0000..0x3_0000, 0x3_0000..0x4_0000, 0x6_0000..0x7_0000]);
        let stacks = [Range { start: 0x6_4000, end: 0x6_5000 }];
        assert_eq!(populatable(&maps(), &(0x2_8000..0x7_0000), &stacks), [0x2_8000..0x3_0000, 0x3_0000..0x4_0000]);
    }

    #[test]
    fn new_mappings_are_those_without_a_file_and_those_that_moved() {
        let by = |number: c_long, arguments: [u64; 4], value: i64| {
            let [a, b, c, d] = arguments;
            mapped((number, [a, b, c, d, 0, 0]), value)
        };
        assert_eq!(by(libc::SYS_mmap, [0, 5000, WRITABLE, OWN], 0x2_0000), Some(0x2_0000..0x2_2000));
        assert_eq!(by(libc::SYS_mmap, [0, 5000, WRITABLE, OWN], -12), None);
        assert_eq!(by(libc::SYS_mmap, [0, 5000, WRITABLE, libc::MAP_PRIVATE as u64], 0x2_0000), None);
        assert_eq!(by(libc::SYS_mremap, [0x1_0000, 0x1000, 0x3000, 1], 0x2_0000), Some(0x2_0000..0x2_3000));
        assert_eq!(by(libc::SYS_brk, [0x3_0000, 0, 0, 0], 0x3_0000), None);
    }

    #[test]
    fn calls_that_give_memory_back_say_which() {
        let by = |number: c_long, size: u64, advice: c_int| {
            given_back(number as u64, [0x2_0000, size, advice as u64, 0, 0, 0])
        };
        assert_eq!(by(libc::SYS_munmap, 5000, 0), Some(0x2_0000..0x2_2000));
        assert_eq!(by(libc::SYS_madvise, PAGE, libc::MADV_DONTNEED), Some(0x2_0000..0x2_1000));
        assert_eq!(by(libc::SYS_madvise, PAGE, libc::MADV_HUGEPAGE), None);
        assert_eq!(by(libc::SYS_munmap, 0, 0), None);
        assert_eq!(by(libc::SYS_munmap, u64::MAX, 0), Some(0x2_0000..u64::MAX - (PAGE - 1)));
        assert_eq!(by(libc::SYS_mmap, PAGE, 0), None);
    }

    #[test]
    fn each_call_obtains_what_it_adds() {
        let mut space = Space::default();
        let mut after = |number: c_long, arguments: [u64; 4], value: u64| {
            let [a, b, c, d] = arguments;
            obtained(&mut space, (number, [a, b, c, d, 0, 0]), value.cast_signed(), maps)
        };
        let none: [Range<u64>; 0] = [];
        let one = |start, end| [Range { start, end }];
        assert_eq!(after(libc::SYS_mmap, [0, 5000, WRITABLE, OWN], 0xA_0000), one(0xA_0000, 0xA_0000 + 2 * PAGE));
        assert_eq!(after(libc::SYS_mmap, [0, 5000, WRITABLE, OWN], (-12_i64).cast_unsigned()), none);
        assert_eq!(after(libc::SYS_mmap, [0, 5000, libc::PROT_READ as u64, OWN], 0xA_0000), none);
        assert_eq!(after(libc::SYS_mmap, [0, 5000, WRITABLE, libc::MAP_PRIVATE as u64], 0xA_0000), none);
        // The heap: where it begins is learned by the first call.
        assert_eq!(after(libc::SYS_brk, [0; 4], 0x3_0800), none);
        assert_eq!(after(libc::SYS_brk, [0; 4], 0x3_2000), one(0x3_0000, 0x3_2000));
        assert_eq!(after(libc::SYS_brk, [0; 4], 0x3_1000), none);
        assert_eq!(after(libc::SYS_brk, [0; 4], 0x3_1000), none);
        // Only the part by which it grew.
        assert_eq!(after(libc::SYS_mremap, [0x9_0000, 0x4000, 0x8000, 0], 0x2_8000), one(0x2_C000, 0x3_0000));
        assert_eq!(after(libc::SYS_mremap, [0x9_0000, 0x8000, 0x4000, 0], 0x2_8000), none);
        assert_eq!(after(libc::SYS_mprotect, [0x1_F000, 0x2000, WRITABLE, 0], 0), one(0x2_0000, 0x2_1000));
        assert_eq!(after(libc::SYS_mprotect, [0x1_F000, 0x2000, libc::PROT_READ as u64, 0], 0), none);
        assert_eq!(after(libc::SYS_munmap, [0x2_0000, 0x1_0000, 0, 0], 0), none);
        // A thread's stack, which becomes writable later.
        let stack = OWN | libc::MAP_STACK as u64;
        assert_eq!(after(libc::SYS_mmap, [0, 0x1_0000, 0, stack], 0x6_0000), none);
        assert_eq!(after(libc::SYS_mprotect, [0x6_1000, 0xF000, WRITABLE, 0], 0), none);
        // Its addresses are used again for other memory.
        assert_eq!(after(libc::SYS_mmap, [0, 0x1_0000, WRITABLE, OWN], 0x6_0000), one(0x6_0000, 0x7_0000));
        assert_eq!(after(libc::SYS_mprotect, [0x6_1000, 0xF000, WRITABLE, 0], 0), one(0x6_1000, 0x7_0000));
    }
}
