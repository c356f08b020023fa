//! Tests of what is different on AArch64, under qemu's user-mode emulation.

use std::path::Path;
use std::process::Command;

use anyhow::Result;

use crate::run::cargo;
use crate::system::Tool;
use crate::tally::Tally;

const TARGET: &str = "aarch64-unknown-linux-gnu";
/// Emulation is slow, and the threads take turns.
const STRESS_UPDATES: &str = "5000";

/// Runs programs of another architecture.
pub(crate) const QEMU: Tool =
    Tool { program: "qemu-aarch64", others: &["qemu-aarch64-static"], package: "qemu-user", is_required: false };
/// Links for it.
pub(crate) const CROSS_CC: Tool = Tool {
    program: "aarch64-linux-gnu-gcc",
    others: &[],
    package: "gcc-aarch64-linux-gnu libc6-dev-arm64-cross",
    is_required: false,
};

/// Whether the toolchain that is installed has the target's standard library.
fn has_target() -> bool {
    Command::new("rustc").args(["--print", "target-libdir", "--target", TARGET]).output().is_ok_and(|output| {
        output.status.success() && Path::new(String::from_utf8_lossy(&output.stdout).trim()).is_dir()
    })
}

/// Runs the tests of patching and of the per-CPU sections, if there is all that it takes.
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
        // For what the tests start themselves.
        tests.env("DORMOUSE_TEST_RUNNER", &runner).env("DORMOUSE_STRESS_UPDATES", STRESS_UPDATES);
        tests
    };
    let of_imv = ["--test", "values", "--test", "answers", "--test", "gate", "--test", "stress"];
    tally.run(emulated(&[&["-p", "dormouse-imv"][..], &of_imv].concat()))?;
    // The emulator has no rseq(2): the fallback is what runs, and the sections with a handler in the kernel's place.
    tally.run(emulated(&["-p", "dormouse-percpu", "--lib", "--test", "ops_sections"]))
}
