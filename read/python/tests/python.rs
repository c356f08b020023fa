//! Runs the Python tests in this directory, in an environment with the libraries that use the package's columns.
//!
//! Packages that cannot be installed from the registry are named, and their tests count as skipped.

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::OnceLock;

use dormouse_abi::class::{FieldType, Kind};
use dormouse_ctf::{StateRecord, Value};
use dormouse_testing::{Lack, skip, skip_part};
use dormouse_traces::{TraceBuilder, write_ctf2};

/// Packages to install, and the modules to import for each.
const PACKAGES: [(&str, &str); 7] = [
    ("pyarrow", "pyarrow"),
    ("pandas", "pandas"),
    ("polars", "polars"),
    ("duckdb", "duckdb"),
    ("maturin", "maturin"),
    ("mypy", "mypy"),
    ("nbclient ipykernel", "nbclient, ipykernel"),
];

fn here(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}

/// Returns cargo's build directory for this profile.
fn target_dir() -> PathBuf {
    let program = std::env::current_exe().unwrap();
    program.parent().and_then(Path::parent).unwrap().to_path_buf()
}

fn run(command: &mut Command) -> Option<Output> {
    command.stdin(Stdio::null()).output().ok()
}

/// Returns an interpreter in an environment with the available packages, or `None` if there is no environment.
fn python() -> Option<&'static Path> {
    static PYTHON: OnceLock<Option<PathBuf>> = OnceLock::new();
    let make = || {
        let dir = target_dir().join("python-tests");
        let python = dir.join("bin/python");
        if !run(Command::new(&python).arg("-V")).is_some_and(|output| output.status.success()) {
            let made = run(Command::new("python3").args(["-m", "venv", "--clear"]).arg(&dir))?;
            if !made.status.success() {
                return None;
            }
        }
        let missing: Vec<&str> =
            PACKAGES.iter().filter(|(_, modules)| !imports(&python, modules)).map(|(names, _)| *names).collect();
        let install = |names: &[&str]| {
            let mut pip = Command::new(&python);
            pip.args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--prefer-binary"]);
            // Without a registry, pip should fail quickly.
            pip.args(["--retries", "1", "--timeout", "30", "--only-binary", ":all:"]);
            pip.args(names.iter().flat_map(|names| names.split(' ')));
            run(&mut pip).is_some_and(|output| output.status.success())
        };
        // If one package is unavailable, pip installs none: install them one by one.
        if !missing.is_empty() && !install(&missing) {
            missing.iter().for_each(|names| {
                install(&[names]);
            });
        }
        Some(python)
    };
    PYTHON.get_or_init(make).as_deref()
}

fn imports(python: &Path, modules: &str) -> bool {
    run(Command::new(python).args(["-c", &format!("import {modules}")])).is_some_and(|output| output.status.success())
}

fn lack(modules: &str) -> Lack {
    Lack::machine(format!("Python has no {modules}"), format!("`pip install {}`", modules.replace(',', "")))
}

/// Returns an interpreter that can import these modules. Otherwise the test is skipped.
fn with(modules: &str) -> Option<&'static Path> {
    let Some(python) = python() else {
        skip(Lack::machine("python3 makes no environment (venv)", "`apt-get install python3 python3-venv`"));
        return None;
    };
    if !modules.is_empty() && !imports(python, modules) {
        skip(lack(modules));
        return None;
    }
    Some(python)
}

/// Returns the path of the module, which cargo does not build for these tests by itself.
fn library() -> PathBuf {
    static BUILT: OnceLock<()> = OnceLock::new();
    BUILT.get_or_init(|| {
        if std::env::var_os("DORMOUSE_BUILT").is_none() {
            let profile = if target_dir().ends_with("release") { "release" } else { "dev" };
            let mut cargo = Command::new(env!("CARGO"));
            cargo.args(["build", "--quiet", "--lib", "--profile", profile, "--manifest-path"]);
            succeeds(cargo.arg(here("Cargo.toml")));
        }
    });
    target_dir().join("lib_dormouse.so")
}

/// Makes a directory with the package, as installed, with the built module, and with traces to read.
fn stage() -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    let package = dir.path().join("dormouse");
    std::fs::create_dir(&package).unwrap();
    for entry in std::fs::read_dir(here("python/dormouse")).unwrap().map(Result::unwrap) {
        if entry.file_type().unwrap().is_file() {
            std::fs::copy(entry.path(), package.join(entry.file_name())).unwrap();
        }
    }
    std::fs::copy(library(), package.join("_dormouse.abi3.so")).unwrap();
    write_traces(dir.path());
    dir
}

