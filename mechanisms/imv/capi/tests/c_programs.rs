//! Immediate values in C and C++: one program and its libraries, compiled and linked in every common way, and each run.
//!
//! The program's actions and checks are in `c_programs/main.c`. `DORMOUSE_REQUIRE_TOOLS=1` makes combinations that are
//! left out because of a missing compiler or linker failures.
#![cfg(all(any(target_arch = "x86_64", target_arch = "aarch64"), target_os = "linux"))]

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};

use dormouse_testing::c_programs::{install, pkg_config, stdout, succeed};
use dormouse_testing::code::{NOP, OBJDUMP_MACHINE, has_memory_operand, is_conditional, listed_functions};
use dormouse_testing::{Lack, has, has_part, is_installed, skip_part};
#[cfg(target_arch = "x86_64")]
use dormouse_testing::{has_target, include_dirs};

fn prefix() -> &'static Path {
    static PREFIX: OnceLock<PathBuf> = OnceLock::new();
    PREFIX.get_or_init(|| install("imv-prefix"))
}

fn source(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/c_programs").join(name)
}

/// Products of the sources.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Shape {
    /// A program and two shared libraries, with this package's shared library.
    Libraries(&'static str),
    /// One dynamic program that contains the archive and exports all its symbols to its plugins.
    Archive,
    /// One static program.
    Static,
    /// One static position-independent program.
    StaticPie,
    /// A program and two shared libraries without any of our libraries.
    Generic,
}
use Shape::*;

/// The way a program is built: compiler, flags, linker, model of the program, shape.
type Combination = (&'static str, &'static str, &'static str, &'static str, Shape);

const PIE: &str = "-fPIE -pie";
const FIXED: &str = "-fno-pic -no-pie";
const IMV: Shape = Libraries("dormouse-imv");

/// Other code models than the small one, which libraries cannot have on AArch64.
#[cfg(target_arch = "x86_64")]
const MODELS: [Combination; 6] = [
    ("gcc", "-std=gnu11 -O2 -mcmodel=large", "bfd", PIE, IMV),
    ("gcc", "-std=gnu11 -O0 -mcmodel=large", "bfd", FIXED, Static),
    ("g++", "-std=gnu++17 -O2 -mcmodel=large", "bfd", FIXED, IMV),
    ("gcc", "-std=gnu11 -O2 -mcmodel=medium", "bfd", PIE, IMV),
    ("clang", "-std=gnu11 -O2 -mcmodel=large", "bfd", FIXED, IMV),
    ("clang++", "-std=gnu++17 -O0 -mcmodel=large", "bfd", PIE, IMV),
];
#[cfg(target_arch = "aarch64")]
const MODELS: [Combination; 6] = [
    ("gcc", "-std=gnu11 -O2 -mcmodel=large", "bfd", FIXED, Static),
    ("gcc", "-std=gnu11 -O0 -mcmodel=large", "bfd", FIXED, Static),
    ("g++", "-std=gnu++17 -O2 -mcmodel=large", "bfd", FIXED, Static),
    ("gcc", "-std=gnu11 -O2 -mcmodel=tiny", "bfd", PIE, IMV),
    ("gcc", "-std=gnu11 -O2 -mcmodel=tiny", "bfd", FIXED, IMV),
    ("clang", "-std=gnu11 -O2 -mcmodel=large", "lld", FIXED, Static),
];

