//! Page chains in C and C++: one program, compiled and linked in every way that people compile and link, with either library, with both
//! ways to copy, and for 32-bit machines. What it checks is in `relay/main.c`. The examples of the manual page are compiled and run too.
#![cfg(all(target_arch = "x86_64", target_os = "linux"))]

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use dormouse_relay::chain::{Chain, LAYOUT, PAGE_SIZE_BYTES_MAX, PAGE_SIZE_BYTES_MIN};

mod common;
#[path = "common/manual.rs"]
mod manual;
use common::{install, is_there, pkg_config, stdout, succeed};

const WARNINGS: [&str; 5] = ["-Wall", "-Wextra", "-Wpedantic", "-Wshadow", "-Werror"];
/// The copy of machines without efficient unaligned access.
const ALIGNED: &str = "-DDORMOUSE_RELAY_ALIGNED=1";
const I686: &str = "i686-unknown-linux-gnu";

fn prefix() -> &'static Path {
    static PREFIX: OnceLock<PathBuf> = OnceLock::new();
    PREFIX.get_or_init(|| install("relay-prefix"))
}

fn source() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/relay/main.c")
}

/// Flags for a shared library.
fn package(name: &str) -> Vec<String> {
    let flags = pkg_config(prefix(), &["--cflags", "--libs", name]);
    flags.into_iter().chain([format!("-Wl,-rpath,{}", prefix().join("lib").display()), "-pthread".into()]).collect()
}

/// Flags for an archive.
fn archive(path: &Path) -> Vec<String> {
    let include = format!("-I{}", prefix().join("include").display());
    [include, path.display().to_string()]
        .into_iter()
        .chain(["-pthread", "-lm", "-ldl", "-lgcc_s"].map(String::from))
        .collect()
}

/// Whether there is a compiler; otherwise the test is skipped, or fails where everything has to be there.
fn has(compiler: &str) -> bool {
    let is_there = is_there(compiler);
    if !is_there {
        assert!(std::env::var_os("DORMOUSE_REQUIRE_TOOLS").is_none(), "there is no {compiler}");
        eprintln!("skipped: there is no {compiler}");
    }
    is_there
}

fn compile(compiler: &str, flags: &str, libraries: &[String], program: &Path) {
    let mut command = Command::new(compiler);
    command.args(flags.split_whitespace()).args(WARNINGS).arg("-o").arg(program);
    command.args(["-x", if compiler.ends_with("++") { "c++" } else { "c" }]).arg(source()).args(["-x", "none"]);
    succeed(command.args(libraries));
}

fn go(compiler: &str, flags: &str, libraries: &[String]) {
    if has(compiler) {
        let directory = tempfile::tempdir().unwrap();
        let program = directory.path().join("main");
        compile(compiler, flags, libraries, &program);
        assert_eq!(stdout(&succeed(&mut Command::new(&program))), "fine\n", "{compiler} {flags}");
    }
}

#[test]
fn c_programs() {
    go("gcc", "-std=gnu11 -O0", &package("dormouse"));
    go("gcc", "-std=gnu17 -O2", &package("dormouse-relay"));
    go("clang", "-std=gnu11 -O2", &package("dormouse-relay"));
}

#[test]
fn cpp_programs() {
    go("g++", "-std=gnu++20 -O2", &package("dormouse-relay"));
    go("clang++", "-std=gnu++11 -O0", &package("dormouse-relay"));
}

#[test]
fn programs_that_copy_by_aligned_access() {
    go(
        "gcc",
        &format!("-std=gnu11 -O2 -fsanitize=alignment -fno-sanitize-recover {ALIGNED}"),
        &package("dormouse-relay"),
    );
    go("clang++", &format!("-std=gnu++11 -O2 {ALIGNED}"), &package("dormouse-relay"));
}

#[test]
fn programs_with_the_archive() {
    go("gcc", "-std=gnu11 -O2", &archive(&prefix().join("lib/libdormouse_relay.a")));
}

