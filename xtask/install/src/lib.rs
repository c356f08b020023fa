//! Installs built files and removes them again, for `cargo xtask install` and for tests of C and C++ programs.
//!
//! ```text
//!   Installation::begin ──▶ libraries · command · lab ──▶ finish            each file is listed in the manifest
//!   uninstall: removes the files in the manifest
//!
//!   DIR/bin/dormouse, dormouse-vring, dormouse-pages         the command, and the programs that it runs
//!   DIR/bin/dormouse-lab                                     with the lab
//!   DIR/bin/dormouse-query, dormouse-cluster                 with queries; units of clusters in lib/systemd/system
//!   DIR/lib/dormouse/libdormouse_libc.so                     preloaded by `dormouse record --libc`
//!   DIR/lib/dormouse/libc-by-lib/…                           the same by kind of program, on x86-64
//!   DIR/lib/dormouse/lab/…                                   the lab's engines, its peers' engines in peers/
//!   DIR/include/dormouse/…                                   headers for C and C++
//!   DIR/lib/libdormouse.so.0, .so -> .so.0, libdormouse.a    libraries; also libdormouse_imv, _percpu, _relay, _vring, _backing
//!   DIR/lib/pkgconfig/dormouse.pc, …                         each finds its prefix from its own path
//!   DIR/lib/cmake/Dormouse/…                                 the same
//!   DIR/share/man/man1/dormouse.1, …; man3/dormouse-imv.3, … manual pages of the commands and of the libraries
//!   DIR/lib/systemd/user/dormouse.service, system/dormouse@.service     units, which search the usual paths for the command
//!   DIR/share/bash-completion/…, zsh/…, fish/…               completions
//!   DIR/bin/.debug/dormouse.debug, lib/.debug/…              debug information, where debuggers look for it, if wanted
//!   DIR/share/dormouse/manifest                              created files and directories, one per line
//! ```
//! The tree can be moved afterwards: no file in it names `DIR`, and the manifest's paths are relative.

mod by_lib;
mod manifest;

use std::ffi::OsStr;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

use manifest::Manifest;

/// C libraries, and the package that builds each.
pub const LIBRARIES: [(&str, &str); 6] = [
    ("libdormouse", "dormouse-capi"),
    ("libdormouse_imv", "dormouse-imv-capi"),
    ("libdormouse_percpu", "dormouse-percpu-capi"),
    ("libdormouse_relay", "dormouse-relay-capi"),
    ("libdormouse_vring", "dormouse-vring-capi"),
    ("libdormouse_backing", "dormouse-backing-capi"),
];

/// Commands, and the package that builds each.
pub const COMMANDS: [(&str, &str); 3] =
    [("dormouse", "dormouse-cli"), ("dormouse-vring", "dormouse-vring-vhost"), ("dormouse-pages", "dormouse-census")];

/// Library that `dormouse record --libc` preloads, and its package.
pub const PRELOADED: (&str, &str) = ("libdormouse_libc.so", "dormouse-preload");

/// The lab's command.
const LAB: &str = "dormouse-lab";
/// Programs that answer SQL queries, alone or as a cluster, and that put traces into stores.
const QUERY: [&str; 3] = ["dormouse-query", "dormouse-cluster", "dormouse-ship"];
/// Programs that the lab runs, and the library that it preloads.
const LAB_PARTS: [&str; 13] = [
    "dormouse-lab-engine",
    "dormouse-lab-engine-filter",
    "dormouse-lab-engine-imv",
    "dormouse-lab-engine-imv-c",
    "dormouse-lab-engine-pages",
    "dormouse-lab-engine-timer",
    "dormouse-lab-engine-percpu",
    "dormouse-lab-engine-percpu-c",
    "dormouse-lab-engine-relay",
    "dormouse-lab-engine-relay-c",
    "dormouse-lab-engine-vring",
    "vring-bench",
    "libdormouse_lab_account.so",
];
/// Directory of these, below the prefix.
const LAB_DIR: &str = "lib/dormouse/lab";

/// Folders of `mechanisms/`, each with a C library, headers and manual pages.
pub const MECHANISMS: [&str; 5] = ["backing", "imv", "percpu", "relay", "vring"];

/// Version number in the sonames of the shared libraries, as set by the packages' `build.rs`.
const SOVERSION: &str = "0";