const COMBINATIONS: [Combination; 26] = [
    ("gcc", "-std=gnu11 -O0", "bfd", PIE, IMV),
    ("gcc", "-std=gnu11 -O2", "gold", FIXED, IMV),
    ("gcc", "-std=gnu17 -O3", "lld", PIE, IMV),
    ("clang", "-std=gnu11 -O0", "lld", FIXED, IMV),
    ("clang", "-std=gnu11 -O2", "bfd", PIE, IMV),
    ("clang", "-std=gnu17 -O3", "gold", FIXED, IMV),
    ("g++", "-std=gnu++11 -O0", "lld", FIXED, IMV),
    ("g++", "-std=gnu++17 -O2", "gold", PIE, IMV),
    ("g++", "-std=gnu++20 -O3", "bfd", FIXED, IMV),
    ("clang++", "-std=gnu++11 -O0", "gold", PIE, IMV),
    ("clang++", "-std=gnu++17 -O2", "lld", FIXED, IMV),
    ("clang++", "-std=gnu++20 -O3", "bfd", FIXED, IMV),
    // With link-time optimisation.
    ("gcc", "-std=gnu11 -O2 -flto=1", "bfd", PIE, IMV),
    ("g++", "-std=gnu++11 -O3 -flto=1", "gold", FIXED, IMV),
    ("clang", "-std=gnu11 -O2 -flto", "lld", PIE, IMV),
    ("clang++", "-std=gnu++17 -O3 -flto=thin", "lld", FIXED, IMV),
    // In other shapes.
    ("gcc", "-std=gnu11 -O2", "bfd", PIE, Libraries("dormouse")),
    ("gcc", "-std=gnu11 -O2", "lld", PIE, Archive),
    ("clang++", "-std=gnu++17 -O2", "gold", FIXED, Archive),
    ("gcc", "-std=gnu11 -O2", "bfd", FIXED, Static),
    ("g++", "-std=gnu++17 -O2 -flto=1", "bfd", PIE, StaticPie),
    ("clang", "-std=gnu11 -O2", "lld", PIE, StaticPie),
    ("clang++", "-std=gnu++17 -O2", "gold", FIXED, Static),
    ("gcc", "-std=gnu11 -O0", "bfd", FIXED, Generic),
    ("clang", "-std=gnu11 -O3", "lld", PIE, Generic),
    ("g++", "-std=gnu++11 -O2", "gold", PIE, Generic),
];

/// Returns the tool that a combination needs and this machine lacks, if any.
fn missing((compiler, _, linker, ..): Combination) -> Option<Lack> {
    let tools = [compiler.to_string(), format!("ld.{linker}")];
    tools.iter().find(|tool| !is_installed(tool)).map(|tool| Lack::program(tool))
}

fn words(text: &str) -> impl Iterator<Item = &str> {
    text.split_whitespace()
}

/// Compiles and links. Returns the plugin, if there can be plugins.
fn build(directory: &Path, (compiler, flags, linker, model, shape): Combination) -> Option<PathBuf> {
    let is_cpp = compiler.ends_with("++");
    let is_one = matches!(shape, Archive | Static | StaticPie);
    let object = |name: &str, model: &str| {
        let object = directory.join(name).with_extension("o");
        let mut command = Command::new(compiler);
        command.args(words(flags)).args(words(model).filter(|flag| flag.starts_with("-f")));
        command.args(["-Wall", "-Wextra", "-Wpedantic", "-Wshadow", "-Werror", "-ffunction-sections"]);
        command.args((shape == Generic).then_some("-DDORMOUSE_GENERIC"));
        command.args(["-x", if is_cpp { "c++" } else { "c" }, "-c", "-o"]).arg(&object).arg(source(name));
        succeed(command.args(pkg_config(prefix(), &["--cflags", "dormouse-imv"])));
        object
    };
    let library_model = if is_one { model } else { "-fPIC" };
    let [library, second, reader] = ["library.c", "second.c", "reader.c"].map(|name| object(name, library_model));
    let main = object("main.c", model);

    let package_flags = match shape {
        Libraries(package) => pkg_config(prefix(), &["--libs", package]),
        Archive | Static | StaticPie => vec![prefix().join("lib/libdormouse_imv.a").display().to_string()],
        Generic => vec![],
    };
    let link = |output: &str, inputs: &[&Path], own: &[&str], package: &[String]| {
        let output = directory.join(output);
        let mut command = Command::new(compiler);
        command.args(words(flags)).args(own).arg("-o").arg(&output).args(inputs).args(package);
        command.args([&format!("-fuse-ld={linker}"), "-Wl,--gc-sections", "-pthread"]);
        // A static program does not use it, and glibc's static position-independent programs crash with it.
        if !matches!(shape, Static | StaticPie) {
            command.arg(format!("-Wl,-rpath,{}:{}", directory.display(), prefix().join("lib").display()));
        }
        succeed(&mut command);
        output
    };
    let shared = ["-shared", "-Wl,-z,text"];
    let of_program: Vec<&str> = match shape {
        Archive => words(model).chain(["-rdynamic"]).collect(),
        Static => vec!["-static"],
        StaticPie => vec!["-static-pie"],
        _ => words(model).collect(),
    };
    if is_one {
        link("main", &[&main, &library, &second, &reader], &of_program, &package_flags);
    } else {
        let library = link("liblibrary.so", &[&library, &second], &shared, &package_flags);
        let reader = link("libreader.so", &[&reader, &library], &shared, &package_flags);
        link("main", &[&main, &reader, &library], &of_program, &package_flags);
    }
    if matches!(shape, Static | StaticPie) {
        return None;
    }
    // A program that contains the archive exports the symbols that its plugins need.
    let package_flags = if shape == Archive { &[] } else { package_flags.as_slice() };
    let [plugin, user] = ["plugin.c", "user.c"].map(|name| object(name, "-fPIC"));
    let plugin = link("libplugin.so", &[&plugin], &shared, package_flags);
    Some(link("libuser.so", &[&user, &plugin], &shared, package_flags))
}

