//! Skips are reported to the counting process. The tests that skip run in a process of their own, because nothing is
//! missing there.

use std::path::Path;
use std::process::{Command, Output};

use dormouse_testing::{ENV_REQUIRE_TOOLS, ENV_SKIPS, Lack, Skip, has, skip, skip_part};

const ENV_CHILD: &str = "DORMOUSE_TESTING_CHILD";

fn is_child() -> bool {
    std::env::var_os(ENV_CHILD).is_some()
}

/// Runs tests of this program in a process of their own.
fn run(test: &str, skips: &Path, requires: &str) -> Output {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", test, "--nocapture"]).env(ENV_CHILD, "1").env(ENV_SKIPS, skips);
    command.env(ENV_REQUIRE_TOOLS, requires).output().unwrap()
}

fn program() -> String {
    std::env::current_exe().unwrap().file_name().unwrap().to_str().unwrap().to_owned()
}

#[test]
fn skips_are_appended_to_the_file() {
    if is_child() {
        assert!(!has("no-such-program"));
        (0..2).for_each(|_| skip_part("with\ta tab", Lack::machine("two\nlines", "a larger machine")));
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("skips");
    assert_eq!(Skip::read(&path).unwrap(), []);
    for threads in ["2", "1"] {
        // With one thread, the harness does not name threads after the test.
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", "skips_are_appended_to_the_file"]).env(ENV_CHILD, "1").env(ENV_SKIPS, &path);
        assert!(
            command.env("RUST_TEST_THREADS", threads).env_remove(ENV_REQUIRE_TOOLS).output().unwrap().status.success()
        );
    }
    let test = "skips_are_appended_to_the_file".to_owned();
    let whole = Skip {
        program: program(),
        test,
        part: None,
        reason: "no-such-program is not installed".to_owned(),
        remedy: "`apt-get install no-such-program`".to_owned(),
    };
    let part = Skip {
        part: Some("with a tab".to_owned()),
        reason: "two lines".to_owned(),
        remedy: "a larger machine".to_owned(),
        ..whole.clone()
    };
    assert_eq!(Skip::read(&path).unwrap(), [whole.clone(), part.clone(), whole, part]);
    std::fs::write(&path, "something else\n").unwrap();
    assert!(Skip::read(&path).unwrap_err().to_string().contains("something else"));
}

#[test]
fn a_missing_required_tool_fails_and_an_unfit_machine_does_not() {
    if is_child() {
        skip(Lack::machine("only root can become another user", "run the tests as root"));
        skip(Lack::program("no-such-program"));
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("skips");
    let output = run("a_missing_required_tool_fails_and_an_unfit_machine_does_not", &path, "1");
    assert!(!output.status.success());
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(text.contains("no-such-program is not installed: `apt-get install no-such-program`"), "{text}");
    let reasons: Vec<String> = Skip::read(&path).unwrap().into_iter().map(|skip| skip.reason).collect();
    assert_eq!(reasons, ["only root can become another user"]);
    assert!(run("a_missing_required_tool_fails_and_an_unfit_machine_does_not", &path, "0").status.success());
}

#[test]
fn an_unwritable_file_is_a_failure() {
    if is_child() {
        return skip(Lack::machine("nothing", "nothing"));
    }
    let dir = tempfile::tempdir().unwrap();
    let output = run("an_unwritable_file_is_a_failure", &dir.path().join("none/skips"), "0");
    assert!(!output.status.success());
    assert!(String::from_utf8_lossy(&output.stderr).contains("cannot append to DORMOUSE_SKIPS="));
}
