use std::fs::File;
use std::io::Write;
use std::ops::Range;
use std::os::fd::AsFd;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use std::process::{Command, Stdio};
use std::ptr::{self, null_mut};
use std::sync::{PoisonError, RwLock, RwLockReadGuard};

use dormouse_testing::{Lack, skip, skip_part};
use rustix::fs::{MemfdFlags, SealFlags};
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags};

use crate::audit::unbacked_by;
use crate::check::check_by;
use crate::mapping::{COLLAPSE_TRIES, MADV_COLLAPSE, again_while_asked};
use crate::numa::away_bytes;
use crate::page_table::{KernelInterface, PageKind, PageTable};
use crate::{
    BackingError, Huge, Mapping, MemoryOptions, MissingBytes, Nodes, NotBacked, Pool, PrivatePool, assert_backed,
    check_backed, check_backed_raw, huge_page_alignment, huge_page_size, huge_page_size_in, node_of_cpu, os_page_size,
    try_pagemap_scan, usual_huge_page_size,
};

const LAZY: MemoryOptions = MemoryOptions::new().prefault(false);

/// Returns the number of page faults of this thread.
fn faults() -> libc::c_long {
    // SAFETY: all zeroes is a valid `rusage`, plain data.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: the structure is a valid place for the answer (getrusage(2)).
    assert_eq!(unsafe { libc::getrusage(libc::RUSAGE_THREAD, &mut usage) }, 0);
    usage.ru_minflt + usage.ru_majflt
}

/// Writes one byte of each `os_page`, and returns the number of faults that this takes.
fn faults_of_writing(mapping: &Mapping) -> libc::c_long {
    let before = faults();
    for offset in (0..mapping.len()).step_by(os_page_size()) {
        // SAFETY: the byte is inside the mapping, to which no reference exists.
        unsafe { mapping.base().wrapping_add(offset).write_volatile(7) };
    }
    faults() - before
}

#[test]
fn a_prefaulted_pool_is_present_and_does_not_fault() {
    let pool = Pool::new("dormouse-test", 3 << 20, MemoryOptions::new()).unwrap();
    assert_eq!(pool.size_bytes(), 3 << 20);
    assert_eq!(pool.mapping().unbacked_os_pages(0..3 << 20), Ok(0));
    assert_eq!(faults_of_writing(pool.mapping()), 0);

    // Another mapping starts with an empty page table, independent of the file's contents.
    let lazy = Mapping::map(&pool, false).unwrap();
    assert_eq!(lazy.unbacked_os_pages(0..lazy.len()), Ok(lazy.len() / os_page_size()));
    let populated = Mapping::map(pool.file(), true).unwrap();
    assert_eq!(populated.unbacked_os_pages(0..populated.len()), Ok(0));
    assert_eq!(faults_of_writing(&populated), 0);
    // SAFETY: the byte is inside the mapping, to which no reference exists.
    assert_eq!(unsafe { pool.base().read_volatile() }, 7);
}

#[test]
fn huge_pages_keep_the_bytes_and_save_other_processes_faults() {
    let huge_page = huge_page_size();
    let pool = Pool::new("dormouse-test", 2 * huge_page + 8192, MemoryOptions::new()).unwrap();
    assert!(pool.base().addr().is_multiple_of(huge_page));
    for offset in (0..pool.size_bytes()).step_by(4096) {
        // SAFETY: the byte is inside the mapping, to which no reference exists.
        unsafe { pool.base().wrapping_add(offset).write_volatile((offset >> 12) as u8) };
    }
    // The kernel decides whether there are huge pages.
    let huge = pool.use_huge_pages(0..pool.size_bytes());
    assert!([0, huge_page, 2 * huge_page].contains(&huge));
    assert_eq!(pool.mapping().unbacked_os_pages(0..pool.size_bytes()), Ok(0));
    for offset in (0..pool.size_bytes()).step_by(4096) {
        // SAFETY: the byte is inside the pool, which is mapped and readable.
        assert_eq!(unsafe { pool.base().wrapping_add(offset).read_volatile() }, (offset >> 12) as u8);
    }
    let other = Mapping::map(&pool, false).unwrap();
    assert!(other.base().addr().is_multiple_of(huge_page));
    let expected = (pool.size_bytes() - huge) / os_page_size() + huge / huge_page;
    assert!(faults_of_writing(&other) as usize <= expected);
}

/// Under other load, one request of 28,000 failed with `EAGAIN`: all of the session's memory after it stayed in small
/// pages, which fault.
#[test]
fn a_huge_page_is_requested_again_while_others_hold_its_pages() {
    let after = |failures: usize| {
        let mut count = 0;
        let result = again_while_asked(|| {
            count += 1;
            if count <= failures { Err(Errno::AGAIN) } else { Ok(()) }
        });
        (result, count)
    };
    assert_eq!(after(0), (Ok(()), 1));
    assert_eq!(after(COLLAPSE_TRIES - 1), (Ok(()), COLLAPSE_TRIES));
    assert_eq!(after(COLLAPSE_TRIES), (Err(Errno::AGAIN), COLLAPSE_TRIES));
    let mut count = 0;
    let refused = again_while_asked(|| {
        count += 1;
        Err(Errno::INVAL)
    });
    assert_eq!((refused, count), (Err(Errno::INVAL), 1));
}

#[test]
fn a_held_page_prevents_only_its_own_huge_page() {
    let huge_page = huge_page_size();
    let pool = Pool::new("dormouse-test", 2 * huge_page, MemoryOptions::new()).unwrap();
    pool.prefault(0..pool.size_bytes()).unwrap();
    let (reader, writer) = rustix::pipe::pipe().unwrap();
    // SAFETY: the slice is an `os_page` of the pool, which stays mapped and is not written meanwhile.
    let held = unsafe { std::slice::from_raw_parts(pool.base().wrapping_add(huge_page), os_page_size()) };
    let parts = [rustix::pipe::IoSliceRaw::from_slice(held)];
    // SAFETY: the pages are only read.
    let count = unsafe { rustix::pipe::vmsplice(&writer, &parts, rustix::pipe::SpliceFlags::empty()) };
    assert_eq!(count, Ok(os_page_size()));
    // The kernel decides whether there are huge pages.
    let huge = pool.use_huge_pages(0..pool.size_bytes());
    assert!([0, huge_page].contains(&huge), "{huge}");
    drop((reader, writer));
    assert_eq!(pool.use_huge_pages(0..pool.size_bytes()), 2 * huge);
}

