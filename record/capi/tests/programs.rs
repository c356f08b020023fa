//! C and C++ programs: compiled by every installed compiler, linked both ways, run dormant and recorded; their traces
//! are read back.
#![cfg(all(any(target_arch = "x86_64", target_arch = "aarch64"), target_os = "linux"))]

use std::collections::HashMap;
use std::mem::{offset_of, size_of};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use dormouse_abi::class::{
    CClass, CLASS_ID_NONE, FIELD_COUNT_MAX, Kind, LABEL_COUNT_MAX, LABELLED, Level, NAME_LEN_MAX, SEQUENCE,
};
use dormouse_abi::site::EventRecord;
use dormouse_ctf::{Merge, Metadata, Notice, Problem, StreamReader, Value};
use dormouse_testing::{Lack, has, has_part, skip_part};

use dormouse_testing::c_programs::{install, pkg_config, stdout, succeed};
use dormouse_testing::programs::dormouse;

const WARNINGS: [&str; 4] = ["-Wall", "-Wextra", "-Wpedantic", "-Werror"];

/// Prefix where libdormouse is installed, and path of the command `dormouse`.
struct Installed {
    prefix: PathBuf,
    dormouse: PathBuf,
}

/// Installs once for all tests.
fn installed() -> &'static Installed {
    static INSTALLED: OnceLock<Installed> = OnceLock::new();
    INSTALLED.get_or_init(|| Installed { prefix: install("capi-prefix"), dormouse: dormouse().into() })
}

/// Returns the installed pairs of C and C++ compilers.
fn compilers() -> Vec<(&'static str, &'static str)> {
    let found: Vec<_> =
        [("gcc", "g++"), ("clang", "clang++")].into_iter().filter(|(c, cpp)| has_part(c) && has_part(cpp)).collect();
    assert!(!found.is_empty(), "these tests need gcc and g++, or clang and clang++");
    found
}

fn source(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs").join(name)
}

fn compiler_of<'a>(name: &str, (c, cpp): (&'a str, &'a str)) -> Command {
    let is_cpp = name.ends_with(".cc");
    let mut command = Command::new(if is_cpp { cpp } else { c });
    command.arg(if is_cpp { "-std=c++17" } else { "-std=c11" }).args(WARNINGS);
    command.arg("-I").arg(installed().prefix.join("include"));
    command
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Link {
    Shared,
    Static,
}

/// Returns the flags of `pkg-config`. The archive is in the directory of the shared library, so it is requested by its
/// file name.
fn link_flags(link: Link) -> Vec<String> {
    let form: &[&str] = if link == Link::Static { &["--static"] } else { &[] };
    let archive = |flag: String| match (link, flag.as_str()) {
        (Link::Static, "-ldormouse") => "-l:libdormouse.a".to_string(),
        _ => flag,
    };
    let flags = pkg_config(&installed().prefix, &[&["--cflags", "--libs", "dormouse"], form].concat());
    flags.into_iter().map(archive).collect()
}

/// Compiles the test program and its plugin into a directory.
fn build_program(dir: &Path, compilers: (&str, &str), level: &str, code_model: &str, link: Link) {
    // The program is position-independent at -O0 only; libraries always are.
    let model: &[&str] = if level == "-O0" { &["-fPIE", "-pie"] } else { &["-fno-pic", "-no-pie"] };
    let compile = |name: &str, model: &str| {
        let object = dir.join(name).with_extension("o");
        succeed(
            compiler_of(name, compilers).args([level, code_model, model, "-c", "-o"]).arg(&object).arg(source(name)),
        );
        object
    };
    let mut objects: Vec<_> =
        ["main.c", "types.c", "second.c", "shapes.cc"].iter().map(|name| compile(name, model[0])).collect();
    let library = compile("library.c", "-fPIC");
    let plugin = compile("plugin.c", "-fPIC");
    let flags = link_flags(link);
    let mut plugin_link = Command::new(compilers.0);
    plugin_link.args(["-shared", "-o"]).arg(dir.join("plugin.so")).arg(plugin);
    match link {
        Link::Shared => {
            let shared = dir.join("liblibrary.so");
            succeed(Command::new(compilers.0).args(["-shared", "-o"]).arg(&shared).arg(library).args(&flags));
            objects.push(shared);
            plugin_link.args(&flags);
        }
        // A plugin uses the tracer in the program.
        Link::Static => objects.push(library),
    }
    succeed(&mut plugin_link);
    let mut program = Command::new(compilers.1);
    program.arg(model[1]).arg("-o").arg(dir.join("program")).args(objects).args(&flags).arg("-pthread");
    program.arg("-Wl,--gc-sections,--export-dynamic-symbol=dormouse_*");
    program.arg(format!("-Wl,-rpath,{}:{}", dir.display(), installed().prefix.join("lib").display()));
    succeed(&mut program);
}

/// Returns the number after a word at the start of a line.
fn number(text: &str, word: &str) -> u64 {
    let line = text.lines().find_map(|line| line.strip_prefix(word)).unwrap_or_else(|| panic!("{word}: {text}"));
    line.trim().parse().unwrap()
}

fn show(value: Value<'_>) -> String {
    match value {
        Value::Str(text) => format!("{:?}", String::from_utf8_lossy(text)),
        Value::Sequence(sequence) => {
            format!("{:?}{:?}", sequence.kind(), sequence.iter().map(show).collect::<Vec<_>>()).replace('"', "")
        }
        other => format!("{other:?}"),
    }
}

/// Returns all events of programs in the order of time, as `provider:name field=value …`, and the reported number of
/// lost events.
fn read(trace: &Path) -> (Vec<String>, u64) {
    let metadata = Metadata::parse(&std::fs::read_to_string(trace.join("metadata")).unwrap()).unwrap();
    let mut files: Vec<_> = std::fs::read_dir(trace).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.retain(|path| path.is_file() && !path.ends_with("metadata"));
    let streams: Vec<Vec<u8>> = files.iter().map(|path| std::fs::read(path).unwrap()).collect();
    let readers = streams.iter().enumerate().map(|(index, bytes)| StreamReader::new(&metadata, index, bytes));
    let (mut events, mut lost) = (Vec::new(), 0);
    for item in Merge::new(readers) {
        match item {
            Ok(event) if event.is_state() => {}
            Ok(event) => {
                let fields = event.fields().map(|(name, value)| format!(" {name}={}", show(value)));
                events.push(event.class.full_name.clone() + &fields.collect::<String>());
            }
            Err(Notice { problem: Problem::Discarded { count, .. }, .. }) => lost += count,
            Err(notice) => panic!("{notice:?}"),
        }
    }
    (events, lost)
}

