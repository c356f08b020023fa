//! The step `crates` of `cargo xtask ci`: licences, sources and versions of third-party crates.
//!
//! ```text
//!   cargo tree of each workspace ─▶ crates that a build compiles ─▶ three rules ─▶ violations
//! ```
//! Advisories are not checked: no package registry has RustSec's database.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context, Result, bail};
use spdx::{Expression, ParseMode};

use crate::run::{self, PYTHON, QUERY, WORKSPACES, cargo};
use crate::{fuzz, lab, peers};

/// SPDX identifiers of the licences that a crate may require. All permit use under any terms, with attribution.
const LICENCES: [&str; 10] =
    ["Apache-2.0", "BSD-2-Clause", "BSD-3-Clause", "IJG", "ISC", "MIT", "NCSA", "Unicode-3.0", "Zlib", "bzip2-1.0.6"];

/// Crates that a workspace builds in several versions: manifest, crate, and what needs the other version.
const DUPLICATES: [(&str, &str, &str); 27] = [
    ("Cargo.toml", "bitflags", "vmm-sys-util 0.15 and virtio-driver 0.6 need version 1"),
    ("Cargo.toml", "linux-raw-sys", "rustix 0.38"),
    ("Cargo.toml", "rustix", "virtio-driver 0.6 needs 0.38"),
    (PYTHON, "getrandom", "ahash 0.8 of Arrow needs 0.3"),
    (PYTHON, "syn", "zerocopy-derive needs version 2"),
    (QUERY, "atoi", "arrow-cast needs 2"),
    (QUERY, "base64", "object_store, reqwest and tonic need 0.22"),
    (QUERY, "block-buffer", "digest 0.10"),
    (QUERY, "crypto-common", "digest 0.10"),
    (QUERY, "digest", "blake2, crc-fast and md-5 0.10 need 0.10"),
    (QUERY, "foldhash", "hashbrown 0.15"),
    (QUERY, "getrandom", "ahash and rand 0.9 need 0.3, ring 0.2"),
    (QUERY, "hashbrown", "dashmap needs 0.14, petgraph 0.15"),
    (QUERY, "itertools", "object_store needs 0.14"),
    (QUERY, "md-5", "object_store needs 0.10"),
    (QUERY, "num-bigint", "bigdecimal needs 0.4"),
    (QUERY, "prettyplease", "tonic-build needs 0.2"),
    (QUERY, "quick-xml", "object_store needs 0.39"),
    (QUERY, "rand", "DataFusion 55 needs 0.9"),
    (QUERY, "rand_core", "rand 0.9"),
    (QUERY, "syn", "prost-derive, sqlparser_derive, tracing-attributes and others need version 2"),
    (QUERY, "tower-http", "reqwest needs 0.6"),
    (QUERY, "zstd", "Arrow 59 and DataFusion 55 need 0.13"),
    (QUERY, "zstd-safe", "zstd 0.13"),
    (peers::MANIFEST, "syn", "perfetto-sdk and tracing need version 2"),
    (peers::MANIFEST, "thiserror", "perfetto-sdk needs version 1"),
    (peers::MANIFEST, "thiserror-impl", "thiserror 1"),
];

/// A crate of a workspace's build.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Crate {
    name: String,
    version: String,
    /// Directory, repository or registry that it is from; `None` for crates.io.
    source: Option<String>,
    /// SPDX expression; empty if the crate states none.
    licence: String,
}

impl Crate {
    /// Parses a line of `cargo tree`: `NAME vVERSION (SOURCE)`, a tab, and the licence. Marks such as `(proc-macro)` can
    /// follow the version, too.
    fn parse(line: &str) -> Option<Crate> {
        let (package, licence) = line.split_once('\t')?;
        let mut words = package.split_whitespace();
        let (name, version) = (words.next()?.to_string(), words.next()?.strip_prefix('v')?.to_string());
        let source = words.find(|word| *word != "(proc-macro)").map(|word| word.trim_matches(['(', ')']).to_string());
        Some(Crate { name, version, source, licence: licence.trim_end_matches(" (*)").to_string() })
    }
}

/// Returns the crates of a workspace that are not of this project, including those of tests and build scripts.
fn built(manifest: &str) -> Result<BTreeSet<Crate>> {
    let mut tree = cargo(["tree", "--quiet", "--workspace", "--locked", "--edges", "normal,build,dev"]);
    tree.args(["--prefix", "none", "--format", "{p}\t{l}", "--manifest-path", manifest]);
    let output = tree.output().context("cannot run cargo")?;
    if !output.status.success() {
        bail!("cargo tree of {manifest}: {}", String::from_utf8_lossy(&output.stderr).trim());
    }
    let text = String::from_utf8(output.stdout).context("cargo tree prints no text")?;
    let own = run::root().display().to_string();
    let parse = |line| Crate::parse(line).with_context(|| format!("cargo tree of {manifest} prints {line:?}"));
    let crates: BTreeSet<Crate> = text.lines().filter(|line| !line.is_empty()).map(parse).collect::<Result<_>>()?;
    Ok(crates.into_iter().filter(|one| one.source.as_ref().is_none_or(|source| !source.starts_with(&own))).collect())
}

