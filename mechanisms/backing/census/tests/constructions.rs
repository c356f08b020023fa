//! Every kind of page, from deliberately prepared memory; by each interface of the kernel, and compared with its own
//! sums.

mod common;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use common::{INTERFACES, Stopped, build, settled};
use dormouse_census::{Census, KernelInterface, Mapping, Name, Pages};
use dormouse_testing::{Lack, skip_part};

const SIZE: u64 = 4 << 20;

/// A program that makes regions with unmapped neighbours, and prepares each. It prints the address of each, or the
/// reason why there is none.
const CONSTRUCTIONS: &str = r#"
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
enum { SIZE = 4 << 20, HUGE = 2 << 20 };
static volatile long sum;
static char *region(const char *name, int flags, int file) {
    char *room = mmap(0, SIZE + 3 * HUGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    char *at = (char *)(((long)room + 2 * HUGE - 1) & -(long)HUGE);
    char *found = mmap(at, SIZE, PROT_READ | PROT_WRITE, flags | MAP_FIXED, file, 0);
    if (found == MAP_FAILED) { printf("%s - %s\n", name, strerror(errno)); return 0; }
    printf("%s %lx\n", name, (long)found);
    return found;
}
static void touch(char *at, long size, int is_written) {
    if (is_written) memset(at, 1, size);
    else for (long i = 0; i < size; i += 64) sum += at[i];
}
int main(int argc, char **argv) {
    int private = MAP_PRIVATE | MAP_ANONYMOUS;
    region("untouched", private, -1);
    char *at = region("read", private, -1);
    madvise(at, SIZE, MADV_NOHUGEPAGE);
    touch(at, SIZE, 0);
    at = region("written", private, -1);
    madvise(at, SIZE, MADV_NOHUGEPAGE);
    touch(at, SIZE, 1);
    at = region("half", private, -1);
    madvise(at, SIZE, MADV_NOHUGEPAGE);
    touch(at, SIZE / 2, 1);
    touch(at, SIZE, 0);
    at = region("huge", private, -1);
    madvise(at, SIZE, MADV_HUGEPAGE);
    touch(at, SIZE, 1);
    madvise(at, SIZE, 25 /* MADV_COLLAPSE */);
    at = region("huge-read", private, -1);
    madvise(at, SIZE, MADV_HUGEPAGE);
    touch(at, SIZE, 0);
    if ((at = region("hugetlb", private | MAP_HUGETLB, -1))) touch(at, SIZE, 1);
    int memory = memfd_create("constructions", 0);
    if (ftruncate(memory, SIZE)) return 1;
    touch(region("memfd", MAP_SHARED, memory), SIZE / 2, 1);
    touch(region("anonymous-shared", MAP_SHARED | MAP_ANONYMOUS, -1), SIZE, 1);
    int file = open(argv[1], O_RDWR);
    at = region("file", MAP_PRIVATE, file);
    touch(at, SIZE, 0);
    at = region("file-copied", MAP_PRIVATE, file);
    touch(at, SIZE, 1);
    at = region("swapped", private, -1);
    madvise(at, SIZE, MADV_NOHUGEPAGE);
    touch(at, SIZE, 1);
    madvise(at, SIZE, 21 /* MADV_PAGEOUT */);
    puts("ready");
    fflush(stdout);
    char end;
    return read(0, &end, 1);
}
"#;

/// Additional hugetlb pages, set aside while the value lives. The tests of this file that use them are one test.
struct HugePages(Option<u64>);

const HUGE_PAGES: &str = "/proc/sys/vm/nr_hugepages";

impl HugePages {
    fn new(count: u64) -> HugePages {
        let before: Option<u64> = fs::read_to_string(HUGE_PAGES).ok().and_then(|text| text.trim().parse().ok());
        let more = before.filter(|before| fs::write(HUGE_PAGES, (before + count).to_string()).is_ok());
        HugePages(more)
    }
}

impl Drop for HugePages {
    fn drop(&mut self) {
        let _ = self.0.map(|before| fs::write(HUGE_PAGES, before.to_string()));
    }
}

/// A swap file that is used while the value lives, if the machine has no swap.
struct Swap(Option<PathBuf>);

impl Swap {
    fn new(dir: &Path) -> Swap {
        let has_swap = fs::read_to_string("/proc/swaps").is_ok_and(|text| text.lines().count() > 1);
        let file = dir.join("swap");
        let is_done = |command: &mut Command| command.output().is_ok_and(|output| output.status.success());
        let is_made = || {
            is_done(
                Command::new("dd").args(["if=/dev/zero", "bs=1M", "count=16"]).arg(format!("of={}", file.display())),
            ) && is_done(Command::new("chmod").arg("600").arg(&file))
                && is_done(Command::new("mkswap").arg(&file))
                && is_done(Command::new("swapon").arg(&file))
        };
        Swap((!has_swap && is_made()).then_some(file))
    }
}

impl Drop for Swap {
    fn drop(&mut self) {
        if let Some(file) = &self.0 {
            let _ = Command::new("swapoff").arg(file).status();
        }
    }
}

fn is_on(setting: &str, choice: &str) -> bool {
    fs::read_to_string(format!("/sys/kernel/mm/transparent_hugepage/{setting}")).is_ok_and(|text| text.contains(choice))
}

/// Returns the expected pages of a region, if the machine has what it needs.
fn expected(name: &str) -> Option<Pages> {
    let none = Pages::default();
    let has_huge = is_on("enabled", "[madvise]") || is_on("enabled", "[always]");
    let pages = match name {
        "untouched" => Pages { unbacked: SIZE, ..none },
        "read" => Pages { zero: SIZE, ..none },
        "written" => Pages { small: SIZE, ..none },
        "half" => Pages { small: SIZE / 2, zero: SIZE / 2, ..none },
        "huge" if has_huge => Pages { huge: SIZE, ..none },
        "huge-read" if has_huge && is_on("use_zero_page", "1") => Pages { zero: SIZE, huge_zero: SIZE, ..none },
        // The kernel counts private hugetlb memory as the process's own.
        "hugetlb" => Pages { huge: SIZE, ..none },
        "memfd" => Pages { small: SIZE / 2, shared: SIZE / 2, unbacked: SIZE / 2, ..none },
        "anonymous-shared" | "file" => Pages { small: SIZE, shared: SIZE, ..none },
        "file-copied" => Pages { small: SIZE, ..none },
        "swapped" => Pages { swapped: SIZE, ..none },
        _ => return None,
    };
    Some(pages)
}

/// Returns the pages as they look if only the words of the page table can be read. These do not mark the huge zero page
/// as the process's own.
fn blind(pages: Pages) -> Pages {
    let small = pages.small + pages.huge + pages.zero;
    Pages { small, huge: 0, zero: 0, huge_zero: 0, shared: pages.shared + pages.huge_zero, ..pages }
}

#[test]
fn every_category_matches_the_constructed_memory() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("file");
    fs::write(&file, vec![1; SIZE as usize]).unwrap();
    let program = build(dir.path(), "constructions", CONSTRUCTIONS, &["-O1"]);
    let _huge_pages = HugePages::new(SIZE >> 21);
    let swap = Swap::new(dir.path());
    let running = Stopped::new(Command::new(&program).arg(&file), true);
    let mut censuses: Vec<(KernelInterface, Census)> = Vec::new();
    for interface in INTERFACES {
        let (census, smaps) = match settled(running.child.id(), interface) {
            Ok(found) => found,
            Err(error) => {
                skip_part(
                    format!("{interface:?}"),
                    Lack::machine(error, "run the tests as root, on Linux 6.7 or later"),
                );
                continue;
            }
        };
        let mut checked = 0;
        for line in &running.lines {
            let (name, at) = line.split_once(' ').unwrap();
            let Ok(at) = u64::from_str_radix(at, 16) else {
                skip_part(name, Lack::machine(at, "a kernel that has such memory"));
                continue;
            };
            let mapping = census
                .mappings
                .iter()
                .find(|mapping| mapping.start == at)
                .unwrap_or_else(|| panic!("{line}: {census:#?}"));
            assert_eq!(mapping.end - mapping.start, SIZE, "{mapping:?}");
            let of = |sum: &str| smaps[&at].get(sum).copied().unwrap_or(0);
            let Pages { small, huge, swapped, .. } = mapping.pages;
            if interface == KernelInterface::Scan {
                let hugetlb = of("Private_Hugetlb") + of("Shared_Hugetlb");
                let huge_of_all = of("AnonHugePages") + of("ShmemPmdMapped") + of("FilePmdMapped") + hugetlb;
                assert_eq!(
                    (small + huge, huge, swapped),
                    (of("Rss") + hugetlb, huge_of_all, of("Swap")),
                    "{name}: {mapping:?}"
                );
            }
            let Some(pages) = expected(name) else {
                let remedy = "`echo madvise > /sys/kernel/mm/transparent_hugepage/enabled`";
                skip_part(name, Lack::machine("no huge pages, or no huge zero page", remedy));
                continue;
            };
            if name == "swapped" && (swap.0.is_none() || of("Swap") == 0) {
                skip_part(
                    name,
                    Lack::machine("no swap, or the kernel would not", "run the tests as root, on a disk with space"),
                );
                continue;
            }
            if name == "huge" && of("AnonHugePages") < SIZE {
                skip_part(name, Lack::machine("this machine's memory is in pieces", "`sysctl vm.compact_memory=1`"));
                continue;
            }
            let pages = if interface.sees_zero() { pages } else { blind(pages) };
            // A file system may have put a file into huge pages.
            let is_file = mapping.pages.shared > 0;
            let found = if is_file && interface.sees_zero() { blind(mapping.pages) } else { mapping.pages };
            assert_eq!(found, pages, "{interface:?}: {name}: {mapping:?}");
            check_name(name, mapping, &file);
            checked += 1;
        }
        // These need nothing special of the machine.
        assert!(checked >= 8, "{interface:?}: only {checked} were checked");
        censuses.push((interface, census));
    }
    // Both interfaces that see everything must agree, for the whole process.
    let of =
        |wanted: KernelInterface| censuses.iter().find(|(interface, _)| *interface == wanted).map(|(_, census)| census);
    match (of(KernelInterface::Scan), of(KernelInterface::WordsAndFlags)) {
        (Some(scan), Some(words)) => {
            assert_eq!((&scan.mappings, &scan.total), (&words.mappings, &words.total));
            assert_eq!(scan.zero_variables, words.zero_variables);
            assert!(
                words.sees_zero && words.unseen.iter().any(|line| line.contains("contiguous physical memory")),
                "{words:?}"
            );
        }
        _ => {
            let lack = Lack::machine(
                "there are not two interfaces that see everything",
                "run the tests as root, on Linux 6.7 or later",
            );
            skip_part("one interface against the other", lack);
        }
    }
}

fn check_name(name: &str, mapping: &Mapping, file: &Path) {
    let is_right = match (name, &mapping.name) {
        ("memfd", Name::Shared { name }) => name.starts_with("/memfd:constructions"),
        ("anonymous-shared", Name::Shared { .. }) => true,
        ("file" | "file-copied", Name::File { path }) => path == file,
        ("hugetlb", Name::Anonymous { name }) => name == "hugetlb",
        ("memfd" | "anonymous-shared" | "file" | "file-copied", _) => false,
        (_, named) => matches!(named, Name::Anonymous { .. }),
    };
    assert!(is_right, "{name}: {mapping:?}");
}
