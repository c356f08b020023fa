//! Keeps compiled third-party crates for the next clone.
//!
//! ```text
//!   TARGET/debug, TARGET/release, TARGET/peers/release, …       each with deps/, build/, .fingerprint/
//!      │  keep, at the end of `cargo xtask ci`       ▲  bring, before the first crate is compiled: `.ci/run`
//!      ▼                                             │
//!   $XDG_CACHE_HOME/dormouse/target-KEY/debug, …               KEY: lock files, profiles, compiler, flags, cargo's home
//! ```
//! The cache only has crates of cargo's registry, recognised by the source files that the compiler lists, and nothing
//! built from this project's files. Cargo decides by its fingerprints whether an artefact is valid, as in any target
//! directory, and compiles what does not match.
//!
//! The cache is restored as a whole, and only into a target directory in which none of its crates is compiled: two
//! compilations of one crate differ for the crates that depend on it, because they contain the path of the target
//! directory. Therefore this program has no dependencies, so that cargo can build it first.
//!
//! Libraries are hard-linked and not copied, because compilers replace them and do not write into them. Files that
//! cargo, compilers and build scripts write into are copied, with their times. A kept cache gets its name once it is
//! complete, and a lock keeps readers out while a run writes. If all keys together exceed [`SIZE_MAX_BYTES`], the
//! least recently used ones are removed.

use std::collections::BTreeSet;
use std::error::Error;
use std::ffi::OsString;
use std::fs::{self, File, FileTimes};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::{Instant, SystemTime};

/// Variable with the cache's directory, instead of the user's cache. If empty, nothing is cached.
const ENV_CACHE: &str = "DORMOUSE_CACHE";
/// Maximum size of all keys together, in bytes.
const SIZE_MAX_BYTES: u64 = 16 << 30;
/// Workspaces, each with a manifest and a lock file.
const WORKSPACES: [&str; 7] = ["", "lab", "lab/peers", "lab/preload", "read/python", "read/query", "tests/fuzz"];
/// Maximum depth of a profile's directory in the target directory: `fuzz/bulk/PLATFORM/debug`.
const DEPTH_MAX: u32 = 4;
/// Directories that contain no profile's directory.
const NO_PROFILES: [&str; 8] = [".fingerprint", "build", "demo", "deps", "doc", "examples", "incremental", "tmp"];
/// Prefix of the names of keys' directories.
const PREFIX: &str = "target-";
/// Names of key directories that are being made or removed.
const UNFINISHED: [&str; 2] = ["new", "old"];
/// Subdirectories of a profile, and whether they have a directory for each unit of compilation. Files are transferred
/// first: fingerprints without files, and files without fingerprints, just lead to compilation.
const PLACES: [(&str, bool); 3] = [("deps", false), ("build", true), (".fingerprint", true)];

type Result<T> = std::result::Result<T, Box<dyn Error>>;

fn main() -> ExitCode {
    let started = Instant::now();
    let arguments: Vec<OsString> = std::env::args_os().skip(1).collect();
    let result = match arguments.as_slice() {
        [action] if action == "bring" => {
            find().and_then(|cache| cache.map_or(Ok(NOWHERE.into()), |cache| cache.bring()))
        }
        [action] if action == "keep" => find().and_then(|cache| cache.map_or(Ok(NOWHERE.into()), |cache| cache.keep())),
        _ => Err("usage: xtask-cache bring|keep".into()),
    };
    match result {
        Ok(text) => println!("cache: {text} ({:.1} s)", started.elapsed().as_secs_f64()),
        Err(error) => {
            eprintln!("cache: {error}");
            return ExitCode::FAILURE;
        }
    }
    ExitCode::SUCCESS
}

const NOWHERE: &str = "none, for DORMOUSE_CACHE is empty, or this user has no home";

/// Returns the cache of this checkout, or `None` if no directory for it is known.
fn find() -> Result<Option<Cache>> {
    let variable = |name: &str| std::env::var_os(name).map(PathBuf::from);
    let absolute = |name: &str| variable(name).filter(|path| path.is_absolute());
    let users = std::env::home_dir;
    let of_user = || absolute("XDG_CACHE_HOME").or_else(|| Some(users()?.join(".cache")));
    let home = variable(ENV_CACHE).or_else(|| of_user().map(|cache| cache.join("dormouse")));
    let cargo = absolute("CARGO_HOME").or_else(|| Some(users()?.join(".cargo")));
    let (Some(home), Some(cargo)) = (home.filter(|home| !home.as_os_str().is_empty()), cargo) else { return Ok(None) };
    let program = std::env::current_exe()?;
    let target = program.ancestors().nth(2).ok_or("this program is not in cargo's target directory")?.to_owned();
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let registry = cargo.join("registry/src");
    let key = key(&root, &registry)?;
    Ok(Some(Cache { home: std::path::absolute(home)?, key, target, root, registry, size_max_bytes: SIZE_MAX_BYTES }))
}

