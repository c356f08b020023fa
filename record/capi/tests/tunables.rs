//! Tunables of C and C++ programs and their plugins: listed and set by `dormouse imv`.
#![cfg(all(any(target_arch = "x86_64", target_arch = "aarch64"), target_os = "linux"))]

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Output, Stdio};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

use dormouse_testing::c_programs::{install, succeed};
use dormouse_testing::programs::dormouse;
use dormouse_testing::{has_part, include_dirs};
use tempfile::TempDir;

const WARNINGS: [&str; 5] = ["-Wall", "-Wextra", "-Wpedantic", "-Wshadow", "-Werror"];

/// Returns the prefix where libdormouse is installed, and the path of the command `dormouse`, built with the profile of
/// this test.
fn installed() -> &'static (PathBuf, PathBuf) {
    static INSTALLED: OnceLock<(PathBuf, PathBuf)> = OnceLock::new();
    INSTALLED.get_or_init(|| (install("tunables-prefix"), dormouse().into()))
}

/// Returns the installed pairs of C and C++ compilers.
fn compilers() -> Vec<(&'static str, &'static str)> {
    [("gcc", "g++"), ("clang", "clang++")].into_iter().filter(|(c, cpp)| has_part(c) && has_part(cpp)).collect()
}

/// Returns a compiler command for a file, with warnings that users may enable.
fn compiler(file: &str, (c, cpp): (&str, &str)) -> Command {
    let is_cpp = file.ends_with(".cc");
    let mut command = Command::new(if is_cpp { cpp } else { c });
    command.arg(if is_cpp { "-std=c++11" } else { "-std=c11" }).args(WARNINGS);
    include_dirs().for_each(|dir| {
        command.arg("-I").arg(dir);
    });
    command
}

fn source(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs").join(name)
}

/// Compiles the tuned program and its plugin into a directory.
fn build(dir: &Path, compilers: (&str, &str), (options, form, linker): (&[&str], &str, &str)) {
    let lib = installed().0.join("lib");
    let link = |command: &mut Command, output: &str| {
        command.args([&format!("-fuse-ld={linker}"), "-Wl,--gc-sections", "-o"]).arg(dir.join(output));
        command.arg("-L").arg(&lib).arg("-ldormouse").arg(format!("-Wl,-rpath,{}", lib.display()));
    };
    let object = |name: &str, more: &[&str]| {
        let object = dir.join(format!("{name}{}.o", more.len()));
        let mut compile = compiler(name, compilers);
        succeed(
            compile
                .args(options)
                .args(more)
                .args(["-ffunction-sections", "-fdata-sections", "-c", "-o"])
                .arg(&object)
                .arg(source(name)),
        );
        object
    };
    let mut program = Command::new(compilers.1);
    program.args(options).arg(form).args([object("tuned.c", &[]), object("tuned_unit.cc", &[])]);
    link(&mut program, "tuned");
    succeed(&mut program);
    let mut plugin = Command::new(compilers.1);
    plugin.args(options).arg("-shared").arg(object("tuned_unit.cc", &["-DTUNED_PLUGIN", "-fPIC"]));
    link(&mut plugin, "plugin.so");
    succeed(&mut plugin);
}

/// The running program, with its own directory of sockets.
struct Tuned {
    place: TempDir,
    child: Child,
    stdin: ChildStdin,
    stdout: BufReader<ChildStdout>,
}

impl Tuned {
    fn start(dir: &Path) -> Tuned {
        let place = tempfile::tempdir().unwrap();
        let mut child = Command::new(dir.join("tuned"))
            .arg(dir.join("plugin.so"))
            .env("XDG_RUNTIME_DIR", place.path())
            // It waits for input between tracepoints.
            .env("DORMOUSE_LISTEN", "thread")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let (stdin, stdout) = (child.stdin.take().unwrap(), BufReader::new(child.stdout.take().unwrap()));
        let mut tuned = Tuned { place, child, stdin, stdout };
        assert_eq!(tuned.line(), "ready");
        tuned
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.stdout.read_line(&mut line).unwrap();
        line.trim_end().into()
    }

    fn ask(&mut self, question: &str) -> String {
        writeln!(self.stdin, "{question}").unwrap();
        self.line()
    }

    fn imv(&self, command: &str, arguments: &[&str]) -> Output {
        let mut dormouse = Command::new(&installed().1);
        dormouse.args(["imv", command, &self.child.id().to_string()]).args(arguments);
        dormouse.env("XDG_RUNTIME_DIR", self.place.path()).output().unwrap()
    }

