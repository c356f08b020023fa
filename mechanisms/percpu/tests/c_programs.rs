//! Counters, histograms, pools and variables in C and C++: programs, compiled and linked in every common way, and run
//! with and without rseq. Their checks are in `c_programs`. The examples of the manual page are compiled and run too. A
//! test installs libdormouse_percpu, and libdormouse, which has the same functions, first.
#![cfg(all(any(target_arch = "x86_64", target_arch = "aarch64"), target_os = "linux"))]

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use dormouse_testing::c_library::{WARNINGS, rust_example};
use dormouse_testing::c_programs::{install, pkg_config, stdout, succeed};
use dormouse_testing::{has, has_part, manual, may_unshare};
use tempfile::TempDir;

fn prefix() -> &'static Path {
    static PREFIX: OnceLock<PathBuf> = OnceLock::new();
    PREFIX.get_or_init(|| install("percpu-prefix"))
}

/// Returns flags for the shared library, or for the archive instead.
fn package(is_static: bool) -> Vec<String> {
    let form: &[&str] = if is_static { &["--static"] } else { &[] };
    // The archive is libdormouse's, so that both libraries are used.
    let name = if is_static { "dormouse" } else { "dormouse-percpu" };
    let flags = pkg_config(prefix(), &[&["--cflags", "--libs", name], form].concat());
    let archive = |flag| if is_static && flag == "-ldormouse" { "-l:libdormouse.a".to_string() } else { flag };
    let run_path = format!("-Wl,-rpath,{}", prefix().join("lib").display());
    flags.into_iter().map(archive).chain([run_path, "-pthread".into(), "-lm".into()]).collect()
}

fn go(compiler: &str, flags: &str, is_static: bool) {
    go_with(&["main.c", "pool.c"], compiler, flags, is_static);
}

/// Compiles a unit as a program.
fn compile(unit: &str, compiler: &str, flags: &str, is_static: bool) -> (TempDir, PathBuf) {
    let directory = tempfile::tempdir().unwrap();
    let program = directory.path().join(unit).with_extension("");
    let mut command = Command::new(compiler);
    command.args(flags.split_whitespace()).args(WARNINGS).arg("-o").arg(&program);
    command.args(["-x", if compiler.ends_with("++") { "c++" } else { "c" }]);
    command.arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/c_programs").join(unit)).args(["-x", "none"]);
    succeed(command.args(package(is_static)));
    (directory, program)
}

/// Compiles each unit as a program, and runs it.
fn go_with(units: &[&str], compiler: &str, flags: &str, is_static: bool) {
    if !has_part(compiler) {
        return;
    }
    for unit in units {
        let (_directory, program) = compile(unit, compiler, flags, is_static);
        // With the C library's registration, with ours, and where the kernel refuses rseq: `without.h` has that
        // argument.
        for (tunables, mode) in [("", ""), ("glibc.pthread.rseq=0", ""), ("glibc.pthread.rseq=0", "without")] {
            let output = succeed(Command::new(&program).arg(mode).env("GLIBC_TUNABLES", tunables));
            assert_eq!(stdout(&output), "fine\n", "{compiler} {flags} {unit} {tunables} {mode}");
        }
    }
}

