//! The project that is built: a copy in memory, make, and what make makes of it.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

use crate::LabError;

/// Where directories in memory are made.
const IN_MEMORY: &str = "/dev/shm";

/// Variables that would have a build traced, or answer differently.
const VARIABLES_REMOVED: [&str; 5] = ["LD_PRELOAD", "DORMOUSE_SESSION", "DORMOUSE_LISTEN", "MAKEFLAGS", "MAKELEVEL"];

/// Whether make finds something to do there.
pub(crate) fn has_makefile(dir: &Path) -> bool {
    ["GNUmakefile", "makefile", "Makefile"].iter().any(|name| dir.join(name).is_file())
}

/// Whether a directory's file system is in memory.
pub(crate) fn is_in_memory(dir: &Path) -> bool {
    const TMPFS_MAGIC: i64 = 0x0102_1994;
    const RAMFS_MAGIC: i64 = 0x8584_58F6;
    rustix::fs::statfs(dir).is_ok_and(|stat| [TMPFS_MAGIC, RAMFS_MAGIC].contains(&stat.f_type))
}

/// Processor time that this process has used, user and system, seconds.
pub(crate) fn own_cpu_s() -> f64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    now.tv_sec as f64 + now.tv_nsec as f64 / 1e9
}

/// A copy of the project, removed in the end.
#[derive(Debug)]
pub(crate) struct Project {
    dir: tempfile::TempDir,
    /// Files that are there before anything is built.
    sources: Vec<PathBuf>,
    goals: Vec<String>,
    /// Jobs of make at once; as many as there are CPUs if nobody says another number.
    pub(crate) job_count: usize,
    /// What make is run under: a program and its arguments, or nothing.
    pub(crate) under: Vec<OsString>,
}

/// A build.
#[derive(Debug)]
pub(crate) struct Build {
    pub(crate) wall_s: f64,
    /// User and system time of make and all its descendants.
    pub(crate) cpu_s: f64,
    pub(crate) products: Products,
}

/// Files that a build has made, with a hash of each; `None` for one that need not be the same every time.
#[derive(Debug, Default)]
pub(crate) struct Products(BTreeMap<PathBuf, Option<u64>>);

impl Products {
    /// What two builds of the same have in common.
    pub(crate) fn reference(a: &Products, b: &Products) -> Products {
        let same = |(path, hash): (&PathBuf, &Option<u64>)| {
            (path.clone(), hash.filter(|hash| b.0.get(path) == Some(&Some(*hash))))
        };
        Products(a.0.iter().map(same).collect())
    }

    pub(crate) fn describe(&self) -> String {
        let count = self.0.values().flatten().count();
        let differ = self.0.len() - count;
        let rest =
            if differ > 0 { format!("; {differ} differ from build to build by themselves") } else { String::new() };
        format!("every build makes the same {count} files, byte for byte{rest}")
    }

    /// Whether a build has made what the reference has.
    ///
    /// # Errors
    /// [`LabError::Project`] names the first file that is not the same.
    pub(crate) fn compare(&self, other: &Products, way: &str) -> Result<(), LabError> {
        let differs = |path: &Path| {
            LabError::Project(format!("built {way}, {} is not what it is without a library", path.display()))
        };
        if let Some(path) = other.0.keys().find(|path| !self.0.contains_key(*path)) {
            return Err(differs(path));
        }
        for (path, hash) in &self.0 {
            match other.0.get(path) {
                Some(found) if hash.is_none() || found == hash => {}
                _ => return Err(differs(path)),
            }
        }
        Ok(())
    }
}