fn is_allowed(licence: &str) -> bool {
    // Older crates write MIT/Apache-2.0.
    let expression = Expression::parse_mode(licence, ParseMode::LAX);
    let is_listed = |id: &str| LICENCES.contains(&id);
    expression.is_ok_and(|expression| expression.evaluate(|one| one.license.id().is_some_and(|id| is_listed(id.name))))
}

/// Returns a line for each crate that breaks a rule, and for each entry of [`DUPLICATES`] without a crate.
fn violations(manifest: &str, crates: &BTreeSet<Crate>) -> Vec<String> {
    let mut lines = Vec::new();
    let mut versions = BTreeMap::<&str, BTreeSet<&str>>::new();
    for Crate { name, version, source, licence } in crates {
        versions.entry(name).or_default().insert(version);
        if !is_allowed(licence) {
            lines.push(format!("{name} {version} has the licence {licence:?}, which LICENCES does not allow"));
        }
        if let Some(source) = source {
            lines.push(format!("{name} {version} is from {source}, not from crates.io"));
        }
    }
    let listed: BTreeSet<&str> =
        DUPLICATES.iter().filter(|(of, ..)| *of == manifest).map(|(_, name, _)| *name).collect();
    versions.retain(|_, versions| versions.len() > 1);
    for (name, versions) in versions.iter().filter(|(name, _)| !listed.contains(*name)) {
        let versions: Vec<&str> = versions.iter().copied().collect();
        lines.push(format!(
            "{name} is built in versions {}: make them one, or give the reason in DUPLICATES",
            versions.join(" and ")
        ));
    }
    let once = listed.iter().filter(|name| !versions.contains_key(*name));
    lines.extend(once.map(|name| format!("{name} is built once: remove it from DUPLICATES")));
    lines.into_iter().map(|line| format!("{manifest}: {line}")).collect()
}

/// Checks the crates of every workspace.
///
/// # Errors
/// A crate breaks a rule.
pub(crate) fn check() -> Result<()> {
    let (mut crates, mut lines) = (BTreeSet::new(), Vec::new());
    for manifest in WORKSPACES.into_iter().chain([QUERY, fuzz::MANIFEST, peers::MANIFEST, lab::PRELOAD_MANIFEST]) {
        let built = built(manifest)?;
        lines.extend(violations(manifest, &built));
        crates.extend(built);
    }
    if !lines.is_empty() {
        bail!("see xtask/src/crates.rs\n{}", lines.join("\n"));
    }
    println!("{} crates: licences, sources and versions are as allowed", crates.len());
    println!(
        "advisories not checked: no package registry has RustSec's database; `cargo deny check advisories` downloads it"
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run::LAB;

    fn violations_of(manifest: &str, lines: &[&str]) -> String {
        violations(manifest, &lines.iter().map(|line| Crate::parse(line).unwrap()).collect()).join("\n")
    }

    #[test]
    fn what_breaks_a_rule_is_found() {
        let allowed = [
            "a v1.0.0\tMIT/Apache-2.0",
            "b v1.0.0 (proc-macro)\t(MIT OR GPL-3.0-only) AND Unicode-3.0",
            "c v1.0.0\tApache-2.0 WITH LLVM-exception (*)",
        ];
        assert_eq!(violations_of(LAB, &allowed), "");
        for (line, expected) in [
            ("d v1.0.0\tGPL-3.0-only", r#"d 1.0.0 has the licence "GPL-3.0-only", which LICENCES does not allow"#),
            (
                "d v1.0.0\tMIT AND MPL-2.0",
                r#"d 1.0.0 has the licence "MIT AND MPL-2.0", which LICENCES does not allow"#,
            ),
            ("d v1.0.0\t", r#"d 1.0.0 has the licence "", which LICENCES does not allow"#),
            ("d v1.0.0 (https://a.b/d?rev=1#2)\tMIT", "d 1.0.0 is from https://a.b/d?rev=1#2, not from crates.io"),
            (
                "a v2.0.0\tMIT",
                "a is built in versions 1.0.0 and 2.0.0: make them one, or give the reason in DUPLICATES",
            ),
        ] {
            let lines: Vec<&str> = allowed.into_iter().chain([line]).collect();
            assert_eq!(violations_of(LAB, &lines), format!("{LAB}: {expected}"));
        }
    }

    #[test]
    fn duplicates_are_allowed_in_the_workspace_that_needs_them_and_only_there() {
        let bitflags = ["bitflags v1.3.2\tMIT", "bitflags v2.13.2\tMIT"];
        assert!(!violations_of("Cargo.toml", &bitflags).contains("bitflags"));
        assert!(violations_of(LAB, &bitflags).starts_with("lab/Cargo.toml: bitflags is built in versions"));
        assert!(violations_of("Cargo.toml", &bitflags[..1]).contains("bitflags is built once: remove it"));
    }
}