/// Runs the program in one way, with one additional environment variable.
fn run(directory: &Path, arguments: &[&str], (name, value): (&str, &str)) -> Option<String> {
    let mut command = Command::new(directory.join("main"));
    let output = command.args(arguments).env(name, value).output().unwrap();
    if output.status.code() == Some(77) {
        return None;
    }
    let printed = format!("{}{}", stdout(&output), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{command:?}: {:?}\n{printed}", output.status);
    Some(printed)
}

/// Runs the program while text is closed for writing: a change must be refused everywhere or made everywhere, and the
/// program must say why.
fn run_closed(directory: &Path, shape: Shape) {
    for what in ["mdwe", "mseal"] {
        let runs: [(&[&str], (&str, &str)); 3] = [
            (&["closed", what], ("TEST_CLOSE_EARLY", what)),
            (&["closed", what, "late"], ("TEST_NOTHING", "")),
            (&["born", what], ("TEST_NOTHING", "")),
        ];
        for (arguments, variable) in runs {
            let Some(printed) = run(directory, arguments, variable) else {
                skip_part(
                    arguments.join(" "),
                    Lack::machine(format!("no {what}"), "Linux 6.3 (mdwe), 6.10 (mseal) or later"),
                );
                continue;
            };
            assert!(printed.contains(": mprotect of program text to rwx was refused;"), "{arguments:?}: {printed}");
            // When a constructor of the program runs, libraries are patched already. Text that was never patched can be
            // changed.
            let was_patched = match arguments {
                ["closed", _, "late"] => true,
                ["closed", _] => matches!(shape, Libraries(_)),
                _ => false,
            };
            // Where values are loads, none is refused.
            let is_refused = was_patched && cfg!(target_arch = "x86_64");
            assert_eq!(printed.contains("refused 0\n"), !is_refused, "{arguments:?}: {printed}");
        }
    }
}

fn check(combination: Combination) {
    let directory = tempfile::tempdir().unwrap();
    let directory = directory.path();
    let plugin = build(directory, combination);
    if combination.4 == Generic {
        run(directory, &["set", "none"], ("TEST_NOTHING", ""));
        return;
    }
    for writer in ["mprotect", "procmem", "none"] {
        run(directory, &["set", writer], ("DORMOUSE_IMV_WRITER", writer));
    }
    if let Some(plugin) = plugin {
        run(directory, &["plugins", plugin.to_str().unwrap()], ("TEST_NOTHING", ""));
    }
    run_closed(directory, combination.4);
}

#[test]
fn every_way_to_compile_and_link() {
    prefix();
    let combinations = [&COMBINATIONS[..], &MODELS].concat();
    let (next, failed) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let skipped_count = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for _ in 0..std::thread::available_parallelism().map_or(2, usize::from).min(8) {
            scope.spawn(|| {
                while let Some(combination) = combinations.get(next.fetch_add(1, Ordering::Relaxed)) {
                    if let Some(lack) = missing(*combination) {
                        skipped_count.fetch_add(1, Ordering::Relaxed);
                        skip_part(format!("{combination:?}"), lack);
                    } else if std::panic::catch_unwind(|| check(*combination)).is_err() {
                        eprintln!("failed: {combination:?}");
                        failed.fetch_add(1, Ordering::Relaxed);
                    }
                }
            });
        }
    });
    assert_eq!(failed.into_inner(), 0);
    assert!(skipped_count.into_inner() < combinations.len());
}

