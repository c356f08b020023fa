//! Buffers of every kind, populated: what the kernel itself tells of their pages, read here without this crate.
#![cfg(target_pointer_width = "64")]

use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::process::Command;
use std::ptr::null_mut;

use dormouse_backing::{NotPopulated, os_page_size, populate, populate_raw};
use dormouse_testing::{Lack, skip, skip_part};
use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, MprotectFlags, ProtFlags, madvise, mmap, mmap_anonymous, mprotect, munmap};

const SIZE: usize = 4 << 20;

/// Counts of a buffer's whole pages, by `/proc/self/pagemap` and `/proc/kpageflags`.
#[derive(Debug, PartialEq, Eq, Default)]
struct Told {
    present: usize,
    /// Pages in no other page table.
    own: usize,
    /// Pages of a file or of shared memory.
    of_file: usize,
    /// Pages whose frame is the zero page; `None` if frames are not told.
    zero: Option<usize>,
}

fn told(buffer: &[u8]) -> Told {
    let (start, end) =
        (buffer.as_ptr().addr() / os_page_size(), (buffer.as_ptr().addr() + buffer.len()).div_ceil(os_page_size()));
    let mut words = vec![0; 8 * (end - start)];
    File::open("/proc/self/pagemap").unwrap().read_exact_at(&mut words, 8 * start as u64).unwrap();
    let flags = File::open("/proc/kpageflags").ok();
    let mut told = Told { zero: flags.as_ref().map(|_| 0), ..Told::default() };
    for word in words.chunks_exact(8).map(|word| u64::from_ne_bytes(word.try_into().unwrap())) {
        let is = |bit: u32| usize::from(word >> bit & 1 != 0);
        told.present += is(63);
        told.own += is(63) & is(56);
        told.of_file += is(63) & is(61);
        let frame = word & ((1 << 55) - 1);
        if let (Some(flags), Some(zero)) = (&flags, &mut told.zero)
            && is(63) == 1
        {
            let mut found = [0; 8];
            flags.read_exact_at(&mut found, 8 * frame).unwrap();
            *zero += (u64::from_ne_bytes(found) >> 24 & 1) as usize;
        }
    }
    told
}

/// Returns the pages that mincore(2) calls resident.
fn resident(buffer: &[u8]) -> usize {
    let start = buffer.as_ptr().addr() / os_page_size() * os_page_size();
    let size_bytes = (buffer.as_ptr().addr() + buffer.len()).next_multiple_of(os_page_size()) - start;
    let mut pages = vec![0_u8; size_bytes / os_page_size()];
    let start = buffer.as_ptr().with_addr(start).cast_mut().cast();
    // SAFETY: the range is whole pages of a mapped buffer, and the result has a byte for each (mincore(2)).
    assert_eq!(unsafe { libc::mincore(start, size_bytes, pages.as_mut_ptr()) }, 0);
    pages.iter().filter(|page| **page & 1 != 0).count()
}

/// Returns a field of `/proc/self/smaps` for the mapping with the buffer's first byte, in bytes.
fn smaps(buffer: &[u8], field: &str) -> usize {
    let at = buffer.as_ptr().addr();
    let mut is_here = false;
    for line in fs::read_to_string("/proc/self/smaps").unwrap().lines() {
        let first = line.split_ascii_whitespace().next().unwrap();
        match first.split_once('-').map(|(start, end)| [start, end].map(|text| usize::from_str_radix(text, 16))) {
            Some([Ok(start), Ok(end)]) => is_here = (start..end).contains(&at),
            _ if is_here && first.strip_suffix(':') == Some(field) => {
                return line.split_ascii_whitespace().nth(1).unwrap().parse::<usize>().unwrap() << 10;
            }
            _ => {}
        }
    }
    panic!("{field} of {at:#x} is not in /proc/self/smaps");
}

/// Reads each page once, and returns the sum of these bytes.
fn sum(buffer: &[u8]) -> u64 {
    // SAFETY: the byte is inside the buffer.
    let read = |index: usize| u64::from(unsafe { buffer.as_ptr().wrapping_add(index).read_volatile() });
    (0..buffer.len()).step_by(os_page_size()).map(read).sum()
}

/// Checks that all pages are this process's own, and that the contents are those from before.
#[track_caller]
fn check_populated(buffer: &mut [u8]) {
    // Read by the kernel, so that the comparison itself touches nothing in this process.
    let memory = File::open("/proc/self/mem").unwrap();
    let contents = |buffer: &[u8]| {
        let mut bytes = vec![0; buffer.len()];
        memory.read_exact_at(&mut bytes, buffer.as_ptr().addr() as u64).unwrap();
        bytes
    };
    let before = contents(buffer);
    populate(buffer).unwrap();
    let count =
        (buffer.as_ptr().addr() + buffer.len()).div_ceil(os_page_size()) - buffer.as_ptr().addr() / os_page_size();
    let Told { present, own, of_file, zero } = told(buffer);
    assert_eq!((present, own, of_file, zero.unwrap_or(0)), (count, count, 0, 0));
    assert_eq!(resident(buffer), count);
    assert!(contents(buffer) == before, "the contents changed");
    let faults = faults();
    std::hint::black_box(sum(buffer));
    (0..buffer.len()).step_by(os_page_size()).for_each(|index| buffer[index] = buffer[index].wrapping_add(1));
    assert_eq!(self::faults(), faults);
}

