//! Functions that the tests of all rooms share. There is one way to skip a test, so that skipped tests are counted.
//!
//! A test that misses something calls [`skip`] and returns. A test that leaves out a part calls [`skip_part`] and
//! continues. Each names what is missing, with a remedy.
//!
//! ```text
//!   test ── skip(lack) ──▶ standard error:          "skipped: clang is not installed (`apt-get install clang`)"
//!                    └───▶ the file $DORMOUSE_SKIPS: one line each ──▶ `cargo xtask test`: "N passed, N failed, N skipped"
//! ```
//! With `DORMOUSE_REQUIRE_TOOLS=1`, each missing tool is a failure. Tests that the machine or the user cannot run are
//! still skipped.

use std::collections::BTreeSet;
use std::fmt::Display;
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

pub mod browser;
pub mod c_library;
pub mod c_programs;
pub mod code;
pub mod commands;
pub mod guest;
pub mod lttng;
pub mod machines;
pub mod manual;
pub mod mutations;
pub mod programs;
pub mod terminal;

/// Environment variable that names the file to which skips are appended. Without it, they are only printed.
pub const ENV_SKIPS: &str = "DORMOUSE_SKIPS";
/// Environment variable that, set to `1`, turns missing tools into failures.
pub const ENV_REQUIRE_TOOLS: &str = "DORMOUSE_REQUIRE_TOOLS";

/// Environment variable that names the emulator, if programs of another machine are emulated one by one on this kernel.
pub const ENV_RUNNER: &str = "DORMOUSE_TEST_RUNNER";

/// Programs that tests run, and the Debian packages that contain them, if the names differ.
const PACKAGES: [(&str, &str); 21] = [
    ("aarch64-linux-gnu-gcc", "gcc-aarch64-linux-gnu libc6-dev-arm64-cross"),
    ("busybox", "busybox-static"),
    ("bwrap", "bubblewrap"),
    ("c++", "g++"),
    ("cc", "gcc libc6-dev"),
    ("clang++", "clang"),
    ("dpdk-testpmd", "dpdk-dev"),
    ("groff", "groff-base"),
    ("ld.bfd", "binutils"),
    ("ld.gold", "binutils"),
    ("ld.lld", "lld"),
    ("lttng-sessiond", "lttng-tools"),
    ("musl-gcc", "musl-tools"),
    ("nm", "binutils"),
    ("objdump", "binutils"),
    ("qemu-aarch64", "qemu-user"),
    ("qemu-storage-daemon", "qemu-system-common"),
    ("qemu-system-x86_64", "qemu-system-x86"),
    ("readelf", "binutils"),
    ("setpriv", "util-linux"),
    ("unshare", "util-linux"),
];

/// The rooms that have headers for C and C++, each in its own directory `include`. Installed, they share one directory.
const ROOMS_WITH_HEADERS: [&str; 7] = [
    "mechanisms/imv",
    "mechanisms/percpu",
    "mechanisms/relay",
    "mechanisms/vring",
    "mechanisms/backing",
    "record/abi",
    "record/capi",
];

/// Returns the directories of the headers in this checkout.
pub fn include_dirs() -> impl Iterator<Item = PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    ROOMS_WITH_HEADERS.iter().map(move |room| root.join(room).join("include"))
}