#[test]
fn short_names_can_be_left_to_the_program() {
    let directory = tempfile::tempdir().unwrap();
    let program = directory.path().join("program");
    for compiler in ["gcc -std=c11", "g++ -x c++ -std=c++11", "clang -std=c11", "clang++ -x c++ -std=c++11"] {
        let name = words(compiler).next().unwrap();
        if !has_part(name) {
            continue;
        }
        for generic in [None, Some("-DDORMOUSE_GENERIC")] {
            let mut command = Command::new(name);
            command.args(["-O2", "-Wall", "-Wextra", "-Wpedantic", "-Werror", "-DDORMOUSE_NO_SHORT_NAMES", "-o"]);
            command
                .arg(&program)
                .args(words(compiler).skip(1))
                .arg(source("long_names.c"))
                .args(["-x", "none"])
                .args(generic);
            let question: &[&str] = if generic.is_some() { &["--cflags"] } else { &["--cflags", "--libs"] };
            command.args(pkg_config(prefix(), &[question, &["dormouse-imv"]].concat()));
            succeed(command.arg(format!("-Wl,-rpath,{}", prefix().join("lib").display())));
            succeed(&mut Command::new(&program));
        }
    }
}

#[test]
#[cfg(target_arch = "x86_64")]
fn gates_are_patched_on_aarch64() {
    const TARGET: &str = "aarch64-unknown-linux-gnu";
    let runner = if is_installed("qemu-aarch64-static") { "qemu-aarch64-static" } else { "qemu-aarch64" };
    if !has_target(TARGET) || !has(runner) || !has("aarch64-linux-gnu-gcc") {
        return;
    }
    let target_dir = Path::new(env!("CARGO_TARGET_TMPDIR")).parent().unwrap();
    let mut library = Command::new(env!("CARGO"));
    library.args(["build", "--quiet", "--package", "dormouse-imv-capi", "--target", TARGET, "--target-dir"]);
    library.arg(target_dir).env("CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER", "aarch64-linux-gnu-gcc");
    succeed(library.current_dir(env!("CARGO_MANIFEST_DIR")));
    let archive = target_dir.join(TARGET).join("debug/libdormouse_imv.a");
    let directory = tempfile::tempdir().unwrap();
    for flags in ["-std=gnu11 -O0", "-std=gnu17 -O2 -fno-pic", "-std=gnu17 -O3 -fPIE"] {
        let program = directory.path().join("main");
        let mut command = Command::new("aarch64-linux-gnu-gcc");
        command.args(words(flags)).args(["-Wall", "-Wextra", "-Wpedantic", "-static"]);
        include_dirs().for_each(|dir| {
            command.arg("-I").arg(dir);
        });
        command.args(["main.c", "library.c", "second.c", "reader.c"].map(source));
        succeed(command.arg(&archive).arg("-o").arg(&program));
        for writer in ["mprotect", "none"] {
            let mut command = Command::new(runner);
            command.arg(&program).args(["set", writer]);
            println!("{flags}: {}", stdout(&succeed(command.env("DORMOUSE_IMV_WRITER", writer))));
        }
    }
}