/// Returns the records of the test program, except those of its threads; `object` is an address that it prints.
fn expected(object: u64) -> Vec<String> {
    let many = |n: usize| match n {
        2 => " f2=\"2\"".to_string(),
        32 => " f32=\"32\"".to_string(),
        n => format!(" f{n}=I32({n})"),
    };
    let heap = "that is long enough to live on the heap";
    let high = 0xFEDC_BA98_7654_3210_u64;
    vec![
        "cpp:constructed id=I32(1)".into(),
        "once:evaluated value=I32(42)".into(),
        "app:tick".into(),
        "types:scalars b=Bool(1) c=I8(120) sc=I8(-1) uc=U8(255) s=I16(-7) us=U16(65535) i=I32(-100000) \
         u=U32(4000000000) l=I64(-5000000000) ul=U64(18446744073709551615) ll=I64(-5) ull=U64(5) z=U64(6) f=F32(1.5) \
         d=F64(-2.25) e=U32(2) bits=U32(5)"
            .into(),
        "types:texts literal=\"literal\" text=\"text\" array=\"array\" none=\"\" after=I32(7)".into(),
        "types:default register=I32(1) char=\"c\"".into(),
        format!("types:pointers object=Pointer({object}) same=Pointer({object}) null=Pointer(0) high=Pointer({high})"),
        "types:runs ints=I32[I32(1), I32(-2), I32(3)] none=I32[] doubles=F64[F64(0.5), F64(-0.5)] \
         bools=Bool[Bool(1), Bool(0)] bytes=Bytes([9, 8, 7, 6, 5, 4, 3, 2, 1]) sequence=U8[U8(9), U8(8)] \
         pointers=Pointer[Pointer(0), Pointer(16)] nothing=Bytes([]) after=I8(1)"
            .into(),
        (1..=32).map(many).fold("types:many".into(), |line, field| line + &field),
        "units:second i=I32(0)".into(),
        "units:second i=I32(1)".into(),
        "units:shared unit=I32(2)".into(),
        "units:shared unit=I32(1)".into(),
        "cpp:scalars b=Bool(1) c=I8(99) w=I32(119) scoped=I16(-3) plain=U32(4) null=Pointer(0) constant=I32(17) \
         bits=U32(5) packed=I64(-9) comma=I32(2) f=F32(1.5) u=U64(18446744073709551615)"
            .into(),
        format!(
            "cpp:texts text=\"string\" temporary=\"temporary {heap}\" view=\"with\" literal=\"literal\" none=\"\" \
             pointer=\"pointer {heap}\""
        ),
        "cpp:runs vector=I32[I32(1), I32(2), I32(3)] array=U16[U16(4), U16(5)] empty=F64[] \
         pointer=I32[I32(1), I32(2)] bytes=Bytes([115, 116, 114, 105, 110, 103])"
            .into(),
        "cpp:constructed id=I32(2)".into(),
        "cpp:destroyed id=I32(2)".into(),
        "cpp:nothing".into(),
        "cpp:instance value=I32(1)".into(),
        "cpp:instance value=I8(105)".into(),
        "cpp:instance value=\"s\"".into(),
        "cpp:holder n=I32(1)".into(),
        "cpp:holder n=I32(2)".into(),
        "cpp:inlined n=I32(7)".into(),
        "units:shared unit=I32(4)".into(),
        "cpp:lambda value=I32(1) text=\"string\"".into(),
        "cpp:lambda value=F64(2.5) text=\"string\"".into(),
        "cpp:order first=I32(1) second=I32(2) third=I32(3)".into(),
        "library:called".into(),
        "units:shared unit=I32(3)".into(),
        "plugin:work round=I32(0)".into(),
        "plugin:work round=I32(1)".into(),
        "plugin:work round=I32(2)".into(),
        "cpp:destroyed id=I32(1)".into(),
    ]
}

fn record(trace: &Path) -> Command {
    let mut command = Command::new(&installed().dormouse);
    command.args(["record", "-o"]).arg(trace);
    command
}

/// Lists the files before they run: every class whose events the program will write, with its types.
fn list_files(dir: &Path) {
    let files =
        ["program", "plugin.so", "liblibrary.so"].map(|name| dir.join(name)).into_iter().filter(|file| file.exists());
    let listed: String =
        files.map(|file| stdout(&succeed(Command::new(&installed().dormouse).arg("list").arg(file)))).collect();
    let fields = |name: &str| {
        let line = listed.lines().map(str::trim).find(|line| line.starts_with(&format!("{name} ")));
        line.and_then(|line| line.split_once('{'))
            .unwrap_or_else(|| panic!("{name}: {listed}"))
            .1
            .trim_end_matches('}')
            .trim()
    };
    for line in expected(0) {
        fields(line.split(' ').next().unwrap());
    }
    assert_eq!(fields("app:tick"), "");
    assert_eq!(
        fields("types:scalars"),
        "b: bool, c: i8, sc: i8, uc: u8, s: i16, us: u16, i: i32, u: u32, l: i64, ul: u64, ll: i64, ull: u64, z: u64, f: f32, d: f64, \
         e: u32, bits: u32"
    );
    assert_eq!(
        fields("types:runs"),
        "ints: i32[], none: i32[], doubles: f64[], bools: bool[], bytes: bytes, sequence: u8[], pointers: pointer[], nothing: bytes, \
         after: i8"
    );
    // Three instances of a template, each with a type of its own.
    let instances = listed.lines().filter(|line| line.trim_start().starts_with("cpp:instance "));
    assert_eq!(instances.count(), 3, "{listed}");
}

/// Runs the program dormant and recorded, with and without restartable sequences, with and without context in its
/// records.
fn exercise(dir: &Path) {
    list_files(dir);
    let (program, plugin) = (dir.join("program"), dir.join("plugin.so"));
    let dormant = stdout(&succeed(Command::new(&program).arg(&plugin).arg("asleep")));
    assert_eq!(number(&dormant, "evaluated"), 0);
    assert!(number(&dormant, "sites") > 20, "{dormant}");
    assert_eq!(number(&dormant, "differ"), 0, "a dormant site is 0F 1F 44 00 00");

    for (no_rseq, context) in [("0", "ids"), ("1", "ids"), ("0", "none"), ("1", "none")] {
        let trace = dir.join(format!("trace-{no_rseq}-{context}"));
        let mut command = record(&trace);
        command.env("DORMOUSE_NO_RSEQ", no_rseq).args(["--context", context, "--"]);
        let output = succeed(command.arg(&program).arg(&plugin).arg("awake"));
        let printed = stdout(&output);
        assert_eq!(number(&printed, "evaluated"), 1);
        assert_eq!(number(&printed, "differ"), 0, "an armed site is as it was born");

        let (events, lost) = read(&trace);
        let (hits, others): (Vec<_>, Vec<_>) = events.into_iter().partition(|line| line.starts_with("load:hit"));
        let expected = expected(number(&printed, "object"));
        for (index, line) in expected.iter().enumerate() {
            assert_eq!(others.get(index), Some(line), "event {index}");
        }
        assert_eq!(others.len(), expected.len(), "{others:?}");
        let mut next: HashMap<String, u32> = HashMap::new();
        for hit in &hits {
            let (thread, i) = hit.split_once(" i=").unwrap();
            let next = next.entry(thread.to_string()).or_default();
            assert_eq!(i, format!("I32({next})"), "{hit}");
            *next += 1;
        }
        assert_eq!(next.values().collect::<Vec<_>>(), [&2000; 3]);
        assert_eq!(lost, 1, "the event that fits no page is counted");
    }
}

fn every_program(compilers: (&str, &str)) {
    for level in ["-O0", "-O2"] {
        for link in [Link::Shared, Link::Static] {
            let dir = tempfile::tempdir().unwrap();
            build_program(dir.path(), compilers, level, "-mcmodel=small", link);
            println!("{} {level} {link:?}", compilers.0);
            exercise(dir.path());
        }
    }
}

/// In larger code models, text and data need not be within 2 GiB: dormant sites have the same bytes, and the records
/// are the same.
#[test]
fn events_of_larger_code_models() {
    for compilers in compilers() {
        for (level, code_model) in [("-O0", "-mcmodel=large"), ("-O2", "-mcmodel=large"), ("-O2", "-mcmodel=medium")] {
            let dir = tempfile::tempdir().unwrap();
            build_program(dir.path(), compilers, level, code_model, Link::Shared);
            println!("{} {level} {code_model}", compilers.0);
            exercise(dir.path());
        }
    }
}

