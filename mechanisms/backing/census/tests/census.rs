//! Compares a census with the kernel's own sums, and with deliberately prepared memory.

mod common;

use std::process::Command;

use common::{INTERFACES, Stopped, build, settled};
use dormouse_census::{Census, KernelInterface, Name, PagesError};
use dormouse_testing::{Lack, skip_part};

/// The mistake of the benchmark of 2008, besides arrays without it.
const FRAMES: &str = r#"
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
enum { SIZE = 4 << 20 };
static char read_only_of_zeroes[SIZE], half_written[SIZE], written[SIZE];
static volatile char untouched[SIZE];
volatile long sum;
int main(void) {
    char *all[] = { read_only_of_zeroes, half_written, written };
    for (int at = 0; at < 3; at++) madvise((void *)((long)all[at] & -4096), SIZE + 4096, MADV_NOHUGEPAGE);
    memset(written, 1, SIZE);
    memset(half_written, 1, SIZE / 2);
    for (int at = 0; at < 3; at++) for (long i = 0; i < SIZE; i += 64) sum += all[at][i];
    if (write(1, "ready\n", 6) != 6) return 1;
    // Until the test has looked, or has ended.
    char end;
    return read(0, &end, 1) + untouched[sum & 1];
}
"#;

#[test]
fn a_census_agrees_with_smaps() {
    let program = Stopped::new(&mut Command::new("cat"), false);
    let pid = program.child.id();
    let exe = std::fs::read_link(format!("/proc/{pid}/exe")).unwrap();
    for interface in INTERFACES {
        let (census, smaps) = match settled(pid, interface) {
            Ok(found) => found,
            Err(error) => {
                skip_part(
                    format!("{interface:?}"),
                    Lack::machine(error, "run the tests as root, on Linux 6.7 or later"),
                );
                continue;
            }
        };
        assert_eq!(census.pid, pid);
        assert_eq!(census.unseen.iter().any(|line| line.contains("zero page")), interface == KernelInterface::Words);
        let starts: Vec<u64> = census.mappings.iter().map(|mapping| mapping.start).collect();
        assert_eq!(starts, smaps.keys().copied().collect::<Vec<_>>());
        for mapping in &census.mappings {
            let of = |name: &str| smaps[&mapping.start].get(name).copied().unwrap_or(0);
            let pages = mapping.pages;
            assert_eq!(mapping.end - mapping.start, of("Size"));
            assert_eq!(
                pages.unbacked + pages.zero + pages.small + pages.huge + pages.swapped,
                of("Size"),
                "{mapping:?}"
            );
            // smaps does not count the kernel's own pages.
            if !matches!(mapping.name, Name::Kernel { .. }) {
                let is_same =
                    if interface.sees_zero() { pages.resident() == of("Rss") } else { pages.resident() >= of("Rss") };
                assert!(is_same, "{interface:?}: {mapping:?}: {} bytes", of("Rss"));
                assert_eq!(pages.swapped, of("Swap"), "{mapping:?}");
            }
        }
        let has = |is: &dyn Fn(&Name) -> bool| census.mappings.iter().any(|mapping| is(&mapping.name));
        assert!(has(&|name| matches!(name, Name::Object { path, .. } if *path == exe)), "{census:#?}");
        let command = &census.command;
        assert!(has(&|name| matches!(name, Name::Stack { name, .. } if name == command)), "{census:#?}");
    }
}

#[test]
fn variables_on_the_zero_page_are_named() {
    const SIZE: u64 = 4 << 20;
    let dir = tempfile::tempdir().unwrap();
    for options in [&["-O1"][..], &["-O1", "-no-pie", "-static"]] {
        let program = build(dir.path(), "frames", FRAMES, options);
        let running = Stopped::new(&mut Command::new(&program), true);
        for interface in INTERFACES {
            let census = match Census::of(running.child.id(), &[interface]) {
                Ok(census) => census,
                Err(error) => {
                    skip_part(
                        format!("{interface:?}"),
                        Lack::machine(error, "run the tests as root, on Linux 6.7 or later"),
                    );
                    continue;
                }
            };
            let zero = |name: &str| {
                let found = census.zero_variables.iter().find(|variable| variable.name == name);
                found.map_or(0, |variable| {
                    assert_eq!((variable.size, variable.path.as_path()), (SIZE, program.as_path()));
                    variable.zero
                })
            };
            let found = ["read_only_of_zeroes", "half_written", "written", "untouched"].map(zero);
            // A page that two arrays share is in the state of the written one.
            let near = |bytes: u64, expected: u64| bytes.abs_diff(expected) <= 4096;
            if interface.sees_zero() {
                assert!(near(found[0], SIZE) && near(found[1], SIZE / 2), "{interface:?}: {found:?}");
                assert!(near(found[2], 0) && near(found[3], 0), "{interface:?}: {found:?}");
                assert_eq!(census.zero_variables[0].name, "read_only_of_zeroes");
            } else {
                assert_eq!(found, [0; 4]);
            }
            let is_bss = |name: &Name| matches!(name, Name::Bss { path } if *path == program);
            let bss: u64 = census
                .mappings
                .iter()
                .filter(|mapping| is_bss(&mapping.name))
                .map(|mapping| mapping.end - mapping.start)
                .sum();
            assert!(bss >= 4 * SIZE, "{interface:?}: {census:#?}");
        }
    }
}

#[test]
fn a_missing_process_is_an_error() {
    let mut child = Command::new("true").spawn().unwrap();
    let pid = child.id();
    child.wait().unwrap();
    let error = Census::of(pid, &KernelInterface::ALL).unwrap_err();
    assert!(matches!(error, PagesError::NoProcess { .. }), "{error}");
}