/// A block of code in the manual page, with the words of the comment before it.
struct Example {
    kind: String,
    file: String,
    needs: Option<String>,
    code: String,
}

fn examples() -> Vec<Example> {
    let page = std::fs::read_to_string(prefix().join("share/man/man3/dormouse-imv.3")).unwrap();
    let mut examples = Vec::new();
    for part in page.split(".\\\" ").skip(1) {
        let (words, rest) = part.split_once("\n.EX\n").expect("a block of code below the comment");
        let (code, _) = rest.split_once("\n.EE").expect("an end of the block");
        let mut words = words.split(' ').map(String::from);
        examples.push(Example {
            kind: words.next().unwrap(),
            file: words.next().unwrap(),
            needs: words.next(),
            code: code.replace("\\e", "\\").replace("\\-", "-"),
        });
    }
    examples
}

#[test]
fn the_examples_of_the_manual_page_run() {
    let directory = tempfile::tempdir().unwrap();
    let directory = directory.path();
    for (c, cpp) in [("gcc", "g++"), ("clang", "clang++")].into_iter().filter(|(c, cpp)| has_part(c) && has_part(cpp)) {
        for example in examples() {
            let unit = directory.join(&example.file);
            std::fs::write(&unit, example.code + "\n").unwrap();
            let is_library = example.kind == "library";
            let stem = unit.file_stem().unwrap().to_str().unwrap();
            let output = directory.join(if is_library { format!("lib{stem}.so") } else { stem.to_string() });
            let mut command = Command::new(if example.file.ends_with(".cc") { cpp } else { c });
            command.args(["-O2", "-Wall", "-Wextra", "-Wpedantic", "-Werror"]);
            command.args(if is_library { &["-fPIC", "-shared"][..] } else { &[] });
            command.arg("-o").arg(&output).arg(&unit).arg("-L").arg(directory);
            command.args(example.needs.map(|name| format!("-l{name}")));
            command.args(pkg_config(prefix(), &["--cflags", "--libs", "dormouse-imv"]));
            command.arg(format!("-Wl,-rpath,{}:{}", directory.display(), prefix().join("lib").display()));
            succeed(&mut command);
            if !is_library {
                println!("{c} {}: {}", example.file, stdout(&succeed(&mut Command::new(&output))));
            }
        }
    }
}

#[test]
fn the_manual_page_shows_every_macro() {
    let header = std::fs::read_to_string(prefix().join("include/dormouse/imv.h")).unwrap();
    let (_, names) = header.split_once("#ifndef DORMOUSE_NO_SHORT_NAMES\n").unwrap();
    let code: String = examples().into_iter().map(|example| example.code).collect();
    let defines = names.lines().filter_map(|line| line.strip_prefix("#define "));
    let shorts: Vec<_> = defines.map(|line| line.split('(').next().unwrap()).collect();
    assert!(shorts.len() > 20);
    for name in shorts {
        assert!(code.contains(&format!("{name}(")), "no example of {name}");
    }
    if has_part("groff") {
        let page = prefix().join("share/man/man3/dormouse-imv.3");
        let output = succeed(Command::new("groff").args(["-man", "-ww", "-z", "-Tutf8"]).arg(page));
        assert_eq!(String::from_utf8_lossy(&output.stderr), "");
    }
}

/// Disassembles code with `objdump`, without details that differ between places and registers.
fn disassemble(directory: &Path, hex: &str) -> Vec<String> {
    let bytes: Vec<u8> =
        (0..hex.len()).step_by(2).map(|at| u8::from_str_radix(&hex[at..at + 2], 16).unwrap()).collect();
    let file = directory.join("code");
    std::fs::write(&file, bytes).unwrap();
    let mut objdump = Command::new("objdump");
    objdump.args(["-D", "-z", "-b", "binary", "-m", OBJDUMP_MACHINE, "--no-show-raw-insn"]).arg(file);
    let text = stdout(&succeed(&mut objdump));
    let instructions = text.lines().filter_map(|line| line.split_once(":\t")).map(|(_, text)| text);
    instructions.map(|text| normalise(text.split('#').next().unwrap())).collect()
}

