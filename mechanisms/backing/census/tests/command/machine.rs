//! `dormouse pages --all` and `--cgroup`: the zero page in several processes, compared with the kernel's flags of each frame.

use std::fs::{self, File};
use std::io::{BufRead, BufReader};
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use dormouse_testing::{Lack, for_everybody, skip, skip_part};
use rustix::process::geteuid;
use serde_json::Value;

use crate::PAGES;

/// Reads 4 MiB of an array and 2 MiB of a mapping, both never written, and waits for the end of its input.
const READER: &str = r#"
#include <stdio.h>
#include <sys/mman.h>
enum { SIZE = 4 << 20 };
static char frame[SIZE];
static volatile long sum;
int main(void) {
    char *mapped = mmap(0, SIZE / 2, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    for (long i = 0; i < SIZE; i += 64) sum += ((volatile char *)frame)[i] + ((volatile char *)mapped)[i / 2];
    puts("ready");
    fflush(stdout);
    return getchar() != EOF;
}
"#;

/// A process that waits, and ends with the value.
struct Waiting(Child);

impl Waiting {
    fn new(command: &mut Command) -> Waiting {
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        assert_eq!(line, "ready\n");
        Waiting(child)
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        drop(self.0.stdin.take());
        assert!(self.0.wait().unwrap().success());
    }
}

fn build(dir: &Path) -> std::path::PathBuf {
    let (file, program) = (dir.join("reader.c"), dir.join("reader"));
    fs::write(&file, READER).unwrap();
    assert!(Command::new("cc").arg("-O1").arg(&file).arg("-o").arg(&program).status().unwrap().success());
    program
}

/// Returns the number of pages of a process whose frame is the zero page, by `/proc/kpageflags`; `None` if only root is told.
fn zero_pages(pid: u32) -> Option<u64> {
    let flags = File::open("/proc/kpageflags").ok()?;
    let pagemap = File::open(format!("/proc/{pid}/pagemap")).unwrap();
    let mut count = 0;
    for line in fs::read_to_string(format!("/proc/{pid}/maps")).unwrap().lines() {
        let (start, rest) = line.split_once('-').unwrap();
        let [start, end] =
            [start, rest.split(' ').next().unwrap()].map(|text| u64::from_str_radix(text, 16).unwrap() >> 12);
        let mut words = vec![0; 8 * (end - start) as usize];
        // The vsyscall page is in no page table.
        let found = pagemap.read_at(&mut words, 8 * start).unwrap_or(0);
        for word in words[..found].chunks_exact(8).map(|word| u64::from_ne_bytes(word.try_into().unwrap())) {
            if word >> 63 == 1 {
                let mut found = [0; 8];
                flags.read_exact_at(&mut found, 8 * (word & ((1 << 55) - 1))).unwrap();
                count += u64::from_ne_bytes(found) >> 24 & 1;
            }
        }
    }
    Some(count)
}

fn json(command: &mut Command) -> Value {
    let output = command.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

fn process(census: &Value, pid: u32) -> Option<&Value> {
    census["processes"].as_array().unwrap().iter().find(|process| process["pid"] == pid)
}

#[test]
fn all_processes_are_counted_as_the_kernel_counts_them() {
    let dir = tempfile::tempdir().unwrap();
    let reader = Waiting::new(&mut Command::new(build(dir.path())));
    let pid = reader.0.id();
    let Some(expected) = zero_pages(pid) else {
        return skip(Lack::machine("only root is told which frame is the zero page", "run the tests as root"));
    };
    assert!(expected >= (6 << 20) / 4096 - 2, "{expected}");
    let census = json(Command::new(PAGES).args(["--all", "--json"]));
    let found = process(&census, pid).unwrap();
    assert_eq!((&found["zero_entries"], &found["zero"]), (&expected.into(), &(4096 * expected).into()), "{found:#}");
    assert_eq!((&found["command"], &found["largest"]["name"]), (&"reader".into(), &"frame".into()));
    let sum = |field: &str| -> u64 {
        census["processes"].as_array().unwrap().iter().map(|process| process[field].as_u64().unwrap()).sum()
    };
    assert_eq!((&census["zero"], &census["zero_entries"]), (&sum("zero").into(), &sum("zero_entries").into()));
    assert!(census["touched"].as_u64().unwrap() >= sum("touched"));
    let output = Command::new(PAGES).arg("--all").output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    let line = text.lines().find(|line| line.contains(&format!(" {pid}  reader"))).unwrap_or_else(|| panic!("{text}"));
    assert!(line.starts_with("    6.0M ") && line.ends_with("  frame in reader"), "{line}");
    assert!(text.contains(" %      all\n"), "{text}");
}

/// The processes of a group and of the groups in it, and no others; over time.
#[test]
fn a_control_group_is_counted_alone() {
    let name = format!("dormouse-pages-{}", std::process::id());
    let roots = ["/sys/fs/cgroup/unified", "/sys/fs/cgroup/memory", "/sys/fs/cgroup"];
    let made = roots.into_iter().find_map(|root| {
        let inner = format!("{root}/{name}/inner");
        fs::create_dir_all(&inner).ok().filter(|()| Path::new(&inner).join("cgroup.procs").exists()).map(|()| inner)
    });
    let Some(inner) = made else {
        return skip(Lack::machine("no control group can be made", "run the tests as root"));
    };
    let outer = Path::new(&inner).parent().unwrap();
    let dir = tempfile::tempdir().unwrap();
    let program = build(dir.path());
    let (inside, outside) = (Waiting::new(&mut Command::new(&program)), Waiting::new(&mut Command::new(&program)));
    fs::write(format!("{inner}/cgroup.procs"), inside.0.id().to_string()).unwrap();
    // By the directory, and by the name that the kernel gives it.
    for path in [outer.to_str().unwrap(), &format!("/{name}")] {
        let census = json(Command::new(PAGES).args(["--cgroup", path, "--json"]));
        assert_eq!(census["process_count"], 1);
        assert!(process(&census, inside.0.id()).is_some() && process(&census, outside.0.id()).is_none(), "{census:#}");
    }
    let mut repeated = Command::new(PAGES);
    repeated.arg("--cgroup").arg(outer).args(["--every", "20ms", "--count", "3"]);
    let text = String::from_utf8(repeated.output().unwrap().stdout).unwrap();
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines.len(), 4, "{text}");
    assert!(lines[1..].iter().all(|line| line.contains("    6.0M ") && line.contains(" in reader (")), "{text}");
    let text = String::from_utf8(repeated.arg("--json").output().unwrap().stdout).unwrap();
    let times: Vec<f64> = text
        .lines()
        .map(|line| serde_json::from_str::<Value>(line).unwrap())
        .inspect(|census| assert_eq!(census["process_count"], 1))
        .map(|census| census["time_s"].as_f64().unwrap())
        .collect();
    assert!(times.len() == 3 && times.is_sorted(), "{times:?}");
    drop(inside);
    drop(outside);
    fs::remove_dir(&inner).unwrap();
    fs::remove_dir(outer).unwrap();
    let output = Command::new(PAGES).arg("--cgroup").arg(outer).output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&output.stderr).contains("there is no control group "), "{output:?}");
}