#[test]
fn small_pools_have_no_huge_pages() {
    let pool = Pool::new("dormouse-test", 1 << 20, MemoryOptions::new()).unwrap();
    assert_eq!(pool.use_huge_pages(0..pool.size_bytes()), 0);
}

#[test]
fn returned_memory_reads_as_zeroes_and_is_freed() {
    let os_page = os_page_size();
    let pool = Pool::new("dormouse-test", 8 * os_page, MemoryOptions::new()).unwrap();
    for index in 0..8 {
        // SAFETY: the byte is inside the mapping, to which no reference exists.
        unsafe { pool.base().wrapping_add(index * os_page).write_volatile(7) };
    }
    let blocks = || rustix::fs::fstat(&pool).unwrap().st_blocks as usize * 512 / os_page;
    assert_eq!(blocks(), 8);
    // Pages that are only partly in the range stay.
    pool.give_back(2 * os_page - 1..5 * os_page + 1).unwrap();
    assert_eq!(blocks(), 5);
    let read = |index: usize| {
        // SAFETY: the byte is inside the pool, which is mapped and readable.
        unsafe { pool.base().wrapping_add(index * os_page).read_volatile() }
    };
    assert_eq!([0, 1, 5, 7].map(read), [7; 4]);
    assert_eq!([2, 3, 4].map(read), [0; 3]);
    pool.give_back(os_page..os_page).unwrap();
    let beyond = pool.give_back(0..9 * os_page);
    assert!(matches!(beyond, Err(crate::BackingError::Range { .. })), "{beyond:?}");
}

#[test]
fn a_part_is_prefaulted_and_keeps_its_bytes() {
    let os_page = os_page_size();
    let pool = Pool::new("dormouse-test", 10 * os_page - 1, LAZY).unwrap();
    assert_eq!(pool.size_bytes(), 10 * os_page);
    assert_eq!(pool.mapping().unbacked_os_pages(0..10 * os_page), Ok(10));
    // SAFETY: the byte is inside the mapping, to which no reference exists.
    unsafe { pool.base().write_volatile(9) };
    pool.prefault(os_page - 1..2 * os_page + 1).unwrap();
    assert_eq!(pool.mapping().unbacked_os_pages(0..3 * os_page), Ok(0));
    assert_eq!(pool.mapping().unbacked_os_pages(0..10 * os_page), Ok(7));
    assert_eq!(pool.mapping().unbacked_os_pages(2 * os_page + 5..4 * os_page + 5), Ok(2));
    pool.mapping().touch(0..10 * os_page);
    assert_eq!(pool.mapping().unbacked_os_pages(0..10 * os_page), Ok(0));
    assert_eq!(faults_of_writing(&Mapping::map(&pool, true).unwrap()), 0);
    // SAFETY: the byte is inside the mapping, to which no reference exists.
    unsafe { pool.base().write_volatile(9) };
    pool.mapping().touch(0..os_page);
    // SAFETY: the byte is inside the mapping, to which no reference exists.
    assert_eq!(unsafe { pool.base().read_volatile() }, 9);
}

#[test]
fn empty_and_impossible_ranges_do_nothing() {
    let size_bytes = 4 * os_page_size();
    let pool = Pool::new("dormouse-test", size_bytes, LAZY).unwrap();
    assert_eq!(pool.prefault(5..5), Ok(()));
    assert_eq!(pool.mapping().unbacked_os_pages(5..5), Ok(0));
    assert_eq!(pool.mapping().unbacked_os_pages(5..6), Ok(1));
    let error = BackingError::Range { start: 0, end: size_bytes + 1, size_bytes };
    assert_eq!(pool.prefault(0..size_bytes + 1), Err(error));
    assert_eq!(pool.mapping().unbacked_os_pages(0..size_bytes + 1), Err(error));
}

#[test]
fn the_seals_refuse_truncation_and_more_seals() {
    let pool = Pool::new("dormouse-test", 1 << 20, LAZY).unwrap();
    assert_eq!(rustix::fs::ftruncate(&pool, 0), Err(Errno::PERM));
    assert_eq!(rustix::fs::ftruncate(&pool, 2 << 20), Err(Errno::PERM));
    assert_eq!(rustix::fs::fcntl_add_seals(&pool, SealFlags::WRITE), Err(Errno::PERM));
    assert!(rustix::io::fcntl_getfd(&pool).unwrap().contains(rustix::io::FdFlags::CLOEXEC));
    let (file, mapping) = pool.into_parts();
    drop(file);
    assert_eq!(faults_of_writing(&mapping), (1 << 20) / os_page_size() as libc::c_long);
}

#[test]
fn files_that_can_shrink_are_refused() {
    let file = rustix::fs::memfd_create("dormouse-test", MemfdFlags::ALLOW_SEALING).unwrap();
    rustix::fs::ftruncate(&file, 4096).unwrap();
    assert_eq!(Mapping::map(&file, false).map(|_| ()), Err(BackingError::NotSealed));
    rustix::fs::fcntl_add_seals(&file, SealFlags::GROW).unwrap();
    assert_eq!(Mapping::map(&file, false).map(|_| ()), Err(BackingError::NotSealed));
    rustix::fs::fcntl_add_seals(&file, SealFlags::SHRINK).unwrap();
    assert_eq!(Mapping::map(&file, true).map(|mapping| mapping.len()), Ok(4096));

    let unsealable = rustix::fs::memfd_create("dormouse-test", MemfdFlags::empty()).unwrap();
    assert_eq!(Mapping::map(&unsealable, false).map(|_| ()), Err(BackingError::NotSealed));
    let (reader, _writer) = rustix::pipe::pipe().unwrap();
    assert_eq!(Mapping::map(&reader, false).map(|_| ()), Err(BackingError::NotMemory));
    let empty = rustix::fs::memfd_create("dormouse-test", MemfdFlags::ALLOW_SEALING).unwrap();
    rustix::fs::fcntl_add_seals(&empty, SealFlags::SHRINK).unwrap();
    assert_eq!(Mapping::map(&empty, false).map(|_| ()), Err(BackingError::Size { size_bytes: 0 }));
}