/// Returns a hash of the inputs that all third-party crates are compiled with. Cargo itself checks the others.
fn key(root: &Path, registry: &Path) -> Result<String> {
    // The algorithm can change with the compiler, whose version is hashed too.
    let mut hasher = DefaultHasher::new();
    registry.hash(&mut hasher);
    Command::new("rustc")
        .arg("-vV")
        .current_dir(root)
        .output()
        .map_err(|error| format!("rustc: {error}"))?
        .stdout
        .hash(&mut hasher);
    read(&root.join(".cargo/config.toml"))?.hash(&mut hasher);
    for workspace in WORKSPACES {
        // Packages of this project have no source, and profiles of theirs compile nothing of others.
        let lock = read(&root.join(workspace).join("Cargo.lock"))?;
        lock.split("\n[[package]]")
            .filter(|package| package.contains("\nsource = "))
            .for_each(|one| one.hash(&mut hasher));
        let manifest = read(&root.join(workspace).join("Cargo.toml"))?;
        let profiles = manifest.split_once("\n[profile.").map_or("", |(_, profiles)| profiles);
        let is_ours = |line: &&str| ["dormouse", "xtask", "#"].iter().any(|start| line.starts_with(start));
        profiles.lines().filter(|line| !is_ours(line)).for_each(|line| line.hash(&mut hasher));
    }
    let starts = ["CARGO_BUILD_", "CARGO_PROFILE_"];
    let is_flag = |name: &str| name.ends_with("RUSTFLAGS") || starts.iter().any(|start| name.starts_with(start));
    let mut flags: Vec<_> = std::env::vars_os().filter(|(name, _)| is_flag(&name.to_string_lossy())).collect();
    flags.sort();
    flags.hash(&mut hasher);
    Ok(format!("{:016x}", hasher.finish()))
}

/// The directory of one key, and the target directory of this checkout.
struct Cache {
    home: PathBuf,
    key: String,
    target: PathBuf,
    /// Root of this project.
    root: PathBuf,
    /// Directory into which cargo unpacks crates.
    registry: PathBuf,
    /// Maximum size of all keys together, in bytes.
    size_max_bytes: u64,
}

impl Cache {
    fn dir(&self) -> PathBuf {
        self.home.join(format!("{PREFIX}{}", self.key))
    }

    /// Opens the lock file, which readers lock shared and writers exclusively.
    fn lock(&self) -> Result<File> {
        fs::create_dir_all(&self.home).map_err(of(&self.home))?;
        let path = self.home.join("lock");
        Ok(File::create(&path).map_err(of(&path))?)
    }

    /// Copies the kept crates into the target directory, unless some of them are compiled there already.
    fn bring(&self) -> Result<String> {
        let lock = self.lock()?;
        lock.lock_shared()?;
        let dir = self.dir();
        if !dir.is_dir() {
            return Ok(format!("{} is not there: what this compiles is kept there", dir.display()));
        }
        let theirs = self.packages()?;
        for profile in profiles(&self.target) {
            if parts(&self.target.join(&profile))?.iter().any(|part| part.is_of(&theirs)) {
                return Ok(format!("not used: something is compiled in {}", self.target.join(profile).display()));
            }
        }
        let mut size_bytes = 0;
        for profile in profiles(&dir) {
            let from = dir.join(&profile);
            size_bytes += transfer(&from, &self.target.join(&profile), &parts(&from)?)?;
        }
        // The time of the last use.
        File::open(&dir)?.set_times(FileTimes::new().set_modified(SystemTime::now()))?;
        Ok(format!("{} of {} are there", mebibytes(size_bytes), dir.display()))
    }

    /// Keeps the compiled third-party crates of the target directory, and replaces those kept before.
    fn keep(&self) -> Result<String> {
        let lock = self.lock()?;
        lock.lock()?;
        let dir = self.dir();
        let [new, old] = UNFINISHED.map(|name| self.home.join(name));
        // Left by an interrupted run: the lock excludes other ones.
        self.remove_unfinished()?;
        fs::create_dir(&new).map_err(of(&new))?;
        let theirs = self.packages()?;
        let (mut size_bytes, mut unit_count) = (0, 0);
        for profile in profiles(&self.target) {
            let from = self.target.join(&profile);
            let parts = self.parts_of_others(&from, &theirs)?;
            unit_count += parts.iter().filter(|part| part.path.starts_with(".fingerprint")).count();
            size_bytes += transfer(&from, &new.join(&profile), &parts)?;
        }
        if dir.is_dir() {
            fs::rename(&dir, &old).map_err(of(&dir))?;
        }
        fs::rename(&new, &dir).map_err(of(&dir))?;
        self.remove_unfinished()?;
        let removed = self.remove_oldest()?;
        Ok(format!("{unit_count} units, {}, are kept in {}{removed}", mebibytes(size_bytes), dir.display()))
    }

