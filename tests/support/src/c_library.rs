//! C libraries that are usable without the tracer: header, archive, manual page, and a program that uses them.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use crate::c_programs::{install, pkg_config, stdout, succeed};
use crate::{has_part, manual};

/// Warnings that users may enable.
pub const WARNINGS: [&str; 5] = ["-Wall", "-Wextra", "-Wpedantic", "-Wshadow", "-Werror"];

/// Compilers, each with its language and the oldest standard that the headers support.
const LANGUAGES: [(&str, &str, &str); 4] =
    [("gcc", "c", "c11"), ("clang", "c", "c11"), ("g++", "c++", "c++11"), ("clang++", "c++", "c++11")];

/// A C library of one mechanism, and what its tests need to know of it.
#[derive(Debug)]
pub struct Library {
    /// Name in `dormouse/NAME.h`, `libdormouse_NAME` and `dormouse-NAME(3)`.
    pub name: &'static str,
    /// Path of the program that uses it, which prints `fine`.
    pub source: &'static str,
    /// Functions that are defined in the header.
    pub inline: &'static [&'static str],
    /// Preprocessor flags; with each of them the header is included in another way.
    pub header_flags: &'static [&'static str],
    /// Directory where it is installed once it is needed.
    pub prefix: OnceLock<PathBuf>,
}

/// Returns the path of an example in Rust, which is built with the tests of the workspace, and otherwise here.
/// `package`: the directory of its package.
pub fn rust_example(package: &Path, example: &str) -> PathBuf {
    let built = std::env::current_exe().unwrap();
    let built = built.ancestors().nth(2).unwrap();
    let program = built.join("examples").join(example);
    if !program.exists() {
        let mut build = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
        build.args(["build", "--quiet", "--example", example, "--manifest-path"]).arg(package.join("Cargo.toml"));
        succeed(build.arg("--target-dir").arg(built.parent().unwrap()));
    }
    program
}

impl Library {
    /// Returns the installation prefix, which this library's tests have to themselves.
    fn prefix(&self) -> &Path {
        self.prefix.get_or_init(|| install(&format!("{}-prefix", self.name)))
    }

    /// Returns the name of its pkg-config package.
    fn package_name(&self) -> String {
        format!("dormouse-{}", self.name)
    }

    /// Returns flags for the shared library of a package.
    pub fn package(&self, name: &str) -> Vec<String> {
        let flags = pkg_config(self.prefix(), &["--cflags", "--libs", name]);
        let run_path = format!("-Wl,-rpath,{}", self.prefix().join("lib").display());
        flags.into_iter().chain([run_path, "-pthread".into()]).collect()
    }

    /// Returns flags for an archive, or for the library's own if `path` is `None`.
    pub fn archive(&self, path: Option<&Path>) -> Vec<String> {
        let own = self.prefix().join(format!("lib/libdormouse_{}.a", self.name));
        let path = path.unwrap_or(&own);
        let include = format!("-I{}", self.prefix().join("include").display());
        [include, path.display().to_string()].into_iter().chain(["-pthread", "-lm", "-ldl"].map(String::from)).collect()
    }

    /// Compiles the program with warnings as errors, and links it.
    pub fn compile(&self, compiler: &str, flags: &str, libraries: &[String], program: &Path) {
        let mut command = Command::new(compiler);
        command.args(flags.split_whitespace()).args(WARNINGS).arg("-o").arg(program);
        command.args(["-x", if compiler.ends_with("++") { "c++" } else { "c" }]).arg(self.source).args(["-x", "none"]);
        succeed(command.args(libraries));
    }

    /// Compiles and runs the program, if the compiler is installed.
    pub fn run(&self, compiler: &str, flags: &str, libraries: &[String]) {
        if has_part(compiler) {
            let directory = tempfile::tempdir().unwrap();
            let program = directory.path().join("main");
            self.compile(compiler, flags, libraries, &program);
            assert_eq!(stdout(&succeed(&mut Command::new(&program))), "fine\n", "{compiler} {flags}");
        }
    }

    /// Compiles an example of the mechanism with each compiler that is installed, and in Rust, where it belongs to the
    /// package in the mechanism's folder `package`. Returns the programs, which exist as long as the directory.
    pub fn examples(&self, package: &str, example: &str, directory: &Path) -> Vec<PathBuf> {
        let mechanism = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../mechanisms").join(self.name);
        let mut programs = vec![rust_example(&mechanism.join(package), example)];
        for compiler in ["gcc", "clang"].into_iter().filter(|compiler| has_part(compiler)) {
            let program = directory.join(compiler);
            let mut command = Command::new(compiler);
            command
                .arg("-O2")
                .args(WARNINGS)
                .arg("-o")
                .arg(&program)
                .arg(mechanism.join(format!("examples/{example}.c")));
            succeed(command.args(self.package(&self.package_name())));
            programs.push(program);
        }
        programs
    }