/// For 32-bit x86. The kernel's headers are the same for both x86s, and without gcc-multilib they lie with the other's only.
const M32: &str = "-m32 -idirafter /usr/include/x86_64-linux-gnu";

/// The library for 32-bit x86, if the toolchain has what it takes.
fn archive_for_32_bit() -> Option<PathBuf> {
    let directory = Path::new(env!("CARGO_TARGET_TMPDIR")).join("relay-i686");
    let libdir = Command::new("rustc").args(["--print", "target-libdir", "--target", I686]).output().ok()?;
    if !Path::new(String::from_utf8_lossy(&libdir.stdout).trim()).is_dir() {
        eprintln!("skipped: the toolchain has no target {I686} (`rustup target add {I686}`)");
        return None;
    }
    let probe = directory.join("probe");
    std::fs::create_dir_all(&directory).unwrap();
    std::fs::write(probe.with_extension("c"), "#include <errno.h>\nint main(void) { return errno; }\n").unwrap();
    let mut compile = Command::new("gcc");
    compile.args(M32.split(' ')).arg("-o").arg(&probe).arg(probe.with_extension("c"));
    let compiled = compile.output().ok()?;
    if !compiled.status.success() || !Command::new(&probe).status().is_ok_and(|status| status.success()) {
        eprintln!("skipped: gcc makes no programs for 32-bit machines (`apt-get install gcc-multilib`)");
        return None;
    }
    let mut command = Command::new(env!("CARGO"));
    command.args(["build", "--quiet", "--package", "dormouse-relay-capi", "--target", I686, "--target-dir"]);
    succeed(command.arg(&directory).current_dir(env!("CARGO_MANIFEST_DIR")));
    Some(directory.join(I686).join("debug/libdormouse_relay.a"))
}

#[test]
fn programs_for_32_bit_machines() {
    let Some(library) = archive_for_32_bit() else { return };
    for flags in [format!("{M32} -std=gnu11 -O2"), format!("{M32} -std=gnu11 -O0 {ALIGNED}")] {
        go("gcc", &flags, &archive(&library));
    }
    let directory = tempfile::tempdir().unwrap();
    let program = directory.path().join("layout");
    compile("gcc", &format!("{M32} -std=gnu11"), &archive(&library), &program);
    let lines = stdout(&succeed(Command::new(&program).arg("layout")));
    // Words are half as long; the sizes of pages are not in words.
    assert_eq!(lines, layout(4));
}

