//! Each mechanism, installed alone: the programs in its README build by the README's lines, its examples in C by the line in
//! their comment, all run, and nothing is left after the mechanism was removed.
#![cfg(all(target_arch = "x86_64", target_os = "linux"))]

use std::fs;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use dormouse_install::{MECHANISMS, install_mechanism, uninstall};
use dormouse_testing::programs::steer;
use dormouse_testing::wait_until;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Returns the directory that cargo has built into with the profile of this test.
fn built() -> PathBuf {
    std::env::current_exe().unwrap().ancestors().nth(2).unwrap().into()
}

fn readme(name: &str) -> String {
    fs::read_to_string(root().join("mechanisms").join(name).join("README.md")).unwrap()
}

/// Returns the blocks of code in that language, each with the text before it.
fn blocks<'a>(readme: &'a str, language: &str) -> Vec<(&'a str, &'a str)> {
    let fence = format!("\n```{language}\n");
    let mut rest = readme;
    let blocks: Vec<_> = std::iter::from_fn(|| {
        let (before, code) = rest.split_once(&fence)?;
        let (code, after) = code.split_once("\n```")?;
        rest = after;
        Some((before, code))
    })
    .collect();
    assert!(!blocks.is_empty(), "no program in {language}");
    blocks
}

/// Returns the names of the examples of a mechanism in C.
fn examples(name: &str) -> Vec<String> {
    let files = fs::read_dir(root().join("mechanisms").join(name).join("examples")).into_iter().flatten();
    let names = files.map(|file| file.unwrap().file_name().into_string().unwrap());
    names.filter_map(|name| name.strip_suffix(".c").map(String::from)).collect()
}

/// Runs a command, and returns what it printed.
fn succeed(command: &mut Command) -> String {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{command:?}\n{text}{}", String::from_utf8_lossy(&output.stderr));
    text
}

/// Returns whether a program is installed; if not, says what is skipped.
fn has(program: &str) -> bool {
    let has = Command::new(program).arg("--version").output().is_ok_and(|output| output.status.success());
    if !has {
        println!("skipped: there is no {program}; `apt-get install gcc pkg-config`");
    }
    has
}

/// Kills its process when it is dropped.
struct Killed(Child);

impl Drop for Killed {
    fn drop(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

#[test]
fn c_programs_of_the_readmes() {
    if !has("cc") || !has("pkg-config") {
        return;
    }
    for name in MECHANISMS {
        let (prefix, dir) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        install_mechanism(&built(), prefix.path(), name).unwrap();
        let readme = readme(name);
        // The line in the README, `In C (`cc …`; …`.
        let line = readme.split_once("\nIn C (`").unwrap().1.split_once('`').unwrap().0;
        assert!(line.starts_with(&format!("cc {name}.c $(pkg-config ")), "{line}");
        let compile = |line: &str| {
            let mut shell = Command::new("sh");
            shell.args(["-c", line]).current_dir(dir.path());
            succeed(shell.env("PKG_CONFIG_PATH", prefix.path().join("lib/pkgconfig")));
        };
        let run = |program: &str, arguments: &[&str]| {
            let mut command = Command::new(dir.path().join(program));
            command.args(arguments).current_dir(dir.path()).env("LD_LIBRARY_PATH", prefix.path().join("lib"));
            command
        };
        for (_, code) in blocks(&readme, "c") {
            fs::write(dir.path().join(format!("{name}.c")), code).unwrap();
            compile(line);
            println!("{name}: {}", succeed(&mut run("a.out", &[])));
        }
        // The examples beside the README, by the same line.
        for example in examples(name) {
            let source = root().join(format!("mechanisms/{name}/examples/{example}.c"));
            fs::copy(source, dir.path().join(format!("{example}.c"))).unwrap();
            compile(&line.replacen(&format!("{name}.c"), &format!("-O2 -pthread {example}.c -o {example}"), 1));
            let arguments: &[&str] = match &*example {
                "recorder" => {
                    // A signal ends the run that records; another run reads the records.
                    assert!(!run(&example, &["records", "crash"]).output().unwrap().status.success());
                    &["--read", "records"]
                }
                // These two work together, below.
                "vhost_device" | "vhost_driver" => continue,
                _ => &[],
            };
            println!("{name}, {example}: {}", succeed(&mut run(&example, arguments)));
            if example == "thread_pool" {
                steer(&mut run(&example, &["--listen"]));
            }
        }
        if name == "vring" {
            fs::write(dir.path().join("disk"), vec![0; 1 << 20]).unwrap();
            let mut device = Killed(run("vhost_device", &["socket", "disk"]).stdout(Stdio::null()).spawn().unwrap());
            // A connection without a request is a driver that has gone.
            wait_until("the device listens", || {
                assert!(device.0.try_wait().unwrap().is_none(), "it has ended");
                UnixStream::connect(dir.path().join("socket")).is_ok()
            });
            assert_eq!(succeed(&mut run("vhost_driver", &["socket"])), "256 blocks written, 0 wrong\n");
        }
        let lib = fs::read_dir(prefix.path().join("lib")).unwrap();
        let others = lib
            .map(|file| file.unwrap().file_name().into_string().unwrap())
            .filter(|file| file.starts_with("lib") && !file.starts_with(&format!("libdormouse_{name}.")));
        assert_eq!(others.collect::<Vec<_>>(), Vec::<String>::new());
        assert!(prefix.path().join(format!("share/man/man3/dormouse-{name}.3")).is_file());
        uninstall(prefix.path()).unwrap();
        assert_eq!(fs::read_dir(prefix.path()).unwrap().count(), 0, "{name}");
    }
}

#[test]
fn rust_programs_of_the_readmes() {
    let cargo = || {
        let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
        for (variable, _) in std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("CARGO_")) {
            if variable != "CARGO_HOME" {
                command.env_remove(variable);
            }
        }
        // What they have in common is compiled once.
        command.env("CARGO_TARGET_DIR", built().with_file_name("tmp").join("readmes")).env("CARGO_NET_OFFLINE", "true");
        command
    };
    for name in MECHANISMS {
        let dir = tempfile::tempdir().unwrap();
        let project = dir.path().join(format!("user-of-{name}"));
        succeed(cargo().args(["init", "--quiet", "--vcs", "none"]).arg(&project));
        // The versions that are known to build, and that are here.
        fs::copy(root().join("Cargo.lock"), project.join("Cargo.lock")).unwrap();
        let readme = readme(name);
        let programs = blocks(&readme, "rust").into_iter().filter_map(|(before, code)| {
            // The line before it in the README, `In Rust (`cargo add … --path DORMOUSE/…`)`. Other blocks are no programs.
            Some((before.rsplit_once("n Rust (`cargo add ")?.1.split_once('`').unwrap().0, code))
        });
        let programs: Vec<_> = programs.collect();
        assert!(!programs.is_empty(), "{name}");
        for (line, code) in programs {
            let line = line.replace("DORMOUSE", root().to_str().unwrap());
            succeed(cargo().current_dir(&project).arg("add").args(line.split_whitespace()));
            fs::write(project.join("src/main.rs"), code).unwrap();
            let text = succeed(cargo().current_dir(&project).args(["run", "--quiet"]));
            println!("{name}: {text}");
        }
    }
}
