//! What has been compiled of other people's crates, kept for the next clone.
//!
//! ```text
//!   TARGET/debug, TARGET/release, TARGET/peers/release, …       each with deps/, build/, .fingerprint/
//!      │  keep, at the end of `cargo xtask ci`       ▲  bring, before the first crate is compiled: `.ci/run`
//!      ▼                                             │
//!   $XDG_CACHE_HOME/dormouse/target-KEY/debug, …               KEY: lock files, profiles, compiler, flags, cargo's home
//! ```
//! It holds crates of cargo's registry alone, by the source files that the compiler names: nothing that is built of this project's files. Whether an artefact
//! is what is asked for, cargo decides by its fingerprints, as in any target directory: what does not fit is compiled.
//!
//! It is brought as a whole, and only where nothing of it is compiled: two compilations of one crate are not the same to what was compiled with one of them,
//! because the path of the target directory is in both. So this program has no dependencies, and cargo can build it first.
//!
//! Libraries get a second name and are not copied, for nobody writes into them: a compiler puts its new file in the place of the old one. Files that cargo,
//! compilers and build scripts write into are copied, with their times. What is kept appears under its name once it is whole, and a lock keeps runs apart. When all keys
//! together are larger than [`SIZE_MAX_BYTES`], those that have not been used for longest are removed.

use std::collections::BTreeSet;
use std::error::Error;
use std::ffi::OsString;
use std::fs::{self, File, FileTimes};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::{Instant, SystemTime};

/// Where it is kept in place of the user's cache; empty: nowhere.
const ENV_CACHE: &str = "DORMOUSE_CACHE";
/// What all keys may have together.
const SIZE_MAX_BYTES: u64 = 16 << 30;
/// Workspaces, each with a manifest and a lock file.
const WORKSPACES: [&str; 7] = ["", "lab", "lab/peers", "lab/preload", "read/python", "read/query", "tests/fuzz"];
/// How deep a profile's directory lies in the target directory at most: `fuzz/bulk/PLATFORM/debug`.
const DEPTH_MAX: u32 = 4;
/// Directories that no profile's lies in.
const NO_PROFILES: [&str; 8] = [".fingerprint", "build", "demo", "deps", "doc", "examples", "incremental", "tmp"];
/// Beginning of the name of a key's directory.
const PREFIX: &str = "target-";
/// Under these names a key's directory is made and removed.
const UNFINISHED: [&str; 2] = ["new", "old"];
/// What a profile's directory has for each unit of compilation. Files come first: a fingerprint without them leads to compilation, and they without it too.
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

/// The cache of this checkout; none where nobody says where it could be.
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

/// All that other people's crates are compiled by. What else there is, cargo finds by itself.
fn key(root: &Path, registry: &Path) -> Result<String> {
    // Its sums are the same for as long as the compiler is, which is part of them.
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
        read(&root.join(workspace).join("Cargo.lock"))?.hash(&mut hasher);
        let manifest = read(&root.join(workspace).join("Cargo.toml"))?;
        manifest.split_once("\n[profile.").map(|(_, profiles)| profiles).hash(&mut hasher);
    }
    let starts = ["CARGO_BUILD_", "CARGO_PROFILE_"];
    let is_flag = |name: &str| name.ends_with("RUSTFLAGS") || starts.iter().any(|start| name.starts_with(start));
    let mut flags: Vec<_> = std::env::vars_os().filter(|(name, _)| is_flag(&name.to_string_lossy())).collect();
    flags.sort();
    flags.hash(&mut hasher);
    Ok(format!("{:016x}", hasher.finish()))
}

/// What is kept under one key, and the target directory of this checkout.
struct Cache {
    home: PathBuf,
    key: String,
    target: PathBuf,
    /// Of this project.
    root: PathBuf,
    /// Where cargo unpacks crates.
    registry: PathBuf,
    /// What all keys may have together.
    size_max_bytes: u64,
}

impl Cache {
    fn dir(&self) -> PathBuf {
        self.home.join(format!("{PREFIX}{}", self.key))
    }

