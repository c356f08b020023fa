//! What the tests of all rooms share. How a test is skipped has one way, so that what is skipped is counted.
//!
//! A test that misses something calls [`skip`] and returns; one that leaves out a part of what it tests calls [`skip_part`] and goes
//! on. Each names what is missing and what to do about it.
//!
//! ```text
//!   test ── skip(lack) ──▶ standard error:          "skipped: clang is not installed (`apt-get install clang`)"
//!                    └───▶ the file $DORMOUSE_SKIPS: one line each ──▶ `cargo xtask test`: "N passed, N failed, N skipped"
//! ```
//! `DORMOUSE_REQUIRE_TOOLS=1` makes a failure of each tool that is missing. What the machine or the user cannot do stays skipped.

use std::fmt::Display;
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

pub mod browser;
pub mod lttng;
pub mod mutations;
pub mod terminal;

/// The variable that names the file to which skips are appended. Without it they are only printed.
pub const ENV_SKIPS: &str = "DORMOUSE_SKIPS";
/// The variable that turns tools that are missing into failures, by `1`.
pub const ENV_REQUIRE_TOOLS: &str = "DORMOUSE_REQUIRE_TOOLS";

/// Programs that tests run, and Debian's packages that have them, where these are called otherwise.
const PACKAGES: [(&str, &str); 19] = [
    ("aarch64-linux-gnu-gcc", "gcc-aarch64-linux-gnu libc6-dev-arm64-cross"),
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
    ("readelf", "binutils"),
    ("setpriv", "util-linux"),
    ("unshare", "util-linux"),
];

/// The rooms that have headers for C and C++, each in a directory `include` of its own. Installed, they are in one.
const ROOMS_WITH_HEADERS: [&str; 7] = [
    "mechanisms/imv",
    "mechanisms/percpu",
    "mechanisms/relay",
    "mechanisms/vring",
    "mechanisms/backing",
    "record/abi",
    "record/capi",
];

/// The directories of the headers in this checkout.
pub fn include_dirs() -> impl Iterator<Item = PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    ROOMS_WITH_HEADERS.iter().map(move |room| root.join(room).join("include"))
}

