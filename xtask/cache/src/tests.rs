use std::os::unix::fs::MetadataExt;
use std::time::Duration;

use super::*;

const LOCK: &str = r#"
[[package]]
name = "dormouse-x"
version = "0.1.0"
dependencies = [ "serde" ]

[[package]]
name = "serde"
version = "1.0.0"
source = "registry+https://github.com/rust-lang/crates.io-index"

# A package of this project with the name of another one's.
[[package]]
name = "tracing"
version = "0.1.0"

[[package]]
name = "tracing"
version = "0.1.40"
source = "registry+https://github.com/rust-lang/crates.io-index"
"#;

fn write(path: &Path, text: &str) {
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, text).unwrap();
}

/// Makes a checkout without compiled crates.
fn checkout(dir: &Path, name: &str) -> Cache {
    let root = dir.join(name);
    for workspace in WORKSPACES {
        write(&root.join(workspace).join("Cargo.lock"), LOCK);
    }
    let [home, target, registry] = [dir.join("cache"), root.join("target"), dir.join("a home/registry/src")];
    fs::create_dir_all(&target).unwrap();
    Cache { home, key: "1".into(), target, root, registry, size_max_bytes: u64::MAX }
}

/// Imitates compilation: a registry crate, a crate of this project, and a test program of it with the registry crate's
/// name.
fn compile(cache: &Cache, profile: &str) {
    let profile = cache.target.join(profile);
    let unit = |unit: &str, source: &str| {
        let rule = format!("{0}/deps/lib{unit}.rlib: {source}\n\n{0}/deps/{unit}.d: {source}\n", profile.display());
        write(&profile.join(format!("deps/{unit}.d")), &rule);
        for kind in ["rlib", "rmeta"] {
            write(&profile.join(format!("deps/lib{unit}.{kind}")), unit);
        }
    };
    let registry = cache.registry.display().to_string().replace(' ', "\\ ");
    unit("serde-1", &format!("{registry}/index/serde-1.0.0/src/lib.rs"));
    unit("dormouse_x-2", &format!("{}/src/lib.rs", cache.root.display()));
    unit("serde-3", "tests/serde.rs");
    for file in [
        "build/serde-4/build-script-build",
        "build/serde-5/out/private.rs",
        "build/dormouse-x-6/out/private.rs",
        ".fingerprint/serde-1/lib-serde",
        ".fingerprint/dormouse-x-2/lib-dormouse_x",
        ".fingerprint/tracing-7/lib-tracing",
    ] {
        write(&profile.join(file), file);
    }
}

fn files(dir: &Path) -> Vec<String> {
    let mut found = Vec::new();
    for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
        let path = entry.path();
        if path.is_dir() {
            found.extend(files(&path).into_iter().map(|below| format!("{}/{below}", entry.file_name().display())));
        } else {
            found.push(entry.file_name().into_string().unwrap());
        }
    }
    found.sort();
    found
}

const KEPT: [&str; 6] = [
    ".fingerprint/serde-1/lib-serde",
    "build/serde-4/build-script-build",
    "build/serde-5/out/private.rs",
    "deps/libserde-1.rlib",
    "deps/libserde-1.rmeta",
    "deps/serde-1.d",
];

#[test]
fn only_third_party_crates_are_restored() {
    let dir = tempfile::tempdir().unwrap();
    let [one, other] = ["one", "other"].map(|name| checkout(dir.path(), name));
    for profile in ["debug", "peers/release"] {
        compile(&one, profile);
    }
    let past = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000_000);
    let old = |name: &str| one.target.join("debug").join(name);
    for name in ["deps/libserde-1.rlib", "build/serde-5/out/private.rs", "deps/serde-1.d"] {
        File::open(old(name)).unwrap().set_times(FileTimes::new().set_modified(past)).unwrap();
    }
    one.keep().unwrap();
    other.bring().unwrap();
    for profile in ["debug", "peers/release"] {
        assert_eq!(files(&other.target.join(profile)), KEPT);
    }
    let new = |name: &str| other.target.join("debug").join(name);
    for (name, is_one_file) in
        [("deps/libserde-1.rlib", true), ("build/serde-5/out/private.rs", false), ("deps/serde-1.d", false)]
    {
        let [old, new] = [old(name), new(name)].map(|path| path.metadata().unwrap());
        assert_eq!((new.modified().unwrap(), new.ino() == old.ino()), (past, is_one_file), "{name}");
    }
    // Files that a build script writes are not shared with the cache.
    fs::write(new("build/serde-5/out/private.rs"), "other").unwrap();
    let third = checkout(dir.path(), "third");
    third.bring().unwrap();
    assert_eq!(read(&third.target.join("debug/build/serde-5/out/private.rs")).unwrap(), "build/serde-5/out/private.rs");
}