#[test]
fn a_file_of_an_odd_size_is_populated() {
    let file = rustix::fs::memfd_create("dormouse-test", MemfdFlags::ALLOW_SEALING).unwrap();
    let mut file = File::from(file);
    file.write_all(&[5; 5000]).unwrap();
    rustix::fs::fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW).unwrap();
    let mapping = Mapping::map(file.as_fd(), true).unwrap();
    assert_eq!((mapping.len(), mapping.unbacked_os_pages(0..5000)), (5000, Ok(0)));
}

#[test]
fn too_large_pools_are_an_error_with_a_remedy() {
    // More than any machine has, but less than an address space.
    let error = Pool::new("dormouse-test", 64 << 40, MemoryOptions::new()).map(|_| ()).unwrap_err();
    assert!(matches!(error, BackingError::NotEnough { wanted_bytes, .. } if wanted_bytes == 64 << 40), "{error}");
    assert!(error.to_string().ends_with("choose a smaller --budget"), "{error}");
    let error = BackingError::System { purpose: "make a memory file", errno: Errno::MFILE };
    assert!(error.to_string().ends_with("too many open files; raise its limit (ulimit -n)"), "{error}");
    let error = Pool::new("dormouse-test", 1 << 60, LAZY).map(|_| ()).unwrap_err();
    assert!(error.to_string().ends_with("choose a smaller --budget"), "{error}");
    for size_bytes in [0, usize::MAX, isize::MAX as usize + 1] {
        assert_eq!(Pool::new("dormouse-test", size_bytes, LAZY).map(|_| ()), Err(BackingError::Size { size_bytes }));
    }
}

/// Returns the properties that a page table has for a range, page by page.
fn kinds(table: &PageTable, range: Range<usize>) -> Vec<PageKind> {
    let os_page = os_page_size();
    let mut kinds = vec![PageKind::default(); range.len() / os_page];
    table
        .runs(range.start as u64..range.end as u64, &mut |run| {
            assert!(range.start as u64 <= run.range.start && run.range.start < run.range.end);
            let start = (run.range.start as usize - range.start) / os_page;
            let count = (run.range.end - run.range.start) as usize / os_page;
            for kind in &mut kinds[start..start + count] {
                assert_eq!(*kind, PageKind::default(), "a page is told of twice");
                *kind = run.kind;
            }
        })
        .unwrap();
    kinds
}

/// A mapping of memory of this process alone, or of a file.
struct Mapped(Range<usize>);

impl Mapped {
    fn new(len: usize, file: Option<(&File, MapFlags)>) -> Mapped {
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        let base = match file {
            // SAFETY: a new mapping at an address that the kernel chooses (mmap(2)).
            None => unsafe { rustix::mm::mmap_anonymous(null_mut(), len, protection, MapFlags::PRIVATE) },
            // SAFETY: a new mapping at an address that the kernel chooses (mmap(2)).
            Some((file, flags)) => unsafe { rustix::mm::mmap(null_mut(), len, protection, flags, file, 0) },
        };
        let start = base.unwrap().expose_provenance();
        Mapped(start..start + len)
    }

    fn page(&self, index: usize) -> *mut u8 {
        ptr::with_exposed_provenance_mut(self.0.start + index * os_page_size())
    }

    fn write(&self, index: usize) {
        // SAFETY: the page is inside the mapping, to which no reference exists.
        unsafe { self.page(index).write_volatile(1) };
    }

    fn read(&self, index: usize) {
        // SAFETY: the page is inside the mapping, to which no reference exists.
        unsafe { self.page(index).read_volatile() };
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        // SAFETY: the mapping made by `new`, whole, of which nothing is used any more.
        unsafe { rustix::mm::munmap(self.page(0).cast(), self.0.len()) }.unwrap();
    }
}

const FILE_PAGE: PageKind = PageKind::PRESENT.and(PageKind::FILE);
const ZERO_PAGE: PageKind = PageKind::PRESENT.and(PageKind::ZERO);

