//! Installs libdormouse, libdormouse_imv, libdormouse_relay, libdormouse_vring and libdormouse_backing with their headers, manual pages, pkg-config and
//! CMake files.
//!
//! ```text
//!   cargo run --release -p dormouse-capi --bin dormouse-install -- --prefix DIR
//!
//!   DIR/include/dormouse/…                    headers
//!   DIR/lib/libdormouse.so.0, .so -> .so.0    libdormouse.a
//!   DIR/lib/libdormouse_imv.so.0, …           what libdormouse has of immediate values, for programs without a tracer
//!   DIR/lib/libdormouse_relay.so.0, …         likewise of page chains
//!   DIR/lib/libdormouse_vring.so.0, …         likewise of virtqueues
//!   DIR/lib/libdormouse_backing.so.0, …       likewise of memory
//!   DIR/lib/pkgconfig/dormouse.pc             finds its prefix from where it lies
//!   DIR/lib/pkgconfig/dormouse-imv.pc         likewise
//!   DIR/lib/pkgconfig/dormouse-relay.pc       likewise
//!   DIR/lib/pkgconfig/dormouse-vring.pc       likewise
//!   DIR/lib/pkgconfig/dormouse-backing.pc     likewise
//!   DIR/lib/cmake/Dormouse/…                  likewise
//!   DIR/share/man/man3/dormouse-imv.3         the manual page of immediate values
//!   DIR/share/man/man3/dormouse-percpu.3      that of counters and histograms
//!   DIR/share/man/man3/dormouse-relay.3       that of page chains
//!   DIR/share/man/man3/dormouse-vring.3       that of virtqueues
//!   DIR/share/man/man3/dormouse-backing.3     that of memory
//! ```
//!
//! The libraries are built first, with the profile that this program was built with. The tree may be moved afterwards.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use clap::Parser;

/// Builds libdormouse, libdormouse_imv, libdormouse_relay, libdormouse_vring and libdormouse_backing, and installs them with headers, manual pages,
/// pkg-config and CMake files.
#[derive(Debug, Parser)]
#[command(name = "dormouse-install", version)]
struct Arguments {
    /// Where to: headers go to DIR/include, libraries to DIR/lib.
    #[arg(long, value_name = "DIR")]
    prefix: PathBuf,
}

/// Libraries, with the package that each is built from.
const LIBRARIES: [(&str, &str); 5] = [
    ("libdormouse", "dormouse-capi"),
    ("libdormouse_imv", "dormouse-imv-capi"),
    ("libdormouse_relay", "dormouse-relay-capi"),
    ("libdormouse_vring", "dormouse-vring-capi"),
    ("libdormouse_backing", "dormouse-backing-capi"),
];

/// Folders of `mechanisms/` with headers and a manual page.
const MECHANISMS: [&str; 5] = ["backing", "imv", "percpu", "relay", "vring"];

/// Number in the shared libraries' sonames, which `build.rs` gives.
const SOVERSION: &str = "0";

/// What Rust's standard library needs of the system (`rustc --print native-static-libs`), but for the unwinder and libc: those every
/// compiler adds by itself, and with `-static` it takes libgcc_eh, for there is no static libgcc_s.
const SYSTEM_LIBRARIES: [&str; 5] = ["util", "rt", "pthread", "m", "dl"];

