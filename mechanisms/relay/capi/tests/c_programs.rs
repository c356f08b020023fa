//! Page chains and channels in C and C++: one program, compiled and linked in every common way, with either library, with both ways
//! to copy, and for 32-bit machines. Its checks are in `c_programs/main.c`. The examples of the manual page are compiled
//! and run too.
#![cfg(all(any(target_arch = "x86_64", target_arch = "aarch64"), target_os = "linux"))]

use std::io::{BufRead, BufReader};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use std::time::Duration;

use dormouse_relay_chain::{Chain, LAYOUT, PAGE_SIZE_BYTES_MAX, PAGE_SIZE_BYTES_MIN};
use dormouse_testing::c_library::Library;
use dormouse_testing::c_programs::{stdout, succeed};
use dormouse_testing::{Lack, has, has_part, has_target, include_dirs, skip, wait_until};

/// Selects the copy for machines without efficient unaligned access.
const ALIGNED: &str = "-DDORMOUSE_RELAY_ALIGNED=1";
const I686: &str = "i686-unknown-linux-gnu";

static RELAY: Library = Library {
    name: "relay",
    source: concat!(env!("CARGO_MANIFEST_DIR"), "/tests/c_programs/main.c"),
    inline: &[
        "dormouse_relay_address",
        "dormouse_relay_address_wrapping",
        "dormouse_relay_chain_size_bytes",
        "dormouse_relay_channel_buffer_count",
        "dormouse_relay_channel_cancel",
        "dormouse_relay_channel_commit",
        "dormouse_relay_channel_record_size_max_bytes",
        "dormouse_relay_channel_reserve",
        "dormouse_relay_channel_reserve_in",
        "dormouse_relay_channel_this_buffer",
        "dormouse_relay_channel_write",
        "dormouse_relay_write",
        "dormouse_relay_write_wrapping",
    ],
    header_flags: &["-UDORMOUSE_RELAY_ALIGNED", ALIGNED],
    prefix: OnceLock::new(),
};

/// Returns flags for the library without the tracer.
fn alone() -> Vec<String> {
    RELAY.package("dormouse-relay")
}

#[test]
fn c_programs() {
    RELAY.run("gcc", "-std=gnu11 -O0", &RELAY.package("dormouse"));
    RELAY.run("gcc", "-std=gnu17 -O2", &alone());
    RELAY.run("clang", "-std=gnu11 -O2", &alone());
}

#[test]
fn cpp_programs() {
    RELAY.run("g++", "-std=gnu++20 -O2", &alone());
    RELAY.run("clang++", "-std=gnu++11 -O0", &alone());
}

#[test]
fn programs_that_copy_by_aligned_access() {
    RELAY.run("gcc", &format!("-std=gnu11 -O2 -fsanitize=alignment -fno-sanitize-recover {ALIGNED}"), &alone());
    RELAY.run("clang++", &format!("-std=gnu++11 -O2 {ALIGNED}"), &alone());
}

#[test]
fn programs_with_the_archive() {
    RELAY.run("gcc", "-std=gnu11 -O2", &RELAY.archive(None));
}

/// Flags for 32-bit x86. The kernel's headers are the same for both x86 variants; without gcc-multilib they are only in
/// the 64-bit directory.
const M32: &str = "-m32 -idirafter /usr/include/x86_64-linux-gnu";

/// Returns the library for 32-bit x86, if the toolchain can build it.
fn archive_for_32_bit() -> Option<PathBuf> {
    let directory = Path::new(env!("CARGO_TARGET_TMPDIR")).join("relay-i686");
    if !has("gcc") || !has_target(I686) {
        return None;
    }
    let probe = directory.join("probe");
    std::fs::create_dir_all(&directory).unwrap();
    std::fs::write(probe.with_extension("c"), "#include <errno.h>\nint main(void) { return errno; }\n").unwrap();
    let mut compile = Command::new("gcc");
    compile.args(M32.split(' ')).arg("-o").arg(&probe).arg(probe.with_extension("c"));
    let compiled = compile.output().expect("gcc runs");
    if !compiled.status.success() || !Command::new(&probe).status().is_ok_and(|status| status.success()) {
        skip(Lack::machine("gcc makes no programs for 32-bit machines", "`apt-get install gcc-multilib`"));
        return None;
    }
    let mut command = Command::new(env!("CARGO"));
    command.args(["build", "--quiet", "--package", "dormouse-relay-capi", "--target", I686, "--target-dir"]);
    succeed(command.arg(&directory).current_dir(env!("CARGO_MANIFEST_DIR")));
    Some(directory.join(I686).join("debug/libdormouse_relay.a"))
}

#[test]
fn programs_for_32_bit_machines() {
    let Some(library) = archive_for_32_bit() else { return };
    for flags in [format!("{M32} -std=gnu11 -O2"), format!("{M32} -std=gnu11 -O0 {ALIGNED}")] {
        RELAY.run("gcc", &flags, &RELAY.archive(Some(&library)));
    }
    let directory = tempfile::tempdir().unwrap();
    let program = directory.path().join("layout");
    RELAY.compile("gcc", &format!("{M32} -std=gnu11"), &RELAY.archive(Some(&library)), &program);
    let lines = stdout(&succeed(Command::new(&program).arg("layout")));
    // Words have half the size; the sizes of pages are not in words.
    assert_eq!(lines, layout(4));
}