/// Compiles the program with variables, its library, and a plugin, and runs it as `go` does.
fn go_with_variables(compiler: &str, flags: &str, is_static: bool) {
    if !has_part(compiler) {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let [library, plugin, program] = ["library.so", "plugin.so", "program"].map(|name| directory.path().join(name));
    let compile = |output: &Path, options: &[&str], units: &[&str], inputs: &[&Path]| {
        let mut command = Command::new(compiler);
        command.args(flags.split_whitespace()).args(WARNINGS).args(options).arg("-o").arg(output);
        command.args(["-x", if compiler.ends_with("++") { "c++" } else { "c" }]);
        for unit in units {
            command.arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/c_programs").join(unit));
        }
        // A library leaves the functions to the program, which may have them from an archive.
        let packages = package(is_static && !inputs.is_empty());
        succeed(command.args(["-x", "none"]).args(inputs).args(packages).arg("-ldl"));
    };
    compile(&library, &["-fPIC", "-shared"], &["this_cpu_library.c"], &[]);
    std::fs::copy(&library, &plugin).unwrap();
    let run_path = format!("-Wl,-rpath,{}", directory.path().display());
    compile(&program, &["-rdynamic", &run_path], &["this_cpu.c", "this_cpu_calls.c"], &[&library]);
    for (tunables, mode) in [("", ""), ("glibc.pthread.rseq=0", ""), ("glibc.pthread.rseq=0", "without")] {
        let mut command = Command::new(&program);
        let output = succeed(command.arg(mode).env("GLIBC_TUNABLES", tunables).env("THIS_CPU_PLUGIN", &plugin));
        assert_eq!(stdout(&output), "fine\n", "{compiler} {flags} {tunables} {mode}");
    }
}

/// librseq's scenarios, in a program and in code that may be unloaded, whose sections clear their descriptors.
#[test]
fn scenarios() {
    go_with(&["scenarios.c"], "gcc", "-std=gnu11 -O2 -fPIE -pie", false);
    go_with(&["scenarios.c"], "clang", "-std=gnu11 -O1 -fPIC", false);
    go_with(&["scenarios.c"], "g++", "-std=gnu++11 -O2", true);
    go_with(&["scenarios.c"], "gcc", "-std=gnu11 -O2 -DMANY_VARIABLES", false);
}

#[test]
fn variables_before_constructors_and_on_each_cpu() {
    go_with(&["edges.c"], "gcc", "-std=gnu11 -O2 -fPIE -pie", false);
    go_with(&["edges.c"], "clang++", "-std=gnu++11 -O0", true);
}

/// Some containers show the file of a smaller machine.
#[test]
fn variables_on_cpus_that_the_system_does_not_tell_of() {
    const NAMESPACES: [&str; 2] = ["--map-root-user", "--mount"];
    const SHOW_ONE_CPU: &str = "mount --bind \"$1\" /sys/devices/system/cpu/possible && exec \"$2\"";
    if !has("gcc") || !may_unshare(&NAMESPACES) {
        return;
    }
    let (directory, program) = compile("edges.c", "gcc", "-std=gnu11 -O2", false);
    let shown = directory.path().join("possible");
    std::fs::write(&shown, "0\n").unwrap();
    let mut command = Command::new("unshare");
    command.args(NAMESPACES).args(["sh", "-c", SHOW_ONE_CPU, "sh"]).args([&shown, &program]);
    assert_eq!(stdout(&succeed(&mut command)), "fine\n");
}

#[test]
fn programs_with_variables() {
    go_with_variables("gcc", "-std=gnu11 -O0", false);
    go_with_variables("gcc", "-std=gnu17 -O2 -flto=1", false);
    go_with_variables("clang", "-std=gnu11 -O2", true);
    go_with_variables("g++", "-std=gnu++11 -O2", true);
    go_with_variables("clang++", "-std=gnu++20 -O0", false);
}

/// Nothing but the section and its operands: no call, no locked instruction, and in a program no second store.
#[test]
fn an_addition_is_inline() {
    let directory = tempfile::tempdir().unwrap();
    let unit = directory.path().join("unit.c");
    let code =
        "#include <dormouse/this_cpu.h>\nDEFINE_PER_CPU(uint64_t, hits);\nvoid add(void) { this_cpu_inc(hits); }\n";
    std::fs::write(&unit, code).unwrap();
    for compiler in ["gcc", "clang"].into_iter().filter(|compiler| has_part(compiler) && has_part("objdump")) {
        for (model, is_cleared) in [("-fPIE", false), ("-fPIC", true)] {
            let object = unit.with_extension("o");
            let mut command = Command::new(compiler);
            command.args(["-O2", model, "-c", "-o"]).arg(&object).arg(&unit);
            succeed(command.args(pkg_config(prefix(), &["--cflags", "dormouse-percpu"])));
            let mut dump = Command::new("objdump");
            let text = stdout(&succeed(dump.args(["-d", "--no-show-raw-insn", "--disassemble=add"]).arg(&object)));
            // The way of an addition that commits ends at the first return.
            let end = text.find("ret").unwrap_or(text.len());
            let way = &text[..end];
            // Instructions that the way must not have, and their numbers of others: in a program and in a library.
            let (none, some): (&[&str], [(&str, usize, usize); 2]) = if cfg!(target_arch = "x86_64") {
                (&["lock", "call"], [("%fs:", 2, 3), ("addq", 1, 1)])
            } else {
                (&["\tbl", "\tldx", "\tldadd", "\tstl"], [("\tstr\t", 2, 3), ("tpidr_el0", 1, 1)])
            };
            assert!(!none.iter().any(|part| way.contains(part)), "{compiler} {model}: {text}");
            for (part, in_program, in_library) in some {
                let count = if is_cleared { in_library } else { in_program };
                assert_eq!(way.matches(part).count(), count, "{compiler} {model}: {part}: {text}");
            }
        }
    }
}

#[test]
fn c_programs() {
    for compiler in ["gcc", "clang"] {
        go(compiler, "-std=gnu11 -O0", false);
        go(compiler, "-std=gnu17 -O2", false);
    }
}

#[test]
fn cpp_programs() {
    for compiler in ["g++", "clang++"] {
        go(compiler, "-std=gnu++11 -O0", false);
        go(compiler, "-std=gnu++20 -O2", false);
    }
}

#[test]
fn programs_with_the_archive() {
    go("gcc", "-std=gnu11 -O2", true);
    go("clang++", "-std=gnu++11 -O2", true);
}

#[test]
fn the_header_asks_for_no_extension() {
    let include = prefix().join("include");
    for (compiler, language, standard) in
        [("gcc", "c", "c11"), ("clang", "c", "c11"), ("g++", "c++", "c++11"), ("clang++", "c++", "c++11")]
    {
        if has_part(compiler) {
            let mut command = Command::new(compiler);
            command.args(WARNINGS).args([
                "-pedantic-errors",
                "-fsyntax-only",
                &format!("-std={standard}"),
                "-x",
                language,
            ]);
            succeed(command.arg("-I").arg(&include).arg(include.join("dormouse/percpu.h")));
        }
    }
}

/// Both libraries export every function of the headers, and nothing else with this prefix.
#[test]
fn the_libraries_export_what_the_headers_declare() {
    let headers = ["percpu.h", "this_cpu.h"].map(header);
    let mut declared: Vec<_> = headers.iter().flat_map(|header| declared(header)).collect();
    declared.sort_unstable();
    assert_eq!(declared.len(), 48, "{declared:?}");
    if !has_part("nm") {
        return;
    }
    for library in ["libdormouse.so", "libdormouse_percpu.so"] {
        let path = prefix().join("lib").join(library);
        let symbols = stdout(&succeed(Command::new("nm").args(["-D", "--defined-only"]).arg(path)));
        let mut exported: Vec<_> =
            symbols.split_whitespace().filter(|name| name.starts_with("dormouse_percpu_")).collect();
        exported.sort_unstable();
        assert_eq!(exported, declared, "{library}");
    }
}

/// Returns the text of an installed header.
fn header(name: &str) -> String {
    std::fs::read_to_string(prefix().join("include/dormouse").join(name)).unwrap()
}

/// Returns the names of declared functions, sorted: those at the start of a declaration, not in comments.
fn declared(header: &str) -> Vec<&str> {
    let lines = header.lines().filter(|line| !line.starts_with([' ', '/', '#']));
    let mut names: Vec<_> = lines
        .filter_map(|line| line.split_once('('))
        .filter_map(|(before, _)| before.rsplit([' ', '*']).next())
        .filter(|name| name.starts_with("dormouse_percpu_"))
        .collect();
    names.sort_unstable();
    names
}

#[test]
fn the_examples_of_the_manual_page_run() {
    let directory = tempfile::tempdir().unwrap();
    let pages = ["dormouse-percpu.3", "dormouse-this-cpu.3"];
    let examples: Vec<_> =
        pages.iter().flat_map(|page| manual::examples(&prefix().join("share/man/man3").join(page))).collect();
    assert!(examples.len() > 2);
    for (c, cpp) in [("gcc", "g++"), ("clang", "clang++")].into_iter().filter(|(c, cpp)| has_part(c) && has_part(cpp)) {
        for (file, code) in &examples {
            let unit = directory.path().join(file);
            std::fs::write(&unit, code).unwrap();
            let program = unit.with_extension("");
            let mut command = Command::new(if file.ends_with(".cc") { cpp } else { c });
            succeed(command.arg("-O2").args(WARNINGS).arg("-o").arg(&program).arg(&unit).args(package(false)));
            println!("{c} {file}: {}", stdout(&succeed(&mut Command::new(&program))));
        }
    }
}

#[test]
fn the_examples_run() {
    let directory = tempfile::tempdir().unwrap();
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/buffers.c");
    let mut programs = vec![rust_example(Path::new(env!("CARGO_MANIFEST_DIR")), "buffers")];
    for compiler in ["gcc", "clang"].into_iter().filter(|compiler| has_part(compiler)) {
        let program = directory.path().join(compiler);
        let mut command = Command::new(compiler);
        succeed(command.arg("-O2").args(WARNINGS).arg("-o").arg(&program).arg(&source).args(package(false)));
        programs.push(program);
    }
    for program in programs {
        for threads in ["1", "5"] {
            let text = stdout(&succeed(Command::new(&program).arg(threads)));
            let numbers: Vec<u64> = text.split_whitespace().filter_map(|word| word.parse().ok()).collect();
            assert_eq!((numbers.len(), numbers[0]), (3, threads.parse::<u64>().unwrap() * 100_000), "{text}");
            assert!(numbers[1] == numbers[2] && numbers[1] > 0, "{text}");
        }
    }
}

#[test]
fn the_example_of_variables_runs() {
    let program = rust_example(Path::new(env!("CARGO_MANIFEST_DIR")), "requests");
    for threads in [1, 5] {
        let text = stdout(&succeed(Command::new(&program).arg(threads.to_string())));
        let sums = format!("{} requests, {} empty, 0 open, longest 999 bytes", threads * 100_000, threads * 100);
        assert_eq!(text.lines().last(), Some(sums.as_str()));
        let by_cpu = text.lines().filter_map(|line| line.split_once(": ")?.1.parse::<u64>().ok());
        assert_eq!(by_cpu.sum::<u64>(), threads * 100_000, "{text}");
    }
}

#[test]
fn the_manual_pages_tell_of_every_function() {
    // Variables have macros; the functions that these call are private.
    let public = |header: &str| header.split_once("/* Private:").map_or(header.len(), |(public, _)| public.len());
    for (name, page) in [("percpu.h", "dormouse-percpu.3"), ("this_cpu.h", "dormouse-this-cpu.3")] {
        let header = header(name);
        let path = prefix().join("share/man/man3").join(page);
        let page = std::fs::read_to_string(&path).unwrap();
        let (synopsis, rest) = page.split_once(".SH DESCRIPTION").unwrap();
        let code: String = manual::examples(&path).into_iter().map(|(_, code)| code).collect();
        let macros =
            header.lines().filter_map(|line| line.strip_prefix("#define ")?.split_once('(')).map(|(name, _)| name);
        let macros = macros.filter(|name| !name.starts_with("DORMOUSE_"));
        for name in declared(&header[..public(&header)]).into_iter().chain(macros) {
            assert!(synopsis.contains(name) && rest.contains(name), "the manual page does not tell of {name}");
            let is_variant = name.starts_with("percpu_") || name.contains("sub") || name.contains("dec");
            assert!(is_variant || code.contains(&format!("{name}(")), "no example of {name}");
        }
        if has_part("groff") {
            let output = succeed(Command::new("groff").args(["-man", "-ww", "-z", "-Tutf8"]).arg(path));
            assert_eq!(String::from_utf8_lossy(&output.stderr), "");
        }
    }
}