    fn remove_unfinished(&self) -> io::Result<()> {
        UNFINISHED.iter().try_for_each(|name| remove(&self.home.join(name)))
    }

    /// Removes keys beyond the maximum size, the least recently used first.
    fn remove_oldest(&self) -> Result<String> {
        let mut keys = Vec::new();
        for entry in fs::read_dir(&self.home)? {
            let entry = entry?;
            if entry.file_name().to_string_lossy().starts_with(PREFIX) {
                keys.push((entry.metadata()?.modified()?, entry.path()));
            }
        }
        keys.sort();
        let (mut sum_bytes, mut text) = (0, String::new());
        for (_, path) in keys.iter().rev() {
            sum_bytes += size_bytes(path)?;
            if sum_bytes > self.size_max_bytes {
                remove(path)?;
                text += &format!(
                    "; {} is removed: all together are larger than {}",
                    path.display(),
                    mebibytes(self.size_max_bytes)
                );
            }
        }
        Ok(text)
    }

    /// Returns the names of registry packages that no package of this project has.
    fn packages(&self) -> Result<BTreeSet<String>> {
        let (mut theirs, mut ours) = (BTreeSet::new(), BTreeSet::new());
        for workspace in WORKSPACES {
            let lock = read(&self.root.join(workspace).join("Cargo.lock"))?;
            for package in lock.split("[[package]]").skip(1) {
                let name = package.lines().find_map(|line| line.strip_prefix("name = \"")?.strip_suffix('"'));
                let is_theirs = package.lines().any(|line| line.starts_with("source = \"registry+"));
                let names = if is_theirs { &mut theirs } else { &mut ours };
                names.extend(name.map(str::to_owned));
            }
        }
        Ok(&theirs - &ours)
    }

    /// Returns the parts of a profile's directory that belong to registry crates.
    fn parts_of_others(&self, profile: &Path, theirs: &BTreeSet<String>) -> Result<Vec<Part>> {
        let mut parts = parts(profile)?;
        let mut units = BTreeSet::new();
        for part in &parts {
            if let Some(unit) = part.name().strip_suffix(".d")
                && is_from(&read(&profile.join(&part.path))?, &self.registry)
            {
                units.insert(unit.to_owned());
            }
        }
        parts.retain(|part| {
            let name = part.name();
            // Files are named `serde-0123456789abcdef.d`, `libserde-0123456789abcdef.rmeta`.
            let unit = name.split('.').next().unwrap_or_default();
            part.is_of(theirs)
                || units.contains(unit)
                || unit.strip_prefix("lib").is_some_and(|unit| units.contains(unit))
        });
        Ok(parts)
    }
}

/// Whether the first source file in a compiler's make rule is in the registry. It is the root file of a crate.
fn is_from(rule: &str, registry: &Path) -> bool {
    let registry = format!("{}/", registry.display()).replace(' ', "\\ ");
    rule.split_once(": ").is_some_and(|(_, files)| files.starts_with(&registry))
}

/// A file, or the directory of a unit, which is transferred as a whole.
struct Part {
    /// Path below the profile's directory.
    path: PathBuf,
    is_dir: bool,
}

impl Part {
    fn name(&self) -> String {
        self.path.file_name().unwrap_or_default().to_string_lossy().into_owned()
    }

    /// Whether it is a unit's directory of one of these packages: `serde_json-0123456789abcdef`.
    fn is_of(&self, packages: &BTreeSet<String>) -> bool {
        self.is_dir && self.name().rsplit_once('-').is_some_and(|(package, _)| packages.contains(package))
    }
}

/// Returns all parts of a profile's directory.
fn parts(profile: &Path) -> Result<Vec<Part>> {
    let mut parts = Vec::new();
    for (place, is_dir) in PLACES {
        let dir = profile.join(place);
        if dir.is_dir() {
            for entry in fs::read_dir(&dir).map_err(of(&dir))? {
                parts.push(Part { path: Path::new(place).join(entry?.file_name()), is_dir });
            }
        }
    }
    Ok(parts)
}