#[test]
fn every_method_classifies_pages() {
    let os_page = os_page_size();
    let memory = Mapped::new(1200 * os_page, None);
    // SAFETY: the range is the mapping just made (madvise(2)). With huge pages, neighbours would become present.
    unsafe { rustix::mm::madvise(memory.page(0).cast(), 1200 * os_page, rustix::mm::Advice::LinuxNoHugepage) }.unwrap();
    // Every second page is written, so that there are more runs than one call returns; some are only read.
    (0..1200).step_by(2).for_each(|index| memory.write(index));
    [1, 3, 599, 1199].iter().for_each(|index| memory.read(*index));
    let mut file = tempfile::tempfile().unwrap();
    file.write_all(&vec![1; 4 * os_page]).unwrap();
    let of_file = Mapped::new(4 * os_page, Some((&file, MapFlags::PRIVATE)));
    of_file.write(0);
    of_file.read(1);
    let shared = Mapped::new(4 * os_page, Some((&file, MapFlags::SHARED)));
    shared.write(2);

    let mut interfaces = 0;
    for interface in [KernelInterface::Scan, KernelInterface::WordsAndFlags, KernelInterface::Words] {
        let table = match PageTable::by(None, &[interface]) {
            Ok(table) => table,
            Err(error) => {
                skip_part(
                    format!("{interface:?}"),
                    Lack::machine(error, "run the tests as root, on Linux 6.7 or later"),
                );
                continue;
            }
        };
        interfaces += 1;
        assert_eq!(table.interface(), interface);
        let zero = if interface.sees_zero() { ZERO_PAGE } else { PageKind::PRESENT };
        for (index, kind) in kinds(&table, memory.0.clone()).into_iter().enumerate() {
            let own = if interface == KernelInterface::Words { PageKind::EXCLUSIVE } else { PageKind::default() };
            let expected = match index {
                _ if index % 2 == 0 => PageKind::PRESENT.and(own),
                1 | 3 | 599 | 1199 => zero,
                _ => PageKind::default(),
            };
            assert_eq!(kind, expected, "{interface:?}: page {index}");
        }
        // A page that was written is this process's own. The kernel may also map pages around one that is read.
        let kinds_of_file = kinds(&table, of_file.0.clone());
        // Not every interface tells how many processes have a page of a file.
        let own = PageKind::PRESENT.and(PageKind::EXCLUSIVE);
        assert!(
            kinds_of_file[0] == PageKind::PRESENT || interface == KernelInterface::Words && kinds_of_file[0] == own,
            "{interface:?}"
        );
        assert!(kinds_of_file[1].is(FILE_PAGE), "{interface:?}");
        assert!(kinds(&table, shared.0.clone())[2].is(FILE_PAGE), "{interface:?}");
        let unbacked = unbacked_by(&table, memory.0.clone()).unwrap();
        assert_eq!(unbacked, if interface.sees_zero() { 600 } else { 596 }, "{interface:?}");
        // Unmapped addresses have no runs.
        let gone = memory.0.end..memory.0.end;
        assert!(kinds(&table, gone).is_empty());
    }
    assert!(interfaces > 0);
    assert_eq!(try_pagemap_scan().is_ok(), PageTable::of(None).unwrap().interface() == KernelInterface::Scan);
}

#[test]
fn huge_pages_are_distinguished_from_small_ones() {
    let huge = huge_page_size();
    let memory = Mapped::new(3 * huge, None);
    let start = memory.0.start.next_multiple_of(huge);
    let range = start..start + huge;
    let first = (start - memory.0.start) / os_page_size();
    memory.write(first);
    // SAFETY: the range is inside the mapping, whose contents do not change (madvise(2)).
    if unsafe { libc::madvise(memory.page(first).cast(), huge, MADV_COLLAPSE) } != 0 {
        let reason = format!("no huge page: {}", std::io::Error::last_os_error());
        return skip(Lack::machine(reason, "Linux 6.1 or later, with free memory in large pieces"));
    }
    for interface in [KernelInterface::Scan, KernelInterface::WordsAndFlags] {
        let Ok(table) = PageTable::by(None, &[interface]) else { continue };
        let expected = PageKind::PRESENT.and(PageKind::HUGE);
        assert!(kinds(&table, range.clone()).iter().all(|kind| *kind == expected), "{interface:?}");
    }
}

/// Each interface tells which parts of a buffer are missing, or that it cannot tell; none accepts the zero page.
#[test]
fn a_buffer_is_memory_only_when_each_page_was_written() {
    let os_page = os_page_size();
    let memory = Mapped::new(64 * os_page, None);
    // SAFETY: the range is the mapping just made (madvise(2)). With huge pages, neighbours would become present.
    unsafe { rustix::mm::madvise(memory.page(0).cast(), 64 * os_page, rustix::mm::Advice::LinuxNoHugepage) }.unwrap();
    let address = |index: usize| memory.0.start + index * os_page;
    let all = |table: &PageTable| check_by(table, memory.0.start, memory.0.len());
    let tables: Vec<PageTable> = [KernelInterface::Scan, KernelInterface::WordsAndFlags, KernelInterface::Words]
        .iter()
        .flat_map(|interface| PageTable::by(None, &[*interface]))
        .collect();
    let nothing = MissingBytes {
        size_bytes: 64 * os_page,
        untouched_bytes: 0,
        zero_bytes: 0,
        swapped_bytes: 0,
        unknown_bytes: 0,
        first: address(0),
    };
    for table in &tables {
        let expected = MissingBytes { untouched_bytes: 64 * os_page, ..nothing };
        assert_eq!(all(table), Err(NotBacked::Missing(expected)), "{:?}", table.interface());
    }
    (0..64).filter(|index| ![7, 8, 40].contains(index)).for_each(|index| memory.write(index));
    memory.read(40);
    for table in &tables {
        let (zero_bytes, unknown_bytes) = if table.interface().sees_zero() { (os_page, 0) } else { (0, os_page) };
        let expected =
            MissingBytes { untouched_bytes: 2 * os_page, zero_bytes, unknown_bytes, first: address(7), ..nothing };
        assert_eq!(all(table), Err(NotBacked::Missing(expected)), "{:?}", table.interface());
        // Pages next to the buffer do not count; a page counts as a whole if the buffer has any byte of it.
        assert_eq!(check_by(table, address(6), os_page), Ok(()));
        assert!(check_by(table, address(7) - 1, 2).is_err());
        assert_eq!(check_by(table, address(9) + 1, 31 * os_page - 1), Ok(()));
    }
    memory.write(7);
    memory.write(8);
    for table in &tables {
        let error = all(table).unwrap_err();
        if table.interface().sees_zero() {
            let expected = MissingBytes { zero_bytes: os_page, first: address(40), ..nothing };
            assert_eq!(error, NotBacked::Missing(expected), "{:?}", table.interface());
            assert!(error.to_string().contains(&format!("{os_page} bytes on the zero page")), "{error}");
        } else {
            let expected = MissingBytes { unknown_bytes: os_page, first: address(40), ..nothing };
            assert_eq!(error, NotBacked::ZeroUnseen(expected));
            assert!(error.to_string().ends_with("use Linux 6.7 or later, or be root"), "{error}");
        }
    }
    memory.write(40);
    tables.iter().for_each(|table| assert_eq!(all(table), Ok(()), "{:?}", table.interface()));
    assert_eq!(tables.iter().map(|table| table.interface()).next_back(), Some(KernelInterface::Words));
}