#[test]
fn events_of_gcc() {
    compilers().into_iter().filter(|(c, _)| *c == "gcc").for_each(every_program);
}

#[test]
fn events_of_clang() {
    compilers().into_iter().filter(|(c, _)| *c == "clang").for_each(every_program);
}

#[test]
fn headers_compile_for_every_code_model_without_a_warning() {
    let dir = tempfile::tempdir().unwrap();
    for compilers in compilers() {
        for model in ["-fPIC", "-fPIE", "-fno-pic", "-DDORMOUSE_GENERIC", "-DDORMOUSE_DISABLE"] {
            for (level, code_model) in [("-O0", "small"), ("-O2", "small"), ("-O0", "large"), ("-O2", "medium")] {
                for name in ["types.c", "shapes.cc"] {
                    let object = dir.path().join("unit.o");
                    let mut command = compiler_of(name, compilers);
                    command.arg(format!("-mcmodel={code_model}"));
                    succeed(command.args([level, model, "-c", "-o"]).arg(object).arg(source(name)));
                }
            }
        }
    }
}

#[test]
fn disabled_events_need_no_library_and_evaluate_nothing() {
    for compilers in compilers() {
        for level in ["-O0", "-O2"] {
            let dir = tempfile::tempdir().unwrap();
            let mut link = Command::new(compilers.1);
            for name in ["disabled.c", "types.c", "second.c", "library.c", "shapes.cc"] {
                let object = dir.path().join(name).with_extension("o");
                let mut command = compiler_of(name, compilers);
                succeed(command.args([level, "-DDORMOUSE_DISABLE", "-c", "-o"]).arg(&object).arg(source(name)));
                link.arg(object);
            }
            let program = dir.path().join("disabled");
            succeed(link.arg("-o").arg(&program));
            assert_eq!(number(&stdout(&succeed(&mut Command::new(program))), "evaluated"), 0);
        }
    }
}

/// The library that the loader finds first has the sites of all objects, and the tracer's keys are changed there.
/// The program prints which tags each of its events has.
#[test]
fn events_of_c_and_cpp_have_tags() {
    let dir = tempfile::tempdir().unwrap();
    for compilers in compilers() {
        for (language, link) in [("c", Link::Shared), ("c++", Link::Shared), ("c", Link::Static)] {
            let (cc, standard) = if language == "c" { (compilers.0, "-std=c11") } else { (compilers.1, "-std=c++17") };
            let program = dir.path().join(format!("{cc}-{link:?}"));
            let mut command = Command::new(cc);
            command.args(["-O2", standard]).args(WARNINGS).args(["-x", language]).arg(source("tagged.c"));
            command.args(["-x", "none", "-o"]).arg(&program).args(link_flags(link)).arg("-pthread");
            succeed(command.arg(format!("-Wl,-rpath,{}", installed().prefix.join("lib").display())));
            let trace = dir.path().join(format!("{cc}-{link:?}-trace"));
            let context = ["--context", "tag.user,tag.request", "-e", "tagged:*", "--"];
            let output = succeed(record(&trace).args(context).arg(&program));
            let expected: Vec<String> =
                stdout(&output).lines().filter_map(|line| line.strip_prefix("event ")).map(String::from).collect();
            let view = ["--format", "json", "-e", "tagged:event"];
            let output = succeed(Command::new(&installed().dormouse).arg("view").arg(&trace).args(view));
            let event = |line: &str| {
                let event: serde_json::Value = serde_json::from_str(line).unwrap();
                let tag = &event["context"]["tag"];
                format!("{} {} {}", event["fields"]["number"], tag["request"], tag["user"].as_str().unwrap())
            };
            let found: Vec<String> = stdout(&output).lines().map(event).collect();
            assert!(expected.len() >= 12 && found == expected, "{cc}: {found:?}, {expected:?}");
            // Rules in programs select by tags what `view` selects.
            for condition in [
                "tag.user == \"alice\" and tag.request > 7",
                "tag.user ~ \"al*e\" or tag.user ~ \"xx*\"",
                "tag.user != \"alice\" and not tag.request",
            ] {
                let numbers = |trace: &Path, options: &[&str]| -> Vec<String> {
                    let view = ["view", "--format", "json", "-e", "tagged:event"];
                    let output = succeed(Command::new(&installed().dormouse).args(view).arg(trace).args(options));
                    let number = |line: &str| {
                        let event: serde_json::Value = serde_json::from_str(line).unwrap();
                        event["fields"]["number"].to_string()
                    };
                    stdout(&output).lines().map(number).collect()
                };
                let selected = dir.path().join("selected");
                let rule = format!("tagged:* where {condition}");
                succeed(record(&selected).args(["-e", &rule, "--"]).arg(&program));
                let found = numbers(&selected, &[]);
                assert!(found.len() >= 2 && found == numbers(&trace, &["--where", condition]), "{cc} {condition}");
                std::fs::remove_dir_all(&selected).unwrap();
            }
        }
        let mut command = Command::new(compilers.0);
        let object = dir.path().join("disabled.o");
        command.args(["-O2", "-std=c11", "-DDORMOUSE_DISABLE", "-c"]).args(WARNINGS).arg(source("tagged.c"));
        command.arg("-I").arg(installed().prefix.join("include")).arg("-o").arg(&object);
        succeed(&mut command);
    }
}

#[test]
fn both_libraries_in_one_process_are_one() {
    let dir = tempfile::tempdir().unwrap();
    let (c, _) = compilers()[0];
    let lib = installed().prefix.join("lib");
    let rpath = format!("-Wl,-rpath,{}:{}", dir.path().display(), lib.display());
    let library = dir.path().join("liblibrary.so");
    let mut command = compiler_of("library.c", compilers()[0]);
    command.args(["-O2", "-fPIC", "-shared", "-o"]).arg(&library).arg(source("library.c"));
    succeed(command.arg("-L").arg(&lib).args(["-ldormouse", &rpath]));
    for (index, libraries) in [["-ldormouse_imv", "-ldormouse"], ["-ldormouse", "-ldormouse_imv"]].iter().enumerate() {
        let program = dir.path().join(format!("{c}{index}"));
        let mut command = compiler_of("both.c", compilers()[0]);
        command.args(["-O2", "-Wl,--no-as-needed", "-o"]).arg(&program).arg(source("both.c")).arg("-L").arg(&lib);
        succeed(command.args(libraries).arg(&library).arg(&rpath));
        assert_eq!(number(&stdout(&succeed(&mut Command::new(&program))), "objects"), 2);

        let trace = dir.path().join(format!("trace-{index}"));
        let output = succeed(record(&trace).arg("--").arg(&program));
        assert_eq!(number(&stdout(&output), "objects"), 2);
        let (events, lost) = read(&trace);
        assert_eq!(
            (events, lost),
            (["library:called", "units:shared unit=I32(3)"].repeat(3).into_iter().map(String::from).collect(), 0)
        );
    }
}