fn main() -> Result<()> {
    let Arguments { prefix } = Arguments::parse();
    let package = Path::new(env!("CARGO_MANIFEST_DIR"));
    let library_dir = build(package)?;

    let lib = prefix.join("lib");
    let mechanisms = package.join("../../mechanisms");
    for room in MECHANISMS.map(|name| mechanisms.join(name)).iter().chain(&[package.join("../abi"), package.into()]) {
        copy_tree(&room.join("include"), &prefix.join("include"))?;
    }
    for name in MECHANISMS {
        copy_tree(&mechanisms.join(name).join("man"), &prefix.join("share/man/man3"))?;
    }
    for (name, _) in LIBRARIES {
        let versioned = format!("{name}.so.{SOVERSION}");
        copy(&library_dir.join(format!("{name}.a")), &lib.join(format!("{name}.a")))?;
        copy(&library_dir.join(format!("{name}.so")), &lib.join(&versioned))?;
        let link = lib.join(format!("{name}.so"));
        let _ = fs::remove_file(&link);
        std::os::unix::fs::symlink(&versioned, &link)
            .with_context(|| format!("cannot make the link {}", link.display()))?;
    }

    let flags = SYSTEM_LIBRARIES.map(|name| format!("-l{name}")).join(" ");
    let configs =
        ["backing", "imv", "relay", "vring"].map(|name| format!("../../mechanisms/{name}/capi/dormouse-{name}.pc"));
    for config in configs.iter().map(String::as_str).chain(["pkgconfig/dormouse.pc"]) {
        let name = Path::new(config).file_name().context("a template has no name")?;
        fill(&package.join(format!("{config}.in")), &lib.join("pkgconfig").join(name), &flags)?;
    }
    let list = SYSTEM_LIBRARIES.join(";");
    for name in ["DormouseConfig.cmake", "DormouseConfigVersion.cmake"] {
        fill(&package.join(format!("cmake/{name}.in")), &lib.join("cmake/Dormouse").join(name), &list)?;
    }
    println!("installed in {}", prefix.display());
    Ok(())
}

/// Builds the libraries beside this program, and gives their directory.
fn build(package: &Path) -> Result<PathBuf> {
    let program = std::env::current_exe()?;
    let profile_dir = program.parent().context("this program has no directory")?;
    let target_dir = profile_dir.parent().context("this program is not in a target directory")?;
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| OsString::from("cargo"));
    let status = Command::new(&cargo)
        .args(["build", "--quiet", "--lib"])
        .args(LIBRARIES.iter().flat_map(|(_, package)| ["--package", package]))
        .arg("--target-dir")
        .arg(target_dir)
        .args(profile_dir.ends_with("release").then_some("--release"))
        .current_dir(package)
        .status()
        .with_context(|| format!("cannot run {}", cargo.display()))?;
    ensure!(status.success(), "the libraries do not build");
    Ok(profile_dir.to_path_buf())
}

fn copy(from: &Path, to: &Path) -> Result<()> {
    if let Some(parent) = to.parent() {
        fs::create_dir_all(parent).with_context(|| format!("cannot make the directory {}", parent.display()))?;
    }
    // A running program may have the old file mapped: it is replaced, not overwritten.
    let _ = fs::remove_file(to);
    fs::copy(from, to).with_context(|| format!("cannot copy {} to {}", from.display(), to.display()))?;
    Ok(())
}

fn copy_tree(from: &Path, to: &Path) -> Result<()> {
    for entry in fs::read_dir(from).with_context(|| format!("cannot read {}", from.display()))? {
        let entry = entry?;
        let (path, to) = (entry.path(), to.join(entry.file_name()));
        if path.is_dir() { copy_tree(&path, &to)? } else { copy(&path, &to)? }
    }
    Ok(())
}

/// Copies a template with its `@NAMES@` filled in.
fn fill(template: &Path, to: &Path, system_libraries: &str) -> Result<()> {
    let text = fs::read_to_string(template).with_context(|| format!("cannot read {}", template.display()))?;
    let text = text
        .replace("@VERSION@", env!("CARGO_PKG_VERSION"))
        .replace("@SOVERSION@", SOVERSION)
        .replace("@SYSTEM_LIBRARIES@", system_libraries);
    if let Some(parent) = to.parent() {
        fs::create_dir_all(parent).with_context(|| format!("cannot make the directory {}", parent.display()))?;
    }
    fs::write(to, text).with_context(|| format!("cannot write {}", to.display()))
}
