//! Support for tests of traces whose bytes were changed: the number of traces, the first seed, and a memory limit.

use std::process::Command;

/// Returns the seed of the first trace (`DORMOUSE_MUTATION_SEED`, or 1) and the number of traces (`DORMOUSE_MUTATIONS`,
/// or `count`).
pub fn mutations(count: u64) -> (u64, u64) {
    let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse().ok());
    (number("DORMOUSE_MUTATION_SEED").unwrap_or(1), number("DORMOUSE_MUTATIONS").unwrap_or(count))
}

/// The seed of the current trace: a failing test prints it.
#[derive(Debug)]
pub struct Seed(pub u64);

impl Drop for Seed {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("DORMOUSE_MUTATION_SEED={} DORMOUSE_MUTATIONS=1", self.0);
        }
    }
}

/// Environment variable that is set in the child process.
const ENV_ALONE: &str = "DORMOUSE_TEST_ALONE";

/// Runs the calling test, whose name is `test`, again in a process of its own with at most `data_kib` KiB of memory,
/// and returns `None`. In that process it returns the first seed and the count.
///
/// # Panics
/// If the test fails there, or needs more memory. In an emulator the memory is not bounded.
pub fn alone(test: &str, count: u64, data_kib: u64) -> Option<(u64, u64)> {
    let (first, count) = mutations(count);
    if std::env::var_os(ENV_ALONE).is_some() {
        return Some((first, count));
    }
    let mut shell = Command::new("sh");
    if crate::is_emulated() {
        crate::skip_part("bounded memory", crate::Lack::emulated("the emulator's memory counts as the program's"));
        shell.args(["-c", "exec \"$@\"", "sh"]);
    } else {
        shell.args(["-c", "ulimit -d \"$0\" && exec \"$@\"", &data_kib.to_string()]);
    }
    let program = std::env::current_exe().expect("this program has a path");
    let output =
        shell.arg(program).args(["--exact", test, "--nocapture"]).env(ENV_ALONE, "1").output().expect("sh runs");
    let said = [output.stdout, output.stderr].concat();
    let said = String::from_utf8_lossy(&said);
    assert!(
        output.status.success(),
        "DORMOUSE_MUTATION_SEED={first} DORMOUSE_MUTATIONS={count}, {}: {said}",
        output.status
    );
    println!("{said}");
    None
}