/// A child of `vfork` has its parent's thread-local data, but not its registration for restartable sequences.
#[test]
fn children_of_vfork_trace_as_themselves() {
    let dir = tempfile::tempdir().unwrap();
    for link in [Link::Shared, Link::Static] {
        let program = dir.path().join(format!("{link:?}"));
        let mut command = compiler_of("vfork.c", compilers()[0]);
        command.args(["-O2", "-o"]).arg(&program).arg(source("vfork.c")).args(link_flags(link)).arg("-pthread");
        succeed(command.arg(format!("-Wl,-rpath,{}", installed().prefix.join("lib").display())));
        let trace = dir.path().join(format!("{link:?}-trace"));
        let output = succeed(record(&trace).arg("--").arg(&program));
        let parent = number(&stdout(&output), "pid");

        let metadata = Metadata::parse(&std::fs::read_to_string(trace.join("metadata")).unwrap()).unwrap();
        let mut count: HashMap<String, u64> = HashMap::new();
        let mut children: HashMap<u32, u64> = HashMap::new();
        for file in std::fs::read_dir(&trace).unwrap().map(|entry| entry.unwrap().path()) {
            if file.ends_with("metadata") || file.ends_with("state") {
                continue;
            }
            let bytes = std::fs::read(&file).unwrap();
            for event in StreamReader::new(&metadata, 0, &bytes) {
                let event = event.unwrap();
                let (vpid, vtid) = event.context.unwrap();
                let name = event.class.full_name.as_str();
                *count.entry(name.into()).or_default() += 1;
                let says = event.fields().find(|(name, _)| *name == "pid").map(|(_, value)| show(value));
                let is_claimed = file.file_name().unwrap().to_str().unwrap().starts_with("claimed_");
                match name {
                    "child:step" => {
                        assert_eq!(says.unwrap(), format!("I32({vpid})"));
                        assert!(vpid == vtid && u64::from(vpid) != parent && is_claimed);
                        *children.entry(vpid).or_default() += 1;
                    }
                    _ => assert_eq!(u64::from(vpid), parent, "{name}"),
                }
            }
        }
        assert_eq!(children.into_values().collect::<Vec<_>>(), [20; 50]);
        assert_eq!((count["parent:step"], count["thread:step"]), (50 * 20, 20_000));
    }
}

/// Compiles a program that consists of one file.
fn build_one(program: &Path, name: &str, options: &[&str], link: Link) {
    let mut command = compiler_of(name, compilers()[0]);
    command.args(options).args(["-O2", "-o"]).arg(program).arg(source(name)).args(link_flags(link)).arg("-pthread");
    succeed(command.arg(format!("-Wl,-rpath,{}", installed().prefix.join("lib").display())));
}

/// glibc allocates when a thread sets a value for a key that was created late.
#[test]
fn nothing_is_allocated_in_a_handler() {
    let dir = tempfile::tempdir().unwrap();
    let program = dir.path().join("handler");
    build_one(&program, "handler.c", &[], Link::Shared);
    let trace = dir.path().join("trace");
    let output = succeed(record(&trace).arg("--").arg(&program));
    assert_eq!(read(&trace), (vec!["handler:ran signal=I32(10)".to_string(); 50], 0));
    // Stacks of threads that have ended are reused; some threads are still ending when the next one needs a stack.
    assert!((1..25).contains(&number(&stdout(&output), "stacks")), "{}", stdout(&output));
}

#[test]
fn a_program_says_whether_it_listens() {
    let dir = tempfile::tempdir().unwrap();
    for link in [Link::Shared, Link::Static] {
        // The listening thread exists only if it was requested.
        for options in [&[][..], &["-DDORMOUSE_NO_LISTEN"]] {
            let program = dir.path().join("listens");
            build_one(&program, "listens.c", options, link);
            let run = |wish: Option<&str>| {
                let mut command = Command::new(&program);
                command.env("XDG_RUNTIME_DIR", dir.path()).env_remove("DORMOUSE_LISTEN");
                stdout(&succeed(command.envs(wish.map(|wish| ("DORMOUSE_LISTEN", wish)))))
            };
            let by = format!("{} 0 1 0 2\n", -libc::EINVAL);
            let by_signal = format!("1 0 1 0 1\n{by}");
            assert_eq!(run(None), by_signal, "{link:?} {options:?}");
            assert_eq!(run(Some("signal")), by_signal, "{link:?} {options:?}");
            let first = if options.is_empty() { 2 } else { 1 };
            assert_eq!(run(Some("thread")), format!("{first} 0 1 0 2\n{by}"), "{link:?} {options:?}");
            let forbidden = -libc::EPERM;
            let by_none = format!("{} {forbidden} 1 {forbidden} 1\n", -libc::EINVAL);
            assert_eq!(run(Some("0")), format!("1 0 1 {forbidden} 1\n{by_none}"));
            // In a session, listening was not requested.
            let output = succeed(record(&dir.path().join("trace")).arg("--").arg(&program));
            assert_eq!(stdout(&output), by_signal);
            std::fs::remove_dir_all(dir.path().join("trace")).unwrap();
        }
    }
}

#[test]
fn what_cannot_be_recorded_does_not_compile() {
    let dir = tempfile::tempdir().unwrap();
    let many: String = (0..33).map(|index| format!(", (f{index}, {index})")).collect();
    let bodies = [
        ("DORMOUSE_EVENT(io, failed, (error, 1));".to_string(), true),
        ("DORMOUSE_EVENT(io, failed, (errno, 1));".to_string(), false),
        ("DORMOUSE_EVENT(io, failed, (twice, 1), (twice, 2));".to_string(), false),
        ("DORMOUSE_EVENT(io, failed, (big, (long double)1));".to_string(), false),
        ("struct { int x; } s = {1}; DORMOUSE_EVENT(io, failed, (s, s));".to_string(), false),
        ("DORMOUSE_EVENT(io, failed, (big, (__int128)1));".to_string(), false),
        ("DORMOUSE_EVENT(io, failed, (big, (unsigned __int128)1));".to_string(), false),
        ("int list[4] = {1}; DORMOUSE_EVENT(io, failed, (list, list));".to_string(), false),
        ("int list[4] = {1}; DORMOUSE_EVENT(io, failed, (list, DORMOUSE_ARRAY(list, 4)));".to_string(), true),
        ("char name[4] = \"abc\"; DORMOUSE_EVENT(io, failed, (name, name), (text, \"abc\"));".to_string(), true),
        (
            "int list[4] = {1}; DORMOUSE_EVENT(io, failed, (first, &list[0]), (next, list + 1), (f, f));".to_string(),
            true,
        ),
        (format!("DORMOUSE_EVENT(io, failed{many});"), false),
        ("DORMOUSE_EVENT(io);".to_string(), false),
        ("DORMOUSE_EVENT_LEVEL(WARNING, io, failed, (error, 1));".to_string(), true),
        ("DORMOUSE_EVENT_LEVEL(DEBUG, io, failed);".to_string(), true),
        ("DORMOUSE_EVENT_LEVEL(LOUD, io, failed, (error, 1));".to_string(), false),
        ("DORMOUSE_EVENT_LEVEL(warning, io, failed);".to_string(), false),
        ("DORMOUSE_EVENT_LEVEL(io, failed, (error, 1));".to_string(), false),
        (format!("DORMOUSE_EVENT(io, failed, ({}, 1));", "n".repeat(NAME_LEN_MAX)), true),
    ];
    for compilers in compilers() {
        for name in ["unit.c", "unit.cc"] {
            for (body, compiles) in &bodies {
                let unit = dir.path().join(name);
                std::fs::write(
                    &unit,
                    format!(
                        "#include <dormouse/event.h>\n#include <errno.h>\nvoid f(void);\nvoid f(void) {{ {body} }}\n"
                    ),
                )
                .unwrap();
                let mut command = compiler_of(name, compilers);
                let output = command.args(["-fsyntax-only"]).arg(&unit).output().unwrap();
                let text = String::from_utf8_lossy(&output.stderr);
                assert_eq!(output.status.success(), *compiles, "{command:?}: {body}\n{text}");
            }
        }
    }
}