fn faults() -> libc::c_long {
    // SAFETY: all zeroes is a valid `rusage`, plain data.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: the structure is a valid place for the answer (getrusage(2)).
    assert_eq!(unsafe { libc::getrusage(libc::RUSAGE_THREAD, &mut usage) }, 0);
    usage.ru_minflt + usage.ru_majflt
}

/// Memory on a huge page boundary, between unmapped pages, so that it is a mapping of its own.
struct Mapped {
    outer: *mut u8,
    base: *mut u8,
}

impl Mapped {
    const OUTER: usize = SIZE + (4 << 20);

    fn new(flags: MapFlags, file: Option<&File>) -> Mapped {
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping at an address that the kernel chooses (mmap(2)).
        let outer = unsafe { mmap_anonymous(null_mut(), Mapped::OUTER, ProtFlags::empty(), MapFlags::PRIVATE) };
        let outer: *mut u8 = outer.unwrap().cast();
        let base = outer.wrapping_add((outer.addr() + 1).next_multiple_of(2 << 20) - outer.addr());
        let mapped = match file {
            // SAFETY: replaces a part of the mapping made above.
            None => unsafe { mmap_anonymous(base.cast(), SIZE, protection, flags | MapFlags::FIXED) },
            // SAFETY: replaces a part of the mapping made above.
            Some(file) => unsafe { mmap(base.cast(), SIZE, protection, flags | MapFlags::FIXED, file, 0) },
        };
        assert_eq!(mapped.unwrap().cast(), base);
        Mapped { outer, base }
    }

    fn anonymous(advice: Advice) -> Mapped {
        let mapped = Mapped::new(MapFlags::PRIVATE, None);
        // SAFETY: the range is the mapping, whose contents do not change (madvise(2)).
        unsafe { madvise(mapped.base.cast(), SIZE, advice) }.unwrap();
        mapped
    }

    #[expect(clippy::mut_from_ref, reason = "each test uses one reference at a time")]
    fn bytes(&self) -> &mut [u8] {
        // SAFETY: the mapping has that many initialised bytes, lives as long as `self`, and is used by one test alone.
        unsafe { std::slice::from_raw_parts_mut(self.base, SIZE) }
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        // SAFETY: the mapping made by `new`, whole, of which nothing is used any more.
        unsafe { munmap(self.outer.cast(), Mapped::OUTER) }.unwrap();
    }
}

#[test]
fn a_mapping_that_was_only_read() {
    let mapped = Mapped::anonymous(Advice::LinuxNoHugepage);
    let buffer = mapped.bytes();
    assert_eq!(sum(buffer), 0);
    // All present, and yet none of it is memory: smaps does not count the zero page.
    assert_eq!((told(buffer).present, told(buffer).own, smaps(buffer, "Rss")), (SIZE / os_page_size(), 0, 0));
    check_populated(buffer);
    assert_eq!((smaps(buffer, "Rss"), smaps(buffer, "Private_Dirty"), smaps(buffer, "Anonymous")), (SIZE, SIZE, SIZE));
}

#[test]
fn a_mapping_in_every_state() {
    let mapped = Mapped::anonymous(Advice::LinuxNoHugepage);
    let buffer = mapped.bytes();
    for page in 0..SIZE / os_page_size() {
        match page % 3 {
            0 => buffer[page * os_page_size() + page % os_page_size()] = page as u8 | 1,
            1 => assert_eq!(sum(&buffer[page * os_page_size()..(page + 1) * os_page_size()]), 0),
            _ => {}
        }
    }
    check_populated(buffer);
}

#[test]
fn huge_pages() {
    let mapped = Mapped::anonymous(Advice::LinuxHugepage);
    let buffer = mapped.bytes();
    assert_eq!(sum(buffer), 0);
    check_populated(buffer);
    assert_eq!(smaps(buffer, "Rss"), SIZE);
    let untouched = Mapped::anonymous(Advice::LinuxHugepage);
    check_populated(untouched.bytes());
    let settings = fs::read_to_string("/sys/kernel/mm/transparent_hugepage/enabled").unwrap_or_default();
    if settings.contains("[never]") || settings.is_empty() {
        skip_part(
            "huge pages are used",
            Lack::machine("they are off", "echo madvise > /sys/kernel/mm/transparent_hugepage/enabled"),
        );
    } else {
        // There may be no 2 MiB of contiguous memory; the populated pages are whole nevertheless.
        println!("{} of {SIZE} bytes in huge pages", smaps(untouched.bytes(), "AnonHugePages"));
    }
}