#[test]
fn slices_are_checked_and_assertions_name_their_position() {
    check_backed::<u64>(&[]).unwrap();
    let mut buffer = vec![0u32; 1 << 20];
    let caught = std::panic::catch_unwind(|| assert_backed(&buffer)).unwrap_err();
    let text = caught.downcast_ref::<String>().unwrap();
    assert!(text.contains("of a buffer of 4.0 MiB are not memory of its own"), "{text}");
    buffer.fill(1);
    // The buffer belongs to this process alone, so every interface can tell.
    assert_backed(&buffer);
    assert!(matches!(check_backed_raw(std::ptr::without_provenance(usize::MAX - 5), 20), Err(NotBacked::Unknown(_))));
}

/// A process that has ended has an empty page table, and one that never existed is an error.
#[test]
fn processes_that_have_ended_do_no_harm() {
    let mut child = Command::new("cat").stdin(Stdio::piped()).spawn().unwrap();
    let table = |interfaces: &[KernelInterface]| PageTable::by(Some(child.id()), interfaces);
    let tables: Vec<PageTable> = [KernelInterface::Scan, KernelInterface::WordsAndFlags, KernelInterface::Words]
        .iter()
        .flat_map(|interface| table(&[*interface]))
        .collect();
    child.kill().unwrap();
    child.wait().unwrap();
    for table in tables {
        let mut runs = 0;
        table.runs(0..1 << 40, &mut |_| runs += 1).unwrap();
        assert_eq!(runs, 0, "{:?}", table.interface());
    }
    let error = PageTable::of(Some(child.id())).unwrap_err();
    assert!(matches!(error, BackingError::System { errno: Errno::NOENT, .. }), "{error}");
}

#[test]
fn a_mapping_may_be_left_in_place() {
    let pool = Pool::new("dormouse-test", os_page_size(), MemoryOptions::new()).unwrap();
    let (file, mapping) = pool.into_parts();
    drop(file);
    let (base, len) = mapping.into_raw();
    assert_eq!(len, os_page_size());
    // SAFETY: the mapping is never unmapped, and no reference to it exists.
    unsafe { base.write_volatile(1) };
}

#[test]
fn a_pool_on_a_file_system_is_allocated_and_persists() {
    let place = tempfile::tempdir_in("/dev/shm").unwrap();
    let path = place.path().join("buffers");
    let os_page = os_page_size();
    let (size_bytes, promised_bytes) = (5 * os_page - 480, 3 * os_page - 2288);
    let pool = Pool::on_file_system(&path, size_bytes, promised_bytes).unwrap();
    assert_eq!(pool.size_bytes(), 5 * os_page);
    pool.prefault(0..promised_bytes).unwrap();
    assert_eq!(pool.mapping().unbacked_os_pages(0..size_bytes), Ok(2));
    // A file that exists already is never used.
    let again = Pool::on_file_system(&path, size_bytes, promised_bytes).map(|_| ());
    assert!(matches!(again, Err(BackingError::System { errno: Errno::EXIST, .. })), "{again:?}");
    let metadata = std::fs::metadata(&path).unwrap();
    assert_eq!((metadata.mode() & 0o777, metadata.blocks() * 512), (0o600, 3 * os_page as u64));

    // No seal: refused as a session owner's memory, and accepted as a file of this user.
    assert_eq!(Mapping::map(&pool, false).map(|_| ()), Err(BackingError::NotSealed));
    let other = Mapping::map_unlocked(&pool).unwrap();
    assert!(!other.is_sealed());
    // SAFETY: the byte is inside the mapping, to which no reference exists.
    unsafe { other.base().write_volatile(7) };
    drop((pool, other));
    assert_eq!(std::fs::read(&path).unwrap()[0], 7);
}

#[test]
fn files_that_others_may_write_to_are_refused() {
    let place = tempfile::tempdir().unwrap();
    let file = File::create_new(place.path().join("file")).unwrap();
    file.set_len(4096).unwrap();
    for (mode, is_accepted) in [(0o600, true), (0o620, false), (0o602, false), (0o644, true)] {
        file.set_permissions(std::fs::Permissions::from_mode(mode)).unwrap();
        let file = File::options().read(true).write(true).open(place.path().join("file")).unwrap();
        assert_eq!(Mapping::map_unlocked(&file).is_ok(), is_accepted, "{mode:o}");
    }
    let (reader, _writer) = rustix::pipe::pipe().unwrap();
    assert_eq!(Mapping::map_unlocked(&reader).map(|_| ()), Err(BackingError::NotOurs));
}

#[test]
fn a_place_that_cannot_hold_buffers_is_left_as_it_was() {
    // The kernel's own file system does not create files; the error names the attempt.
    let refused = Pool::on_file_system(Path::new("/proc/dormouse"), 4096, 4096).map(|_| ());
    assert!(matches!(refused, Err(BackingError::System { .. })), "{refused:?}");
    let place = tempfile::tempdir_in("/dev/shm").unwrap();
    let path = place.path().join("buffers");
    let error = Pool::on_file_system(&path, 64 << 40, 64 << 40).map(|_| ()).unwrap_err();
    assert!(error.to_string().contains("choose a smaller --budget"), "{error}");
    assert!(!path.exists());
}

/// A fork makes every page of the process's private memory fault once more. Tests that count these faults keep other
/// tests from forking meanwhile.
static FORKS: RwLock<()> = RwLock::new(());

fn without_forks() -> RwLockReadGuard<'static, ()> {
    FORKS.read().unwrap_or_else(PoisonError::into_inner)
}

/// Runs a function in a child made by `fork`, and returns the child's wait status.
fn in_child(run: impl FnOnce() -> i32) -> libc::c_int {
    let _alone = FORKS.write().unwrap_or_else(PoisonError::into_inner);
    // SAFETY: the child runs only `run`, which takes no lock of this process except the allocator's, and `fork`
    // releases that.
    let pid = unsafe { libc::fork() };
    if pid == 0 {
        let none = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
        // SAFETY: the limit is a valid structure (setrlimit(2)).
        unsafe { libc::setrlimit(libc::RLIMIT_CORE, &none) };
        let code = run();
        // SAFETY: the call ends the child and has no preconditions.
        unsafe { libc::_exit(code) };
    }
    assert!(pid > 0);
    let mut status = 0;
    // SAFETY: `pid` is this process's child, and `status` has room for the answer (waitpid(2)).
    assert_eq!(unsafe { libc::waitpid(pid, &mut status, 0) }, pid);
    status
}

