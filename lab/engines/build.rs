//! Generates functions with a tracepoint, a branch or nothing each, for cases that run over many of them, and compiles the
//! engines in C.

use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Number of functions of each kind.
const SITES: usize = 1_000;

/// Numbers of sites of the keys that are switched on and off.
const TOGGLED: [usize; 3] = [1, 100, 1_000];

/// An empty function, as far from the next as functions of the other kinds. If it shared its cache line with others, it
/// would be cached more often, and the difference would be taken for the cost of the missing code. Only assembly can
/// express this.
const EMPTY_X86_64: &str = "#[unsafe(naked)] extern \"C\" fn empty_site_NUMBER(number: u64) { core::arch::naked_asm!(\
    \"push rax\", \"mov rax, rdi\", \"xor rax, NUMBER\", \"mov [rsp], rax\", \"pop rax\", \"ret\", PADDING) }";

/// Padding that puts empty functions about as far apart as those with an event.
const EVENT_PADDING: &str = "\".balign 64\"";
/// Padding that puts empty functions exactly as far apart as those with a gate or a test of a variable. The engine of
/// `imv` reports the distance.
const GATE_PADDING: &str = "\".skip 20\", \".balign 16\"";

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    compile_c();
    let is_x86_64 = std::env::var("CARGO_CFG_TARGET_ARCH").is_ok_and(|arch| arch == "x86_64");
    let empty = |number: usize, padding: &str| {
        let naked = || EMPTY_X86_64.replace("NUMBER", &number.to_string()).replace("PADDING", padding);
        is_x86_64.then(naked).unwrap_or_else(|| site("empty", number, ""))
    };

    let mut events = functions("empty", |number| empty(number, EVENT_PADDING));
    for kind in ["dormant", "armed"] {
        events += &functions(kind, |number| {
            site(kind, number, &format!("dormouse::event!(lab.{kind}_site_{number}, number);"))
        });
    }
    write("sites.rs", &events);

    let mut gates = functions("empty", |number| empty(number, GATE_PADDING));
    gates += &functions("branch", |number| {
        let body = format!("static KEY: StaticKey = StaticKey::new(); {}", if_taken("static_branch!(KEY)"));
        site("branch", number, &body)
    });
    gates += &functions("variable", |number| site("variable", number, &if_taken(&format!("FLAGS[{number}].read()"))));
    gates += &format!("static FLAGS: [Flag; {SITES}] = [const {{ Flag::new() }}; {SITES}];\n");
    for count in TOGGLED {
        gates += &toggled(count);
    }
    write("imv_sites.rs", &gates);
}

/// Engines in C: the program, and its sources in `c/`.
const IN_C: [(&str, &[&str]); 3] = [
    ("dormouse-lab-engine-percpu-c", &["percpu", "percpu_called"]),
    ("dormouse-lab-engine-imv-c", &["imv"]),
    ("dormouse-lab-engine-relay-c", &["relay"]),
];

/// Returns the words that pkg-config prints, or `None` if it does not know the package.
fn pkg_config(arguments: &[&str]) -> Option<Vec<String>> {
    let output = Command::new("pkg-config").args(arguments).output().ok().filter(|output| output.status.success())?;
    Some(String::from_utf8_lossy(&output.stdout).split_whitespace().map(String::from).collect())
}

/// Returns the version of librseq, the compiler's options for its headers, and its archive, if all of it is installed. The
/// shared library would have to be linked before libc, in which it looks for the registration.
fn librseq() -> Option<(String, Vec<String>, PathBuf)> {
    let archive = Path::new(&pkg_config(&["--variable=libdir", "librseq"])?.concat()).join("librseq.a");
    let version = pkg_config(&["--modversion", "librseq"])?.concat();
    archive.is_file().then_some((version, pkg_config(&["--cflags", "librseq"])?, archive))
}

