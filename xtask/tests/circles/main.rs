//! Checks that no crate has a cycle of modules: a module is above those that it uses.
//!
//! ```text
//!   sources ──syn──▶ modules: their paths and imports ──▶ the module that defines what a path names ──▶ cycles, with places
//! ```
//! A path through a re-export refers to the module that defines the name. A re-export of a module's own parts is not a
//! use of them. A nested module is part of the modules around it: its uses of them do not count. But uses by the outer
//! modules are their own, and these may be in cycles with others. All alternatives of `cfg` count, except for tests.
//! `$crate` in the definition of an exported macro counts where the macro is called, because it is compiled there.

mod graph;
mod modules;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

use cargo_metadata::{MetadataCommand, TargetKind};

use modules::Crate;

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("xtask lies in the project's folder")
}

/// Returns the manifests of all workspaces of the project.
fn workspaces() -> Vec<PathBuf> {
    let mut git = Command::new("git");
    git.current_dir(root()).args(["ls-files", "Cargo.toml", "*/Cargo.toml"]);
    let output = git.output().expect("git runs");
    let names = String::from_utf8(output.stdout).expect("names of manifests are text");
    let is_workspace = |path: &PathBuf| {
        let text = std::fs::read_to_string(path).unwrap_or_default();
        text.lines().any(|line| line.trim() == "[workspace]")
    };
    names.lines().map(|name| root().join(name)).filter(is_workspace).collect()
}

/// Returns the root files of all libraries and programs, each with its package's folder.
fn crates() -> Vec<(String, PathBuf)> {
    let mut crates = BTreeSet::new();
    for manifest in workspaces() {
        let metadata =
            MetadataCommand::new().manifest_path(&manifest).no_deps().exec().expect("cargo tells its metadata");
        for package in &metadata.packages {
            let folder = package.manifest_path.parent().expect("a manifest lies in a folder");
            let folder = folder.strip_prefix(root().to_str().expect("the path is text")).unwrap_or(folder).to_string();
            let is_product = |kind: &TargetKind| {
                !matches!(kind, TargetKind::Test | TargetKind::Bench | TargetKind::Example | TargetKind::CustomBuild)
            };
            let targets = package.targets.iter().filter(|target| target.kind.iter().all(is_product));
            crates.extend(targets.map(|target| (folder.clone(), target.src_path.clone().into_std_path_buf())));
        }
    }
    crates.into_iter().collect()
}

#[test]
fn no_crate_has_a_circle_of_modules() {
    if !dormouse_testing::has("git") {
        return;
    }
    let crates = crates();
    assert!(crates.len() > 20, "{crates:?}");
    let mut circles = Vec::new();
    for (folder, file) in crates {
        let found = Crate::read(&file).expect("the sources can be read").circles();
        let shown = |circle: &String| format!("{folder}: {}", circle.replace(&format!("{}/", root().display()), ""));
        circles.extend(found.iter().map(shown));
    }
    assert!(circles.is_empty(), "{}", circles.join("\n"));
}

/// If a module has many globs, names of other crates are not looked up through all their permutations.
#[test]
fn many_globs_are_resolved_quickly() {
    let globs: String = (0..6).map(|number| format!("use other{number}::prelude::*;\n")).collect();
    let file = format!("{globs}pub fn f() -> Unknown {{ Unknown::new() }}");
    assert_eq!(circles_of(&[("lib.rs", "mod a;"), ("a.rs", &file)]), [""; 0]);
}

/// Returns the cycles of a crate with these files.
fn circles_of(files: &[(&str, &str)]) -> Vec<String> {
    let dir = tempfile::tempdir().expect("a temporary directory");
    for (name, text) in files {
        let path = dir.path().join(name);
        std::fs::create_dir_all(path.parent().expect("a file lies in a folder")).expect("a folder");
        std::fs::write(path, text).expect("a file");
    }
    let circles = Crate::read(&dir.path().join("lib.rs")).expect("the sources can be read").circles();
    circles.into_iter().map(|circle| circle.replace(&format!("{}/", dir.path().display()), "")).collect()
}

#[test]
fn a_tree_has_no_circle() {
    let tree = [
        ("lib.rs", "mod a;\nmod b;\nmod c;\npub use a::A;\npub use c::C;\npub const LIMIT: u32 = 1;"),
        ("a.rs", "use crate::b;\nuse crate::c::inner::Inner;\npub struct A(b::B, Inner, crate::C);"),
        ("b.rs", "use std::fmt::Debug;\npub struct B(pub u32);\nfn limit() -> u32 { crate::LIMIT }"),
        ("c/mod.rs", "pub(crate) mod inner;\npub struct C(inner::Inner, super::b::B);\npub struct Word;"),
        ("c/inner.rs", "use super::Word;\npub struct Inner(Word);"),
    ];
    assert_eq!(circles_of(&tree), [""; 0]);
}

#[test]
fn a_circle_is_reported_with_its_positions() {
    let circle = [
        ("lib.rs", "mod a;\nmod b;\nmod c;"),
        ("a.rs", "use std::fmt;\n\nfn f() { crate::b::g() }"),
        ("b.rs", "pub fn g() {}\nfn h(_: super::c::C) {}"),
        ("c.rs", "pub struct C;\nimpl From<crate::a::A> for C {}"),
    ];
    let expected = "circle of 3: a, b, c\n  a.rs:3: a uses b: crate::b::g\n  b.rs:2: b uses c: super::c::C\n  c.rs:2: c uses a: crate::a::A";
    assert_eq!(circles_of(&circle), [expected]);
}

#[test]
fn a_circle_is_found_through_re_exports_globs_and_macros() {
    let a =
        ("a.rs", "use crate::B;\npub struct A;\n#[macro_export]\nmacro_rules! exported { () => { $crate::a::f() } }");
    let with = |lib: &'static str, b: &'static str| circles_of(&[("lib.rs", lib), a, ("b.rs", b)]);
    let lib = "mod a;\nmod b;\npub use a::A;\npub use b::*;";
    let all = [
        // A re-export.
        "pub struct B(crate::A);",
        // A group, another name.
        "use crate::{A as Other, a};\npub struct B;",
        // A path through the parent.
        "pub struct B;\nfn f() { super::a::f() }",
        // The tokens of a macro, and an exported macro.
        "pub struct B;\nfn f() { println!(\"{:?}\", [crate::a::f()]) }",
        "pub struct B;\nfn f() { crate::exported!() }",
        // A module in the same file, and a block.
        "pub struct B;\nmod inner { pub fn f() { use crate::a::A; } }\nfn f() { inner::f() }",
    ];
    for b in all {
        let circles = with(lib, b);
        assert!(matches!(&circles[..], [circle] if circle.contains("a uses b: crate::B")), "{b}: {circles:?}");
    }
    assert_eq!(with(lib, "pub struct B;\n#[cfg(test)]\nmod tests { use crate::A; }"), [""; 0]);
    assert_eq!(with(lib, "pub struct B;\n#[cfg(test)]\nfn f(a: crate::A) {}"), [""; 0]);
    assert_eq!(with(lib, "pub struct B;\n// crate::A\npub(crate) struct C(std::sync::Arc<other::A>);"), [""; 0]);
    // Either alternative may be compiled.
    let lib = "mod a;\n#[cfg(unix)]\nmod b;\n#[cfg(unix)]\npub use b::B;\n#[cfg(windows)]\npub use other::B;";
    assert_eq!(with(lib, "pub struct B(crate::a::A);").len(), 1);
}