/// What a C program should print: places in words of the machine, and the sizes of pages.
fn layout(word: usize) -> String {
    let words = |bytes: usize| bytes / size_of::<usize>() * word;
    let fields: String = LAYOUT.iter().map(|(name, bytes)| format!("{name} {}\n", words(*bytes))).collect();
    let size = words(size_of::<Chain<'static>>());
    format!("{fields}size {size}\npages {PAGE_SIZE_BYTES_MIN} {PAGE_SIZE_BYTES_MAX}\n")
}

#[test]
fn both_sides_lay_a_chain_out_alike() {
    for compiler in ["gcc", "clang", "g++", "clang++"].into_iter().filter(|compiler| has(compiler)) {
        let directory = tempfile::tempdir().unwrap();
        let program = directory.path().join("layout");
        compile(compiler, "", &package("dormouse-relay"), &program);
        assert_eq!(stdout(&succeed(Command::new(&program).arg("layout"))), layout(size_of::<usize>()));
    }
}

#[test]
fn the_header_asks_for_no_extension() {
    let directory = tempfile::tempdir().unwrap();
    let unit = directory.path().join("unit.c");
    // Included, because inline functions that nobody uses are a mistake in a unit of its own.
    std::fs::write(&unit, "#include <dormouse/relay.h>\n").unwrap();
    let languages = [("gcc", "c", "c11"), ("clang", "c", "c11"), ("g++", "c++", "c++11"), ("clang++", "c++", "c++11")];
    for (compiler, language, standard) in languages.into_iter().filter(|(compiler, ..)| is_there(compiler)) {
        for copy in ["-UDORMOUSE_RELAY_ALIGNED", ALIGNED] {
            let mut command = Command::new(compiler);
            command.args(WARNINGS).args(["-pedantic-errors", "-fsyntax-only", &format!("-std={standard}"), copy]);
            succeed(command.arg("-I").arg(prefix().join("include")).args(["-x", language]).arg(&unit));
        }
    }
}

/// Names of functions, sorted: those at the start of a declaration, and not in comments.
fn declared(header: &str) -> Vec<&str> {
    let lines = header.lines().filter(|line| !line.starts_with([' ', '/', '#']));
    let mut names: Vec<_> = lines
        .filter_map(|line| line.split_once('('))
        .filter_map(|(before, _)| before.rsplit([' ', '*']).next())
        .filter(|name| name.starts_with("dormouse_relay_"))
        .collect();
    names.sort_unstable();
    names
}

fn header() -> String {
    std::fs::read_to_string(prefix().join("include/dormouse/relay.h")).unwrap()
}

/// Of these, the functions that are wholly in the header.
const INLINE: [&str; 3] = ["dormouse_relay_address", "dormouse_relay_chain_size_bytes", "dormouse_relay_write"];

/// Every function of the header is there for programs to link with, in both libraries, and nothing else of its name.
#[test]
fn the_libraries_export_what_the_header_declares() {
    let header = header();
    let declared: Vec<_> = declared(&header).into_iter().filter(|name| !INLINE.contains(name)).collect();
    assert_eq!(declared.len(), 13, "{declared:?}");
    if !is_there("nm") {
        eprintln!("skipped: there is no nm");
        return;
    }
    for library in ["libdormouse.so", "libdormouse_relay.so"] {
        let library = prefix().join("lib").join(library);
        let symbols = stdout(&succeed(Command::new("nm").args(["-D", "--defined-only"]).arg(&library)));
        let mut exported: Vec<_> =
            symbols.split_whitespace().filter(|name| name.starts_with("dormouse_relay_")).collect();
        exported.sort_unstable();
        assert_eq!(exported, declared);
    }
}

#[test]
fn the_examples_of_the_manual_page_run() {
    let directory = tempfile::tempdir().unwrap();
    let examples = manual::examples(&prefix().join("share/man/man3/dormouse-relay.3"));
    assert!(!examples.is_empty());
    for compiler in ["gcc", "clang"].into_iter().filter(|compiler| is_there(compiler)) {
        for (file, code) in &examples {
            let unit = directory.path().join(file);
            std::fs::write(&unit, code).unwrap();
            let program = unit.with_extension("");
            let mut command = Command::new(compiler);
            command.arg("-O2").args(WARNINGS).arg("-o").arg(&program).arg(&unit);
            succeed(command.args(package("dormouse-relay")));
            println!("{compiler} {file}: {}", stdout(&succeed(&mut Command::new(&program))));
        }
    }
}

#[test]
fn the_manual_page_tells_of_every_function() {
    let header = header();
    let path = prefix().join("share/man/man3/dormouse-relay.3");
    let page = std::fs::read_to_string(&path).unwrap();
    let (synopsis, rest) = page.split_once(".SH DESCRIPTION").unwrap();
    let mut names = declared(&header);
    names.retain(|name| !name.ends_with("_slow"));
    for name in INLINE {
        assert!(header.contains(&format!("{name}(")), "{name} is not in the header");
    }
    names.extend(INLINE);
    for name in names {
        assert!(synopsis.contains(name) && rest.contains(name), "the manual page does not tell of {name}");
    }
    if is_there("groff") {
        let output = succeed(Command::new("groff").args(["-man", "-ww", "-z", "-Tutf8"]).arg(path));
        assert_eq!(String::from_utf8_lossy(&output.stderr), "");
    }
}