impl Project {
    /// Copies a project into memory, or into the directory for temporary files. With `file_count_max`, so many of its C files
    /// are what is built.
    ///
    /// # Errors
    /// It cannot be copied.
    pub(crate) fn copy(source: &Path, file_count_max: Option<usize>) -> Result<Project, LabError> {
        let prefix = || {
            let mut builder = tempfile::Builder::new();
            builder.prefix("dormouse-lab-");
            builder
        };
        let failed = |error| LabError::System { what: "cannot make a directory to build in; set TMPDIR", error };
        let dir = prefix().tempdir_in(IN_MEMORY).or_else(|_| prefix().tempdir()).map_err(failed)?;
        copy_tree(source, dir.path())
            .map_err(|error| LabError::Project(format!("cannot copy {}: {error}", source.display())))?;
        let job_count = std::thread::available_parallelism().map_or(1, usize::from);
        let mut project = Project { dir, sources: Vec::new(), goals: Vec::new(), job_count, under: Vec::new() };
        project.clean();
        project.sources = files(project.dir.path()).map_err(failed)?;
        if let Some(count) = file_count_max {
            project.goals = project.goals_of_files(count);
        }
        Ok(project)
    }

    /// Objects of the first C files that make knows how to build by themselves.
    fn goals_of_files(&self, count: usize) -> Vec<String> {
        let is_source = |path: &&PathBuf| path.extension().is_some_and(|extension| extension == "c");
        let objects = self.sources.iter().filter(is_source).map(|path| path.with_extension("o"));
        let objects = objects.filter_map(|path| path.to_str().map(str::to_owned));
        let can_build = |goal: &String| {
            let mut make = self.make();
            make.args(["-n", goal]).stdout(Stdio::null()).stderr(Stdio::null());
            make.status().is_ok_and(|status| status.success())
        };
        objects.filter(can_build).take(count).collect()
    }

    pub(crate) fn describe(&self, source: &Path) -> String {
        let what = match self.goals.len() {
            0 => "all".to_owned(),
            count => format!("{count} files"),
        };
        let place = if is_in_memory(self.dir.path()) { "in memory" } else { "on disk" };
        format!(
            "builds {what} of {}, copied to {} ({place}), make -j{}",
            source.display(),
            self.dir.path().display(),
            self.job_count
        )
    }

    fn make(&self) -> Command {
        self.make_under(&[])
    }

    fn make_under(&self, under: &[OsString]) -> Command {
        let mut words = under.iter().map(OsString::as_os_str).chain([OsStr::new("make")]);
        let mut make = Command::new(words.next().unwrap_or_default());
        make.args(words).arg("-C").arg(self.dir.path()).stdin(Stdio::null());
        for name in VARIABLES_REMOVED {
            make.env_remove(name);
        }
        make
    }

    /// Removes what a build has made: as the project does it, and then whatever else is there.
    fn clean(&self) {
        // A project without such a goal is cleaned all the same, below.
        let _ = self.make().args(["-s", "clean"]).stdout(Stdio::null()).stderr(Stdio::null()).status();
        if self.sources.is_empty() {
            return;
        }
        for path in files(self.dir.path()).unwrap_or_default() {
            if self.sources.binary_search(&path).is_err() {
                let _ = fs::remove_file(self.dir.path().join(path));
            }
        }
    }

    /// Builds the project from its sources, with variables in make's environment.
    ///
    /// # Errors
    /// make cannot be run, or does not succeed.
    pub(crate) fn build<V: AsRef<OsStr>>(&self, environment: &[(&str, V)]) -> Result<Build, LabError> {
        self.clean();
        let said = self.dir.path().with_extension("said");
        let system = |error| LabError::System { what: "cannot keep what make says", error };
        let output = fs::File::create(&said).map_err(system)?;
        let mut make = self.make_under(&self.under);
        make.arg(format!("-j{}", self.job_count))
            .args(&self.goals)
            .envs(environment.iter().map(|(name, value)| (name, value)));
        make.stdout(output.try_clone().map_err(system)?).stderr(output);
        let started = Instant::now();
        let child = make.spawn().map_err(|error| {
            LabError::Project(format!("cannot run make: {error}; install it (apt-get install make gcc)"))
        })?;
        let (succeeded, cpu_s) = wait(child.id()).map_err(|error| LabError::System { what: "wait for make", error })?;
        let wall_s = started.elapsed().as_secs_f64();
        let text = fs::read_to_string(&said).unwrap_or_default();
        let _ = fs::remove_file(&said);
        if !succeeded {
            let last: Vec<&str> = text.lines().rev().take(3).collect();
            let last = last.into_iter().rev().collect::<Vec<_>>().join(" / ");
            return Err(LabError::Project(format!("make fails: {last}")));
        }
        let products =
            self.products().map_err(|error| LabError::System { what: "cannot read what make has made", error })?;
        if products.0.is_empty() {
            return Err(LabError::Project("make has made nothing; name a project that its Makefile builds".into()));
        }
        Ok(Build { wall_s, cpu_s, products })
    }

