//! System programs that tasks need.

use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Result, bail};

/// A program, and the Debian package that contains it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Tool {
    /// Name on `PATH`.
    pub(crate) program: &'static str,
    /// Alternative programs.
    pub(crate) others: &'static [&'static str],
    /// Name of the package, or several separated by blanks.
    pub(crate) package: &'static str,
    /// Whether tasks fail without it.
    pub(crate) is_required: bool,
}

/// C compiler.
pub(crate) const CC: Tool = Tool { program: "cc", others: &[], package: "gcc libc6-dev", is_required: true };
/// C++ compiler.
pub(crate) const CPP: Tool = Tool { program: "c++", others: &[], package: "g++", is_required: true };
/// Second compiler for C and C++.
pub(crate) const CLANG: Tool = Tool { program: "clang", others: &[], package: "clang", is_required: false };
/// Linker of that compiler.
pub(crate) const LLD: Tool = Tool { program: "ld.lld", others: &[], package: "lld", is_required: false };
/// Lists the files of the checkout.
pub(crate) const GIT: Tool = Tool { program: "git", others: &[], package: "git", is_required: false };
/// Make.
pub(crate) const MAKE: Tool = Tool { program: "make", others: &[], package: "make", is_required: true };
/// Tells C programs where the libraries are.
pub(crate) const PKG_CONFIG: Tool =
    Tool { program: "pkg-config", others: &[], package: "pkg-config", is_required: true };
/// Another tool by which C programs find the libraries.
pub(crate) const CMAKE: Tool = Tool { program: "cmake", others: &[], package: "cmake", is_required: false };
/// Formats manual pages.
pub(crate) const GROFF: Tool = Tool { program: "groff", others: &[], package: "groff-base", is_required: false };
/// An independent reader of traces, with its Python bindings, which can write traces.
pub(crate) const BABELTRACE2: Tool =
    Tool { program: "babeltrace2", others: &[], package: "babeltrace2 python3-bt2", is_required: false };
/// Browser for tests of reports, with a font for text measurements.
pub(crate) const CHROMIUM: Tool = Tool {
    program: "chromium",
    others: &["chromium-browser", "google-chrome"],
    package: "chromium fonts-dejavu-core",
    is_required: false,
};
/// Fetches speedscope, which a test opens in that browser.
pub(crate) const NPM: Tool = Tool { program: "npm", others: &[], package: "npm", is_required: false };
/// Block device that shares its queues over vhost-user.
pub(crate) const STORAGE_DAEMON: Tool =
    Tool { program: "qemu-storage-daemon", others: &[], package: "qemu-system-common", is_required: false };
/// Emulates machines, whose guests drive devices over vhost-user.
pub(crate) const QEMU: Tool =
    Tool { program: "qemu-system-x86_64", others: &[], package: "qemu-system-x86", is_required: false };
/// Commands of such guests.
pub(crate) const BUSYBOX: Tool =
    Tool { program: "busybox", others: &[], package: "busybox-static", is_required: false };
/// Driver for network devices that share their queues over vhost-user.
pub(crate) const DPDK: Tool = Tool { program: "dpdk-testpmd", others: &[], package: "dpdk-dev", is_required: false };
/// Runs programs and checks each of their memory accesses.
pub(crate) const VALGRIND: Tool =
    Tool { program: "valgrind", others: &[], package: "valgrind libc6-dbg", is_required: false };
/// Counts the system calls of programs.
pub(crate) const STRACE: Tool = Tool { program: "strace", others: &[], package: "strace", is_required: false };
/// Runs programs in namespaces, as Flatpak does.
pub(crate) const BUBBLEWRAP: Tool = Tool { program: "bwrap", others: &[], package: "bubblewrap", is_required: false };
/// Compiles and links with musl.
pub(crate) const MUSL_GCC: Tool = Tool { program: "musl-gcc", others: &[], package: "musl-tools", is_required: false };
/// LTTng's daemon and its client.
pub(crate) const LTTNG: Tool =
    Tool { program: "lttng-sessiond", others: &[], package: "lttng-tools", is_required: false };
/// LTTng's library for programs, with the generator of tracepoints.
pub(crate) const LTTNG_UST: Tool =
    Tool { program: "lttng-gen-tp", others: &[], package: "liblttng-ust-dev liblttng-ust1", is_required: false };
/// <sys/sdt.h>.
pub(crate) const SDT: Tool = Tool { program: "dtrace", others: &[], package: "systemtap-sdt-dev", is_required: false };

impl Tool {
    /// Whether the program or an alternative is on `PATH`.
    pub(crate) fn is_installed(&self) -> bool {
        has(self.program) || self.others.iter().any(|other| has(other))
    }
}

/// Whether a program is on `PATH`.
pub(crate) fn has(program: &str) -> bool {
    std::env::var_os("PATH").is_some_and(|path| std::env::split_paths(&path).any(|dir| dir.join(program).is_file()))
}

/// Installs missing tools if possible, and reports those that remain missing.
///
/// # Errors
/// A required tool remains missing.
pub(crate) fn ensure(tools: &[Tool]) -> Result<()> {
    let missing = |tools: &[Tool]| tools.iter().copied().filter(|tool| !tool.is_installed()).collect::<Vec<_>>();
    let wanted = missing(tools);
    if wanted.is_empty() {
        return Ok(());
    }
    let packages: Vec<&str> = wanted.iter().flat_map(|tool| tool.package.split(' ')).collect();
    if is_root() && has("apt-get") {
        println!("installing {}", packages.join(" "));
        apt_get(&["update"]);
        let install =
            |packages: &[&str]| apt_get(&[&["install", "--yes", "--no-install-recommends"], packages].concat());
        install(&packages);
        // If one package is unavailable, apt-get installs none: install them one by one.
        let left = missing(&wanted);
        if left.len() > 1 {
            left.iter().for_each(|tool| install(&tool.package.split(' ').collect::<Vec<_>>()));
        }
    }
    let still = missing(&wanted);
    if still.is_empty() {
        return Ok(());
    }
    let names = still.iter().map(|tool| tool.program).collect::<Vec<_>>().join(", ");
    let packages = still.iter().map(|tool| tool.package).collect::<Vec<_>>().join(" ");
    if still.iter().any(|tool| tool.is_required) {
        bail!("not installed: {names}; on Debian and Ubuntu `apt-get install {packages}` installs them");
    }
    println!("not installed: {names} (`apt-get install {packages}`); continuing without");
    Ok(())
}

/// Runs apt-get, and shows its error output if it fails. The caller checks which tools are installed afterwards.
fn apt_get(arguments: &[&str]) {
    let mut command = Command::new("apt-get");
    command.args(["-qq", "-o", "Dpkg::Use-Pty=0"]).args(arguments).env("DEBIAN_FRONTEND", "noninteractive");
    match command.stdin(Stdio::null()).output() {
        Ok(output) if output.status.success() => {}
        Ok(output) => eprint!("{}", String::from_utf8_lossy(&output.stderr)),
        Err(error) => eprintln!("apt-get: {error}"),
    }
}

pub(crate) fn is_root() -> bool {
    use std::os::unix::fs::MetadataExt;
    std::fs::metadata(Path::new("/proc/self")).is_ok_and(|process| process.uid() == 0)
}