#[test]
fn processes_that_may_not_be_read_are_counted() {
    const NOBODY: u32 = 65534;
    if !geteuid().is_root() {
        return skip(Lack::machine("only root can become another user", "run the tests as root"));
    }
    let place = tempfile::tempdir().unwrap();
    fs::set_permissions(place.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let (reader, dormouse) = (build(place.path()), for_everybody(Path::new(PAGES), place.path()));
    let reader = for_everybody(&reader, place.path());
    let as_nobody = |program: &Path| {
        let mut command = Command::new(program);
        command.uid(NOBODY).gid(NOBODY).current_dir("/");
        command
    };
    let own = Waiting::new(&mut as_nobody(&reader));
    let of_root = Waiting::new(&mut Command::new(&reader));
    let census = json(as_nobody(&dormouse).args(["--all", "--json"]));
    assert!(census["refused_count"].as_u64().unwrap() >= 1, "{census:#}");
    assert!(census["unseen"].to_string().contains("may not read"), "{census:#}");
    assert!(process(&census, of_root.0.id()).is_none());
    match process(&census, own.0.id()) {
        Some(found) => assert!(found["zero"].as_u64().unwrap() >= (6 << 20) - 8192, "{found:#}"),
        None => skip_part("the user's own processes", Lack::machine(&census["unseen"], "Linux 6.7 or later")),
    }
}