/// Replaces registers by their width, and addresses and distances by their kind.
fn normalise(instruction: &str) -> String {
    let (mnemonics, operands) = instruction.trim().rsplit_once(' ').unwrap_or((instruction.trim(), ""));
    let mut operands = operands.to_string();
    for register in ["ax", "bx", "cx", "dx", "si", "di", "bp"] {
        operands = operands.replace(&format!("%r{register}"), "R64").replace(&format!("%e{register}"), "R32");
    }
    for register in (8..16).rev().map(|number| format!("%r{number}")) {
        operands = operands.replace(&format!("{register}d"), "R32").replace(&register, "R64");
    }
    let mnemonics = words(mnemonics).collect::<Vec<_>>().join(" ");
    match (mnemonics.as_str(), operands.split_once(',')) {
        ("jmp" | "b", _) => format!("{mnemonics} ELSEWHERE"),
        ("test", Some((_, "R32"))) => "test DISTANCE,R32".to_string(),
        ("nopl", _) => format!("nopl DISTANCE{}", &operands[operands.find('(').expect("an address")..]),
        (_, Some((address, register))) if address.ends_with("(%rip)") => format!("{mnemonics} VARIABLE,{register}"),
        _ => format!("{mnemonics} {operands}"),
    }
}

/// Returns every kind of site, born and patched, in the form that one compiler generates.
fn sites_of(directory: &Path, (compiler, flags, linker): (&str, &str, &str)) -> String {
    let program = directory.join("sites");
    let mut command = Command::new(compiler);
    command.args(words(flags)).args(["-Wall", "-Wextra", "-Wpedantic", "-Werror", "-o"]).arg(&program);
    command.args([source("sites.c"), source("sites_exported.c")]).arg(format!("-fuse-ld={linker}"));
    command.args(pkg_config(prefix(), &["--cflags", "--libs", "dormouse-imv"]));
    succeed(command.arg(format!("-Wl,-rpath,{}", prefix().join("lib").display())));
    let mut blocks = Vec::new();
    for (state, writer) in [("born", "none"), ("patched", "mprotect")] {
        let printed = stdout(&succeed(Command::new(&program).env("DORMOUSE_IMV_WRITER", writer)));
        for line in printed.lines() {
            let mut columns = words(line);
            let (name, site) = (columns.next().unwrap(), columns.next().unwrap());
            let mut block = format!("{name}, {state}\n");
            let mut list = |title: &str, instructions: Vec<String>| {
                instructions.iter().for_each(|instruction| block += &format!("  {title}{instruction}\n"));
            };
            list("", disassemble(directory, site));
            if let (Some(slow), "born") = (columns.next(), state) {
                let mut slow = disassemble(directory, slow);
                slow.truncate(1 + slow.iter().position(|text| text.starts_with("jmp")).expect("a way back"));
                list("slow: ", slow);
            }
            blocks.push(block);
        }
    }
    blocks.sort();
    blocks.join("\n")
}

