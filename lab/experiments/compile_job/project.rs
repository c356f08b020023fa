//! The project that is built: a copy in memory, make, and the files that make creates.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher};
use std::io::Seek;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;
use std::{fs, io};

use rustix::process::{Signal, set_parent_process_death_signal};
use tempfile::TempDir;

use crate::LabError;

/// Variables that would make the build traced, or change its result.
const VARIABLES_REMOVED: [&str; 5] = ["LD_PRELOAD", "DORMOUSE_SESSION", "DORMOUSE_LISTEN", "MAKEFLAGS", "MAKELEVEL"];

/// Variables of a build.
pub(crate) type Environment = Vec<(&'static str, OsString)>;

/// Makes a directory in `place` or, if that is refused, in the directory for temporary files.
pub(crate) fn directory_in(place: &str) -> Result<TempDir, LabError> {
    let mut builder = tempfile::Builder::new();
    builder.prefix("dormouse-lab-");
    let made = builder.tempdir_in(place).or_else(|_| builder.tempdir());
    made.map_err(|error| LabError::System { what: "cannot make a directory; set TMPDIR", error })
}

/// Returns a directory's path, and whether it is in memory or on disk.
pub(crate) fn place(dir: &Path) -> String {
    // f_type of tmpfs and ramfs, from statfs(2).
    let is_in_memory = rustix::fs::statfs(dir).is_ok_and(|stat| [0x0102_1994, 0x8584_58F6].contains(&stat.f_type));
    format!("{} ({})", dir.display(), if is_in_memory { "in memory" } else { "on disk" })
}

/// Returns the user and system time, in seconds, of this process (`RUSAGE_SELF`), or of its children that have ended
/// and their descendants (`RUSAGE_CHILDREN`).
fn cpu_s(of: libc::c_int) -> f64 {
    let mut usage = std::mem::MaybeUninit::<libc::rusage>::zeroed();
    // SAFETY: `usage` has room for the answer; with these arguments the call does not fail (getrusage(2)).
    unsafe { libc::getrusage(of, usage.as_mut_ptr()) };
    // SAFETY: all zeroes is a valid `rusage`, and so is the value that the kernel has written over them.
    let usage = unsafe { usage.assume_init() };
    let seconds = |time: libc::timeval| time.tv_sec as f64 + time.tv_usec as f64 / 1e6;
    seconds(usage.ru_utime) + seconds(usage.ru_stime)
}

/// Goal of a Makefile for builds of a minute and more.
const LONG: &str = "long";

/// The goals of a build by make.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Goals {
    /// The Makefile's default goal.
    All,
    /// At most this many of the C files that make can build one by one.
    Files(usize),
    /// The goal [`LONG`], or the default goal of a Makefile without it.
    Long,
}

impl Goals {
    /// Returns some files for a quick experiment, and other goals for a full one.
    pub(crate) fn new(is_quick: bool, quick_file_count: usize, full: Goals) -> Goals {
        if is_quick { Goals::Files(quick_file_count) } else { full }
    }
}

/// A copy of the project, which is removed at the end.
pub(crate) struct Project {
    dir: TempDir,
    /// Files that exist before a build.
    sources: Vec<PathBuf>,
    goals: Vec<PathBuf>,
    /// Number of simultaneous jobs of make; by default the number of CPUs.
    pub(crate) job_count: usize,
    /// Program and arguments that make is run under; empty for none.
    pub(crate) under: Vec<OsString>,
}

/// Result of a build.
pub(crate) struct Build {
    pub(crate) wall_s: f64,
    /// User and system time of make and all its descendants, in seconds.
    pub(crate) cpu_s: f64,
    /// User and system time of this process during the build, in seconds.
    pub(crate) owner_s: f64,
    pub(crate) products: Products,
}

/// Files that a build has made, with a hash of each; `None` for a file that may differ each time.
#[derive(Default)]
pub(crate) struct Products(BTreeMap<PathBuf, Option<u64>>);

impl Products {
    /// Returns the files that two builds of the same sources have in common.
    pub(crate) fn reference(a: &Products, b: &Products) -> Products {
        let common = |path: &PathBuf, hash: &Option<u64>| hash.filter(|_| b.0.get(path) == Some(hash));
        Products(a.0.iter().map(|(path, hash)| (path.clone(), common(path, hash))).collect())
    }