/// Returns a generator of pseudo-random numbers below the requested bounds, deterministic for a seed (SplitMix64).
pub fn random(seed: u64) -> impl FnMut(usize) -> usize {
    let mut state = seed;
    move |end| {
        state = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mixed = (state ^ (state >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        ((mixed ^ (mixed >> 31)) % end as u64) as usize
    }
}

/// Watchdog against hangs.
const PATIENCE: Duration = Duration::from_secs(300);

/// Waits for a condition that another process fulfils and that no event signals.
///
/// # Panics
/// If the condition is not met within minutes.
pub fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !is_so() {
        assert!(begun.elapsed() < PATIENCE, "hangs: {what}");
        // The kernel does not report the condition, so this polls; the pause leaves other processes the CPU, and the
        // assertion above ends the loop.
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Something that a test misses, with a remedy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lack {
    reason: String,
    remedy: String,
    is_tool: bool,
}

impl Lack {
    /// Returns the lack of a program that is not installed.
    pub fn program(name: &str) -> Lack {
        let package = PACKAGES.iter().find(|(program, _)| *program == name).map_or(name, |(_, package)| package);
        Lack::tool(format!("{name} is not installed"), format!("`apt-get install {package}`"))
    }

    /// Returns the lack of a target of the Rust toolchain. Not every toolchain can have one added, so it is not
    /// required.
    pub fn target(triple: &str) -> Lack {
        Lack::machine(format!("the toolchain has no target {triple}"), format!("`rustup target add {triple}`"))
    }

    /// Returns the lack of something else that can be installed.
    pub fn tool(reason: impl Display, remedy: impl Display) -> Lack {
        Lack { reason: reason.to_string(), remedy: remedy.to_string(), is_tool: true }
    }

    /// Returns the lack of something that this machine, its kernel or this user does not have.
    pub fn machine(reason: impl Display, remedy: impl Display) -> Lack {
        Lack { reason: reason.to_string(), remedy: remedy.to_string(), is_tool: false }
    }

    /// Returns the lack of something that an emulator of single programs does not have.
    pub fn emulated(reason: impl Display) -> Lack {
        Lack::machine(reason, "run the tests on a machine of this architecture")
    }
}

/// Whether this program runs in an emulator of single programs, which has no rseq(2), ptrace(2) or seccomp(2), and whose own
/// memory and threads count as the program's.
pub fn is_emulated() -> bool {
    std::env::var_os(ENV_RUNNER).is_some_and(|runner| !runner.is_empty())
}

/// Skips the calling test, which must return.
///
/// # Panics
/// If a tool is missing and `DORMOUSE_REQUIRE_TOOLS=1`, or if the file of skips cannot be written.
#[track_caller]
pub fn skip(lack: Lack) {
    record(None, lack);
}

/// Skips a part of the calling test; the rest must run. A part that the test has skipped before is not counted again.
///
/// # Panics
/// See [`skip`].
#[track_caller]
pub fn skip_part(part: impl Display, lack: Lack) {
    record(Some(part.to_string()), lack);
}

/// Whether a program is on `PATH`; if not, the calling test is skipped.
///
/// # Panics
/// See [`skip`].
#[track_caller]
pub fn has(program: &str) -> bool {
    let is_there = is_installed(program);
    if !is_there {
        skip(Lack::program(program));
    }
    is_there
}

/// Whether a program is on `PATH`; if not, the part of the calling test that runs it is skipped.
///
/// # Panics
/// See [`skip`].
#[track_caller]
pub fn has_part(program: &str) -> bool {
    let is_there = is_installed(program);
    if !is_there {
        skip_part(format!("with {program}"), Lack::program(program));
    }
    is_there
}

/// Whether programs may create these namespaces here, by options of unshare(1); if not, the calling test is skipped.
///
/// # Panics
/// See [`skip`].
#[track_caller]
pub fn may_unshare(options: &[&str]) -> bool {
    if !has("unshare") {
        return false;
    }
    let status = Command::new("unshare").args(options).arg("true").stderr(Stdio::null()).status();
    let may = status.is_ok_and(|status| status.success());
    if !may {
        skip(Lack::machine("such namespaces are forbidden", "sysctl kernel.unprivileged_userns_clone=1"));
    }
    may
}

/// Whether the Rust toolchain has the standard library of a target; if not, the calling test is skipped.
///
/// # Panics
/// See [`skip`].
#[track_caller]
pub fn has_target(triple: &str) -> bool {
    let output = Command::new("rustc").args(["--print", "target-libdir", "--target", triple]).output();
    let is_there = output.is_ok_and(|output| {
        output.status.success() && Path::new(String::from_utf8_lossy(&output.stdout).trim()).is_dir()
    });
    if !is_there {
        skip(Lack::target(triple));
    }
    is_there
}

/// Whether a program is on `PATH`.
pub fn is_installed(program: &str) -> bool {
    std::env::var_os("PATH").is_some_and(|path| std::env::split_paths(&path).any(|dir| dir.join(program).is_file()))
}

/// Returns the standard output of a program, or an error with the first line of its standard error. `name` names it in
/// errors.
///
/// # Errors
/// If it cannot be run, or fails.
pub fn printed(command: &mut Command, name: &str) -> Result<String, String> {
    let output = command.stdin(Stdio::null()).output().map_err(|error| format!("`{name}`: {error}"))?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    let why = said.trim().lines().next().map_or_else(|| output.status.to_string(), String::from);
    Err(format!("`{name}` fails: {why}"))
}

#[track_caller]
fn record(part: Option<String>, lack: Lack) {
    let Lack { reason, remedy, is_tool } = lack;
    let is_required = std::env::var_os(ENV_REQUIRE_TOOLS).is_some_and(|value| value == "1");
    assert!(!(is_tool && is_required), "{reason}: {remedy}; {ENV_REQUIRE_TOOLS}=1 asks for it");
    let skip = Skip { program: program(), test: test(), part, reason, remedy };
    // A property leaves out the same part in each of its cases.
    static PARTS: Mutex<BTreeSet<String>> = Mutex::new(BTreeSet::new());
    if skip.part.is_some() && !PARTS.lock().unwrap_or_else(PoisonError::into_inner).insert(skip.line()) {
        return;
    }
    eprintln!("skipped: {}", skip.what());
    let Some(path) = std::env::var_os(ENV_SKIPS) else { return };
    let file = std::fs::OpenOptions::new().append(true).create(true).open(&path);
    // A single write, so that the lines of concurrent tests stay whole.
    let written = file.and_then(|mut file| file.write_all(skip.line().as_bytes()));
    written.unwrap_or_else(|error| panic!("cannot append to {ENV_SKIPS}={}: {error}", path.display()));
}

/// Makes `to` a copy of a program or script, which all users may run at once.
///
/// Another program writes the copy: a file that is open for writing cannot be executed (`ETXTBSY`), and a child that
/// another test forks meanwhile inherits this process's open files until it executes a program.
///
/// # Panics
/// If it cannot be copied.
#[track_caller]
pub fn copy_program(from: &Path, to: &Path) {
    let status = Command::new("install").args(["-m", "755"]).args([from, to]).status().expect("install(1) runs");
    assert!(status.success(), "{} cannot be copied to {}", from.display(), to.display());
}

/// Returns a program or library at a path where every user may execute it: the original or, if a directory above it is
/// closed to others, a copy in `place`.
///
/// # Panics
/// If it cannot be copied.
#[track_caller]
pub fn for_everybody(program: &Path, place: &Path) -> PathBuf {
    let is_open = |path: &Path, bits: u32| path.metadata().is_ok_and(|found| found.permissions().mode() & bits == bits);
    if is_open(program, 0o5) && program.ancestors().skip(1).all(|dir| is_open(dir, 0o1)) {
        return program.into();
    }
    let copy = place.join(program.file_name().expect("a program has a name"));
    copy_program(program, &copy);
    copy
}

/// Makes `to` an executable script, in the way of [`copy_program`].
///
/// # Panics
/// If it cannot be written.
#[track_caller]
pub fn write_script(to: &Path, text: &str) {
    let text_path = to.with_extension("text");
    std::fs::write(&text_path, text).expect("the text of a script is written");
    copy_program(&text_path, to);
    std::fs::remove_file(text_path).expect("the text is removed");
}

/// Returns the file name of this test program.
fn program() -> String {
    let path = std::env::current_exe().unwrap_or_default();
    path.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

/// Returns the running test's name: the harness names the thread after it. If the harness creates no threads, the
/// arguments name the chosen tests.
fn test() -> String {
    match std::thread::current().name() {
        Some(name) if name != "main" => name.to_owned(),
        _ => std::env::args().skip(1).filter(|word| !word.starts_with('-')).collect::<Vec<_>>().join(" "),
    }
}

/// A skipped test, or a skipped part of one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Skip {
    /// File name of the test's program.
    pub program: String,
    /// Name of the test.
    pub test: String,
    /// Part that was left out; `None` for the whole test.
    pub part: Option<String>,
    /// Description of what was missing.
    pub reason: String,
    /// Remedy.
    pub remedy: String,
}

impl Skip {
    /// Returns the part, the reason and the remedy as a text.
    pub fn what(&self) -> String {
        let part = self.part.as_ref().map(|part| format!("{part}: ")).unwrap_or_default();
        format!("{part}{} ({})", self.reason, self.remedy)
    }

    fn line(&self) -> String {
        let part = self.part.as_deref().unwrap_or_default();
        let fields = [&self.program, &self.test, part, &self.reason, &self.remedy];
        fields.map(|field| field.split_whitespace().collect::<Vec<_>>().join(" ")).join("\t") + "\n"
    }

    /// Returns all skips that were appended to a file; none if there is no file.
    ///
    /// # Errors
    /// If the file cannot be read, or has a line that this crate did not write.
    pub fn read(path: &Path) -> std::io::Result<Vec<Skip>> {
        let text = match std::fs::read_to_string(path) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
            text => text?,
        };
        let skip = |line: &str| {
            let fields: Vec<String> = line.split('\t').map(str::to_owned).collect();
            let [program, test, part, reason, remedy] = fields.try_into().ok()?;
            Some(Skip { program, test, part: Some(part).filter(|part| !part.is_empty()), reason, remedy })
        };
        let wrong = |line| std::io::Error::other(format!("{} has a line that is no skip: {line}", path.display()));
        text.lines().map(|line| skip(line).ok_or_else(|| wrong(line))).collect()
    }
}
