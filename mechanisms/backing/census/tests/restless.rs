//! Processes that end, execute other programs and remap their memory during a census do no harm.

mod common;

use std::ffi::OsString;
use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::time::Duration;

use common::{INTERFACES, build};
use dormouse_census::{Census, PagesError, RunOptions, run};

/// A program that maps, unmaps, moves and forgets memory, starts threads and children that end at once, and executes
/// itself again. It prints the id of each child. It ends when its input ends, or with a second argument after that many
/// execs.
const RESTLESS: &str = r#"
#define _GNU_SOURCE
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>
enum { SIZE = 1 << 20 };
static void *brief(void *room) { memset(room, 1, SIZE); return 0; }
int main(int argc, char **argv) {
    int turns = argc > 1 ? atoi(argv[1]) : 0;
    for (int turn = 0; turn < 50; turn++) {
        char *room = mmap(0, SIZE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        volatile char sum = 0;
        for (long i = 0; i < SIZE; i += 4096) sum += room[i];
        pthread_t thread;
        if (pthread_create(&thread, 0, brief, room)) return 1;
        madvise(room, SIZE / 2, MADV_DONTNEED);
        pthread_join(thread, 0);
        room = mremap(room, SIZE, 2 * SIZE, MREMAP_MAYMOVE);
        mprotect(room + 4096, 4096, PROT_READ);
        int pid = fork();
        if (pid == 0) { memset(room + SIZE, 1, SIZE); _exit(0); }
        dprintf(1, "%d\n", pid);
        munmap(room, 2 * SIZE);
        waitpid(pid, 0, 0);
        struct pollfd input = { 0, POLLIN, 0 };
        if (argc <= 2 && poll(&input, 1, 0) > 0) return 0;
    }
    if (argc > 2 && turns >= atoi(argv[2])) return 5;
    char next[16];
    snprintf(next, sizeof next, "%d", turns + 1);
    execl(argv[0], argv[0], next, argc > 2 ? argv[2] : (char *)0, (char *)0);
    return 2;
}
"#;

#[test]
fn mappings_that_change_during_a_census_do_no_harm() {
    let dir = tempfile::tempdir().unwrap();
    let program = build(dir.path(), "restless", RESTLESS, &["-O1", "-pthread"]);
    let mut child = Command::new(&program).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let (mut looked, mut gone) = (0, 0);
    let mut look = |pid: u32, interface| match Census::of(pid, &[interface]) {
        Ok(census) => {
            looked += 1;
            assert_eq!(census.pid, pid);
            let size: u64 = census.mappings.iter().map(|mapping| mapping.end - mapping.start).sum();
            let pages = census.total;
            // Memory that is mapped during the census at an address that was already read counts as it was read, but
            // never for more than there is.
            assert!(
                pages.unbacked + pages.resident() + pages.zero + pages.swapped
                    <= size.max(pages.resident() + pages.zero)
            );
        }
        Err(PagesError::NoProcess { .. } | PagesError::NoMemory { .. }) => gone += 1,
        // This machine does not support the interface.
        Err(PagesError::System { errno: rustix::io::Errno::NOSYS, .. }) => {}
        Err(error) => panic!("process {pid}: {error}"),
    };
    let lines = BufReader::new(child.stdout.take().unwrap()).lines().map(Result::unwrap);
    // Looks at some execs of the program, and at each of its children, which may already have ended.
    for (line, interface) in lines.take(400).zip(INTERFACES.into_iter().cycle()) {
        look(child.id(), interface);
        look(line.parse().unwrap(), interface);
    }
    assert!(child.try_wait().unwrap().is_none());
    drop(child.stdin.take());
    // It may print more than the test reads.
    child.wait().unwrap();
    assert!(looked > 0, "{gone} had ended");
}

#[test]
fn a_traced_program_ends_as_without_a_tracer() {
    let dir = tempfile::tempdir().unwrap();
    let program = build(dir.path(), "restless", RESTLESS, &["-O1", "-pthread"]);
    for (is_traced, period) in
        [(true, None), (true, Some(Duration::from_millis(1))), (false, Some(Duration::from_millis(1)))]
    {
        let command: Vec<OsString> =
            ["sh".into(), "-c".into(), "exec \"$0\" 0 3 >/dev/null".into(), program.clone().into()].into();
        let run = run(&command, &RunOptions { is_traced, period, ..RunOptions::default() }).unwrap();
        assert_eq!(run.exit_code, 5, "{run:?}");
        assert!(run.whole.faults_minor > 0 && run.duration_ms > 0.0);
        let was_traced = !run.unseen.iter().any(|line| line.contains("not traced"));
        if was_traced {
            // The command itself, and 50 children for each of four turns, of which 100 are reported.
            assert_eq!((run.others.len(), run.census.map(|census| census.command)), (100, Some("restless".into())));
            assert!(run.sample_count >= 201, "{}", run.sample_count);
        }
        let times: Vec<f64> = run.samples.iter().map(|sample| sample.time_ms).collect();
        assert!(times.is_sorted());
        let counts: Vec<u64> = run.samples.iter().map(|sample| sample.counts.faults_minor).collect();
        assert!(counts.is_sorted(), "{counts:?}");
    }
}