#[test]
fn the_heap_and_static_memory() {
    check_populated(&mut vec![0; SIZE + 77]);
    check_populated(&mut [0; 3]);
    static mut FRAME: [u8; SIZE + 1] = [0; SIZE + 1];
    let frame = &raw mut FRAME;
    // SAFETY: no other code names the variable.
    let frame = unsafe { &mut *frame };
    assert_eq!(sum(frame), 0);
    check_populated(frame);
    assert_eq!(populate(&mut [0_u64; 0]), Ok(()));
    assert_eq!(populate(&mut [(); 5]), Ok(()));
}

/// Only the pages that the buffer overlaps.
#[test]
fn edges_inside_pages() {
    let mapped = Mapped::anonymous(Advice::LinuxNoHugepage);
    let part = &mut mapped.bytes()[3 * os_page_size() - 1..6 * os_page_size() + 1];
    check_populated(part);
    let whole = mapped.bytes();
    assert_eq!((told(&whole[..2 * os_page_size()]).present, told(&whole[7 * os_page_size()..]).present), (0, 0));
    assert_eq!(smaps(whole, "Rss"), 5 * os_page_size());
    check_populated(&mut mapped.bytes()[9 * os_page_size() + 5..9 * os_page_size() + 6]);
    assert_eq!(smaps(mapped.bytes(), "Rss"), 6 * os_page_size());
}

#[test]
fn a_private_mapping_of_a_file() {
    let mut file = tempfile::tempfile().unwrap();
    let bytes: Vec<u8> = (0..SIZE).map(|index| (index / 61) as u8).collect();
    file.write_all(&bytes).unwrap();
    let mapped = Mapped::new(MapFlags::PRIVATE, Some(&file));
    let buffer = mapped.bytes();
    sum(buffer);
    // Present: the file's pages, of which a write would make a copy.
    assert!(told(buffer).of_file > 0);
    check_populated(buffer);
    let mut found = vec![0; SIZE];
    file.read_exact_at(&mut found, 0).unwrap();
    assert!(found == bytes, "the file changed");
}

#[test]
fn shared_memory_becomes_present() {
    let mapped = Mapped::new(MapFlags::SHARED, None);
    let buffer = mapped.bytes();
    populate(buffer).unwrap();
    assert_eq!((told(buffer).present, resident(buffer)), (SIZE / os_page_size(), SIZE / os_page_size()));
}

/// Environment variable that is set in the process in which a test runs once more, alone.
const ALONE: &str = "DORMOUSE_POPULATE_ALONE";

/// Runs a test once more, in a process of its own with [`ALONE`] set to `value`, and checks that it printed `done`.
fn run_alone(test: &str, value: &str, done: &str) {
    let mut again = Command::new(std::env::current_exe().unwrap());
    let output = again.args(["--exact", test, "--nocapture"]).env(ALONE, value).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && text.contains(done), "{text}{}", String::from_utf8_lossy(&output.stderr));
}

/// Runs alone, because a child shares the pages of all tests in its parent.
#[test]
fn pages_that_a_fork_shares_become_own() {
    if std::env::var(ALONE).is_err() {
        return run_alone("pages_that_a_fork_shares_become_own", "1", "became own");
    }
    let mapped = Mapped::anonymous(Advice::LinuxNoHugepage);
    let buffer = mapped.bytes();
    buffer.fill(7);
    // SAFETY: the child only waits to be killed, and ends.
    let pid = unsafe { libc::fork() };
    if pid == 0 {
        loop {
            // SAFETY: the call has no preconditions.
            unsafe { libc::pause() };
        }
    }
    assert!(pid > 0);
    let shared = told(buffer);
    check_populated(buffer);
    // SAFETY: the process is this one's child, and was not waited for.
    unsafe { libc::kill(pid, libc::SIGKILL) };
    // SAFETY: the process is this one's child; its status is not asked for.
    assert_eq!(unsafe { libc::waitpid(pid, null_mut(), 0) }, pid);
    assert_eq!((shared.present, shared.own), (SIZE / os_page_size(), 0));
    println!("became own");
}