    pub(crate) fn describe(&self) -> String {
        let (all, same) = (self.0.len(), self.0.values().flatten().count());
        format!("every build makes the same {same} files, byte for byte; {} others differ by themselves", all - same)
    }

    /// Checks that a build has made the files of this reference. The error names the first file that differs.
    pub(crate) fn compare(&self, other: &Products, way: &str) -> Result<(), LabError> {
        let differs = |path: &&PathBuf| match (self.0.get(*path), other.0.get(*path)) {
            (Some(None), Some(_)) => false,
            (expected, found) => expected != found,
        };
        self.0.keys().chain(other.0.keys()).find(differs).map_or(Ok(()), |path| {
            Err(LabError::Project(format!("built {way}, {} is not what it is without a library", path.display())))
        })
    }
}

impl Project {
    /// Copies a project into memory, or into the directory for temporary files.
    pub(crate) fn copy(source: &Path, goals: Goals) -> Result<Project, LabError> {
        let dir = directory_in("/dev/shm")?;
        let failed = |error: io::Error| LabError::Project(format!("cannot copy {}: {error}", source.display()));
        // Version control is left out.
        for path in files(source).map_err(failed)?.iter().filter(|path| !path.starts_with(".git")) {
            let target = dir.path().join(path);
            let made = fs::create_dir_all(target.parent().unwrap_or(dir.path()));
            made.and_then(|()| fs::copy(source.join(path), target)).map_err(failed)?;
        }
        let job_count = std::thread::available_parallelism().map_or(1, usize::from);
        let mut project = Project { dir, sources: Vec::new(), goals: Vec::new(), job_count, under: Vec::new() };
        // A project without the goal `clean` is built from its present files.
        project.can_make("-s", "clean".as_ref());
        project.sources = files(project.dir.path()).map_err(failed)?;
        project.goals = match goals {
            Goals::All => Vec::new(),
            Goals::Files(count) => {
                let sources = project.sources.iter().filter(|path| path.extension() == Some(OsStr::new("c")));
                let objects = sources.map(|path| path.with_extension("o"));
                objects.filter(|object| project.can_make("-n", object)).take(count).collect()
            }
            Goals::Long => [LONG].map(PathBuf::from).into_iter().filter(|goal| project.can_make("-n", goal)).collect(),
        };
        Ok(project)
    }

    pub(crate) fn describe(&self, source: &Path) -> String {
        let what = match &self.goals[..] {
            [] => "all".into(),
            [goal] if goal.as_os_str() == LONG => format!("the goal `{LONG}`"),
            files => format!("{} files", files.len()),
        };
        let (source, place) = (source.display(), place(self.dir.path()));
        format!("builds {what} of {source}, copied to {place}, make -j{}", self.job_count)
    }

    /// Returns the samples for each second of CPU time by which a build is profiled. Each interrupts the build, so a long
    /// one, which has many, takes fewer a second.
    pub(crate) fn ticks_per_s(&self) -> u32 {
        if self.goals == [Path::new(LONG)] { 2_000 } else { 10_000 }
    }

    /// Returns the paths of the files that exist before a build.
    pub(crate) fn source_files(&self) -> impl Iterator<Item = PathBuf> {
        self.sources.iter().map(|path| self.dir.path().join(path))
    }

    /// Returns a make command in the copy's directory.
    fn make(&self) -> Command {
        let mut words = self.under.iter().cloned().chain(["make".into(), "-C".into(), self.dir.path().into()]);
        let mut make = Command::new(words.next().unwrap_or_default());
        make.args(words).stdin(Stdio::null()).stdout(Stdio::null());
        for name in VARIABLES_REMOVED {
            make.env_remove(name);
        }
        // A build that goes on after the lab has been killed would disturb what is measured next.
        // SAFETY: between fork and exec, this makes one system call.
        unsafe { make.pre_exec(|| Ok(set_parent_process_death_signal(Some(Signal::TERM))?)) };
        make
    }

    /// Runs make with an option. Returns whether it succeeds.
    fn can_make(&self, option: &str, goal: &Path) -> bool {
        let status = self.make().arg(option).arg(goal).stderr(Stdio::null()).status();
        status.is_ok_and(|status| status.success())
    }