/// Expressions in C for the names of [`LAYOUT`].
const IN_C: [(&str, &str); 5] = [
    ("caches", "offsetof(struct dormouse_relay_chain, dormouse_i_written)"),
    ("page_size_bytes", "offsetof(struct dormouse_relay_chain, dormouse_i_page_size_bytes)"),
    ("size_bytes", "offsetof(struct dormouse_relay_chain, dormouse_i_size_bytes)"),
    ("link.offset", "offsetof(struct dormouse_i_relay_link, offset)"),
    ("link.data", "offsetof(struct dormouse_i_relay_link, data)"),
];

/// Uses the compiler alone, which needs neither a library for 32-bit machines nor one to run programs on.
#[test]
fn a_chain_of_32_bit_machines_has_the_layout_in_shorter_words() {
    if !has("gcc") {
        return;
    }
    let words = |bytes: usize| bytes / size_of::<usize>() * 4;
    let assertion = |what: &str, bytes: usize| format!("_Static_assert({what} == {}, \"{what}\");\n", words(bytes));
    let fields = LAYOUT.iter().map(|(name, bytes)| {
        let (_, in_c) = IN_C.iter().find(|(known, _)| known == name).expect("the name is known in C");
        assertion(in_c, *bytes)
    });
    let assertions = fields.chain([assertion("sizeof(struct dormouse_relay_chain)", size_of::<Chain<'static>>())]);
    let text: String =
        ["#include <stddef.h>\n#include <dormouse/relay.h>\n".into()].into_iter().chain(assertions).collect();
    let directory = tempfile::tempdir().unwrap();
    let unit = directory.path().join("unit.c");
    std::fs::write(&unit, text).unwrap();
    // The only header that glibc has for 32-bit machines alone: it lists functions that do nothing.
    std::fs::create_dir(directory.path().join("gnu")).unwrap();
    std::fs::write(directory.path().join("gnu/stubs-32.h"), "").unwrap();
    let mut command = Command::new("gcc");
    command
        .arg("-idirafter")
        .arg(directory.path())
        .args(M32.split(' '))
        .args(["-std=gnu11", "-fsyntax-only"])
        .arg(unit);
    succeed(command.args(include_dirs().map(|dir| format!("-I{}", dir.display()))));
}

/// Returns the expected output of a C program: offsets in words of the machine, and the sizes of pages.
fn layout(word: usize) -> String {
    let words = |bytes: usize| bytes / size_of::<usize>() * word;
    let fields: String = LAYOUT.iter().map(|(name, bytes)| format!("{name} {}\n", words(*bytes))).collect();
    let size = words(size_of::<Chain<'static>>());
    format!("{fields}size {size}\npages {PAGE_SIZE_BYTES_MIN} {PAGE_SIZE_BYTES_MAX}\n")
}

#[test]
fn both_sides_lay_a_chain_out_alike() {
    for compiler in ["gcc", "clang", "g++", "clang++"].into_iter().filter(|compiler| has_part(compiler)) {
        let directory = tempfile::tempdir().unwrap();
        let program = directory.path().join("layout");
        RELAY.compile(compiler, "", &alone(), &program);
        assert_eq!(stdout(&succeed(Command::new(&program).arg("layout"))), layout(size_of::<usize>()));
    }
}

#[test]
fn the_header_asks_for_no_extension() {
    RELAY.check_languages();
}

#[test]
fn the_libraries_export_what_the_header_declares() {
    RELAY.check_exports(26);
}

#[test]
fn the_examples_of_the_manual_page_run() {
    RELAY.check_examples();
}

/// Returns the number of records that the example has printed up to a line of its own.
fn printed(lines: &mut impl Iterator<Item = std::io::Result<String>>) -> u64 {
    let lines = lines.map(Result::unwrap).take_while(|line| line != "--");
    lines.map(|line| line.split_whitespace().nth(2).unwrap().parse::<u64>().unwrap()).sum()
}

/// Kills its process when the test ends, however it does.
struct Killed(Child);

impl Drop for Killed {
    fn drop(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

#[test]
fn the_examples_run() {
    let directory = tempfile::tempdir().unwrap();
    for program in RELAY.examples("channel", "recorder", directory.path()) {
        let file = directory.path().join("records");
        let read = |file: &Path| stdout(&succeed(Command::new(&program).arg("--read").arg(file)));
        let start = || {
            let mut child = Killed(Command::new(&program).arg(&file).stdout(Stdio::piped()).spawn().unwrap());
            let mut lines = BufReader::new(child.0.stdout.take().unwrap()).lines();
            assert!(lines.next().unwrap().unwrap().ends_with("4 workers"));
            (child, lines)
        };
        let (child, mut lines) = start();
        for _ in 0..3 {
            wait_until("it prints records", || {
                // SAFETY: a child that was not waited for.
                assert_eq!(unsafe { libc::kill(child.0.id() as libc::pid_t, libc::SIGUSR1) }, 0);
                printed(&mut lines) > 0
            });
        }
        drop(child);
        // Killed, after a time in which its workers may have recorded nothing yet on a busy machine.
        let mut patience = Duration::from_millis(20);
        wait_until("a killed program leaves records", || {
            let (child, _lines) = start();
            std::thread::sleep(patience);
            patience *= 2;
            drop(child);
            printed(&mut read(&file).lines().map(|line| Ok(line.into()))) > 0
        });
        // Aborted at a job that it had begun.
        let crashed =
            Command::new(&program).arg(&file).arg("crash").stdout(Stdio::null()).stderr(Stdio::null()).status();
        assert_eq!(crashed.unwrap().signal(), Some(libc::SIGABRT));
        assert!(printed(&mut read(&file).lines().map(|line| Ok(line.into()))) > 0);
    }
}

#[test]
fn the_manual_page_tells_of_every_function() {
    RELAY.check_manual();
}