/// A trace whose events have a structure and an array.
const PARTS: &str = r#"/* CTF 1.8 */
trace { major = 1; minor = 8; byte_order = le; };
stream { event.header := struct { integer { size = 8; align = 8; } id; } align(8); };
event {
    id = 0; name = "moved";
    fields := struct {
        struct { integer { size = 8; align = 8; } x; integer { size = 8; align = 8; } y; } at;
        integer { size = 8; align = 8; } a[3];
    };
};
"#;

/// Writes `trace`: 1,000 requests with their ends on two CPUs, a process, losses; `damaged`: its second CPU ends within
/// a packet; and `parts`: [`PARTS`].
fn write_traces(dir: &Path) {
    let parts = dir.join("parts");
    std::fs::create_dir(&parts).unwrap();
    std::fs::write(parts.join("metadata"), PARTS).unwrap();
    std::fs::write(parts.join("stream"), [0, 1, 2, 3, 4, 5, 0, 6, 7, 8, 9, 10]).unwrap();
    let mut builder = TraceBuilder::new();
    let begin = builder.class(
        "http",
        "request",
        &[
            ("id", FieldType::scalar(Kind::U64)),
            ("path", FieldType::scalar(Kind::Str)),
            ("is_tls", FieldType::scalar(Kind::Bool)),
        ],
    );
    let end = builder.class(
        "http",
        "response",
        &[
            ("id", FieldType::scalar(Kind::U64)),
            ("seconds", FieldType::scalar(Kind::F64)),
            ("body", FieldType::scalar(Kind::Bytes)),
        ],
    );
    let (name, program) = ("server", "/usr/bin/server");
    builder.state(0, &StateRecord::Process { process: 1, pid: 12, vpid: 12, name, program, command_line: program });
    builder.state(9_000_000, &StateRecord::Lost { reason: "disk full", count: 3 });
    builder.state(9_000_000, &StateRecord::LostClass { class: "http:request", count: 3 });
    let streams = [builder.stream(0), builder.stream(1)];
    for id in 0..1000u64 {
        let (stream, tid) = (streams[(id % 2) as usize], 13 + (id % 2) as u32);
        let path = format!("/{id}");
        let values = [Value::U64(id), Value::Str(path.as_bytes()), Value::Bool((id % 2) as u8)];
        builder.event(stream, 1000 * id, 12, tid, begin, &values);
        let values = [Value::U64(id), Value::F64(id as f64), Value::Bytes(b"\xff\0")];
        builder.event(stream, 1000 * id + 500, 12, tid, end, &values);
    }
    let trace = builder.finish();
    for (name, cut) in [("trace", 0), ("damaged", 10)] {
        let dir = dir.join(name);
        std::fs::create_dir(&dir).unwrap();
        std::fs::write(dir.join("metadata"), &trace.metadata).unwrap();
        for (name, bytes) in ["state", "cpu_0", "cpu_1"].iter().zip(&trace.streams) {
            let cut = if *name == "cpu_1" { cut } else { 0 };
            std::fs::write(dir.join(name), &bytes[..bytes.len() - cut]).unwrap();
        }
    }
}

fn succeeds(command: &mut Command) -> String {
    let output = run(command).unwrap_or_else(|| panic!("{command:?} cannot be run"));
    let text = [output.stdout, output.stderr].map(|text| String::from_utf8_lossy(&text).into_owned()).concat();
    assert!(output.status.success(), "{command:?}\n{text}");
    text
}

/// Runs a class of tests in `test_dormouse.py`.
fn tests(modules: &str, class: &str) {
    let Some(python) = with(modules) else { return };
    let stage = stage();
    let mut command = Command::new(python);
    command.args(["-m", "unittest", "-v", &format!("test_dormouse.{class}")]).current_dir(here("tests"));
    command.env("PYTHONPATH", stage.path()).env("DORMOUSE_TEST_TRACES", stage.path());
    command.env("PYTHONDONTWRITEBYTECODE", "1");
    let text = succeeds(&mut command);
    // A class without tests would also succeed.
    assert!(text.contains("Ran ") && !text.contains("Ran 0 tests"), "{text}");
}

