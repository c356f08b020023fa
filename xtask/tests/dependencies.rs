//! Checks by cargo's metadata that dependencies follow one table, which lists the allowed dependencies of each room.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use cargo_metadata::{DependencyKind, MetadataCommand};

/// A package, and the workspace packages that its library, programs and build may depend on. Dependencies of tests
/// (`dev-dependencies`) are not restricted.
type Rule = (&'static str, &'static [&'static str]);

/// Every room except the command.
const EVERYTHING: [&str; 15] = [
    "dormouse",
    "dormouse-abi",
    "dormouse-transport",
    "dormouse-imv",
    "dormouse-percpu",
    "dormouse-relay",
    "dormouse-relay-chain",
    "dormouse-vring",
    "dormouse-backing",
    "dormouse-control",
    "dormouse-tools",
    "dormouse-format",
    "dormouse-owner",
    "dormouse-ctf",
    "dormouse-reader",
];

/// Every room, and the crate that tests share.
const E2E: [&str; 16] = {
    let [a, b, c, d, e, f, g, h, i, j, k, l, m, n, o] = EVERYTHING;
    [a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, "dormouse-testing"]
};

/// Packages that experiments use: sessions, readers of their traces, and the lab's own parts.
const LAB: [&str; 14] = [
    "dormouse-abi",
    "dormouse-owner",
    "dormouse-control",
    "dormouse-doctor",
    "dormouse-lab-coherence",
    "dormouse-lab-harness",
    "dormouse-lab-machine",
    "dormouse-lab-rings",
    "dormouse-lab-statistics",
    "dormouse-reader",
    "dormouse-terminal",
    // For the features that it enables in libraries.
    "dormouse-testing",
    "dormouse-tools",
    "dormouse-vring",
];

const RULES: [Rule; 61] = [
    ("dormouse-abi", &[]),
    // The protocol of both sides.
    ("dormouse-transport", &["dormouse-abi"]),
    ("dormouse-locks", &[]),
    // How a program is reached, with a tracer and without.
    ("dormouse-listener", &["dormouse-abi", "dormouse-locks", "dormouse-transport"]),
    // Shared by the tests of all rooms.
    ("dormouse-testing", &["dormouse-install"]),
    // Shared by the tests of the read side.
    ("dormouse-traces", &["dormouse-abi", "dormouse-ctf", "dormouse-format"]),
    // The hot rooms do not depend on one another.
    ("dormouse-imv", &["dormouse-abi", "dormouse-locks"]),
    ("dormouse-imv-control", &["dormouse-abi", "dormouse-imv", "dormouse-listener", "dormouse-transport"]),
    ("dormouse-percpu", &["dormouse-abi", "dormouse-locks"]),
    ("dormouse-relay", &["dormouse-abi"]),
    ("dormouse-relay-chain", &[]),
    ("dormouse-relay-channel", &["dormouse-relay-chain"]),
    ("dormouse-vring", &["dormouse-abi"]),
    ("dormouse-backing", &["dormouse-abi"]),
    // Independent of both sides: virtqueues with third-party processes.
    ("dormouse-vring-vhost", &["dormouse-backing", "dormouse-terminal", "dormouse-vring"]),
    // The write side.
    (
        "dormouse",
        &[
            "dormouse-abi",
            "dormouse-transport",
            "dormouse-locks",
            "dormouse-listener",
            "dormouse-imv",
            "dormouse-imv-control",
            "dormouse-percpu",
            "dormouse-relay",
            "dormouse-vring",
            "dormouse-backing",
        ],
    ),
    (
        "dormouse-capi",
        &[
            "dormouse",
            "dormouse-abi",
            "dormouse-locks",
            "dormouse-imv",
            "dormouse-imv-control",
            "dormouse-percpu",
            "dormouse-relay-chain",
            "dormouse-relay-channel",
            "dormouse-vring",
            "dormouse-backing",
        ],
    ),
    ("dormouse-backing-capi", &["dormouse-backing"]),
    ("dormouse-imv-capi", &["dormouse-abi", "dormouse-imv", "dormouse-imv-control"]),
    ("dormouse-percpu-capi", &["dormouse-percpu"]),
    ("dormouse-relay-capi", &["dormouse-relay-chain", "dormouse-relay-channel"]),
    ("dormouse-vring-capi", &["dormouse-vring"]),
    ("dormouse-preload", &["dormouse", "dormouse-abi"]),
    // What the owner writes into a trace. The reader of any tracer's traces builds on it.
    ("dormouse-format", &["dormouse-abi"]),
    // The read side.
    // Filters of events from any source, and rules, whose layout programs share.
    ("dormouse-filter", &["dormouse-abi"]),
    ("dormouse-ctf", &["dormouse-abi", "dormouse-filter", "dormouse-format"]),
    // In a separate workspace: nothing in the product depends on Arrow or Python.
    ("dormouse-columns", &["dormouse-abi", "dormouse-ctf", "dormouse-filter", "dormouse-print"]),
    ("dormouse-python", &["dormouse-columns", "dormouse-ctf", "dormouse-reader"]),
    ("dormouse-directory", &[]),
    ("dormouse-reader", &["dormouse-abi", "dormouse-ctf", "dormouse-directory"]),
    ("dormouse-analysis", &["dormouse-abi", "dormouse-ctf", "dormouse-filter"]),
    // Text of events, and of the results of `analysis`.
    ("dormouse-print", &["dormouse-abi", "dormouse-analysis", "dormouse-ctf"]),
    // A report of the results of `analysis`.
    ("dormouse-report", &["dormouse-abi", "dormouse-analysis", "dormouse-ctf", "dormouse-print"]),
    ("dormouse-export", &["dormouse-abi", "dormouse-analysis", "dormouse-ctf", "dormouse-print"]),
    // Which requests to a session's owner are allowed, and from which client. It does not know memory or traces.
    ("dormouse-control", &["dormouse-abi", "dormouse-transport"]),
    ("dormouse-tools", &["dormouse-abi", "dormouse-control", "dormouse-transport"]),
    (
        "dormouse-owner",
        &[
            "dormouse-abi",
            "dormouse-control",
            "dormouse-relay",
            "dormouse-vring",
            "dormouse-backing",
            "dormouse-ctf",
            "dormouse-directory",
            "dormouse-filter",
            "dormouse-format",
            "dormouse-tools",
            "dormouse-transport",
        ],
    ),
    // Also independent of both sides: inspects the memory of any process.
    ("dormouse-census", &["dormouse-backing", "dormouse-terminal"]),
    // The command. Large or separate parts are programs that it runs.
    ("dormouse-terminal", &["dormouse-abi"]),
    (
        "dormouse-doctor",
        &["dormouse-abi", "dormouse-control", "dormouse-imv", "dormouse-percpu", "dormouse-terminal", "dormouse-tools"],
    ),
    (
        "dormouse-cli",
        &[
            "dormouse-abi",
            "dormouse-analysis",
            "dormouse-owner",
            "dormouse-control",
            "dormouse-ctf",
            "dormouse-doctor",
            "dormouse-export",
            "dormouse-filter",
            "dormouse-print",
            "dormouse-reader",
            "dormouse-report",
            "dormouse-terminal",
            "dormouse-tools",
        ],
    ),
    // Independent of both sides: these measure and test everything.
    ("dormouse-lab", &LAB),
    ("dormouse-lab-statistics", &[]),
    (
        "dormouse-lab-machine",
        &["dormouse-backing", "dormouse-doctor", "dormouse-lab-harness", "dormouse-lab-statistics"],
    ),
    // The programs with the timed loops: each mechanism alone, and the walk.
    (
        "dormouse-lab-engines",
        &[
            "dormouse",
            "dormouse-abi",
            "dormouse-backing",
            "dormouse-imv",
            "dormouse-lab-harness",
            "dormouse-lab-rings",
            "dormouse-lab-schemes",
            "dormouse-lab-statistics",
            "dormouse-percpu",
            "dormouse-relay-chain",
            "dormouse-relay-channel",
            "dormouse-vring",
        ],
    ),
    // Peers are also measured with it: it has no tracer, but the check whether memory is present.
    ("dormouse-lab-harness", &["dormouse-backing"]),
    // Forms of rings that it compares, and a model of a ring's memory traffic.
    ("dormouse-lab-rings", &["dormouse-lab-harness", "dormouse-vring"]),
    ("dormouse-lab-coherence", &["dormouse-abi", "dormouse-vring"]),
    // Its measurement of an application.
    ("dormouse-lab-account", &["dormouse-lab-schemes", "dormouse-percpu"]),
    // Layouts of per-CPU words that the product's layout is compared with.
    ("dormouse-lab-schemes", &["dormouse-abi", "dormouse-percpu"]),
    ("dormouse-e2e", &E2E),
    ("dormouse-e2e-plugin", &EVERYTHING),
    (
        "dormouse-fuzz",
        &[
            "dormouse-abi",
            "dormouse-owner",
            "dormouse-control",
            "dormouse-ctf",
            "dormouse-filter",
            "dormouse-print",
            "dormouse-reader",
            "dormouse-relay",
            "dormouse-traces",
            "dormouse-transport",
            "dormouse-vring",
        ],
    ),
    (
        "dormouse-query",
        &[
            "dormouse-abi",
            "dormouse-analysis",
            "dormouse-columns",
            "dormouse-ctf",
            "dormouse-filter",
            "dormouse-print",
            "dormouse-reader",
            "dormouse-store",
            "dormouse-terminal",
        ],
    ),
    // Stores traces of many hosts as tables, without queries.
    ("dormouse-store", &["dormouse-abi", "dormouse-analysis", "dormouse-columns", "dormouse-ctf", "dormouse-reader"]),
    ("dormouse-ship", &["dormouse-reader", "dormouse-store", "dormouse-terminal"]),
    ("dormouse-objects", &[]),
    ("dormouse-cluster", &["dormouse-abi", "dormouse-query", "dormouse-terminal"]),
    ("dormouse-install", &[]),
    // Built before everything else.
    ("xtask-cache", &[]),
    ("xtask", &["dormouse-install", "dormouse-testing"]),
];

/// A package, with the workspace packages that it depends on and that the rules cover.
type Package = (String, Vec<String>);

/// Manifests of the product's workspace, the lab's, that of the Python module, and that of SQL queries.
const MANIFESTS: [&str; 4] = ["Cargo.toml", "lab/Cargo.toml", "read/python/Cargo.toml", "read/query/Cargo.toml"];

fn path(file: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(file)
}

/// Returns the violations of the rules, one line each.
fn violations(packages: &[Package], rules: &[Rule]) -> Vec<String> {
    let mut lines = Vec::new();
    for (package, dependencies) in packages {
        let Some((_, allowed)) = rules.iter().find(|(name, _)| name == package) else {
            lines.push(format!("{package} is in no rule: say in the table what it may depend on"));
            continue;
        };
        let wrong = dependencies.iter().filter(|dependency| !allowed.contains(&dependency.as_str()));
        lines.extend(wrong.map(|dependency| format!("{package} must not depend on {dependency}")));
    }
    lines
}

/// Returns the packages of all workspaces.
fn workspaces() -> Vec<Package> {
    let packages: Vec<_> = MANIFESTS
        .iter()
        .flat_map(|manifest| {
            let metadata = MetadataCommand::new().manifest_path(path(manifest)).no_deps().exec();
            metadata.expect("cargo tells its metadata").packages
        })
        .collect();
    let members: Vec<&str> = packages.iter().map(|package| package.name.as_str()).collect();
    let is_ruled = |kind| matches!(kind, DependencyKind::Normal | DependencyKind::Build);
    packages
        .iter()
        .map(|package| {
            let dependencies = package.dependencies.iter().filter(|dependency| is_ruled(dependency.kind));
            let inside = dependencies.filter(|dependency| members.contains(&dependency.name.as_str()));
            (package.name.to_string(), inside.map(|dependency| dependency.name.clone()).collect())
        })
        .collect()
}

#[test]
fn dependencies_point_one_way() {
    let lines = violations(&workspaces(), &RULES);
    assert!(lines.is_empty(), "{}", lines.join("\n"));
}

#[test]
fn the_workspaces_are_seen() {
    let packages = workspaces();
    let dependencies = |name: &str| {
        packages.iter().find(|(package, _)| package == name).map(|(_, dependencies)| dependencies.as_slice())
    };
    assert!(dependencies("dormouse").is_some_and(|dependencies| dependencies.contains(&"dormouse-imv".to_owned())));
    assert!(
        dependencies("dormouse-lab-engines")
            .is_some_and(|dependencies| dependencies.contains(&"dormouse-imv".to_owned()))
    );
    assert!(dependencies("dormouse-abi").is_some_and(|dependencies| dependencies.is_empty()));
}

/// Returns all sets of features with which each package is built in a workspace, by name and version.
fn features(manifest: &str) -> BTreeMap<String, BTreeSet<String>> {
    let tree = std::process::Command::new(env!("CARGO"))
        .args([
            "tree",
            "--workspace",
            "--locked",
            "--edges",
            "normal,build,dev",
            "--prefix",
            "none",
            "--format",
            "{p} [{f}]",
        ])
        .arg("--manifest-path")
        .arg(path(manifest))
        .output()
        .expect("cargo runs");
    assert!(tree.status.success(), "{}", String::from_utf8_lossy(&tree.stderr));
    let mut features = BTreeMap::<String, BTreeSet<String>>::new();
    for line in String::from_utf8_lossy(&tree.stdout).lines() {
        let Some((package, rest)) = line.split_once(" [") else { continue };
        let package = package.split_whitespace().take(2).collect::<Vec<_>>().join(" ");
        features.entry(package).or_default().insert(rest.split(']').next().unwrap_or_default().to_owned());
    }
    features
}

/// Package that is compiled in two forms: the lab's form omits a time library, which takes longer to compile than the
/// second form.
const APART: &str = "dormouse-terminal";

/// If workspaces used different features of a package, it would be compiled twice.
#[test]
fn the_workspaces_ask_the_same_of_what_they_share() {
    // Without the Python module: builds of the product should not compile features that only Arrow needs.
    let [product, lab] = [MANIFESTS[0], MANIFESTS[1]].map(features);
    let differ = product.iter().filter_map(|(package, of_product)| {
        let of_lab = lab.get(package)?;
        // Dependencies of procedural macros already have several forms in one workspace.
        let is_one = of_product.len() == 1 && of_lab.len() == 1;
        let is_apart = package.starts_with(APART);
        (is_one && !is_apart && of_product != of_lab).then(|| format!("{package}: {of_product:?} and {of_lab:?}"))
    });
    let differ: Vec<String> = differ.collect();
    assert!(differ.is_empty(), "ask for both in tests/support/Cargo.toml:\n{}", differ.join("\n"));
}

/// All workspaces build into one target directory, so different versions of a library would be compiled twice.
#[test]
fn the_workspaces_have_the_same_versions_of_what_they_share() {
    let versions = |manifest: &str| -> BTreeSet<(String, String)> {
        let text = std::fs::read_to_string(path(manifest).with_extension("lock")).expect("a workspace has a lock");
        let value = |line: &str, key: &str| Some(line.strip_prefix(key)?.trim_matches('"').to_owned());
        let lines: Vec<&str> = text.lines().collect();
        let pairs =
            lines.windows(2).filter_map(|pair| Some((value(pair[0], "name = ")?, value(pair[1], "version = ")?)));
        pairs.collect()
    };
    let [product, others @ ..] = MANIFESTS.map(versions);
    // Incompatible versions count as different libraries, such as 0.2.17 and 0.3.4.
    let series =
        |version: &str| version.split_inclusive('.').take(1 + usize::from(version.starts_with("0."))).collect();
    let is_in_product = |name: &str, version: &str| {
        let of: String = series(version);
        product.iter().any(|(other, known)| other == name && series(known) == of)
    };
    for (manifest, of_other) in MANIFESTS[1..].iter().zip(&others) {
        assert!(product.len() > 50 && of_other.len() > 30, "{} and {}", product.len(), of_other.len());
        let wrong: Vec<_> = of_other
            .iter()
            .filter(|package| is_in_product(&package.0, &package.1) && !product.contains(package))
            .collect();
        assert!(
            wrong.is_empty(),
            "only beside {manifest}: {wrong:?}; `cargo update --precise` makes the versions equal"
        );
    }
}

/// The table has no cycle.
#[test]
fn the_rules_have_no_cycle() {
    fn reach(rules: &[Rule], from: &str, path: &mut Vec<String>) {
        assert!(!path.contains(&from.to_owned()), "{} → {from}", path.join(" → "));
        path.push(from.to_owned());
        let (_, allowed) = rules.iter().find(|(name, _)| *name == from).unwrap_or_else(|| panic!("{from} has no rule"));
        allowed.iter().for_each(|next| reach(rules, next, path));
        path.pop();
    }
    RULES.iter().for_each(|(name, _)| reach(&RULES, name, &mut Vec::new()));
}

#[test]
fn a_dependency_the_wrong_way_is_found() {
    let package = |name: &str, dependencies: &[&str]| -> Package {
        (name.to_owned(), dependencies.iter().map(|dependency| (*dependency).to_owned()).collect())
    };
    let wrong = [
        ("dormouse-abi", "dormouse-relay"),
        ("dormouse-relay", "dormouse-vring"),
        ("dormouse-imv", "dormouse"),
        ("dormouse", "dormouse-ctf"),
        ("dormouse", "dormouse-owner"),
        ("dormouse-preload", "dormouse-imv"),
        ("dormouse-ctf", "dormouse-owner"),
        ("dormouse-format", "dormouse-ctf"),
        ("dormouse-ctf", "dormouse-print"),
        ("dormouse-analysis", "dormouse-print"),
        ("dormouse-owner", "dormouse"),
        ("dormouse-owner", "dormouse-cli"),
        ("dormouse-owner", "dormouse-reader"),
        ("dormouse-cli", "dormouse"),
        ("dormouse-cli", "dormouse-lab"),
        ("dormouse-cli", "dormouse-columns"),
        ("dormouse-cli", "dormouse-vring-vhost"),
        ("dormouse-lab", "dormouse-cli"),
    ];
    for (from, to) in wrong {
        let found = violations(&[package(from, &["dormouse-abi", to])], &RULES);
        let own = if from == "dormouse-abi" { "dormouse-abi must not depend on dormouse-abi\n" } else { "" };
        assert_eq!(found.join("\n"), format!("{own}{from} must not depend on {to}"));
    }
    assert_eq!(violations(&[package("dormouse-attic", &[])], &RULES).len(), 1);
    assert!(violations(&[package("dormouse-imv", &["dormouse-abi", "dormouse-locks"])], &RULES).is_empty());
}

/// Functions of rustix that read the kernel's auxiliary vector fail under valgrind, which hides the vDSO. The write
/// side must call libc instead.
#[test]
fn the_write_side_asks_libc_for_what_the_auxiliary_vector_tells() {
    const READERS: [&str; 3] = ["rustix::param", "rustix::time", "sched_getcpu"];
    fn visit(dir: &Path, wrong: &mut Vec<String>) {
        for path in std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path()) {
            if path.is_dir() {
                visit(&path, wrong);
            } else if !path.ends_with("tests.rs") {
                let text = std::fs::read_to_string(&path).unwrap();
                let lines = text.lines().filter(|line| !line.contains("libc::"));
                let found = lines.filter(|line| READERS.iter().any(|reader| line.contains(reader)));
                wrong.extend(found.map(|line| format!("{}: {}", path.display(), line.trim())));
            }
        }
    }
    let mut wrong = Vec::new();
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let mechanisms = ["backing", "imv", "percpu", "relay", "vring"].map(|room| format!("mechanisms/{room}"));
    let record = ["abi", "capi", "locks", "preload", "tracer", "transport"].map(|room| format!("record/{room}"));
    for room in mechanisms.iter().chain(&record) {
        visit(&root.join(room).join("src"), &mut wrong);
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