/// System libraries that Rust's standard library needs (`rustc --print native-static-libs`), except for the unwinder
/// and libc. Every compiler links these by itself, with `-static` libgcc_eh, because there is no static libgcc_s.
const SYSTEM_LIBRARIES: [&str; 5] = ["util", "rt", "pthread", "m", "dl"];

/// Returns the root of this checkout.
fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Builds the C libraries and installs them with headers, manual pages, pkg-config and CMake files. For tests: `built`
/// is cargo's output directory for the test's profile, such as `target/debug`.
///
/// # Errors
/// They do not build, or a file cannot be written.
pub fn install_libraries(built: &Path, prefix: &Path) -> Result<()> {
    build(built, &LIBRARIES.map(|(_, package)| package.to_string()))?;
    Installation::run(built, prefix, Installation::libraries).map(drop)
}

/// Builds the C library of one mechanism and installs it like [`install_libraries`].
///
/// # Errors
/// It does not build, or a file cannot be written.
pub fn install_mechanism(built: &Path, prefix: &Path, name: &str) -> Result<()> {
    build(built, &[format!("dormouse-{name}-capi")])?;
    Installation::run(built, prefix, |installation| installation.mechanism(name)).map(drop)
}

/// Builds the libraries of packages, unless `DORMOUSE_BUILT` says that they are there.
fn build(built: &Path, packages: &[String]) -> Result<()> {
    if std::env::var_os("DORMOUSE_BUILT").is_some() {
        return Ok(());
    }
    let target_dir = built.parent().context("no target directory")?;
    let mut build = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    build.args(["build", "--quiet", "--lib"]).args(packages.iter().flat_map(|package| ["--package", package]));
    build.arg("--target-dir").arg(target_dir).args(built.ends_with("release").then_some("--release"));
    let status = build.current_dir(root()).status().context("cannot run cargo")?;
    ensure!(status.success(), "the libraries do not build");
    Ok(())
}

/// What becomes of the debug information of programs and libraries.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DebugInfo {
    /// It stays in them.
    Kept,
    /// It is not installed.
    Stripped,
    /// It is installed in files of its own, which debuggers find. Static libraries keep it.
    Split,
}

/// An installation in progress.
#[derive(Debug)]
pub struct Installation {
    /// What becomes of debug information from now on; at first it is kept.
    pub debug_info: DebugInfo,
    /// Cargo's output directory.
    built: PathBuf,
    prefix: PathBuf,
    manifest: Manifest,
}

impl Installation {
    /// Removes the files of an earlier installation, runs `steps`, and writes the manifest. Returns the number of
    /// installed files.
    ///
    /// # Errors
    /// A file is missing in `built`, or cannot be written. Files installed before the error are in the manifest, so
    /// that they can be removed.
    pub fn run(built: &Path, prefix: &Path, steps: impl FnOnce(&mut Installation) -> Result<()>) -> Result<usize> {
        let mut manifest = Manifest::read(prefix)?;
        manifest.remove_files(prefix)?;
        let debug_info = DebugInfo::Kept;
        let mut installation = Installation { debug_info, built: built.into(), prefix: prefix.into(), manifest };
        let result = steps(&mut installation);
        let written = installation.manifest.write(prefix);
        result.and(written)?;
        Ok(installation.manifest.file_count())
    }

    /// Installs the C libraries with headers, manual pages, pkg-config and CMake files.
    ///
    /// # Errors
    /// See [`Installation::run`].
    pub fn libraries(&mut self) -> Result<()> {
        for name in MECHANISMS {
            self.mechanism(name)?;
        }
        self.library("libdormouse", &root().join("record/capi"), &root().join("record/capi/pkgconfig/dormouse.pc.in"))
    }

    /// Installs one mechanism's library with its headers, manual pages, pkg-config and CMake files.
    ///
    /// # Errors
    /// See [`Installation::run`].
    pub fn mechanism(&mut self, name: &str) -> Result<()> {
        let room = root().join("mechanisms").join(name);
        let template = room.join(format!("capi/dormouse-{name}.pc.in"));
        self.library(&format!("libdormouse_{name}"), &room, &template)
    }