#[test]
fn read_only_and_unmapped_memory_are_errors_that_change_nothing() {
    let mapped = Mapped::anonymous(Advice::LinuxNoHugepage);
    let hole = mapped.base.wrapping_add(SIZE / 2);
    // SAFETY: the range is the second half of the mapping, which this test alone uses.
    unsafe { mprotect(hole.cast(), SIZE / 2, MprotectFlags::READ) }.unwrap();
    let refused = populate(mapped.bytes());
    assert_eq!(refused, Err(NotPopulated::ReadOnly { address: hole.addr() }));
    assert!(refused.unwrap_err().to_string().contains("read-only"));
    assert_eq!(told(mapped.bytes()).present, 0);
    // SAFETY: the mapping ends there, and nothing is mapped behind it that this test does not own.
    let beyond = unsafe { populate_raw(mapped.base, SIZE / 2 + 1) };
    assert_eq!(beyond, Err(NotPopulated::ReadOnly { address: hole.addr() }));
    // SAFETY: the range is the second half of the mapping, which this test alone uses.
    unsafe { munmap(hole.cast(), SIZE / 2) }.unwrap();
    // SAFETY: the first half is this test's, and nothing is mapped behind it.
    let refused = unsafe { populate_raw(mapped.base, SIZE) };
    assert_eq!(refused, Err(NotPopulated::NotMapped { address: hole.addr() }));
    assert_eq!(told(&mapped.bytes()[..SIZE / 2]).present, 0);
    // SAFETY: nothing is mapped there.
    let refused = unsafe { populate_raw(mapped.base, usize::MAX) };
    assert_eq!(refused, Err(NotPopulated::Size { size_bytes: usize::MAX }));
    // SAFETY: no bytes are meant.
    assert_eq!(unsafe { populate_raw(null_mut(), 0) }, Ok(()));
}

#[test]
fn the_end_of_a_file_is_an_error_with_its_address() {
    let file = tempfile::tempfile().unwrap();
    file.set_len((SIZE / 2) as u64).unwrap();
    let mapped = Mapped::new(MapFlags::PRIVATE, Some(&file));
    // SAFETY: `madvise` of an empty range does nothing (madvise(2)).
    if unsafe { madvise(null_mut(), 0, Advice::LinuxPopulateWrite) } == Err(Errno::INVAL) {
        return skip(Lack::machine("it would be a SIGBUS", "Linux 5.14 or later"));
    }
    let refused = populate(mapped.bytes());
    assert_eq!(refused, Err(NotPopulated::NoPage { address: mapped.base.addr() + SIZE / 2 }));
}

#[test]
fn a_memory_group_without_room_is_an_error_not_a_kill() {
    if let Ok(group) = std::env::var(ALONE) {
        fs::write(format!("{group}/cgroup.procs"), std::process::id().to_string()).unwrap();
        let mut buffer = vec![0_u8; 256 << 20];
        let refused = populate(&mut buffer);
        let Err(NotPopulated::NotEnough { wanted_bytes, available_bytes }) = refused else { panic!("{refused:?}") };
        // The allocator has written to the page in which the buffer begins.
        assert!(wanted_bytes.abs_diff(256 << 20) <= os_page_size() as u64, "{wanted_bytes}");
        assert!(available_bytes < 64 << 20, "{available_bytes}");
        assert_eq!(told(&buffer[os_page_size()..]).own, 0);
        // Only what is missing counts.
        populate(&mut buffer[..1 << 20]).unwrap();
        println!("refused");
        return;
    }
    let name = format!("dormouse-populate-{}", std::process::id());
    let groups = [("/sys/fs/cgroup/memory", "memory.limit_in_bytes"), ("/sys/fs/cgroup", "memory.max")];
    let made = groups.into_iter().find_map(|(root, limit)| {
        let group = format!("{root}/{name}");
        fs::create_dir(&group).ok()?;
        if fs::write(format!("{group}/{limit}"), "67108864").is_err() {
            fs::remove_dir(&group).unwrap();
            return None;
        }
        Some(group)
    });
    let Some(group) = made else {
        return skip(Lack::machine("no memory control group can be made", "run the tests as root"));
    };
    let ran =
        std::panic::catch_unwind(|| run_alone("a_memory_group_without_room_is_an_error_not_a_kill", &group, "refused"));
    fs::remove_dir(&group).unwrap();
    ran.unwrap();
}

/// More than the machine has, without a group.
#[test]
fn too_much_is_an_error() {
    let size_bytes = 1 << 40;
    let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
    // SAFETY: a new mapping at an address that the kernel chooses (mmap(2)).
    let base = unsafe { mmap_anonymous(null_mut(), size_bytes, ProtFlags::READ | ProtFlags::WRITE, flags) };
    let Ok(base) = base else {
        return skip(Lack::machine("a terabyte of addresses is refused", "vm.overcommit_memory=0"));
    };
    // SAFETY: the range is the mapping made above.
    let refused = unsafe { populate_raw(base.cast(), size_bytes) };
    assert!(
        matches!(refused, Err(NotPopulated::NotEnough { wanted_bytes, .. }) if wanted_bytes == 1 << 40),
        "{refused:?}"
    );
    // SAFETY: the mapping made above, whole.
    unsafe { munmap(base, size_bytes) }.unwrap();
}