/// Names that no trace can hold do not compile either, and the compiler reports them.
#[test]
fn names_that_no_trace_can_hold_do_not_compile() {
    let dir = tempfile::tempdir().unwrap();
    let long = "n".repeat(NAME_LEN_MAX + 1);
    for compilers in compilers() {
        for unit in ["unit.c", "unit.cc"] {
            // In C, clang leaves the check of the last one to the session.
            let names = ["größe", "gr\\u00f6\\u00dfe", &long, "a$b"];
            let count = if (compilers.0, unit) == ("clang", "unit.c") { 3 } else { 4 };
            for name in &names[..count] {
                for event in
                    [format!("{name}, e, (f, 1)"), format!("p, {name}, (f, 1)"), format!("p, e, (f, 1), ({name}, 2)")]
                {
                    for disabled in ["", "#define DORMOUSE_DISABLE\n"] {
                        let path = dir.path().join(unit);
                        let text = format!(
                            "{disabled}#include <dormouse/event.h>\nvoid f(void);\nvoid f(void) {{ DORMOUSE_EVENT({event}); }}\n"
                        );
                        std::fs::write(&path, text).unwrap();
                        let output = compiler_of(unit, compilers).arg("-fsyntax-only").arg(&path).output().unwrap();
                        let text = String::from_utf8_lossy(&output.stderr);
                        let says =
                            ["a trace cannot hold the name ", "write ASCII letters, digits and _, at most 255 bytes"];
                        assert!(
                            !output.status.success() && says.iter().all(|part| text.contains(part)),
                            "{event}: {text}"
                        );
                    }
                }
            }
        }
    }
}