/// Compiles the engines in C, as optimised as a program usually is, and with librseq if it is installed. Without a compiler
/// their programs only say so.
fn compile_c() {
    println!("cargo::rustc-check-cfg=cfg(has_c_compiler)");
    println!("cargo::rerun-if-env-changed=PKG_CONFIG_PATH");
    let librseq = librseq();
    let version = librseq.as_ref().map_or("", |(version, ..)| version);
    println!("cargo::rustc-env=LAB_LIBRSEQ_VERSION={version}");
    let directory = PathBuf::from(std::env::var_os("OUT_DIR").expect("cargo tells where to write"));
    let source = |name: &str| Path::new("c").join(name).with_extension("c");
    let headers = ["c", "../harness/include", "../../record/abi/include"]
        .map(PathBuf::from)
        .into_iter()
        .chain(["imv", "percpu", "relay"].map(|name| Path::new("../../mechanisms").join(name).join("include")));
    let headers: Vec<PathBuf> = headers.collect();
    headers.iter().for_each(|header| println!("cargo::rerun-if-changed={}", header.display()));
    if Command::new("cc").arg("--version").output().is_err() {
        return;
    }
    for (program, sources) in IN_C {
        for name in sources {
            let object = directory.join(name).with_extension("o");
            let mut command = Command::new("cc");
            command
                .args(["-std=gnu17", "-O2", "-g1", "-fPIE", "-Wall", "-Wextra", "-c", "-o"])
                .arg(&object)
                .arg(source(name));
            headers.iter().for_each(|header| _ = command.arg("-I").arg(header));
            if let Some((_, options, _)) = &librseq {
                command.args(options).arg("-DLAB_LIBRSEQ");
            }
            let status = command.status().expect("the compiler that has just run");
            assert!(status.success(), "{command:?}");
            println!("cargo::rustc-link-arg-bin={program}={}", object.display());
        }
    }
    if let Some((.., archive)) = &librseq {
        println!("cargo::rustc-link-arg-bin={}={}", IN_C[0].0, archive.display());
    }
    println!("cargo::rustc-cfg=has_c_compiler");
}

fn if_taken(condition: &str) -> String {
    format!("if {condition} {{ taken(); }}")
}

/// Returns the source of a function with a number in it, so that the compiler merges no two of them.
fn site(kind: &str, number: usize, body: &str) -> String {
    let other = number + 1;
    format!("#[inline(never)] extern \"C\" fn {kind}_site_{number}(number: u64) {{ opaque(number ^ {other}); {body} }}")
}

/// Returns the source of a thousand functions and the table of them.
fn functions(kind: &str, function: impl Fn(usize) -> String) -> String {
    let lines: Vec<String> = (0..SITES).map(function).collect();
    let names: Vec<String> = (0..SITES).map(|number| format!("{kind}_site_{number}")).collect();
    let table = kind.to_uppercase();
    format!("{}\nstatic {table}_SITES: [Site; {SITES}] = [{}];\n", lines.join("\n"), names.join(", "))
}

/// Returns the source of a key with `count` sites, each in a function that returns its gate's answer.
fn toggled(count: usize) -> String {
    let mut text = format!("static TOGGLED_{count}: StaticKey = StaticKey::new();\n");
    for number in 0..count {
        let other = number + 1;
        let line = writeln!(
            text,
            "#[inline(never)] extern \"C\" fn toggled_{count}_site_{number}(number: u64) -> bool {{ \
             opaque(number ^ {other}); static_branch!(TOGGLED_{count}) }}"
        );
        line.expect("a String takes all");
    }
    let names: Vec<String> = (0..count).map(|number| format!("toggled_{count}_site_{number}")).collect();
    text + &format!("static TOGGLED_{count}_SITES: [ToggledSite; {count}] = [{}];\n", names.join(", "))
}

fn write(name: &str, text: &str) {
    let dir = std::env::var_os("OUT_DIR").expect("cargo tells where to write");
    std::fs::write(Path::new(&dir).join(name), text).expect("the sites can be written");
}