/// Pseudo-random numbers below the bounds that are asked for, the same ones for a seed (SplitMix64).
pub fn random(seed: u64) -> impl FnMut(usize) -> usize {
    let mut state = seed;
    move |end| {
        state = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mixed = (state ^ (state >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        ((mixed ^ (mixed >> 31)) % end as u64) as usize
    }
}

/// A watchdog against hangs.
const PATIENCE: Duration = Duration::from_secs(300);

/// Waits until something is so that another process does, of which nothing tells.
///
/// # Panics
/// It is not so within minutes.
pub fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !is_so() {
        assert!(begun.elapsed() < PATIENCE, "hangs: {what}");
        // The kernel tells nobody of what others have come to, so it is looked at again; the pause leaves them the processor, and the
        // assertion above ends it.
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// What a test misses, and what to do about it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lack {
    reason: String,
    remedy: String,
    is_tool: bool,
}

impl Lack {
    /// A program that is not installed.
    pub fn program(name: &str) -> Lack {
        let package = PACKAGES.iter().find(|(program, _)| *program == name).map_or(name, |(_, package)| package);
        Lack::tool(format!("{name} is not installed"), format!("`apt-get install {package}`"))
    }

    /// A target of the Rust toolchain that is not installed. Not every toolchain can be given one, so none is required.
    pub fn target(triple: &str) -> Lack {
        Lack::machine(format!("the toolchain has no target {triple}"), format!("`rustup target add {triple}`"))
    }

    /// Something else that can be installed.
    pub fn tool(reason: impl Display, remedy: impl Display) -> Lack {
        Lack { reason: reason.to_string(), remedy: remedy.to_string(), is_tool: true }
    }

    /// Something that this machine, its kernel or this user has not.
    pub fn machine(reason: impl Display, remedy: impl Display) -> Lack {
        Lack { reason: reason.to_string(), remedy: remedy.to_string(), is_tool: false }
    }
}

/// The test that calls this is skipped: it has to return.
///
/// # Panics
/// A tool is missing where `DORMOUSE_REQUIRE_TOOLS=1` asks for it, or the file of skips cannot be written.
#[track_caller]
pub fn skip(lack: Lack) {
    record(None, lack);
}

/// A part of the test that calls this is skipped: the rest of it has to run.
///
/// # Panics
/// As [`skip`].
#[track_caller]
pub fn skip_part(part: impl Display, lack: Lack) {
    record(Some(part.to_string()), lack);
}

/// Whether a program is on `PATH`; otherwise the test that calls this is skipped.
///
/// # Panics
/// As [`skip`].
#[track_caller]
pub fn has(program: &str) -> bool {
    let is_there = is_installed(program);
    if !is_there {
        skip(Lack::program(program));
    }
    is_there
}

/// Whether a program is on `PATH`; otherwise the part of the test that runs it is skipped.
///
/// # Panics
/// As [`skip`].
#[track_caller]
pub fn has_part(program: &str) -> bool {
    let is_there = is_installed(program);
    if !is_there {
        skip_part(format!("with {program}"), Lack::program(program));
    }
    is_there
}

/// Whether programs of the system may make such namespaces here, by options of unshare(1); otherwise the test that calls this is skipped.
///
/// # Panics
/// As [`skip`].
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

/// Whether the Rust toolchain has the standard library of a target; otherwise the test that calls this is skipped.
///
/// # Panics
/// As [`skip`].
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

/// What a program prints; or that it cannot be run, or the first thing that it says of its failure. `name` is what errors call it.
///
/// # Errors
/// It cannot be run, or fails.
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
    eprintln!("skipped: {}", skip.what());
    let Some(path) = std::env::var_os(ENV_SKIPS) else { return };
    let file = std::fs::OpenOptions::new().append(true).create(true).open(&path);
    // One write, so that those of tests that run at the same time stay whole.
    let written = file.and_then(|mut file| file.write_all(skip.line().as_bytes()));
    written.unwrap_or_else(|error| panic!("cannot append to {ENV_SKIPS}={}: {error}", path.display()));
}

/// Makes `to` a copy of a program or script, which anybody may run, at once.
///
/// Another program writes it: what a process has open for writing cannot be run (`ETXTBSY`), and a child that another test forks
/// meanwhile has open what this process has, until it executes something.
///
/// # Panics
/// It cannot be copied.
#[track_caller]
pub fn copy_program(from: &Path, to: &Path) {
    let status = Command::new("install").args(["-m", "755"]).args([from, to]).status().expect("install(1) runs");
    assert!(status.success(), "{} cannot be copied to {}", from.display(), to.display());
}

/// A program or library where every user may execute it: itself or, where a directory above it is closed to others, a copy in `place`.
///
/// # Panics
/// It cannot be copied.
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

/// Makes `to` a script, as [`copy_program`] makes a program.
///
/// # Panics
/// It cannot be written.
#[track_caller]
pub fn write_script(to: &Path, text: &str) {
    let text_path = to.with_extension("text");
    std::fs::write(&text_path, text).expect("the text of a script is written");
    copy_program(&text_path, to);
    std::fs::remove_file(text_path).expect("the text is removed");
}

/// This test program, without the directory.
fn program() -> String {
    let path = std::env::current_exe().unwrap_or_default();
    path.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

/// The test that runs: the harness gives its name to the thread. Where it makes no threads, its arguments tell which tests were chosen.
fn test() -> String {
    match std::thread::current().name() {
        Some(name) if name != "main" => name.to_owned(),
        _ => std::env::args().skip(1).filter(|word| !word.starts_with('-')).collect::<Vec<_>>().join(" "),
    }
}

/// One test, or a part of it, that was skipped.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Skip {
    /// The file name of the test's program.
    pub program: String,
    /// The test's name.
    pub test: String,
    /// What was left out; `None`: all of it.
    pub part: Option<String>,
    /// What was missing.
    pub reason: String,
    /// What to do about it.
    pub remedy: String,
}

impl Skip {
    /// What was left out if not all, why, and what to do about it.
    pub fn what(&self) -> String {
        let part = self.part.as_ref().map(|part| format!("{part}: ")).unwrap_or_default();
        format!("{part}{} ({})", self.reason, self.remedy)
    }

    fn line(&self) -> String {
        let part = self.part.as_deref().unwrap_or_default();
        let fields = [&self.program, &self.test, part, &self.reason, &self.remedy];
        fields.map(|field| field.split_whitespace().collect::<Vec<_>>().join(" ")).join("\t") + "\n"
    }

    /// All that was appended to a file. None if there is no file.
    ///
    /// # Errors
    /// The file cannot be read, or has a line that is not of this crate's making.
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