    fn header(&self) -> String {
        std::fs::read_to_string(self.prefix().join(format!("include/dormouse/{}.h", self.name))).unwrap()
    }

    /// Returns the names of declared functions, sorted: those at the start of a declaration, not in comments.
    fn declared(&self) -> Vec<String> {
        let header = self.header();
        let of_name = format!("dormouse_{}_", self.name);
        let lines = header.lines().filter(|line| !line.starts_with([' ', '/', '#']));
        let mut names: Vec<_> = lines
            .filter_map(|line| line.split_once('('))
            .filter_map(|(before, _)| before.rsplit([' ', '*']).next())
            .filter(|name| name.starts_with(&of_name))
            .map(String::from)
            .collect();
        names.sort_unstable();
        names
    }

    /// Checks that the header can be included without any other, in the strictest language modes.
    pub fn check_languages(&self) {
        let directory = tempfile::tempdir().unwrap();
        let unit = directory.path().join("unit.c");
        // Included, because unused inline functions in a unit of its own would give a warning.
        std::fs::write(&unit, format!("#include <dormouse/{}.h>\n", self.name)).unwrap();
        for (compiler, language, standard) in LANGUAGES.into_iter().filter(|(compiler, ..)| has_part(compiler)) {
            for flag in self.header_flags {
                let mut command = Command::new(compiler);
                command.args(WARNINGS).args(["-pedantic-errors", "-fsyntax-only", &format!("-std={standard}"), flag]);
                succeed(command.arg("-I").arg(self.prefix().join("include")).args(["-x", language]).arg(&unit));
            }
        }
    }

    /// Checks that both libraries export every function of the header (`count` of them are not inline), and nothing
    /// else with this prefix.
    pub fn check_exports(&self, count: usize) {
        let declared: Vec<_> =
            self.declared().into_iter().filter(|name| !self.inline.contains(&name.as_str())).collect();
        assert_eq!(declared.len(), count, "{declared:?}");
        if !has_part("nm") {
            return;
        }
        let of_name = format!("dormouse_{}_", self.name);
        for library in ["libdormouse.so".into(), format!("libdormouse_{}.so", self.name)] {
            let library = self.prefix().join("lib").join(library);
            let symbols = stdout(&succeed(Command::new("nm").args(["-D", "--defined-only"]).arg(&library)));
            let mut exported: Vec<_> = symbols.split_whitespace().filter(|name| name.starts_with(&of_name)).collect();
            exported.sort_unstable();
            assert_eq!(exported, declared);
        }
    }

    fn manual_page(&self) -> PathBuf {
        self.prefix().join(format!("share/man/man3/dormouse-{}.3", self.name))
    }

    /// Checks that the programs in the manual page compile and run.
    pub fn check_examples(&self) {
        let directory = tempfile::tempdir().unwrap();
        let examples = manual::examples(&self.manual_page());
        assert!(!examples.is_empty());
        for compiler in ["gcc", "clang"].into_iter().filter(|compiler| has_part(compiler)) {
            for (file, code) in &examples {
                let unit = directory.path().join(file);
                std::fs::write(&unit, code).unwrap();
                let program = unit.with_extension("");
                let mut command = Command::new(compiler);
                command.arg("-O2").args(WARNINGS).arg("-o").arg(&program).arg(&unit);
                succeed(command.args(self.package(&self.package_name())));
                println!("{compiler} {file}: {}", stdout(&succeed(&mut Command::new(&program))));
            }
        }
    }

    /// Checks that the manual page describes every function, and is well-formed.
    pub fn check_manual(&self) {
        let header = self.header();
        let path = self.manual_page();
        let page = std::fs::read_to_string(&path).unwrap();
        let (synopsis, rest) = page.split_once(".SH DESCRIPTION").unwrap();
        for name in self.inline {
            assert!(header.contains(&format!("{name}(")), "{name} is not in the header");
        }
        let declared = self.declared();
        let names = declared.iter().map(String::as_str).filter(|name| !name.ends_with("_slow"));
        for name in names.chain(self.inline.iter().copied()) {
            assert!(synopsis.contains(name) && rest.contains(name), "the manual page does not tell of {name}");
        }
        if has_part("groff") {
            let output = succeed(Command::new("groff").args(["-man", "-ww", "-z", "-Tutf8"]).arg(path));
            assert_eq!(String::from_utf8_lossy(&output.stderr), "");
        }
    }
}