#[test]
fn python_objects_behave_as_documented() {
    tests("", "Objects");
}

#[test]
fn errors_are_exceptions() {
    tests("", "Errors");
}

#[test]
fn pyarrow_takes_the_columns() {
    tests("pyarrow", "Pyarrow");
}

#[test]
fn pandas_takes_the_columns() {
    tests("pandas, pyarrow", "Pandas");
}

#[test]
fn polars_takes_the_columns() {
    tests("polars", "Polars");
}

#[test]
fn duckdb_takes_the_columns() {
    tests("duckdb, pyarrow", "Duckdb");
}

/// A trace by LTTng, and kinds of fields that only CTF 2 has.
#[test]
fn traces_of_other_tracers_are_read() {
    let Some(python) = with("") else { return };
    let stage = stage();
    let others = stage.path().join("others");
    std::fs::create_dir(&others).unwrap();
    let lttng = dormouse_testing::lttng::sample(&others);
    if let Some(trace) = &lttng {
        std::fs::rename(trace, others.join("lttng")).unwrap();
    }
    let has_lttng = lttng.is_some();
    write_ctf2(&others.join("ctf2"));
    let mut command = Command::new(python);
    command.args(["-m", "unittest", "-v", "test_dormouse.Ctf2"]).args(has_lttng.then_some("test_dormouse.Lttng"));
    command.current_dir(here("tests")).env("PYTHONPATH", stage.path()).env("DORMOUSE_TEST_TRACES", &others);
    let text = succeeds(command.env("PYTHONDONTWRITEBYTECODE", "1"));
    assert!(text.contains(if has_lttng { "Ran 2 tests" } else { "Ran 1 test" }), "{text}");
}

/// Runs the notebook with nbclient, as Jupyter does, or its cells one after another if nbclient is not available.
#[test]
fn the_notebook_runs() {
    let Some(python) = with("pandas, pyarrow") else { return };
    if !imports(python, "nbclient, ipykernel") {
        skip_part("running the notebook in Jupyter", lack("nbclient, ipykernel"));
    }
    let stage = stage();
    let mut command = Command::new(python);
    command.arg(here("tests/run_notebook.py")).arg(here("examples/latency.ipynb"));
    command.env("PYTHONPATH", stage.path()).env("DORMOUSE_TRACE", stage.path().join("trace"));
    let text = succeeds(&mut command);
    assert!(text.contains("cells have run"), "{text}");
}

/// The stub declares the types of the module.
#[test]
fn the_stub_matches_the_module() {
    let Some(python) = with("mypy") else { return };
    let stage = stage();
    let mut command = Command::new(python);
    command.args(["-m", "mypy.stubtest", "dormouse", "--ignore-disjoint-bases"]).current_dir(stage.path());
    succeeds(command.env("PYTHONPATH", stage.path()).env("MYPYPATH", stage.path()));
}

/// maturin makes one wheel for all Pythons from 3.9 on, which includes the type stub.
#[test]
fn a_wheel_is_built() {
    let Some(python) = with("maturin") else { return };
    let out = tempfile::tempdir().unwrap();
    let mut command = Command::new(python);
    command.args(["-m", "maturin", "build", "--profile", "dev", "--locked", "--out"]).arg(out.path());
    command.args(["--interpreter"]).arg(python);
    // maturin requires all crates in the lock file, so those for other systems are fetched if needed. The target
    // directory differs from cargo's, because other build settings would make it recompile the Python parts each time.
    let target = target_dir().join("python-wheel");
    command.arg("--manifest-path").arg(here("Cargo.toml")).env("CARGO_TARGET_DIR", target);
    succeeds(&mut command);
    let name = std::fs::read_dir(out.path()).unwrap().next().unwrap().unwrap().file_name();
    let name = name.to_string_lossy();
    assert!(name.starts_with("dormouse-") && name.contains("-cp39-abi3-"), "{name}");
    let list = "import sys, zipfile; print(*zipfile.ZipFile(sys.argv[1]).namelist(), sep='\\n')";
    let files = succeeds(Command::new(python).args(["-c", list]).arg(out.path().join(&*name)));
    for file in ["__init__.py", "_dormouse.abi3.so", "_dormouse.pyi", "py.typed"] {
        assert!(files.lines().any(|line| line == format!("dormouse/{file}")), "{file}: {files}");
    }
}
