//! The list of installed files, and of the directories that the installation created, which end in `/`. Paths are
//! relative to the prefix.

use std::collections::BTreeSet;
use std::fs;
use std::io::ErrorKind;
use std::path::{Component, Path};

use anyhow::{Context, Result, ensure};

/// Path of the manifest below the prefix.
pub(crate) const PATH: &str = "share/dormouse/manifest";

#[derive(Debug, Default)]
pub(crate) struct Manifest {
    files: BTreeSet<String>,
    dirs: BTreeSet<String>,
}

impl Manifest {
    /// Reads the manifest. Returns an empty one if there is none.
    pub(crate) fn read(prefix: &Path) -> Result<Manifest> {
        let path = prefix.join(PATH);
        let text = match fs::read_to_string(&path) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Manifest::default()),
            text => text.with_context(|| format!("cannot read {}", path.display()))?,
        };
        let mut manifest = Manifest::default();
        for line in text.lines() {
            // A path outside of the prefix would remove files that were not installed.
            let is_below =
                !line.is_empty() && Path::new(line).components().all(|part| matches!(part, Component::Normal(_)));
            ensure!(is_below, "{} has a line that is not a path below the prefix: {line}", path.display());
            match line.strip_suffix('/') {
                Some(dir) => manifest.dirs.insert(dir.to_owned()),
                None => manifest.files.insert(line.to_owned()),
            };
        }
        Ok(manifest)
    }

    /// Writes the manifest, which lists itself.
    pub(crate) fn write(&mut self, prefix: &Path) -> Result<()> {
        self.make_dirs(prefix, Path::new(PATH))?;
        self.files.insert(PATH.into());
        let dirs = self.dirs.iter().map(|dir| format!("{dir}/\n"));
        let text: String = self.files.iter().map(|file| format!("{file}\n")).chain(dirs).collect();
        let path = prefix.join(PATH);
        fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))
    }

    pub(crate) fn file_count(&self) -> usize {
        self.files.len()
    }

    pub(crate) fn add_file(&mut self, name: &str) {
        self.files.insert(name.into());
    }

    /// Makes the directories above a file, and lists those that it creates.
    pub(crate) fn make_dirs(&mut self, prefix: &Path, file: &Path) -> Result<()> {
        fs::create_dir_all(prefix).with_context(|| format!("cannot make {}", prefix.display()))?;
        let mut above: Vec<&Path> = file.ancestors().skip(1).filter(|dir| *dir != Path::new("")).collect();
        above.reverse();
        for dir in above {
            let path = prefix.join(dir);
            if !path.is_dir() {
                fs::create_dir(&path).with_context(|| format!("cannot make {}", path.display()))?;
                self.dirs.insert(dir.to_string_lossy().into_owned());
            }
        }
        Ok(())
    }

    /// Removes all files, and clears their list.
    pub(crate) fn remove_files(&mut self, prefix: &Path) -> Result<()> {
        for file in std::mem::take(&mut self.files) {
            let path = prefix.join(file);
            match fs::remove_file(&path) {
                Err(error) if error.kind() == ErrorKind::NotFound => {}
                removed => removed.with_context(|| format!("cannot remove {}", path.display()))?,
            }
        }
        Ok(())
    }

    /// Removes the listed directories that are empty, inner ones first.
    pub(crate) fn remove_dirs(&self, prefix: &Path) -> Result<()> {
        for dir in self.dirs.iter().rev() {
            let path = prefix.join(dir);
            match fs::remove_dir(&path) {
                // It has files that were not installed, or was already removed.
                Err(error) if matches!(error.kind(), ErrorKind::DirectoryNotEmpty | ErrorKind::NotFound) => {}
                removed => removed.with_context(|| format!("cannot remove {}", path.display()))?,
            }
        }
        Ok(())
    }
}