    /// Returns the table's rows without sites, with blanks collapsed.
    fn list(&self) -> Vec<String> {
        let text = String::from_utf8(self.imv("list", &[]).stdout).unwrap();
        let row = |line: &str| {
            let words = line.split_whitespace().filter(|word| !word.contains('/') || word.starts_with('['));
            words.collect::<Vec<_>>().join(" ")
        };
        text.lines().skip(2).map(row).collect()
    }

    fn set(&self, values: &[&str]) {
        let output = self.imv("set", values);
        assert!(output.status.success(), "{values:?}: {}", String::from_utf8_lossy(&output.stderr));
    }

    fn refuse(&self, values: &[&str]) -> String {
        let output = self.imv("set", values);
        assert_eq!(output.status.code(), Some(2));
        String::from_utf8(output.stderr).unwrap()
    }
}

impl Drop for Tuned {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn exercise(dir: &Path) {
    let mut tuned = Tuned::start(dir);
    let own = [
        "c.audit key off on, off note who asks for what",
        "c.batch_size u32 16 1..1024 requests handled at once",
        "c.letter i8 0 any",
        "c.offset i8 -3 -5..5",
        "c.port u16 80 any",
        "c.ratio f32 0.5 0.1..0.9 größer als nichts",
        "c.scale f64 1.5 any two lines",
        "c.strict bool false true, false",
        "c.wide i64 -1 any",
        "cpp.level u8 2 0..3 of the log",
        "cpp.polite bool true true, false",
        "cpp.share f64 0.25 0.0..1.0",
        "twin i32 1 any of the program",
    ];
    assert_eq!(tuned.list(), own);
    assert_eq!(tuned.ask("values"), "16 -3 80 -1 0 0.5 1.5 0 1 0 2");
    tuned.set(&["c.batch_size", "1024", "c.offset", "-5", "c.port", "65535", "c.wide", "-9223372036854775808"]);
    tuned.set(&["c.strict", "on", "c.ratio", "0.9", "c.scale", "-1e6", "c.letter", "97", "twin", "0x10"]);
    tuned.set(&["c.audit", "on", "cpp.level", "3"]);
    assert_eq!(tuned.ask("values"), "1024 -5 65535 -9223372036854775808 1 0.9 -1e+06 97 16 1 3");
    tuned.set(&["c.audit", "off"]);
    assert!(tuned.refuse(&["c.offset", "6"]).contains("`c.offset` takes a whole number from -5 to 5"));
    assert!(tuned.refuse(&["c.ratio", "0.95"]).contains("`c.ratio` takes a number from 0.1 to 0.9"));
    assert!(tuned.refuse(&["c.port", "65536"]).contains("out of range"));