#[test]
fn the_examples_find_the_library_by_cmake() {
    if !has("cmake") {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let examples = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples");
    let mut configure = Command::new("cmake");
    configure.arg("-S").arg(source("")).arg("-B").arg(dir.path());
    configure.arg(format!("-DCMAKE_PREFIX_PATH={}", installed().prefix.display()));
    configure.arg(format!("-DEXAMPLES={}", examples.display()));
    succeed(configure.arg("-DCMAKE_BUILD_TYPE=RelWithDebInfo"));
    succeed(Command::new("cmake").arg("--build").arg(dir.path()));
    for link in ["imv", "imv_static"] {
        succeed(&mut Command::new(dir.path().join(format!("sites_{link}"))));
    }
    for link in ["dormouse", "static", "full_static"] {
        let trace = dir.path().join(format!("shop-trace-{link}"));
        let shop = dir.path().join(format!("shop_{link}"));
        if link == "full_static" && !shop.is_file() {
            skip_part("with a static libc", Lack::tool("CMake finds no static libc", "`apt-get install libc6-dev`"));
            continue;
        }
        let output = stdout(&succeed(record(&trace).args(["-e", "shop:order_*", "--"]).arg(shop).args(["0.2", "2"])));
        let orders: usize = output.lines().last().and_then(|line| line.split(' ').next()).unwrap().parse().unwrap();
        assert!(orders > 0);
        let (events, lost) = read(&trace);
        assert_eq!(lost, 0);
        for name in ["placed", "begin", "end"] {
            let count = events.iter().filter(|line| line.starts_with(&format!("shop:order_{name} "))).count();
            assert_eq!(count, orders, "{name}");
        }
        assert_eq!(events.len(), 3 * orders, "only what the pattern names is recorded");

        let trace = dir.path().join(format!("planner-trace-{link}"));
        succeed(record(&trace).arg("--").arg(dir.path().join(format!("planner_{link}"))).arg("50"));
        let (events, lost) = read(&trace);
        assert_eq!(lost, 0);
        assert_eq!(events.first().unwrap(), "planner:phase_begin phase=\"improve\"");
        assert_eq!(events.last().unwrap(), "planner:phase_end phase=\"improve\"");
        assert!(events.iter().any(|line| line.starts_with("planner:improved from=\"stop ")));
    }
}

/// The programs in the manual page compile and run; its macros are those of the header.
#[test]
fn the_manual_page_shows_every_macro_in_programs_that_run() {
    let file = installed().prefix.join("share/man/man3/dormouse-event.3");
    let page = std::fs::read_to_string(&file).unwrap();
    let dir = tempfile::tempdir().unwrap();
    let mut all = String::new();
    for part in page.split(".\\\" program ").skip(1) {
        let (name, rest) = part.split_once("\n.EX\n").expect("code below the comment");
        let code = rest.split_once("\n.EE").expect("an end of the code").0.replace("\\e", "\\").replace("\\-", "-");
        let (unit, program) = (dir.path().join(name), dir.path().join(name).with_extension(""));
        std::fs::write(&unit, format!("{code}\n")).unwrap();
        for compilers in compilers() {
            let mut command = compiler_of(name, compilers);
            command.arg("-o").arg(&program).arg(&unit).args(link_flags(Link::Shared));
            succeed(command.arg(format!("-Wl,-rpath,{}", installed().prefix.join("lib").display())));
            let trace = dir.path().join(format!("trace-{name}-{}", compilers.0));
            succeed(record(&trace).arg("--").arg(&program));
            let (events, lost) = read(&trace);
            let expected: &[&str] = match name {
                "jobs.c" => &["job:moved", "job:read", "job:moved", "job:idle"],
                _ => &["road:changed"],
            };
            let found: Vec<&str> = events.iter().map(|line| line.split(' ').next().unwrap()).collect();
            assert_eq!((found.as_slice(), lost), (expected, 0), "{events:?}");
            let view =
                stdout(&succeed(Command::new(&installed().dormouse).args(["view", "--format", "people"]).arg(&trace)));
            let label = if name == "jobs.c" { "to=FINISHED" } else { "to=green" };
            assert!(view.contains(label), "{view}");
        }
        all += &code;
    }
    let header = std::fs::read_to_string(installed().prefix.join("include/dormouse/event.h")).unwrap();
    let defines = header.lines().filter_map(|line| line.strip_prefix("#define ")?.split_once('('));
    let macros = defines.map(|(name, _)| name).filter(|name| !name.contains("_I_"));
    let macros: std::collections::BTreeSet<&str> = macros.collect();
    assert!(macros.len() >= 4, "{macros:?}");
    for name in macros {
        assert!(all.contains(&format!("{name}(")), "no example of {name}");
    }
    if has_part("groff") {
        let output = succeed(Command::new("groff").args(["-man", "-ww", "-z", "-Tutf8"]).arg(&file));
        assert_eq!(String::from_utf8_lossy(&output.stderr), "");
    }
}

#[test]
fn the_installed_tree_may_be_moved() {
    let text = std::fs::read_to_string(installed().prefix.join("lib/pkgconfig/dormouse.pc")).unwrap();
    assert!(text.starts_with("prefix=${pcfiledir}/../..\n") && !text.contains('@'), "{text}");
    let config = installed().prefix.join("lib/cmake/Dormouse/DormouseConfig.cmake");
    let text = std::fs::read_to_string(config).unwrap();
    assert!(text.contains("CMAKE_CURRENT_LIST_DIR") && !text.contains('@'), "{text}");
    for name in ["dormouse", "dormouse-imv"] {
        let version = pkg_config(&installed().prefix, &["--modversion", name]);
        assert_eq!(version, [env!("CARGO_PKG_VERSION")]);
    }
    let header = std::fs::read_to_string(installed().prefix.join("include/dormouse/dormouse.h")).unwrap();
    assert!(header.contains(&format!("#define DORMOUSE_VERSION \"{}\"", env!("CARGO_PKG_VERSION"))));
}

/// Returns the size in bytes and the number of relocations of a shared object with `count` tracepoints of two fields,
/// in C.
fn weigh(dir: &Path, compiler: &str, count: u64, option: &str) -> [u64; 2] {
    let events = (0..count).map(|index| {
        format!("void f{index}(unsigned long id, int n) {{ DORMOUSE_EVENT(shop, order_{index}, (order_id, id), (total, n)); }}\n")
    });
    let (source, object) = (dir.join("weigh.c"), dir.join("weigh.so"));
    std::fs::write(&source, format!("#include <dormouse/event.h>\n{}", events.collect::<String>())).unwrap();
    let mut command = Command::new(compiler);
    command.args(["-std=gnu11", "-O2", "-fPIC", "-shared", option, "-o"]).arg(&object).arg(&source);
    succeed(command.args(link_flags(Link::Shared)));
    let bytes = stdout(&succeed(Command::new("size").arg(&object)));
    let bytes = bytes.lines().nth(1).and_then(|line| line.split_whitespace().nth(3)).unwrap().parse().unwrap();
    let relocations = stdout(&succeed(Command::new("readelf").arg("-rW").arg(&object)));
    [bytes, relocations.lines().filter(|line| line.contains("_RELATIVE")).count() as u64]
}

#[test]
fn a_tracepoint_weighs_little() {
    let dir = tempfile::tempdir().unwrap();
    for (compiler, _) in compilers() {
        let added = [50, 250].map(|count| {
            let [with, without] =
                ["-UDORMOUSE_DISABLE", "-DDORMOUSE_DISABLE"].map(|option| weigh(dir.path(), compiler, count, option));
            [with[0] - without[0], with[1] - without[1]]
        });
        let bytes = (added[1][0] - added[0][0]) as f64 / 200.0;
        println!("{compiler}: {bytes} bytes");
        // AArch64's instructions all have four bytes.
        let bytes_max = if cfg!(target_arch = "x86_64") { 180.0 } else { 190.0 };
        assert!(bytes <= bytes_max, "{compiler}: {bytes} bytes");
        assert_eq!(added[1][1], added[0][1], "{compiler}: relocations");
    }
}

#[test]
fn headers_and_rust_agree_on_layouts() {
    let mut lines = vec![
        format!("sizeof dormouse_class {}", size_of::<CClass>()),
        format!("sizeof dormouse_event_record {}", size_of::<EventRecord>()),
        format!("DORMOUSE_KIND_SEQUENCE {SEQUENCE}"),
        format!("DORMOUSE_KIND_LABELLED {LABELLED}"),
        format!("DORMOUSE_LABEL_COUNT_MAX {LABEL_COUNT_MAX}"),
        format!("DORMOUSE_FIELD_COUNT_MAX {FIELD_COUNT_MAX}"),
        format!("DORMOUSE_NAME_LEN_MAX {NAME_LEN_MAX}"),
        format!("DORMOUSE_CLASS_ID_NONE {CLASS_ID_NONE}"),
    ];
    let mut offsets = |name: &str, fields: &[(&str, usize)]| {
        lines.extend(fields.iter().map(|(field, offset)| format!("offsetof dormouse_{name}.{field} {offset}")));
    };
    macro_rules! offsets_of {
        ($type:ty: $($field:ident),*) => { [$((stringify!($field), offset_of!($type, $field))),*] };
    }
    offsets("class", &offsets_of!(CClass: enabled, id));
    offsets("event_record", &offsets_of!(EventRecord: key, describe));
    lines.extend(Kind::ALL.map(|kind| format!("DORMOUSE_KIND_{} {}", format!("{kind:?}").to_uppercase(), kind as u8)));
    lines.extend(Level::ALL.map(|level| format!("DORMOUSE_LEVEL_{} {}", level.name(), level as u8)));
    lines.sort();

    let dir = tempfile::tempdir().unwrap();
    for compilers in compilers() {
        let program = dir.path().join("layout");
        let mut command = compiler_of("layout.c", compilers);
        command.arg(source("layout.c")).arg("-o").arg(&program).args(link_flags(Link::Shared));
        succeed(command.arg(format!("-Wl,-rpath,{}", installed().prefix.join("lib").display())));
        let printed = stdout(&succeed(&mut Command::new(program)));
        let mut printed: Vec<_> = printed.lines().map(String::from).collect();
        printed.sort();
        assert_eq!(printed, lines);
    }
}

/// Compiles a program of one file as C and as C++, by every compiler, and calls `check` with each program and an empty
/// directory.
fn in_both_languages(name: &str, check: impl Fn(&Path, &Path)) {
    for (c, cpp) in compilers() {
        for (compiler, language) in [(c, &["-std=c11"][..]), (cpp, &["-x", "c++", "-std=c++17"])] {
            for level in ["-O0", "-O2"] {
                let place = tempfile::tempdir().unwrap();
                let program = place.path().join("program");
                let mut compile = Command::new(compiler);
                compile.args(language).arg(level).args(WARNINGS).arg("-I").arg(installed().prefix.join("include"));
                compile.arg(source(name)).args(["-x", "none", "-o"]).arg(&program).args(link_flags(Link::Shared));
                succeed(compile.arg(format!("-Wl,-rpath,{}", installed().prefix.join("lib").display())));
                check(&program, place.path());
            }
        }
    }
}

/// Programs in C and C++ print the labels that they record: the traces have the same ones, also for babeltrace2.
#[test]
fn enumerations_are_shown_by_name() {
    in_both_languages("states.c", shows_states);
}

/// The file, the rules of a session, the trace and babeltrace2 know an event's level.
#[test]
fn events_have_their_levels() {
    in_both_languages("levels.c", has_levels);
}

/// Levels of the events of `levels.c`, by name.
const LEVELS: [(&str, Option<Level>); 7] = [
    ("levels:emerg", Some(Level::Emerg)),
    ("levels:err", Some(Level::Err)),
    ("levels:warning", Some(Level::Warning)),
    ("levels:debug_line", Some(Level::DebugLine)),
    ("levels:debug", Some(Level::Debug)),
    ("levels:nothing", Some(Level::Info)),
    ("levels:plain", None),
];

fn has_levels(program: &Path, place: &Path) {
    let list = stdout(&succeed(Command::new(&installed().dormouse).args(["list", "--json"]).arg(program)));
    let list: serde_json::Value = serde_json::from_str(&list).unwrap();
    let listed = list["classes"].as_array().unwrap();
    assert_eq!(listed.len(), LEVELS.len(), "{list}");
    for (name, level) in LEVELS {
        let class = listed.iter().find(|class| class["name"] == name).unwrap_or_else(|| panic!("{name}: {list}"));
        assert_eq!(class["level"].as_str(), level.map(Level::name), "{name}");
    }

    let all = place.join("all");
    succeed(record(&all).arg("--").arg(program));
    let metadata = Metadata::parse(&std::fs::read_to_string(all.join("metadata")).unwrap()).unwrap();
    for class in metadata.classes.events() {
        let (_, level) = LEVELS.iter().find(|(name, _)| *name == class.full_name).unwrap();
        assert_eq!(class.level, *level, "{}", class.full_name);
    }
    assert_eq!(metadata.classes.events().count(), LEVELS.len());
    let viewed = |filter: &str| {
        let view = succeed(Command::new(&installed().dormouse).args(["view", "--where", filter]).arg(&all));
        stdout(&view).lines().count()
    };
    // Three rounds. An event without a level matches no condition on it.
    for (filter, classes) in
        [("level <= 4", 3), ("level == \"INFO\"", 1), ("level ~ \"DEBUG*\"", 2), ("not level < 6", 3)]
    {
        assert_eq!(viewed(filter), 3 * classes, "{filter}");
    }

    let rules = [
        ("levels:* level<=WARNING", 0..=4),
        ("levels:* level==info", 6..=6),
        ("levels:* level<=14 where number == 13", 13..=13),
    ];
    for (index, (rule, wanted)) in rules.into_iter().enumerate() {
        let trace = place.join(format!("trace-{index}"));
        succeed(record(&trace).args(["-e", rule, "--"]).arg(program));
        let (events, lost) = read(&trace);
        let mut found: Vec<&str> = events.iter().map(|line| line.split(' ').next().unwrap()).collect();
        found.sort();
        let wanted = LEVELS.iter().filter(|(_, level)| level.is_some_and(|level| wanted.contains(&(level as u8))));
        let mut wanted: Vec<&str> = wanted.flat_map(|(name, _)| [*name; 3]).collect();
        wanted.sort();
        assert_eq!((found, lost), (wanted, 0), "{rule}");
    }

    if has_part("babeltrace2") {
        let text = stdout(&succeed(Command::new("babeltrace2").args(["--fields", "loglevel"]).arg(&all)));
        for (name, level) in LEVELS {
            let line = text.lines().find(|line| line.contains(&format!("{name}:"))).unwrap();
            let told = level.map(|level| format!("TRACE_{} ({})", level.name(), level as u8));
            assert_eq!(line.contains("TRACE_"), told.is_some(), "{line}");
            assert!(told.is_none_or(|told| line.contains(&told)), "{line}");
        }
    }
}

fn shows_states(program: &Path, place: &Path) {
    let trace = place.join("trace");
    let printed = stdout(&succeed(record(&trace).arg("--").arg(program)));
    let told: Vec<&str> = printed.lines().collect();
    let text = stdout(&succeed(
        Command::new(&installed().dormouse).args(["view", "--format", "json", "-e", "job:*"]).arg(&trace),
    ));
    let word = |value: &serde_json::Value| value.as_str().map_or_else(|| value.to_string(), String::from);
    let shown = |line: &str| {
        let event: serde_json::Value = serde_json::from_str(line).unwrap();
        let fields = &event["fields"];
        match event["event"].as_str().unwrap() {
            "job:moved" => format!("moved {} {} {}", fields["id"], word(&fields["from"]), word(&fields["to"])),
            _ => format!("level {}", word(&fields["level"])),
        }
    };
    assert_eq!(text.lines().map(shown).collect::<Vec<_>>(), told);

    let count = |filter: &str| {
        let view = succeed(Command::new(&installed().dormouse).args(["view", "--where", filter]).arg(&trace));
        stdout(&view).lines().count()
    };
    assert_eq!(count("to == \"FINISHED\""), told.iter().filter(|line| line.ends_with(" FINISHED")).count());
    assert_eq!(count("level == \"HIGH\""), told.iter().filter(|line| **line == "level HIGH").count());
    assert_eq!(count("level == 77"), told.iter().filter(|line| **line == "level 77").count());

    if has_part("babeltrace2") {
        let text = stdout(&succeed(Command::new("babeltrace2").arg(&trace)));
        for (label, part) in [
            ("RUNNING", "to = ( \"RUNNING\" : container = 7 )"),
            ("HIGH", "level = ( \"HIGH\" : container = 4294967294 )"),
        ] {
            let expected = told.iter().filter(|line| line.ends_with(&format!(" {label}"))).count();
            assert_eq!(text.lines().filter(|line| line.contains(part)).count(), expected, "{text}");
        }
        assert!(text.contains("level = ( <unknown> : container = 77 )"), "{text}");
    }
}

/// Labels of values that are no integers do not compile; labels that no trace can hold are reported by the session.
#[test]
fn labels_that_no_trace_can_hold_are_refused() {
    let place = tempfile::tempdir().unwrap();
    for compilers in compilers() {
        for unit in ["unit.c", "unit.cc"] {
            let path = place.path().join(unit);
            let compiles = |field: &str| {
                let body =
                    format!("enum e {{ A, B }};\nvoid f(void);\nvoid f(void) {{ DORMOUSE_EVENT(p, e, {field}); }}\n");
                std::fs::write(&path, format!("#include <dormouse/event.h>\n{body}")).unwrap();
                let output = compiler_of(unit, compilers).arg("-fsyntax-only").arg(&path).output().unwrap();
                (output.status.success(), String::from_utf8_lossy(&output.stderr).into_owned())
            };
            assert_eq!(compiles("(DORMOUSE_ENUM(f, A, B), A)"), (true, String::new()));
            for value in ["1.5", "\"text\"", "(void *)0"] {
                let (is_compiled, text) = compiles(&format!("(DORMOUSE_ENUM(f, A, B), {value})"));
                assert!(!is_compiled && text.contains("only an integer or an enumeration can have labels"), "{text}");
            }
        }
    }
    let (unit, program, trace) =
        (place.path().join("refused.c"), place.path().join("refused"), place.path().join("trace"));
    let text = "#include <dormouse/event.h>\nenum { A = 300 };\nint main(void)\n{\n\
        DORMOUSE_EVENT(p, twice, (DORMOUSE_ENUM(f, A, (\"A\", 1)), A));\n\
        DORMOUSE_EVENT(p, name, (DORMOUSE_ENUM(f, (\"a b\", 1)), A));\n\
        DORMOUSE_EVENT(p, small, (DORMOUSE_ENUM(f, A), (char)1));\n\
        DORMOUSE_EVENT(p, fit, (DORMOUSE_ENUM(f, A), A));\nreturn 0;\n}\n";
    std::fs::write(&unit, text).unwrap();
    let mut command = compiler_of("refused.c", compilers()[0]);
    command.arg("-o").arg(&program).arg(&unit).args(link_flags(Link::Shared));
    succeed(command.arg(format!("-Wl,-rpath,{}", installed().prefix.join("lib").display())));
    let recorded = succeed(record(&trace).arg("--").arg(&program));
    assert_eq!(read(&trace).0, ["p:fit f=I32(300)"]);
    let said = String::from_utf8_lossy(&recorded.stderr);
    for reason in [
        "its field f has the label A twice",
        "its field f has the label `a b`",
        "its field f cannot hold 300, the value of the label A, in its 8 bits",
    ] {
        assert!(said.contains(reason), "{said}");
    }
}

#[test]
fn programs_ask_for_snapshots() {
    for (c, cpp) in compilers() {
        for (compiler, standard) in [(c, &["-std=c11"][..]), (cpp, &["-x", "c++", "-std=c++17"])] {
            let place = tempfile::tempdir().unwrap();
            let program = place.path().join("snapshot");
            let mut compile = Command::new(compiler);
            compile.args(standard).args(WARNINGS).arg("-I").arg(installed().prefix.join("include"));
            compile.arg(source("snapshot.c")).args(["-x", "none", "-o"]).arg(&program).args(link_flags(Link::Shared));
            succeed(compile.arg(format!("-Wl,-rpath,{}", installed().prefix.join("lib").display())));
            succeed(&mut Command::new(&program));

            let (trace, taken) = (place.path().join("trace"), place.path().join("taken"));
            let mut command = record(&trace);
            command.args(["--mode", "overwrite", "--"]).arg(&program).arg("take").arg(&taken);
            let beside = place.path().join("trace-snapshot-1");
            assert_eq!(stdout(&succeed(&mut command)).trim(), beside.to_str().unwrap());
            let count = |dir: &Path| read(dir).0.iter().filter(|event| event.starts_with("test:step")).count();
            assert_eq!((count(&taken), count(&beside), count(&trace)), (100, 200, 200));

            let aborted = place.path().join("aborted");
            let mut command = record(&aborted);
            command.args(["--mode", "overwrite", "--"]).arg(&program).arg("abort");
            assert_eq!(command.output().unwrap().status.code(), Some(128 + libc::SIGABRT));
            let events = read(&place.path().join("aborted-snapshot-1")).0;
            assert_eq!(
                events.iter().rfind(|event| event.starts_with("test:step")).unwrap(),
                "test:step number=I32(99)"
            );
        }
    }
}

/// Actions of the crash program, each with the signal of the crash if it ends by one.
const CRASHES: [(&str, Option<&str>); 27] = [
    ("fix", None),
    ("fix-open", None),
    ("fix-then-trap", Some("SIGILL")),
    ("fix-and-reset", None),
    ("fix-and-reset-then-fault", Some("SIGSEGV")),
    ("reset", Some("SIGSEGV")),
    ("reset-and-raise", Some("SIGSEGV")),
    ("once", None),
    ("once-then-fault", Some("SIGSEGV")),
    ("strict", Some("SIGSEGV")),
    ("jump", None),
    ("jump-then-exit", None),
    ("jump-then-fault", Some("SIGSEGV")),
    ("overflow", None),
    ("chain", None),
    ("chain-to-default", Some("SIGSEGV")),
    ("exit", Some("SIGSEGV")),
    ("exit-at-once", Some("SIGSEGV")),
    ("abort", Some("SIGABRT")),
    ("abort-handled", Some("SIGABRT")),
    ("abort-jump", None),
    ("raise-handled", None),
    ("kill", Some("SIGSEGV")),
    ("kill-handled", None),
    ("ignored", None),
    ("ignored-fault", Some("SIGSEGV")),
    ("threads", Some("SIGSEGV")),
];

/// Runs the crash program in each way, alone and recorded: it ends in the same way. If it ends by a crash, it leaves a
/// snapshot that contains its last event, otherwise none.
fn crash(program: &Path, options: &[&str], last: &str) {
    let more = [("child", Some("SIGSEGV"))];
    for (what, signal) in CRASHES.iter().chain(&more) {
        for when in ["before", "after"] {
            let way = format!("{what} {when} {options:?}");
            let run = |command: &mut Command| command.output().unwrap();
            let alone = run(Command::new(program).args([what, when]));
            let code = alone.status.code().or_else(|| Some(128 + alone.status.signal()?));
            assert!(!(90..100).contains(&code.unwrap()), "{way}: {alone:?}");
            let dir = tempfile::tempdir().unwrap();
            let trace = dir.path().join("trace");
            let mut command = record(&trace);
            command.args(["--mode", "overwrite", "--snapshot-on", "crash"]).args(options).arg("--").arg(program);
            let recorded = run(command.args([what, when]));
            assert_eq!((recorded.status.code(), &recorded.stdout), (code, &alone.stdout), "{way}: {recorded:?}");
            let snapshot = |number: u32| dir.path().join(format!("trace-snapshot-{number}"));
            assert!(!snapshot(1 + u32::from(signal.is_some())).exists(), "{way}: {recorded:?}");
            let Some(signal) = signal else { continue };
            assert!(snapshot(1).exists(), "{way}: {recorded:?}");
            let view = succeed(Command::new(&installed().dormouse).arg("view").arg(snapshot(1)));
            let text = stdout(&view);
            let of_trigger = format!("trigger = \"{signal}\"");
            assert!(text.contains(last) && text.contains(&of_trigger), "{way}: {text}");
        }
    }
}

#[test]
fn a_snapshot_of_a_crash_is_that_of_the_fault_that_ends_the_program() {
    let dir = tempfile::tempdir().unwrap();
    let build = |link: Link| {
        let program = dir.path().join(format!("{link:?}"));
        let mut command = Command::new(compilers()[0].0);
        command.args(WARNINGS).args(["-Wno-infinite-recursion", "-std=gnu11", "-O1", "-o"]).arg(&program);
        command.arg(source("crashes.c")).args(link_flags(link)).arg("-pthread");
        succeed(command.arg(format!("-Wl,-rpath,{}", installed().prefix.join("lib").display())));
        program
    };
    crash(&build(Link::Shared), &[], "crash:last");
}

/// Runs the program that locks its memory, alone and recorded: the kernel gives the same result, nothing of the
/// session's memory is locked, and each event is in the trace or counted as lost.
#[test]
fn a_program_locks_its_memory_as_without_a_session() {
    let dir = tempfile::tempdir().unwrap();
    let program = dir.path().join("locks");
    let mut command = Command::new(compilers()[0].0);
    command.args(WARNINGS).args(["-std=gnu11", "-O1", "-o"]).arg(&program).arg(source("locks.c"));
    command.args(link_flags(Link::Shared)).arg("-pthread");
    succeed(command.arg(format!("-Wl,-rpath,{}", installed().prefix.join("lib").display())));
    let (current, future, on_fault) = (libc::MCL_CURRENT, libc::MCL_FUTURE, libc::MCL_ONFAULT);
    for flags in
        [&[current][..], &[current | future], &[future], &[future, current | future], &[current | on_fault], &[0]]
    {
        let arguments: Vec<String> = flags.iter().map(i32::to_string).collect();
        let mut command = Command::new(&program);
        let alone = command.args(&arguments).env("DORMOUSE_LISTEN", "0").output().unwrap();
        if alone.status.code() == Some(77) {
            let reason = format!("the limit of locked memory is too low for this program: {}", stdout(&alone).trim());
            return skip_part("mlockall", Lack::machine(reason, "raise it (`ulimit -l`)"));
        }
        assert!(alone.status.success(), "{arguments:?}: {alone:?}");
        let trace = dir.path().join(format!("trace-{}", arguments.join("-")));
        let recorded = succeed(record(&trace).arg("--").arg(&program).args(&arguments));
        assert_eq!(stdout(&recorded), stdout(&alone), "{arguments:?}");
        let said = String::from_utf8(recorded.stderr).unwrap();
        assert_eq!((number(&said, "locked"), number(&said, "less")), (0, 0), "{arguments:?}: {said}");
        let (events, lost) = read(&trace);
        assert_eq!(events.len() as u64 + lost, number(&said, "emitted"), "{arguments:?}: {lost} lost");
    }
}

/// A program that lists its descriptors by `opendir` does not find the session's memory, and programs that it executes
/// are still recorded.
#[test]
fn a_program_lists_its_descriptors_as_without_a_session() {
    let dir = tempfile::tempdir().unwrap();
    for (name, link, flag) in
        [("shared", Link::Shared, None), ("archive", Link::Static, None), ("static", Link::Static, Some("-static"))]
    {
        let program = dir.path().join(name);
        let mut command = Command::new(compilers()[0].0);
        command.args(WARNINGS).args(["-std=gnu11", "-O1", "-o"]).arg(&program).arg(source("descriptors.c"));
        command.args(link_flags(link)).args(flag).arg("-pthread");
        command.arg(format!("-Wl,-rpath,{}", installed().prefix.join("lib").display()));
        if flag.is_some() && !command.output().unwrap().status.success() {
            return skip_part(
                "with a static libc",
                Lack::tool("gcc links no static program", "`apt-get install libc6-dev`"),
            );
        }
        succeed(&mut command);
        let alone = succeed(&mut Command::new(&program));
        assert_eq!(stdout(&alone).lines().filter(|line| line.ends_with(" 4242")).count(), 2, "{alone:?}");
        let trace = dir.path().join(format!("trace-{name}"));
        let recorded = succeed(record(&trace).arg("--").arg(&program));
        assert_eq!(stdout(&recorded), stdout(&alone), "{name}");
        let mut events = read(&trace).0;
        events.sort();
        assert_eq!(events, ["test:listed count=I32(1)", "test:listed count=I32(2)"], "{name}");
    }
}
