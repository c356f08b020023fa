//! A tool and a process that ends after the tool has found it. Another process gets the id and listens at the very same
//! place.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::DirBuilderExt;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use dormouse_abi::environment::{program_socket_name, socket_dir};
use dormouse_abi::message::{Edge, ProgramToTool, ToolToProgram};
use dormouse_testing::{Lack, has, skip};
use dormouse_tools::{Program, ProgramError};
use dormouse_transport::{Conversation, Deadline};

/// Environment variable: the part of the test that this process plays.
const ENV_PART: &str = "DORMOUSE_TEST_PART";
const NAME: &str = "a_reused_process_id_is_refused";

/// Returns a command that runs this very test as one of its parts.
fn part(part: &str, launcher: &[&str], run: &Path) -> Command {
    let own = std::env::current_exe().unwrap();
    let own = own.to_str().unwrap();
    let words = [launcher, &[own, "--exact", NAME, "--nocapture"]].concat();
    let mut command = Command::new(words[0]);
    command.args(&words[1..]).env(ENV_PART, part).env("XDG_RUNTIME_DIR", run);
    command
}

#[test]
fn a_reused_process_id_is_refused() {
    match std::env::var(ENV_PART).as_deref() {
        Ok("tool") => return tool(),
        Ok(_) => return program(),
        Err(_) => {}
    }
    if !has("unshare") {
        return;
    }
    let launcher = ["unshare", "--pid", "--fork", "--mount-proc", "--kill-child"];
    let permitted = Command::new(launcher[0]).args(&launcher[1..]).args(["test", "-w", LAST_PID]).output().unwrap();
    if !permitted.status.success() {
        return skip(Lack::machine("this user may not choose the ids of processes", "run the tests as root"));
    }
    let run = tempfile::tempdir().unwrap();
    let output = part("tool", &launcher, run.path()).output().unwrap();
    let text = [output.stdout, output.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).concat();
    assert!(output.status.success() && text.contains("1 passed"), "{text}");
}

/// File that sets the id that the kernel gave last, in a PID namespace of its own.
const LAST_PID: &str = "/proc/sys/kernel/ns_last_pid";

/// Starts a process with id `pid` that listens as a traced program does.
fn start(run: &Path, pid: u32) -> Child {
    // Nothing else is started in this namespace.
    std::fs::write(LAST_PID, (pid - 1).to_string()).unwrap();
    let mut child = part("program", &["env"], run).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    assert_eq!(child.id(), pid);
    let lines = BufReader::new(child.stdout.as_mut().unwrap()).lines();
    assert!(lines.map_while(Result::ok).any(|line| line.ends_with("listens")));
    child
}

fn end(mut child: Child) {
    child.kill().unwrap();
    child.wait().unwrap();
}

/// Plays the tool, in a PID namespace of its own.
fn tool() {
    const PID: u32 = 20_000;
    let run = PathBuf::from(std::env::var("XDG_RUNTIME_DIR").unwrap());
    let first = start(&run, PID);
    let found = Program::find(PID).unwrap();
    let answer = found.ask_one(0, &ToolToProgram::List).unwrap();
    assert!(matches!(answer, ProgramToTool::Error { .. }), "{answer:?}");
    end(first);
    let second = start(&run, PID);
    let detach = ToolToProgram::Detach { session: String::new() };
    let error = found.ask_one(0, &detach).unwrap_err();
    assert_eq!(error, ProgramError::Failed(format!("process {PID}: the process has ended meanwhile")));
    // The second process exists and would have answered.
    let answer = Program::find(PID).unwrap().ask_one(0, &detach).unwrap();
    assert!(matches!(answer, ProgramToTool::Error { .. }), "{answer:?}");
    end(second);
}

/// Listens at a place that is always the same, and answers every client, until it is killed.
fn program() {
    let run = std::env::var("XDG_RUNTIME_DIR").unwrap();
    let dir = PathBuf::from(socket_dir(Some(&run), rustix::process::geteuid().as_raw()));
    std::fs::DirBuilder::new().mode(0o700).recursive(true).create(&dir).unwrap();
    let path = dir.join(program_socket_name(std::process::id(), 7));
    let _ = std::fs::remove_file(&path);
    let listener = UnixListener::bind(&path).unwrap();
    println!("listens");
    std::io::stdout().flush().unwrap();
    for stream in listener.incoming() {
        let deadline = Deadline::after(std::time::Duration::from_secs(60));
        let Ok(mut tool) = Conversation::answer(stream.unwrap().into(), &[Edge::ToolProgram], deadline) else {
            // The client has only checked which process listens.
            continue;
        };
        if tool.receive::<ToolToProgram>().is_ok() {
            let _ = tool.send(&ProgramToTool::Error { text: "asked".into() });
        }
    }
}
