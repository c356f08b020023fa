//! `cargo xtask test`.

use anyhow::Result;

use crate::aarch64;
use crate::run::{cargo, succeed};
use crate::system::{self, BABELTRACE2, CC, CHROMIUM, CLANG, CPP, DPDK, LLD, MAKE, STORAGE_DAEMON};

/// What the tests run.
pub(crate) fn tools() -> Result<()> {
    let tools =
        [CC, CPP, CLANG, LLD, MAKE, BABELTRACE2, CHROMIUM, STORAGE_DAEMON, DPDK, aarch64::QEMU, aarch64::CROSS_CC];
    system::ensure(&tools)
}

/// Builds what tests run (the command, the libraries), then runs every test.
pub(crate) fn run() -> Result<()> {
    tools()?;
    succeed(&mut cargo(["build", "--workspace", "--all-targets"]))?;
    let mut tests = cargo(["test", "--workspace", "--no-fail-fast"]);
    // Those that run other packages' programs need not build them, then.
    tests.env("DORMOUSE_BUILT", "1");
    if [CLANG, LLD, BABELTRACE2, CHROMIUM, STORAGE_DAEMON, DPDK].iter().all(system::Tool::is_installed) {
        tests.env("DORMOUSE_REQUIRE_TOOLS", "1");
    }
    succeed(&mut tests)?;
    aarch64::test()?;
    println!("all tests of the workspace passed");
    Ok(())
}