/// Returns mappings of both kinds of pool, for tests of their common properties.
fn both(size_bytes: usize, options: MemoryOptions) -> Result<[Mapping; 2], BackingError> {
    let pool = Pool::new("dormouse-test", size_bytes, options)?;
    Ok([pool.into_parts().1, PrivatePool::new(size_bytes, options)?.into_mapping()])
}

#[test]
fn private_memory_is_present_and_does_not_fault() {
    let _faults_count = without_forks();
    let pool = PrivatePool::new((3 << 20) + 1, MemoryOptions::new()).unwrap();
    assert_eq!(pool.size_bytes(), (3 << 20) + os_page_size());
    assert_eq!(check_backed_raw(pool.base(), pool.size_bytes()), Ok(()));
    assert_eq!(faults_of_writing(pool.mapping()), 0);
    let lazy = PrivatePool::new(64 * os_page_size(), MemoryOptions::new().prefault(false).huge(Huge::Never)).unwrap();
    assert_eq!(lazy.obtained().unwrap().missing_bytes, lazy.size_bytes());
    lazy.prefault(os_page_size()..2 * os_page_size() + 1).unwrap();
    let obtained = lazy.obtained().unwrap();
    assert_eq!((obtained.missing_bytes, obtained.small_bytes), (62 * os_page_size(), 2 * os_page_size()));
    assert_eq!(faults_of_writing(lazy.mapping()), 62);
    let error = PrivatePool::new(too_much(), MemoryOptions::new()).map(|_| ()).unwrap_err();
    assert!(
        matches!(error, BackingError::NotEnough { wanted_bytes, .. } if wanted_bytes == too_much() as u64),
        "{error}"
    );
}

/// Returns twice the number of bytes of memory that this machine has.
fn too_much() -> usize {
    2 * rustix::system::sysinfo().totalram as usize / os_page_size() * os_page_size()
}

#[test]
fn guard_pages_stop_overruns() {
    let options = MemoryOptions::new().guard(true).capacity_bytes(16 * os_page_size());
    let ends = |at: *mut u8| {
        in_child(|| {
            // SAFETY: only the child accesses its memory; the access may be invalid, and then ends the child.
            unsafe { at.write_volatile(1) };
            0
        })
    };
    for mapping in both(4 * os_page_size(), options).unwrap().into_iter().chain(both(4 << 20, options).unwrap()) {
        let (base, len) = (mapping.base(), mapping.len());
        assert_eq!((ends(base), ends(base.wrapping_add(len - 1))), (0, 0));
        // Before the memory, and after it: the part for growth, and the guard after that.
        let places = [base.wrapping_sub(1), base.wrapping_add(len), base.wrapping_add(mapping.capacity_bytes())];
        for at in places {
            let status = ends(at);
            assert!(libc::WIFSIGNALED(status) && libc::WTERMSIG(status) == libc::SIGSEGV, "{at:?}: {status:#x}");
        }
        // Memory that is mapped later is beyond the guards.
        let others: Vec<Mapped> = (0..32).map(|_| Mapped::new(os_page_size(), None)).collect();
        let (first, last) = (base.addr() - os_page_size(), base.addr() + mapping.capacity_bytes() + os_page_size());
        assert!(others.iter().all(|other| other.0.end <= first || last <= other.0.start));
    }
}

#[test]
fn memory_grows_in_place_without_sigbus_in_other_processes() {
    let _faults_count = without_forks();
    let os_page = os_page_size();
    let options = MemoryOptions::new().capacity_bytes(8 << 20);
    let mut pool = Pool::new("dormouse-test", 2 * os_page, options).unwrap();
    let mut private = PrivatePool::new(2 * os_page, options).unwrap();
    // A process that maps the file before it has grown may read all of it: holes are zeroes.
    let other = Mapping::map(&pool, false).unwrap();
    assert_eq!(
        (other.len(), pool.mapping().capacity_bytes(), private.mapping().capacity_bytes()),
        (8 << 20, 8 << 20, 8 << 20)
    );
    let read = |offset: usize| {
        // SAFETY: the byte is inside the mapping, to which no reference exists.
        unsafe { other.base().wrapping_add(offset).read_volatile() }
    };
    assert_eq!(read((8 << 20) - 1), 0);
    let (base, private_base) = (pool.base(), private.base());
    for size_bytes in [2 * os_page, 3 * os_page - 1, 5 << 20, 8 << 20] {
        pool.grow(size_bytes).unwrap();
        private.grow(size_bytes).unwrap();
        let size_bytes = size_bytes.next_multiple_of(os_page);
        assert_eq!((pool.size_bytes(), private.size_bytes()), (size_bytes, size_bytes));
        assert_eq!((pool.base(), private.base()), (base, private_base));
        assert_eq!(pool.mapping().unbacked_os_pages(0..size_bytes), Ok(0));
        assert_eq!(faults_of_writing(pool.mapping()) + faults_of_writing(private.mapping()), 0);
        assert_eq!(read(size_bytes - os_page), 7);
    }
    for size_bytes in [(8 << 20) + 1, os_page, 0, usize::MAX] {
        assert_eq!(pool.grow(size_bytes), Err(BackingError::Size { size_bytes }));
        assert_eq!(private.grow(size_bytes), Err(BackingError::Size { size_bytes }));
    }
    assert_eq!(rustix::fs::ftruncate(&pool, 16 << 20), Err(Errno::PERM));
}