    /// Builds the project from its sources, with variables in make's environment. The products are hashed and removed.
    /// An error has make's message.
    pub(crate) fn build<V: AsRef<OsStr>>(&self, environment: &[(&str, V)]) -> Result<Build, LabError> {
        let system = |what| move |error| LabError::System { what, error };
        // The file has no name, so that it is not a product.
        let mut said = tempfile::tempfile_in(self.dir.path()).map_err(system("cannot keep what make says"))?;
        let mut make = self.make();
        make.arg(format!("-j{}", self.job_count)).args(&self.goals);
        make.envs(environment.iter().map(|(name, value)| (name, value)));
        make.stderr(said.try_clone().map_err(system("cannot keep what make says"))?);
        // No other child is waited for during the build.
        let cpu_before = [libc::RUSAGE_SELF, libc::RUSAGE_CHILDREN].map(cpu_s);
        let started = Instant::now();
        let status = make.status().map_err(|error| {
            LabError::Project(format!("cannot run make: {error}; install it (apt-get install make gcc)"))
        })?;
        let wall_s = started.elapsed().as_secs_f64();
        let owner_s = cpu_s(libc::RUSAGE_SELF) - cpu_before[0];
        let cpu_s = cpu_s(libc::RUSAGE_CHILDREN) - cpu_before[1];
        if !status.success() {
            let text = said.rewind().and_then(|()| io::read_to_string(said)).unwrap_or_default();
            let lines: Vec<&str> = text.lines().collect();
            let last = lines[lines.len().saturating_sub(3)..].join(" / ");
            return Err(LabError::Project(format!("make fails: {last}")));
        }
        let products = self.take_products().map_err(system("cannot read what make has made"))?;
        if products.0.is_empty() {
            return Err(LabError::Project("make has made nothing; name a project that its Makefile builds".into()));
        }
        Ok(Build { wall_s, cpu_s, owner_s, products })
    }

    /// Hashes and removes the products of a build.
    fn take_products(&self) -> io::Result<Products> {
        let made = files(self.dir.path())?.into_iter().filter(|path| self.sources.binary_search(path).is_err());
        let hasher = BuildHasherDefault::<DefaultHasher>::default();
        let taken = made.map(|path| {
            let file = self.dir.path().join(&path);
            let hash = hasher.hash_one(fs::read(&file)?);
            fs::remove_file(file)?;
            Ok((path, Some(hash)))
        });
        taken.collect::<io::Result<_>>().map(Products)
    }
}

/// Returns the files below a directory, relative to it, sorted.
fn files(dir: &Path) -> io::Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    let mut left = vec![PathBuf::new()];
    while let Some(below) = left.pop() {
        for entry in fs::read_dir(dir.join(&below))? {
            let entry = entry?;
            let path = below.join(entry.file_name());
            // A link counts as a file, and is not followed into directories.
            if entry.file_type()?.is_dir() { left.push(path) } else { found.push(path) }
        }
    }
    found.sort_unstable();
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_build_is_of_its_goal_if_the_makefile_has_one() {
        let dir = tempfile::tempdir().expect("a directory");
        for (makefile, expected) in [("all:\n\ttouch short\n", "short"), ("all:\nlong:\n\ttouch longer\n", "longer")] {
            fs::write(dir.path().join("Makefile"), makefile).expect("a Makefile");
            let project = Project::copy(dir.path(), Goals::Long).expect("a project");
            let build = project.build::<&str>(&[]).expect("a build");
            assert_eq!(build.products.0.keys().collect::<Vec<_>>(), [Path::new(expected)]);
        }
    }

    #[test]
    fn files_that_differ_between_plain_builds_are_not_compared() {
        let products = |files: &[(&str, u64)]| {
            Products(files.iter().map(|(path, hash)| (PathBuf::from(path), Some(*hash))).collect())
        };
        let reference = Products::reference(&products(&[("a.o", 1), ("b.o", 2)]), &products(&[("a.o", 1), ("b.o", 3)]));
        assert!(reference.compare(&products(&[("a.o", 1), ("b.o", 9)]), "x").is_ok());
        assert!(reference.compare(&products(&[("a.o", 2), ("b.o", 2)]), "x").is_err());
        assert!(reference.compare(&products(&[("a.o", 1)]), "x").is_err());
        assert!(reference.compare(&products(&[("a.o", 1), ("b.o", 2), ("c.o", 3)]), "x").is_err());
        assert!(reference.describe().contains("same 1 files"));
    }
}
