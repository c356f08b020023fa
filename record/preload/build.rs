//! Link options of the library.

use std::path::{Path, PathBuf};
use std::process::Command;

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    // initfirst: its constructor runs before those of all other objects, so their allocations are traced too.
    // nodelete: the fork handlers and gates stay mapped until the process ends.
    println!("cargo::rustc-cdylib-link-arg=-Wl,-z,initfirst,-z,nodelete");
    // With the unwinder inside, no process needs to load libgcc_s for this library, which takes as long as loading the
    // library itself. Exceptions pass through the wrappers by the program's own unwinder: the wrappers have nothing to
    // clean up, hence no personality routine.
    if let Some(dir) = unwinder().as_deref().and_then(Path::parent) {
        println!("cargo::rustc-link-search=native={}", dir.display());
        println!("cargo::rustc-link-lib=static=gcc_eh");
    }
}

/// Returns the compiler's static unwinder, if it is for the target platform. Otherwise libgcc_s is loaded.
fn unwinder() -> Option<PathBuf> {
    let variable = |name: &str| std::env::var_os(name);
    if variable("TARGET") != variable("HOST") {
        return None;
    }
    let compiler = variable("RUSTC_LINKER").unwrap_or_else(|| "cc".into());
    let output = Command::new(compiler).arg("-print-file-name=libgcc_eh.a").output().ok()?;
    let path = PathBuf::from(String::from_utf8(output.stdout).ok()?.trim());
    // For a file that is not found, the compiler prints the bare name.
    (path.is_absolute() && path.is_file()).then_some(path)
}
