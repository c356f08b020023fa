//! `cargo xtask install`: the installation works, also after it is moved, and `--uninstall` removes all of it.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use dormouse_testing::{Lack, has_part, skip_part};

#[track_caller]
fn succeed(command: &mut Command) -> String {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let Output { status, stdout, stderr } = output;
    assert!(status.success(), "{command:?}: {}", String::from_utf8_lossy(&stderr));
    String::from_utf8_lossy(&stdout).into_owned() + &String::from_utf8_lossy(&stderr)
}

/// Returns the files below a directory.
fn files(dir: &Path) -> Vec<PathBuf> {
    let paths = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path());
    paths.flat_map(|path| if path.is_dir() { files(&path) } else { vec![path] }).collect()
}

fn xtask(prefix: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_xtask"));
    command.args(["install", "--prefix"]).arg(prefix).args(arguments);
    command
}

/// A program with a tracepoint.
const PROGRAM: &str =
    "#include <dormouse/event.h>\nint main(void) { DORMOUSE_EVENT(shop, order, (id, 7u)); return 0; }\n";
const CMAKE: &str = "cmake_minimum_required(VERSION 3.13)\nproject(shop C)\nfind_package(Dormouse REQUIRED)\n\
                     add_executable(shop shop.c)\ntarget_link_libraries(shop Dormouse::dormouse)\n";

/// Records a command, and checks that the trace has an event.
#[track_caller]
fn records(prefix: &Path, options: &[&str], command: &Path, event: &str) {
    let dormouse = prefix.join("bin/dormouse");
    let trace = tempfile::tempdir().unwrap();
    let mut record = Command::new(&dormouse);
    record.arg("record").args(options).arg("-o").arg(trace.path()).arg("--").arg(command);
    succeed(record.env("LD_LIBRARY_PATH", prefix.join("lib")));
    let text = succeed(Command::new(&dormouse).arg("view").arg(trace.path()));
    assert!(text.contains(event), "{text}");
}

/// Records 64-bit and 32-bit programs together, and checks that the loader prints no errors.
fn programs_of_both_kinds(prefix: &Path, dir: &Path) {
    if !cfg!(target_arch = "x86_64") || !has_part("gcc") {
        return;
    }
    fs::write(dir.join("small.c"), "#include <stdio.h>\nint main(void) { puts(\"small\"); return 0; }\n").unwrap();
    let mut gcc = Command::new("gcc");
    if !gcc.current_dir(dir).args(["-m32", "small.c", "-o", "small"]).output().unwrap().status.success() {
        // Not in the list of required tools: the package conflicts with the cross compilers.
        let lack = Lack::machine("gcc links no program for 32 bits", "`apt-get install gcc-multilib`");
        skip_part("programs for 32 bits", lack);
        return;
    }
    let mut record = Command::new(prefix.join("bin/dormouse"));
    record.args(["record", "--libc", "-o"]).arg(dir.join("both")).args(["--", "sh", "-c", "./small; ls -d /; ./small"]);
    let text = succeed(record.current_dir(dir));
    let said: Vec<&str> = text.lines().filter(|line| !line.starts_with("dormouse: ")).collect();
    assert_eq!(said, ["small", "/", "small"]);
}

/// Compiles a program with pkg-config and with CMake, and records it.
fn c_programs(prefix: &Path, dir: &Path) {
    fs::write(dir.join("shop.c"), PROGRAM).unwrap();
    fs::write(dir.join("CMakeLists.txt"), CMAKE).unwrap();
    if has_part("pkg-config") && has_part("cc") {
        let mut pkg_config = Command::new("pkg-config");
        pkg_config.args(["--cflags", "--libs", "dormouse"]).env("PKG_CONFIG_PATH", prefix.join("lib/pkgconfig"));
        let flags = succeed(&mut pkg_config);
        let mut cc = Command::new("cc");
        succeed(cc.current_dir(dir).args(["shop.c", "-o", "shop"]).args(flags.split_whitespace()));
        records(prefix, &[], &dir.join("shop"), "shop:order");
    }
    if has_part("cmake") && has_part("make") && has_part("cc") {
        let mut configure = Command::new("cmake");
        configure.current_dir(dir).args(["-G", "Unix Makefiles", "-S", ".", "-B", "built"]);
        succeed(configure.arg(format!("-DCMAKE_PREFIX_PATH={}", prefix.display())));
        succeed(Command::new("cmake").current_dir(dir).args(["--build", "built"]));
        records(prefix, &[], &dir.join("built/shop"), "shop:order");
    }
}