    /// Installs a library, the headers and manual pages of its room, the layouts that libraries share, its pkg-config file, and the CMake
    /// files of all libraries.
    fn library(&mut self, name: &str, room: &Path, pkg_config: &Path) -> Result<()> {
        self.copy_tree(&room.join("man"), "share/man/man3")?;
        self.copy_tree(&room.join("include"), "include")?;
        self.copy_tree(&root().join("record/abi/include"), "include")?;
        let versioned = format!("{name}.so.{SOVERSION}");
        self.object(&self.built.join(format!("{name}.a")), &format!("lib/{name}.a"))?;
        self.object(&self.built.join(format!("{name}.so")), &format!("lib/{versioned}"))?;
        let link = self.place(&format!("lib/{name}.so"))?;
        symlink(&versioned, &link).with_context(|| format!("cannot make the link {}", link.display()))?;
        let flags = SYSTEM_LIBRARIES.map(|name| format!("-l{name}")).join(" ");
        let file = pkg_config.file_stem().and_then(OsStr::to_str).context("a template without a name")?;
        self.fill(pkg_config, &format!("lib/pkgconfig/{file}"), &flags)?;
        let list = SYSTEM_LIBRARIES.join(";");
        for name in ["DormouseConfig.cmake", "DormouseConfigVersion.cmake"] {
            let template = root().join(format!("record/capi/cmake/{name}.in"));
            self.fill(&template, &format!("lib/cmake/Dormouse/{name}"), &list)?;
        }
        Ok(())
    }

    /// Installs the command with the programs that it runs, its preloaded library, manual pages and completions.
    ///
    /// # Errors
    /// See [`Installation::run`]; or a command does not write its texts.
    pub fn command(&mut self) -> Result<()> {
        let (library, _) = PRELOADED;
        self.object(&self.built.join(library), &format!("lib/dormouse/{library}"))?;
        if cfg!(target_arch = "x86_64") {
            self.by_lib(library)?;
        }
        self.copy_tree(&root().join("cli/systemd"), "lib/systemd")?;
        COMMANDS.iter().try_for_each(|(name, _)| self.program(name))?;
        // The command's own texts are first: it writes a page for each program that it finds, and the program's own
        // page, which is better, replaces it.
        COMMANDS.iter().try_for_each(|(name, _)| self.texts(name))
    }

    /// Installs the tree through which each program preloads the library of its kind.
    ///
    /// # Errors
    /// See [`Installation::run`].
    pub fn by_lib(&mut self, library: &str) -> Result<()> {
        let name = |lib: &str| format!("lib/dormouse/libc-by-lib/{lib}/{library}");
        for lib in by_lib::OF_64_BITS {
            let target = "../".repeat(1 + Path::new(lib).components().count()) + library;
            let link = self.place(&name(lib))?;
            symlink(target, &link).with_context(|| format!("cannot make {}", link.display()))?;
        }
        for lib in by_lib::OF_32_BITS {
            let file = self.place(&name(lib))?;
            fs::write(&file, by_lib::empty_library()).with_context(|| format!("cannot write {}", file.display()))?;
        }
        Ok(())
    }

    /// Installs the lab, its engines, and the peers' engines that are built.
    ///
    /// # Errors
    /// See [`Installation::command`].
    pub fn lab(&mut self) -> Result<()> {
        self.program(LAB)?;
        for part in LAB_PARTS {
            self.copy(&self.built.join(part), &format!("{LAB_DIR}/{part}"))?;
        }
        let peers = self.built.join("peers");
        if peers.is_dir() {
            self.copy_tree(&peers, &format!("{LAB_DIR}/peers"))?;
        }
        self.texts(LAB)
    }

    /// Installs the programs that answer SQL queries, and the one that puts traces into stores.
    ///
    /// # Errors
    /// See [`Installation::command`].
    pub fn query(&mut self) -> Result<()> {
        self.copy_tree(&root().join("read/cluster/systemd"), "lib/systemd/system")?;
        QUERY.iter().try_for_each(|name| self.program(name))?;
        QUERY.iter().try_for_each(|name| self.texts(name))
    }

    fn program(&mut self, name: &str) -> Result<()> {
        self.object(&self.built.join(name), &format!("bin/{name}"))
    }

    /// Installs a program or a library.
    fn object(&mut self, from: &Path, name: &str) -> Result<()> {
        let (dir, file) = name.rsplit_once('/').unwrap_or(("", name));
        let strip = match (self.debug_info, file) {
            (DebugInfo::Split, file) if file.ends_with(".a") => return self.copy(from, name),
            (DebugInfo::Kept, _) => return self.copy(from, name),
            (_, file) if file.ends_with(".a") => "--strip-debug",
            // Symbols that a linker needs stay.
            (_, file) if file.contains(".so") => "--strip-unneeded",
            _ => "--strip-all",
        };
        let to = self.place(name)?;
        run_tool(Command::new("strip").arg(strip).arg("-o").arg(&to).arg(from))?;
        if self.debug_info == DebugInfo::Split {
            let debug = self.place(&format!("{dir}/.debug/{file}.debug"))?;
            let keep = ["--only-keep-debug", "--compress-debug-sections=zlib"];
            run_tool(Command::new("objcopy").args(keep).arg(from).arg(&debug))?;
            let mut link = std::ffi::OsString::from("--add-gnu-debuglink=");
            link.push(&debug);
            run_tool(Command::new("objcopy").arg(link).arg(&to))?;
        }
        Ok(())
    }

