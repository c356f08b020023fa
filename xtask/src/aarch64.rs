//! Tests of the code specific to AArch64, under qemu's user-mode emulation.

use std::path::Path;
use std::process::Command;

use anyhow::Result;

use crate::run::cargo;
use crate::system::Tool;
use crate::tally::Tally;

const TARGET: &str = "aarch64-unknown-linux-gnu";
/// Updates in stress tests: few, because emulation is slow and threads take turns.
const STRESS_UPDATES: &str = "5000";

/// Runs programs of the other architecture.
pub(crate) const QEMU: Tool =
    Tool { program: "qemu-aarch64", others: &["qemu-aarch64-static"], package: "qemu-user", is_required: false };
/// Links for the other architecture.
pub(crate) const CROSS_CC: Tool = Tool {
    program: "aarch64-linux-gnu-gcc",
    others: &[],
    package: "gcc-aarch64-linux-gnu libc6-dev-arm64-cross",
    is_required: false,
};

/// Whether the installed toolchain has the target's standard library.
fn has_target() -> bool {
    Command::new("rustc").args(["--print", "target-libdir", "--target", TARGET]).output().is_ok_and(|output| {
        output.status.success() && Path::new(String::from_utf8_lossy(&output.stdout).trim()).is_dir()
    })
}

/// Runs the tests of patching and of the per-CPU sections, if all tools are installed.
pub(crate) fn test(tally: &mut Tally) -> Result<()> {
    if !has_target() {
        let reason = format!("the toolchain has no target {TARGET}");
        tally.leave_out("tests on AArch64", &reason, &format!("`rustup target add {TARGET}`"));
        return Ok(());
    }
    if let Some(tool) = [QEMU, CROSS_CC].iter().find(|tool| !tool.is_installed()) {
        let reason = format!("{} is not installed", tool.program);
        tally.leave_out("tests on AArch64", &reason, &format!("`apt-get install {}`", tool.package));
        return Ok(());
    }
    let qemu = if crate::system::has(QEMU.program) { QEMU.program } else { QEMU.others[0] };
    let runner = format!("{qemu} -L /usr/aarch64-linux-gnu");
    let emulated = |arguments: &[&str]| {
        let mut tests = cargo(["test", "--no-fail-fast", "--target", TARGET]);
        tests.args(arguments).env("CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER", CROSS_CC.program);
        tests.env("CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUNNER", &runner);
        // For programs that the tests start themselves.
        tests.env("DORMOUSE_TEST_RUNNER", &runner).env("DORMOUSE_STRESS_UPDATES", STRESS_UPDATES);
        tests
    };
    let of_imv = ["--test", "values", "--test", "answers", "--test", "gate", "--test", "stress"];
    tally.run(emulated(&[&["-p", "dormouse-imv"][..], &of_imv].concat()))?;
    // The emulator has no rseq(2), so these test the fallback, and the sections with a signal handler instead of the
    // kernel.
    tally.run(emulated(&["-p", "dormouse-percpu", "--lib", "--test", "ops_sections"]))
}