/// Checks that shells accept the completions and groff the manual pages, and that each command has them.
fn texts(prefix: &Path) {
    let share = prefix.join("share");
    for (shell, check, place) in [
        ("bash", &["-n"][..], "bash-completion/completions/NAME"),
        ("zsh", &["-n"], "zsh/site-functions/_NAME"),
        ("fish", &["--no-execute"], "fish/vendor_completions.d/NAME.fish"),
    ] {
        for name in ["dormouse", "dormouse-pages", "dormouse-vring"] {
            let file = share.join(place.replace("NAME", name));
            assert!(fs::read_to_string(&file).unwrap().contains(name), "{}", file.display());
            // Most machines do not have all of these shells.
            if dormouse_testing::is_installed(shell) {
                let said = succeed(Command::new(shell).args(check).arg(&file));
                assert_eq!(said, "", "{}", file.display());
            }
        }
    }
    let libraries = ["man3/dormouse-imv.3", "man3/dormouse-event.3"];
    let commands = ["man1/dormouse.1", "man1/dormouse-record.1", "man1/dormouse-vring-bench.1"];
    for page in commands.into_iter().chain(libraries) {
        assert!(share.join("man").join(page).is_file(), "{page}");
    }
    if has_part("groff") {
        for page in files(&share.join("man/man1")) {
            let output = Command::new("groff").args(["-man", "-Tutf8", "-ww", "-z"]).arg(&page).output().unwrap();
            assert!(output.status.success() && output.stderr.is_empty(), "{}: {output:?}", page.display());
        }
    }
}

#[test]
fn an_installation_can_be_moved_and_removed() {
    let dir = tempfile::tempdir().unwrap();
    let (first, prefix) = (dir.path().join("first"), dir.path().join("moved"));
    let text = succeed(&mut xtask(&first, &["--debug"]));
    assert!(text.contains("installed ") && text.contains("--uninstall"), "{text}");
    fs::rename(&first, &prefix).unwrap();
    let dormouse = prefix.join("bin/dormouse");

    // The command, its preload library, and the programs that it runs.
    records(&prefix, &["--libc"], Path::new("ls"), "libc:");
    for program in ["vring", "pages"] {
        let help = succeed(Command::new(&dormouse).args([program, "--help"]));
        assert!(help.contains(&format!("Usage: dormouse {program}")), "{help}");
    }
    let help = succeed(Command::new(&dormouse).arg("--help").env("PATH", ""));
    assert!(help.contains("  vring ") && !help.contains("  lab "), "{help}");

    c_programs(&prefix, dir.path());
    programs_of_both_kinds(&prefix, dir.path());
    texts(&prefix);

    // A second installation over the first, then uninstallation.
    let count = files(&prefix).len();
    fs::write(prefix.join("bin/own"), "own").unwrap();
    succeed(&mut xtask(&prefix, &["--debug"]));
    assert_eq!(files(&prefix).len(), count + 1);
    let text = succeed(&mut xtask(&prefix, &["--uninstall"]));
    assert!(text.contains(&format!("removed {count} files")), "{text}");
    assert_eq!(files(&prefix), [prefix.join("bin/own")]);
    assert_eq!(fs::read_dir(&prefix).unwrap().count(), 1);
    let again = xtask(&prefix, &["--uninstall"]).output().unwrap();
    assert!(!again.status.success());
}