    /// Installs the manual pages and completions of an installed command, which writes them itself.
    fn texts(&mut self, name: &str) -> Result<()> {
        let stage = self.built.join(format!("texts-{}", std::process::id()));
        let _ = fs::remove_dir_all(&stage);
        let mut command = Command::new(self.prefix.join("bin").join(name));
        // An empty PATH: programs found here may be missing on the user's system.
        let output = command.arg("--write-texts").arg(&stage).env("PATH", "").output();
        let output = output.with_context(|| format!("cannot run {name}"))?;
        ensure!(output.status.success(), "{name} writes no texts: {}", String::from_utf8_lossy(&output.stderr).trim());
        let copied = self.copy_tree(&stage, "");
        let _ = fs::remove_dir_all(&stage);
        copied
    }

    /// Returns the path for a file, makes its directory and lists the file. An existing file is removed and not
    /// overwritten, because a running program may have it mapped.
    fn place(&mut self, name: &str) -> Result<PathBuf> {
        let path = self.prefix.join(name);
        self.manifest.make_dirs(&self.prefix, Path::new(name))?;
        self.manifest.add_file(name);
        let _ = fs::remove_file(&path);
        Ok(path)
    }

    fn copy(&mut self, from: &Path, name: &str) -> Result<()> {
        let to = self.place(name)?;
        fs::copy(from, &to).with_context(|| format!("cannot copy {} to {}", from.display(), to.display()))?;
        Ok(())
    }

    fn copy_tree(&mut self, from: &Path, name: &str) -> Result<()> {
        for entry in fs::read_dir(from).with_context(|| format!("cannot read {}", from.display()))? {
            let entry = entry?;
            let (path, name) = (entry.path(), Path::new(name).join(entry.file_name()));
            let name = name.to_str().with_context(|| format!("{} is not UTF-8 text", name.display()))?;
            if path.is_dir() { self.copy_tree(&path, name)? } else { self.copy(&path, name)? }
        }
        Ok(())
    }

    /// Copies a template and fills in its `@NAMES@`.
    fn fill(&mut self, template: &Path, name: &str, system_libraries: &str) -> Result<()> {
        let text = fs::read_to_string(template).with_context(|| format!("cannot read {}", template.display()))?;
        let text = text
            .replace("@VERSION@", env!("CARGO_PKG_VERSION"))
            .replace("@SOVERSION@", SOVERSION)
            .replace("@SYSTEM_LIBRARIES@", system_libraries);
        let to = self.place(name)?;
        fs::write(&to, text).with_context(|| format!("cannot write {}", to.display()))
    }
}

fn run_tool(command: &mut Command) -> Result<()> {
    let name = command.get_program().to_string_lossy().into_owned();
    let output = command.output().with_context(|| format!("cannot run {name}; install binutils"))?;
    ensure!(output.status.success(), "{name} fails: {}", String::from_utf8_lossy(&output.stderr).trim());
    Ok(())
}

