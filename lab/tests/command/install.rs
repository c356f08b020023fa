//! The lab as `cargo xtask install --with-lab` installs it: it finds its engines there, and measures `relay-write` with
//! them.

use std::path::Path;
use std::process::Command;

use dormouse_install::Installation;

use crate::common::{LAB, succeed};
use crate::relay_write::assert_table_and_figures;

#[test]
fn an_installed_lab_finds_its_engines() {
    let prefix = tempfile::tempdir().unwrap();
    let built = Path::new(LAB).parent().unwrap();
    // The library of `percpu` belongs to another package.
    let library = built.join("libdormouse_lab_account.so");
    if !library.exists() {
        let mut build = Command::new(env!("CARGO"));
        build.args(["build", "--quiet", "--package", "dormouse-lab-account", "--manifest-path"]);
        build.arg(concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml")).arg("--target-dir").arg(built.parent().unwrap());
        succeed(build.args(built.ends_with("release").then_some("--release")));
    }
    Installation::run(built, prefix.path(), Installation::lab).unwrap();
    assert_table_and_figures(&prefix.path().join("bin/dormouse-lab"));
    for text in ["man/man1/dormouse-lab-run.1", "bash-completion/completions/dormouse-lab"] {
        assert!(prefix.path().join("share").join(text).is_file(), "{text}");
    }
    dormouse_install::uninstall(prefix.path()).unwrap();
    assert_eq!(std::fs::read_dir(prefix.path()).unwrap().count(), 0);
}