/// Growth that exceeds the available memory fails. The pool keeps its size, and can still grow by less.
#[test]
fn growing_too_far_is_an_error_and_changes_nothing() {
    let _faults_count = without_forks();
    let options = MemoryOptions::new().capacity_bytes(too_much());
    let mut pool = Pool::new("dormouse-test", 4 << 20, options).unwrap();
    let mut private = PrivatePool::new(4 << 20, options).unwrap();
    let errors = [pool.grow(too_much()), private.grow(too_much())];
    assert!(errors.iter().all(|error| matches!(error, Err(BackingError::NotEnough { .. }))), "{errors:?}");
    assert_eq!((pool.size_bytes(), private.size_bytes()), (4 << 20, 4 << 20));
    pool.grow(6 << 20).unwrap();
    private.grow(6 << 20).unwrap();
    assert_eq!(faults_of_writing(pool.mapping()) + faults_of_writing(private.mapping()), 0);
}

#[test]
fn the_ladder_reports_what_was_obtained() {
    let _faults_count = without_forks();
    let told = PageTable::of(None).unwrap().interface() != KernelInterface::Words;
    for (mapping, kind) in
        both(4 << 20, MemoryOptions::new().huge(Huge::Prefer)).unwrap().iter().zip(["memory file", "private"])
    {
        let obtained = mapping.obtained(0..mapping.len()).unwrap();
        println!("{kind}: {obtained}");
        assert_eq!((obtained.size_bytes, obtained.missing_bytes), (4 << 20, 0));
        assert_eq!(obtained.huge_bytes() + obtained.small_bytes, 4 << 20);
        assert_eq!(faults_of_writing(mapping), 0);
    }
    for mapping in both(4 << 20, MemoryOptions::new().huge(Huge::Never)).unwrap() {
        let obtained = mapping.obtained(0..mapping.len()).unwrap();
        assert_eq!((obtained.small_bytes, obtained.is_huge_told), (4 << 20, told));
    }
    // All of it, rounded up, or an error with the amount and a remedy.
    let huge_pages = 2 * huge_page_size();
    match both(huge_page_size() + 1, MemoryOptions::new().huge(Huge::Require).prefault(false)) {
        Ok(mappings) => {
            for mapping in mappings {
                let obtained = mapping.obtained(0..mapping.len()).unwrap();
                assert_eq!((mapping.len(), obtained.huge_bytes()), (huge_pages, huge_pages));
            }
        }
        Err(error) => {
            println!("no huge pages here: {error}");
            assert!(
                matches!(error, BackingError::NotHuge { wanted_bytes, .. } if wanted_bytes == huge_pages),
                "{error}"
            );
            assert!(error.to_string().contains("vm.nr_hugepages"), "{error}");
        }
    }
}

/// Huge pages that the system has set aside. Other processes map the file like any other.
#[test]
fn hugetlb_is_the_highest_rung() {
    let free = std::fs::read_to_string("/sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages").unwrap_or_default();
    if free.trim().parse::<u64>().unwrap_or(0) < 8 {
        return skip(Lack::machine(
            "fewer than 8 free huge pages of 2 MiB",
            "`sysctl vm.nr_hugepages=16` sets some aside",
        ));
    }
    let _faults_count = without_forks();
    let options = MemoryOptions::new().huge(Huge::Prefer).guard(true).capacity_bytes(6 << 20);
    let mut pool = Pool::new("dormouse-test", 4 << 20, options).unwrap();
    let mut private = PrivatePool::new(4 << 20, options).unwrap();
    for obtained in [pool.obtained().unwrap(), private.obtained().unwrap()] {
        assert_eq!((obtained.hugetlb_bytes, obtained.is_huge_told), (4 << 20, true), "{obtained}");
    }
    let other = Mapping::map(&pool, true).unwrap();
    assert_eq!((other.len(), other.obtained(0..other.len()).unwrap().hugetlb_bytes), (6 << 20, 6 << 20));
    pool.grow((4 << 20) + 1).unwrap();
    private.grow((4 << 20) + 1).unwrap();
    assert_eq!((pool.size_bytes(), private.size_bytes()), (6 << 20, 6 << 20));
    let faults: libc::c_long = [pool.mapping(), private.mapping(), &other].map(faults_of_writing).iter().sum();
    assert_eq!(faults, 0);
    assert_eq!(rustix::fs::ftruncate(&pool, 0), Err(Errno::PERM));
    // A size that is not a whole number of huge pages is not rounded up, unless they are required.
    let obtained =
        PrivatePool::new((2 << 20) + 1, MemoryOptions::new().huge(Huge::Prefer)).unwrap().obtained().unwrap();
    assert_eq!((obtained.size_bytes, obtained.hugetlb_bytes), ((2 << 20) + os_page_size(), 0));
    // More huge pages than there are: the next rung.
    let huge = PrivatePool::new(4 << 30, MemoryOptions::new().huge(Huge::Prefer).prefault(false)).unwrap();
    assert_eq!(huge.obtained().unwrap().missing_bytes, 4 << 30);
}

/// Returns the number of locked bytes of a mapping.
fn locked_bytes(mapping: &Mapping) -> usize {
    let smaps = std::fs::read_to_string("/proc/self/smaps").unwrap();
    let head = format!("{:x}-", mapping.base().addr());
    let mut lines = smaps.lines().skip_while(|line| !line.starts_with(&head));
    let line = lines.find_map(|line| line.strip_prefix("Locked:")).unwrap();
    line.trim().strip_suffix("kB").unwrap().trim().parse::<usize>().unwrap() << 10
}