    fn products(&self) -> std::io::Result<Products> {
        let made = files(self.dir.path())?.into_iter().filter(|path| self.sources.binary_search(path).is_err());
        let hashed = made.map(|path| {
            let mut hasher = DefaultHasher::new();
            fs::read(self.dir.path().join(&path))?.hash(&mut hasher);
            Ok((path, Some(hasher.finish())))
        });
        hashed.collect::<std::io::Result<_>>().map(Products)
    }
}

/// Waits for a child; whether it succeeded, and the processor time of it and its descendants, in seconds.
fn wait(pid: u32) -> std::io::Result<(bool, f64)> {
    let mut status = 0;
    let mut usage = std::mem::MaybeUninit::<libc::rusage>::zeroed();
    loop {
        // SAFETY: a child of ours, which nobody else waits for, and places for both answers (wait4(2)).
        if unsafe { libc::wait4(pid as libc::pid_t, &mut status, 0, usage.as_mut_ptr()) } >= 0 {
            break;
        }
        let error = std::io::Error::last_os_error();
        if error.kind() != std::io::ErrorKind::Interrupted {
            return Err(error);
        }
    }
    // SAFETY: all zeroes is a valid `rusage`, and wait4 has filled it.
    let usage = unsafe { usage.assume_init() };
    let seconds = |time: libc::timeval| time.tv_sec as f64 + time.tv_usec as f64 / 1e6;
    let succeeded = libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 0;
    Ok((succeeded, seconds(usage.ru_utime) + seconds(usage.ru_stime)))
}

/// Files below a directory, relative to it, sorted.
fn files(dir: &Path) -> std::io::Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    let mut left = vec![PathBuf::new()];
    while let Some(below) = left.pop() {
        for entry in fs::read_dir(dir.join(&below))? {
            let entry = entry?;
            let path = below.join(entry.file_name());
            // A link is what it points to, and is not followed into directories.
            if entry.file_type()?.is_dir() { left.push(path) } else { found.push(path) }
        }
    }
    found.sort_unstable();
    Ok(found)
}

/// Copies files and directories; what is no source (version control) stays behind.
fn copy_tree(from: &Path, to: &Path) -> std::io::Result<()> {
    for path in files(from)?.iter().filter(|path| !path.starts_with(".git")) {
        let target = to.join(path);
        if let Some(dir) = target.parent() {
            fs::create_dir_all(dir)?;
        }
        fs::copy(from.join(path), target)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn products(files: &[(&str, u64)]) -> Products {
        Products(files.iter().map(|(path, hash)| (PathBuf::from(path), Some(*hash))).collect())
    }

    #[test]
    fn what_differs_by_itself_is_not_compared() {
        let reference = Products::reference(&products(&[("a.o", 1), ("b.o", 2)]), &products(&[("a.o", 1), ("b.o", 3)]));
        assert!(reference.compare(&products(&[("a.o", 1), ("b.o", 9)]), "x").is_ok());
        assert!(reference.compare(&products(&[("a.o", 2), ("b.o", 2)]), "x").is_err());
        assert!(reference.compare(&products(&[("a.o", 1)]), "x").is_err());
        assert!(reference.compare(&products(&[("a.o", 1), ("b.o", 2), ("c.o", 3)]), "x").is_err());
        assert!(reference.describe().contains("same 1 files"));
    }
}