#[test]
fn nothing_is_restored_if_something_is_compiled() {
    let dir = tempfile::tempdir().unwrap();
    let [one, other] = ["one", "other"].map(|name| checkout(dir.path(), name));
    assert!(other.bring().unwrap().contains("is not there"));
    compile(&one, "debug");
    one.keep().unwrap();
    // Only this program is compiled, because cargo builds it first.
    write(&other.target.join("debug/.fingerprint/xtask-cache-9/bin-xtask-cache"), "");
    write(&other.target.join("release/.fingerprint/serde-9/lib-serde"), "");
    assert!(other.bring().unwrap().contains("not used: something is compiled in "));
    fs::remove_dir_all(other.target.join("release")).unwrap();
    assert!(other.bring().unwrap().contains(" are there"));
}

#[test]
fn remains_of_an_interrupted_run_are_not_restored() {
    let dir = tempfile::tempdir().unwrap();
    let [one, other] = ["one", "other"].map(|name| checkout(dir.path(), name));
    compile(&one, "debug");
    for name in UNFINISHED {
        write(&one.home.join(name).join("debug/deps/libhalf-1.rlib"), "");
    }
    assert!(other.bring().unwrap().contains("is not there"));
    one.keep().unwrap();
    other.bring().unwrap();
    assert_eq!(files(&other.target.join("debug")), KEPT);
    assert!(UNFINISHED.iter().all(|name| !one.home.join(name).exists()));
}

#[test]
fn concurrent_runs_restore_everything_or_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let one = checkout(dir.path(), "one");
    compile(&one, "debug");
    one.keep().unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| (0..50).for_each(|_| drop(one.keep().unwrap())));
        for thread in 0..2 {
            let dir = dir.path();
            scope.spawn(move || {
                for round in 0..50 {
                    let other = checkout(dir, &format!("other-{thread}-{round}"));
                    other.bring().unwrap();
                    assert_eq!(files(&other.target.join("debug")), KEPT);
                }
            });
        }
    });
}

#[test]
fn the_most_recently_used_keys_stay() {
    let dir = tempfile::tempdir().unwrap();
    let mut cache = checkout(dir.path(), "one");
    compile(&cache, "debug");
    for key in ["1", "2", "3"] {
        cache.key = key.into();
        cache.keep().unwrap();
    }
    // The first key is used again.
    let other = checkout(dir.path(), "other");
    other.bring().unwrap();
    cache.size_max_bytes = 2 * size_bytes(&other.dir()).unwrap();
    cache.keep().unwrap();
    let mut keys: Vec<_> = fs::read_dir(&cache.home).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    keys.sort();
    assert_eq!(keys, ["lock", "target-1", "target-3"]);
}

/// Each change after which cargo recompiles crates next to the old ones leads to another key.
#[test]
fn a_key_depends_on_lock_files_and_profiles() {
    let dir = tempfile::tempdir().unwrap();
    let root = checkout(dir.path(), "one").root;
    write(&root.join(".cargo/config.toml"), "");
    let manifest = root.join("lab/Cargo.toml");
    for workspace in WORKSPACES {
        write(&root.join(workspace).join("Cargo.toml"), "[workspace]\n");
    }
    let key = || key(&root, dir.path()).unwrap();
    let first = key();
    write(&manifest, "[workspace]\nmembers = []\n");
    assert_eq!(key(), first, "of this project");
    write(&manifest, "[workspace]\n\n[profile.dev]\nopt-level = 1\n");
    let second = key();
    write(&manifest, "[workspace]\n\n[profile.dev]\nopt-level = 1\ndormouse-cli.opt-level = 0\n");
    let lock = read(&root.join("tests/fuzz/Cargo.lock")).unwrap();
    write(
        &root.join("tests/fuzz/Cargo.lock"),
        &format!("{lock}\n[[package]]\nname = \"dormouse-new\"\nversion = \"0.1.0\"\n"),
    );
    assert_eq!(key(), second, "packages of this project");
    write(&root.join("tests/fuzz/Cargo.lock"), "");
    let third = key();
    assert!(first != second && second != third && third != first);
}