    /// To be locked by runs that read and by those that write.
    fn lock(&self) -> Result<File> {
        fs::create_dir_all(&self.home).map_err(of(&self.home))?;
        let path = self.home.join("lock");
        Ok(File::create(&path).map_err(of(&path))?)
    }

    /// Puts what is kept into the target directory, where nothing of it is compiled.
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
        // It was used last now.
        File::open(&dir)?.set_times(FileTimes::new().set_modified(SystemTime::now()))?;
        Ok(format!("{} of {} are there", mebibytes(size_bytes), dir.display()))
    }

    /// Keeps what is compiled of other people's crates in the target directory, in the place of what was kept before.
    fn keep(&self) -> Result<String> {
        let lock = self.lock()?;
        lock.lock()?;
        let dir = self.dir();
        let [new, old] = UNFINISHED.map(|name| self.home.join(name));
        // A run was interrupted, for nobody else is at it now.
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

    /// Removes the keys that do not fit; those that were used last stay.
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

    /// Names of packages that come from elsewhere, and that no package of this project has.
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

    /// The parts of a profile's directory that are of crates of the registry.
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
            // `serde-0123456789abcdef.d`, `libserde-0123456789abcdef.rmeta`.
            let unit = name.split('.').next().unwrap_or_default();
            part.is_of(theirs)
                || units.contains(unit)
                || unit.strip_prefix("lib").is_some_and(|unit| units.contains(unit))
        });
        Ok(parts)
    }
}

/// Whether what a compiler has read, by a rule for make, begins with a file of the registry: with the first one of a crate.
fn is_from(rule: &str, registry: &Path) -> bool {
    let registry = format!("{}/", registry.display()).replace(' ', "\\ ");
    rule.split_once(": ").is_some_and(|(_, files)| files.starts_with(&registry))
}

/// What belongs together and is put somewhere as a whole: a file, or a directory of a unit.
struct Part {
    /// Below the profile's directory.
    path: PathBuf,
    is_dir: bool,
}

impl Part {
    fn name(&self) -> String {
        self.path.file_name().unwrap_or_default().to_string_lossy().into_owned()
    }

    /// Whether it is the directory of a unit of these packages: `serde_json-0123456789abcdef`.
    fn is_of(&self, packages: &BTreeSet<String>) -> bool {
        self.is_dir && self.name().rsplit_once('-').is_some_and(|(package, _)| packages.contains(package))
    }
}

/// All parts of a profile's directory.
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

/// The directories of profiles below one, by their paths from there.
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

/// Puts parts of one profile's directory into another, each in the place of what is there. Returns the size of their files.
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
                // The compiler's list of what it has read, which it writes anew.
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

/// Another name of a file, or a copy of it where that cannot be: on another file system. Returns its size.
fn link(from: &Path, to: &Path) -> io::Result<u64> {
    match fs::hard_link(from, to) {
        Ok(()) => Ok(from.metadata()?.len()),
        Err(_) => copy(from, to),
    }
}

/// A copy of a file, with its time.
fn copy(from: &Path, to: &Path) -> io::Result<u64> {
    let size_bytes = fs::copy(from, to)?;
    File::open(to)?.set_times(FileTimes::new().set_modified(from.metadata()?.modified()?))?;
    Ok(size_bytes)
}

/// A copy of a directory, but for the programs of build scripts, which nobody writes into. Returns the size of its files.
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

/// Removes a file or a directory, if it is there.
fn remove(path: &Path) -> io::Result<()> {
    match path.symlink_metadata() {
        Ok(found) if found.is_dir() => fs::remove_dir_all(path),
        Ok(_) => fs::remove_file(path),
        Err(_) => Ok(()),
    }
}

/// The size of all files of a directory.
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

/// Says which file or directory an error is of.
fn of(path: &Path) -> impl FnOnce(io::Error) -> String + '_ {
    move |error| format!("{}: {error}", path.display())
}

#[cfg(test)]
mod tests;