/// Removes the files that the manifest lists, and the listed directories that are empty. Returns the number of files.
///
/// # Errors
/// Nothing is installed there, or something cannot be removed.
pub fn uninstall(prefix: &Path) -> Result<usize> {
    let mut manifest = Manifest::read(prefix)?;
    let count = manifest.file_count();
    ensure!(count > 0, "nothing of Dormouse is installed in {}: it has no {}", prefix.display(), manifest::PATH);
    manifest.remove_files(prefix)?;
    manifest.remove_dirs(prefix)?;
    Ok(count)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn install(built: &Path, prefix: &Path, names: &[&str]) {
        let steps = |installation: &mut Installation| {
            names.iter().try_for_each(|name| installation.copy(&built.join("file"), name))
        };
        assert_eq!(Installation::run(built, prefix, steps).unwrap(), names.len() + 1);
    }

    #[test]
    fn uninstalling_leaves_only_earlier_files() {
        let (built, prefix) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let (built, prefix) = (built.path(), prefix.path());
        fs::write(built.join("file"), "new").unwrap();
        fs::create_dir_all(prefix.join("bin")).unwrap();
        fs::create_dir_all(prefix.join("lib/own")).unwrap();
        fs::write(prefix.join("lib/own/file"), "own").unwrap();
        install(built, prefix, &["bin/a", "lib/x/y/b", "share/c"]);
        // Another version with fewer files. The directories stay listed.
        install(built, prefix, &["bin/a"]);
        assert!(prefix.join("bin/a").exists() && !prefix.join("lib/x/y/b").exists());
        assert_eq!(uninstall(prefix).unwrap(), 2);
        assert!(prefix.join("bin").is_dir() && prefix.join("lib/own/file").is_file());
        assert!(!prefix.join("lib/x").exists() && !prefix.join("share").exists());
        assert!(uninstall(prefix).unwrap_err().to_string().contains("nothing of Dormouse is installed"));
    }

    /// The program gives the same answer; a debugger finds its lines where they are installed, also after a move.
    #[test]
    fn debug_information_is_left_out_or_split_off() {
        let dir = tempfile::tempdir().unwrap();
        let (built, prefix, moved) = (dir.path(), dir.path().join("prefix"), dir.path().join("moved"));
        fs::write(built.join("answer.c"), "int main(void)\n{\n    return 42;\n}\n").unwrap();
        let mut compile = Command::new("cc");
        compile.current_dir(built).args(["-g", "-ffile-prefix-map=.=/gone", "answer.c", "-o", "answer"]);
        let mut gdb = Command::new("gdb");
        if [&mut compile, gdb.arg("--version")]
            .into_iter()
            .any(|tool| !tool.output().is_ok_and(|output| output.status.success()))
        {
            println!("skipped: there is no C compiler or no gdb; `apt-get install gcc gdb`");
            return;
        }
        let said = |program: &Path| {
            let gdb =
                Command::new("gdb").args(["-nx", "-batch", "-ex", "info line main"]).arg(program).output().unwrap();
            String::from_utf8_lossy(&gdb.stdout).into_owned()
        };
        for (debug_info, has_lines, file_count) in
            [(DebugInfo::Kept, true, 1), (DebugInfo::Stripped, false, 1), (DebugInfo::Split, true, 2)]
        {
            let steps = |installation: &mut Installation| {
                installation.debug_info = debug_info;
                installation.program("answer")
            };
            assert_eq!(Installation::run(built, &prefix, steps).unwrap(), file_count + 1);
            fs::rename(&prefix, &moved).unwrap();
            let program = moved.join("bin/answer");
            assert_eq!(Command::new(&program).status().unwrap().code(), Some(42));
            let said = said(&program);
            assert_eq!(said.contains("answer.c"), has_lines, "{debug_info:?}: {said}");
            let size = |file: &Path| fs::metadata(file).unwrap().len();
            assert_eq!(size(&program) < size(&built.join("answer")), debug_info != DebugInfo::Kept);
            uninstall(&moved).unwrap();
            assert!(!program.exists() && !moved.join("bin").exists());
            fs::remove_dir(&moved).unwrap();
        }
    }

    #[test]
    fn files_that_a_user_added_stay() {
        let (built, prefix) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        fs::write(built.path().join("file"), "new").unwrap();
        let moved = prefix.path().join("moved");
        install(built.path(), &prefix.path().join("here"), &["bin/a"]);
        fs::rename(prefix.path().join("here"), &moved).unwrap();
        fs::write(moved.join("bin/own"), "own").unwrap();
        uninstall(&moved).unwrap();
        assert_eq!(fs::read_dir(&moved).unwrap().count(), 1);
        assert!(moved.join("bin/own").is_file());
    }

    #[test]
    fn an_installation_that_fails_can_be_removed() {
        let prefix = tempfile::tempdir().unwrap();
        let built = tempfile::tempdir().unwrap();
        fs::write(built.path().join("file"), "new").unwrap();
        let steps = |installation: &mut Installation| {
            installation.copy(&built.path().join("file"), "bin/a")?;
            installation.copy(&built.path().join("missing"), "bin/b")
        };
        let error = Installation::run(built.path(), prefix.path(), steps).unwrap_err();
        assert!(format!("{error:#}").contains("missing"), "{error:#}");
        uninstall(prefix.path()).unwrap();
        assert_eq!(fs::read_dir(prefix.path()).unwrap().count(), 0);
    }
}