    // The tunables of a plugin disappear when it is unloaded.
    let before = tuned.list();
    for _ in 0..3 {
        assert_eq!(tuned.ask("open"), "opened");
        let with_plugin = tuned.list();
        assert_eq!(with_plugin.len(), own.len() + 3, "{with_plugin:?}");
        for line in ["plugin.depth u32 9 any how deep", "plugin.loud key on on, off"] {
            assert!(with_plugin.iter().any(|row| row == line), "{with_plugin:?}");
        }
        let twin = format!("twin i32 2 any of the plugin [{}]", dir.join("plugin.so").display());
        assert!(with_plugin.contains(&twin), "{twin}: {with_plugin:?}");
        let refused = tuned.refuse(&["twin", "3"]);
        assert!(refused.contains("several variables called `twin`") && refused.contains("plugin.so"), "{refused}");
        tuned.set(&["plugin.depth", "10", "plugin.loud", "off", "c.batch_size", "7"]);
        assert!(tuned.list().contains(&"plugin.depth u32 10 any how deep".into()));
        tuned.set(&["c.batch_size", "1024"]);
        assert_eq!(tuned.ask("close"), "closed");
        assert_eq!(tuned.list(), before);
        assert!(tuned.refuse(&["plugin.depth", "10"]).contains("has no tunable `plugin.depth`"));
    }
}

#[test]
fn c_programs_and_their_plugins_are_tuned() {
    for compilers in compilers() {
        for how @ (options, _, linker) in [
            (&["-O0", "-fno-pic"][..], "-no-pie", "bfd"),
            (&["-O2", "-fPIE"], "-pie", "lld"),
            (&["-O2", "-fPIE"], "-pie", "gold"),
            (&["-O2", "-fPIE", "-flto"], "-pie", "bfd"),
        ] {
            // clang's LTO objects need its own linker.
            let linker = if options.contains(&"-flto") && compilers.0 == "clang" { "lld" } else { linker };
            if linker != "bfd" && !has_part(&format!("ld.{linker}")) {
                continue;
            }
            println!("{} {options:?} {linker}", compilers.0);
            let dir = tempfile::tempdir().unwrap();
            build(dir.path(), compilers, (how.0, how.1, linker));
            exercise(dir.path());
        }
    }
}

#[test]
fn plugins_come_and_go_while_operators_look_and_set() {
    let dir = tempfile::tempdir().unwrap();
    build(dir.path(), compilers()[0], (&["-O2", "-fPIE"], "-pie", "bfd"));
    let mut tuned = Tuned::start(dir.path());
    let (pid, run_dir) = (tuned.child.id().to_string(), tuned.place.path().to_path_buf());
    let imv = |words: &[&str]| {
        let mut dormouse = Command::new(&installed().1);
        dormouse.args(["imv", words[0], &pid]).args(&words[1..]).env("XDG_RUNTIME_DIR", &run_dir).output().unwrap()
    };
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let operators = [&["list", "--json"][..], &["set", "plugin.depth", "5", "c.batch_size", "6"]].map(|words| {
            let (imv, is_over) = (&imv, &is_over);
            scope.spawn(move || {
                let mut count = 0;
                while !is_over.load(Ordering::Relaxed) {
                    let output = imv(words);
                    let text = String::from_utf8(output.stderr).unwrap();
                    // The only permitted error is that the plugin is gone.
                    let is_gone = text.contains("no tunable `plugin.depth`");
                    assert!(output.status.success() || words[0] == "set" && is_gone, "{text}");
                    count += 1;
                }
                count
            })
        });
        for _ in 0..100 {
            assert_eq!(tuned.ask("open"), "opened");
            assert_eq!(tuned.ask("close"), "closed");
        }
        is_over.store(true, Ordering::Relaxed);
        assert!(operators.into_iter().all(|operator| operator.join().unwrap() > 0));
    });
    let values = tuned.ask("values");
    assert!(values.starts_with("6 ") || values.starts_with("16 "), "{values}");
}

#[test]
fn what_cannot_be_tuned_does_not_compile() {
    let declarations = [
        ("static int a; DORMOUSE_TUNABLE(a, \"a\", \"\");", true),
        ("static int a; DORMOUSE_TUNABLE_RANGE(a, \"a\", \"\", -1, 1);", true),
        ("static int a; DORMOUSE_TUNABLE_RANGE(a, \"a\", \"\", 1, -1);", false),
        ("static unsigned a; DORMOUSE_TUNABLE_RANGE(a, \"a\", \"\", -1, 1);", false),
        ("static unsigned char a; DORMOUSE_TUNABLE_RANGE(a, \"a\", \"\", 0, 256);", false),
        ("static void *a; DORMOUSE_TUNABLE(a, \"a\", \"\");", false),
        ("static struct { int x; } a; DORMOUSE_TUNABLE(a, \"a\", \"\");", false),
        ("static int a; DORMOUSE_TUNABLE_KEY(a, \"a\", \"\");", false),
        ("static struct dormouse_static_key a; DORMOUSE_TUNABLE(a, \"a\", \"\");", false),
    ];
    let dir = tempfile::tempdir().unwrap();
    for compilers in compilers() {
        for name in ["unit.c", "unit.cc"] {
            for (declaration, compiles) in declarations {
                let unit = dir.path().join(name);
                let use_it = "int f(void); int f(void) { return (int)sizeof(a); }";
                std::fs::write(&unit, format!("#include <dormouse/tunable.h>\n{declaration}\n{use_it}\n")).unwrap();
                let output = compiler(name, compilers).arg("-fsyntax-only").arg(&unit).output().unwrap();
                let text = String::from_utf8_lossy(&output.stderr);
                assert_eq!(output.status.success(), compiles, "{} {name}: {declaration}\n{text}", compilers.0);
            }
        }
    }
}

#[test]
fn disabled_tunables_need_no_library() {
    let dir = tempfile::tempdir().unwrap();
    for compilers in compilers() {
        for name in ["unit.c", "unit.cc"] {
            let unit = dir.path().join(name);
            let text = "#include <dormouse/tunable.h>\nstatic int a;\nDORMOUSE_TUNABLE_RANGE(a, \"a\", \"\", 0, 1);\n\
                        int main(void) { return a; }\n";
            std::fs::write(&unit, text).unwrap();
            let program = dir.path().join("program");
            let mut compile = compiler(name, compilers);
            succeed(compile.args(["-DDORMOUSE_DISABLE", "-o"]).arg(&program).arg(&unit));
            succeed(&mut Command::new(&program));
        }
    }
}