#[test]
fn locked_memory_is_locked_or_an_error_names_the_limit() {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Memlock).current;
    let size_bytes = 8 * os_page_size();
    if limit.is_some_and(|limit| limit < 4 * size_bytes as u64) {
        return skip(Lack::machine(format!("{limit:?} bytes may be locked here"), "`ulimit -l unlimited`"));
    }
    // Guard pages keep the kernel from merging it with a neighbouring mapping.
    let options = MemoryOptions::new().guard(true);
    let faults_count = without_forks();
    for mapping in both(size_bytes, options.lock(true).prefault(false)).unwrap() {
        assert_eq!(locked_bytes(&mapping), size_bytes);
        assert_eq!(faults_of_writing(&mapping), 0);
    }
    drop(faults_count);
    for mapping in both(size_bytes, options).unwrap() {
        assert_eq!(locked_bytes(&mapping), 0);
    }
    let code = in_child(|| {
        let limit = libc::rlimit { rlim_cur: 8192, rlim_max: 8192 };
        // SAFETY: the limit is a valid structure (setrlimit(2)).
        unsafe { libc::setrlimit(libc::RLIMIT_MEMLOCK, &limit) };
        // Root may lock any amount. The raw call changes the identity of one thread, and this child has only one.
        // SAFETY: the arguments are numbers (setresuid(2)).
        unsafe { libc::syscall(libc::SYS_setresuid, 65534, 65534, 65534) };
        let error = both(size_bytes, MemoryOptions::new().lock(true)).map(|_| ()).unwrap_err();
        let expected = BackingError::Lock { wanted_bytes: size_bytes as u64, limit_bytes: Some(8192) };
        i32::from(error != expected || !error.to_string().contains("ulimit -l"))
    });
    assert_eq!(code, 0);
}

#[test]
fn memory_comes_from_the_node_of_the_cpu() {
    // A CPU on which this process may run.
    let cpu = rustix::thread::sched_getcpu() as u32;
    let node = node_of_cpu(cpu).unwrap();
    for options in [MemoryOptions::new().near_cpu(cpu), MemoryOptions::new().at_cpu(cpu)] {
        let mappings = match both(1 << 20, options) {
            Ok(mappings) => mappings,
            Err(error @ BackingError::System { errno: Errno::PERM, .. }) => {
                return skip(Lack::machine(error, "run the tests where mbind(2) is allowed"));
            }
            Err(error) => panic!("{error}"),
        };
        for mapping in mappings {
            let start = mapping.base().addr();
            let obtained = mapping.obtained(0..mapping.len()).unwrap();
            println!("{obtained}");
            match (node, away_bytes(start..start + mapping.len(), cpu)) {
                (Some(_), Some(away)) => assert_eq!(away, 0),
                (node, away) => {
                    let reason = format!("nodes cannot be told here: {node:?}, {away:?}");
                    skip_part("where pages lie", Lack::machine(reason, "a kernel with CONFIG_NUMA"));
                }
            }
            let nodes = obtained.nodes;
            assert!(
                matches!(nodes, Nodes::OnlyOne | Nodes::NotTold | Nodes::Checked { away_bytes: 0, .. }),
                "{nodes:?}"
            );
        }
    }
    let error = both(1 << 20, MemoryOptions::new().near_cpu(999_999)).map(|_| ()).unwrap_err();
    assert_eq!(error, BackingError::NoCpu { cpu: 999_999 });
    assert!(error.to_string().contains("/sys/devices/system/cpu/possible"), "{error}");
    let nodes = PrivatePool::new(4096, MemoryOptions::new()).unwrap().obtained().unwrap().nodes;
    assert_eq!(nodes, Nodes::NotAsked);
}

#[test]
fn a_folded_mapping_can_be_unfolded_in_place_or_elsewhere() {
    let pool = Pool::new("test", 3 * huge_page_size() + 5 * os_page_size(), MemoryOptions::new()).unwrap();
    let mut mapping = Mapping::map_unlocked(&pool).unwrap();
    assert!(mapping.is_sealed() && mapping.len() == pool.size_bytes());
    assert_eq!(mapping.base().addr() % huge_page_size(), 0, "a huge page may begin there");
    let last = mapping.len() - 1;
    let byte = |base: *mut u8, at: usize| base.wrapping_add(at);
    for round in 1..4_u8 {
        for at in [0, os_page_size(), last] {
            // SAFETY: the byte is mapped, and only this thread uses it.
            unsafe { byte(pool.base(), at).write_volatile(round) };
        }
        mapping.fold().unwrap();
        let base = mapping.base();
        let mut occupied = null_mut();
        if round == 2 {
            let (flags, protection) = (MapFlags::PRIVATE | MapFlags::FIXED_NOREPLACE, ProtFlags::empty());
            let place = base.wrapping_add(os_page_size()).cast();
            // SAFETY: the kernel maps there only if no other mapping is in the way.
            occupied = unsafe { rustix::mm::mmap_anonymous(place, os_page_size(), protection, flags) }.unwrap();
        }
        mapping.unfold().unwrap();
        // Another test's mapping may also occupy the first address.
        assert!(round != 2 || mapping.base() != base);
        assert_eq!(mapping.base().addr() % huge_page_size(), 0);
        for at in [0, os_page_size(), last] {
            // SAFETY: the byte is mapped again.
            assert_eq!(unsafe { byte(mapping.base(), at).read_volatile() }, round);
        }
        if !occupied.is_null() {
            // SAFETY: the page was mapped above, and is not used.
            unsafe { rustix::mm::munmap(occupied, os_page_size()) }.unwrap();
        }
    }
    assert!(Mapping::map(&pool, false).unwrap().fold().is_ok(), "all of a file");
    let guarded = MemoryOptions::new().guard(true);
    let (_, mut guarded) = Pool::new("test", huge_page_size(), guarded).unwrap().into_parts();
    assert!(guarded.fold().is_err());
}

#[test]
fn the_size_of_huge_pages_follows_from_that_of_small_ones_unless_the_kernel_tells_another() {
    if cfg!(not(target_arch = "s390x")) {
        let usual = [4 << 10, 16 << 10, 64 << 10].map(usual_huge_page_size);
        assert_eq!(usual, [2 << 20, 32 << 20, 512 << 20]);
    }
    let told = ["2097152\n", "33554432\n", "536870912\n", "0\n", "3000000\n", "", "1\n"].map(huge_page_size_in);
    assert_eq!(told, [Some(2 << 20), Some(32 << 20), Some(512 << 20), None, None, None, None]);
    assert!(huge_page_size().is_power_of_two() && huge_page_size() > os_page_size());
    assert_eq!(huge_page_alignment(), huge_page_size());
}
