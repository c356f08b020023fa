//! C and C++ programs with events and with every header, compiled by the compilers of this machine. Nothing is linked, so
//! this also runs on machines for which the libraries are not built.

use std::path::Path;
use std::process::{Command, Output};

use dormouse_testing::c_programs::succeed;
use dormouse_testing::{has_part, include_dirs};

/// Whether events in C and C++ are recorded on this machine.
const IS_RECORDED: bool = cfg!(all(target_pointer_width = "64", target_endian = "little"));

const C: &str = r#"#include <dormouse/event.h>
int traced(int n, const char *text)
{
    DORMOUSE_EVENT(db, query, (rows, n), (sql, text));
    return n;
}
"#;
const CPP: &str = r#"#include <dormouse/event.h>
template <class T> int in_template(T n)
{
    DORMOUSE_EVENT(db, templated, (rows, n));
    return 1;
}
inline int in_inline(int n)
{
    DORMOUSE_EVENT(db, inlined, (rows, n));
    return n;
}
int traced(int n, const char *text)
{
    DORMOUSE_EVENT(db, query, (rows, n), (sql, text));
    return in_template(n) + in_template(2.0) + in_inline(n);
}
"#;

/// Returns the installed compilers with their language's options, and the name of a source in that language.
fn compilers() -> impl Iterator<Item = (&'static str, &'static str, &'static str)> {
    let all = [
        ("gcc", "-std=c11", "source.c"),
        ("g++", "-std=c++17", "source.cc"),
        ("clang", "-std=c11", "source.c"),
        ("clang++", "-std=c++17", "source.cc"),
    ];
    all.into_iter().filter(|(compiler, ..)| has_part(compiler))
}

/// Returns a command that compiles and assembles `text`.
fn compile(dir: &Path, (compiler, standard, name): (&str, &str, &str), text: &str, options: &[&str]) -> Command {
    let source = dir.join(name);
    std::fs::write(&source, text).unwrap();
    let mut command = Command::new(compiler);
    command.args([standard, "-Wall", "-Wextra", "-Werror"]).args(options);
    include_dirs().for_each(|dir| {
        command.arg("-I").arg(dir);
    });
    command.arg("-c").arg(&source).arg("-o").arg(dir.join("object.o"));
    command
}

#[test]
fn events_compile_or_the_compiler_prints_why_there_are_none() {
    let dir = tempfile::tempdir().unwrap();
    for language in compilers() {
        let text = if language.2.ends_with(".c") { C } else { CPP };
        for options in [&["-O0"][..], &["-O2", "-fPIC"], &["-O2", "-fno-pic"], &["-O2", "-DDORMOUSE_GENERIC"]] {
            let mut compile = compile(dir.path(), language, text, options);
            if IS_RECORDED {
                succeed(&mut compile);
            } else {
                let Output { status, stderr, .. } = compile.output().unwrap();
                let stderr = String::from_utf8_lossy(&stderr);
                assert!(!status.success(), "{compile:?}");
                assert!(stderr.contains("only; define DORMOUSE_DISABLE to leave them out"), "{stderr}");
            }
        }
        succeed(&mut compile(dir.path(), language, text, &["-O2", "-DDORMOUSE_DISABLE"]));
    }
}

#[test]
fn every_header_compiles() {
    let dir = tempfile::tempdir().unwrap();
    let headers = include_dirs().flat_map(|dir| {
        let dirs = [("dormouse", dir.join("dormouse")), ("dormouse/abi", dir.join("dormouse/abi"))];
        dirs.into_iter().flat_map(|(name, dir)| {
            let files = std::fs::read_dir(dir).into_iter().flatten();
            files.map(move |file| format!("{name}/{}", file.unwrap().file_name().into_string().unwrap()))
        })
    });
    let headers: Vec<String> = headers.filter(|name| name.ends_with(".h")).collect();
    assert!(headers.iter().any(|name| name == "dormouse/event.h"), "{headers:?}");
    let options: &[&str] = if IS_RECORDED { &[] } else { &["-DDORMOUSE_DISABLE"] };
    for language in compilers() {
        for header in &headers {
            succeed(&mut compile(dir.path(), language, &format!("#include <{header}>\n"), options));
        }
    }
}