/// Returns the directories of profiles below `dir`, relative to it.
fn profiles(dir: &Path) -> Vec<PathBuf> {
    fn search(dir: &Path, below: &Path, depth: u32, found: &mut Vec<PathBuf>) {
        if dir.join(".fingerprint").is_dir() {
            found.push(below.into());
        }
        let entries = fs::read_dir(dir).into_iter().flatten().flatten();
        for entry in entries.filter(|entry| depth < DEPTH_MAX && entry.file_type().is_ok_and(|kind| kind.is_dir())) {
            let name = entry.file_name();
            if !NO_PROFILES.iter().any(|skipped| name == *skipped) {
                search(&entry.path(), &below.join(name), depth + 1, found);
            }
        }
    }
    let mut found = Vec::new();
    search(dir, Path::new(""), 0, &mut found);
    found
}

/// Transfers parts of one profile's directory to another, and replaces existing ones. Returns the size of their files.
fn transfer(from: &Path, to: &Path, parts: &[Part]) -> Result<u64> {
    let mut size_bytes = 0;
    for (place, _) in PLACES {
        let dir = to.join(place);
        fs::create_dir_all(&dir).map_err(of(&dir))?;
    }
    let scratch = to.join(".new");
    remove(&scratch)?;
    for part in parts {
        let (from, to) = (from.join(&part.path), to.join(&part.path));
        let put = || {
            let size_bytes = match part.is_dir {
                true => copy_dir(&from, &scratch)?,
                // The compiler overwrites its list of read files in place.
                false if from.extension().is_some_and(|extension| extension == "d") => copy(&from, &scratch)?,
                false => link(&from, &scratch)?,
            };
            remove(&to)?;
            fs::rename(&scratch, &to)?;
            Ok::<u64, io::Error>(size_bytes)
        };
        size_bytes += put().map_err(of(&to))?;
    }
    Ok(size_bytes)
}

/// Hard-links a file, or copies it if it is on another file system. Returns its size.
fn link(from: &Path, to: &Path) -> io::Result<u64> {
    match fs::hard_link(from, to) {
        Ok(()) => Ok(from.metadata()?.len()),
        Err(_) => copy(from, to),
    }
}

/// Copies a file with its modification time. Returns its size.
fn copy(from: &Path, to: &Path) -> io::Result<u64> {
    let size_bytes = fs::copy(from, to)?;
    File::open(to)?.set_times(FileTimes::new().set_modified(from.metadata()?.modified()?))?;
    Ok(size_bytes)
}

/// Copies a directory, but links programs of build scripts, which nothing writes into. Returns the size of its files.
fn copy_dir(from: &Path, to: &Path) -> io::Result<u64> {
    let mut size_bytes = 0;
    fs::create_dir(to)?;
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        let (from, to, name) = (entry.path(), to.join(entry.file_name()), entry.file_name());
        let is_program =
            ["build-script-", "build_script_"].iter().any(|start| name.to_string_lossy().starts_with(start));
        size_bytes += match entry.file_type()? {
            kind if kind.is_dir() => copy_dir(&from, &to)?,
            kind if kind.is_symlink() => std::os::unix::fs::symlink(fs::read_link(&from)?, &to).map(|()| 0)?,
            _ if is_program && from.components().rev().nth(2).is_some_and(|place| place.as_os_str() == "build") => {
                link(&from, &to)?
            }
            _ => copy(&from, &to)?,
        };
    }
    Ok(size_bytes)
}

/// Removes a file or a directory, if it exists.
fn remove(path: &Path) -> io::Result<()> {
    match path.symlink_metadata() {
        Ok(found) if found.is_dir() => fs::remove_dir_all(path),
        Ok(_) => fs::remove_file(path),
        Err(_) => Ok(()),
    }
}

/// Returns the size of all files in a directory.
fn size_bytes(dir: &Path) -> io::Result<u64> {
    let mut sum_bytes = 0;
    for entry in fs::read_dir(dir)? {
        let entry = entry?;
        sum_bytes += if entry.file_type()?.is_dir() { size_bytes(&entry.path())? } else { entry.metadata()?.len() };
    }
    Ok(sum_bytes)
}

fn mebibytes(bytes: u64) -> String {
    format!("{} MiB", bytes >> 20)
}

fn read(path: &Path) -> Result<String> {
    Ok(fs::read_to_string(path).map_err(of(path))?)
}

/// Adds the path of a file or directory to an error.
fn of(path: &Path) -> impl FnOnce(io::Error) -> String + '_ {
    move |error| format!("{}: {error}", path.display())
}

#[cfg(test)]
mod tests;