/// With `DORMOUSE_BLESS=1`, records the first compiler's result. All other compilers must agree with it.
#[test]
fn sites_are_the_instructions_that_are_promised() {
    if !has("objdump") {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let golden = source(if cfg!(target_arch = "x86_64") { "sites.golden" } else { "sites-aarch64.golden" });
    let mut bless = std::env::var_os("DORMOUSE_BLESS").is_some();
    for compiler in ["gcc", "clang"].into_iter().filter(|compiler| has_part(compiler)) {
        for flags in ["-O0", "-O2", "-O3", "-O2 -flto"] {
            let linker = if compiler == "clang" && flags.contains("lto") { "lld" } else { "bfd" };
            if !has_part(&format!("ld.{linker}")) {
                continue;
            }
            let found = sites_of(directory.path(), (compiler, flags, linker));
            if std::mem::take(&mut bless) {
                std::fs::write(&golden, &found).unwrap();
            }
            let expected = std::fs::read_to_string(&golden).unwrap();
            assert_eq!(found, expected, "{compiler} {flags}; DORMOUSE_BLESS=1 accepts what the first compiler gives");
        }
    }
}

#[test]
fn a_patched_branch_reads_no_data() {
    if !has("objdump") {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let program = directory.path().join("branches");
    for compiler in ["gcc", "clang"].into_iter().filter(|compiler| has_part(compiler)) {
        for flags in ["-O1", "-O2", "-O3 -fno-pic -no-pie"] {
            let mut command = Command::new(compiler);
            command.args(words(flags)).args(["-Wall", "-Wextra", "-Wpedantic", "-Werror", "-o"]).arg(&program);
            command.args([source("branches.c"), source("sites_exported.c")]);
            command.args(pkg_config(prefix(), &["--cflags", "--libs", "dormouse-imv"]));
            succeed(command.arg(format!("-Wl,-rpath,{}", prefix().join("lib").display())));
            let functions = listed_functions(directory.path(), &stdout(&succeed(&mut Command::new(&program))));
            assert_eq!(functions.len(), 8);
            for (name, instructions) in functions {
                let what = format!("{compiler} {flags}, {name}: {instructions:?}");
                assert!(!instructions.iter().any(|text| has_memory_operand(text)), "{what}");
                let falls_through = name.contains("unlikely") == name.ends_with("dormant");
                assert_eq!(instructions.iter().any(|text| text == NOP), falls_through, "{what}");
                // gcc's code is the branch and the answer; clang before 17 also tests a register.
                if compiler == "gcc" {
                    let tests = instructions.iter().filter(|text| is_conditional(text)).count();
                    assert_eq!(tests, 0, "{what}");
                }
            }
        }
    }
}

/// Output of both examples, up to the waiting time.
const PHASES: &str = "off: 8000 jobs, 0 measured\nevery job: 8000 jobs, 8000 measured\n\
                      one of 16: 8000 jobs, 500 measured\noff again: 8000 jobs, 0 measured\nmean waiting time: ";

fn assert_is_profile(printed: &str) {
    let time = printed.strip_prefix(PHASES).and_then(|rest| rest.strip_suffix(" ns\n"));
    assert!(time.is_some_and(|time| time.parse::<u64>().is_ok()), "{printed}");
}

#[test]
fn the_thread_pool_is_profiled_while_it_runs() {
    let crate_dir = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let directory = tempfile::tempdir().unwrap();
    let program = directory.path().join("thread_pool");
    for compiler in ["gcc", "clang"].into_iter().filter(|compiler| has_part(compiler)) {
        let mut command = Command::new(compiler);
        command
            .args(["-std=gnu11", "-O2", "-Wall", "-Wextra", "-Wpedantic", "-Werror", "-pthread", "-o"])
            .arg(&program);
        command.arg(crate_dir.join("examples/thread_pool.c"));
        command.args(pkg_config(prefix(), &["--cflags", "--libs", "dormouse-imv"]));
        succeed(command.arg(format!("-Wl,-rpath,{}", prefix().join("lib").display())));
        for writer in ["mprotect", "none"] {
            assert_is_profile(&stdout(&succeed(Command::new(&program).env("DORMOUSE_IMV_WRITER", writer))));
        }
    }
    let target_dir = Path::new(env!("CARGO_TARGET_TMPDIR")).parent().unwrap();
    let mut build = Command::new(env!("CARGO"));
    build.args(["build", "--quiet", "--offline", "--example", "thread_pool", "--target-dir"]).arg(target_dir);
    succeed(build.current_dir(crate_dir));
    assert_is_profile(&stdout(&succeed(&mut Command::new(target_dir.join("debug/examples/thread_pool")))));
    // The README shows what they print.
    let readme = std::fs::read_to_string(crate_dir.join("README.md")).unwrap();
    let shown: String =
        readme.lines().skip_while(|line| !line.starts_with("off: ")).take(5).map(|line| format!("{line}\n")).collect();
    assert_is_profile(&shown);
}
