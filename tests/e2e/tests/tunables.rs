//! A server that `dormouse imv` tunes while clients talk to it.
#![cfg(target_os = "linux")]

use std::fs::File;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use dormouse_abi::environment::is_program_socket;
use dormouse_abi::message::{Edge, Message, Preamble, ProgramToTool, ToolToProgram};
use dormouse_e2e::run::{PATIENCE, dormouse, pantry, plugin};
use dormouse_testing::{Lack, copy_program, skip};
use serde_json::Value;
use tempfile::TempDir;

/// The example `pantry`, with a directory of sockets of its own.
struct Pantry {
    place: TempDir,
    child: Child,
    address: String,
}

impl Pantry {
    fn start(environment: &[(&str, &str)]) -> Pantry {
        let place = tempfile::tempdir().unwrap();
        let mut child = Command::new(pantry())
            .env("XDG_RUNTIME_DIR", place.path())
            // The server waits for its clients, so it listens by a thread.
            .env("DORMOUSE_LISTEN", "thread")
            .envs(environment.iter().copied())
            .stdout(Stdio::piped())
            .stderr(File::create(place.path().join("log")).unwrap())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let address = line.trim().rsplit(' ').next().unwrap().to_string();
        Pantry { place, child, address }
    }

    fn pid(&self) -> String {
        self.child.id().to_string()
    }

    fn log(&self) -> String {
        std::fs::read_to_string(self.place.path().join("log")).unwrap()
    }

    fn client(&self) -> Client {
        let stream = TcpStream::connect(&self.address).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        Client { reader: BufReader::new(stream.try_clone().unwrap()), stream }
    }

    fn imv(&self, arguments: &[&str]) -> Output {
        let output =
            Command::new(dormouse()).arg("imv").args(arguments).env("XDG_RUNTIME_DIR", self.place.path()).output();
        output.unwrap()
    }

    /// Sets tunables, and returns the output.
    fn set(&self, values: &[&str]) -> String {
        let output = self.imv(&[&["set", &self.pid()], values].concat());
        assert!(output.status.success(), "{values:?}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    }

    /// Tries to set tunables that cannot be set, and returns the error line.
    fn refuse(&self, values: &[&str]) -> String {
        one_line(&self.imv(&[&["set", &self.pid()], values].concat()))
    }

    fn json(&self) -> Value {
        let output = self.imv(&["list", &self.pid(), "--json"]);
        assert!(output.status.success());
        serde_json::from_slice(&output.stdout).unwrap()
    }

    /// Returns a tunable's value from JSON.
    fn value(&self, name: &str) -> Value {
        let json = self.json();
        let tunables = json[0]["tunables"].as_array().unwrap();
        tunables.iter().find(|tunable| tunable["name"] == name).unwrap()["value"].clone()
    }
}

impl Drop for Pantry {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

struct Client {
    stream: TcpStream,
    reader: BufReader<TcpStream>,
}

impl Client {
    fn ask(&mut self, request: &str) -> String {
        self.ask_all(request, 1).remove(0)
    }

    /// Sends requests at once, and returns their answers.
    fn ask_all(&mut self, request: &str, count: usize) -> Vec<String> {
        self.stream.write_all(format!("{request}\n").repeat(count).as_bytes()).unwrap();
        let mut answers = vec![String::new(); count];
        for answer in &mut answers {
            self.reader.read_line(answer).unwrap();
            answer.truncate(answer.trim_end().len());
        }
        answers
    }
}

fn one_line(output: &Output) -> String {
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(2), "{text}");
    assert_eq!(text.lines().count(), 1, "{text}");
    assert!(text.starts_with("dormouse: ") && output.stdout.is_empty(), "{text}");
    text
}

#[test]
fn a_server_is_tuned_while_clients_talk_to_it() {
    let pantry = Pantry::start(&[]);
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        // Two clients that run all the time, whatever is set.
        let others: Vec<_> = (0..2)
            .map(|number| {
                let (pantry, is_over) = (&pantry, &is_over);
                scope.spawn(move || {
                    let mut client = pantry.client();
                    let mut count = 0u64;
                    while !is_over.load(Ordering::Relaxed) {
                        assert_eq!(client.ask(&format!("put other{number} {count}")), "ok");
                        let answer = client.ask(&format!("get other{number}"));
                        assert_eq!(answer.split(' ').next().unwrap(), count.to_string(), "{answer}");
                        count += 1;
                    }
                    count
                })
            })
            .collect();

        let mut client = pantry.client();
        assert_eq!(client.ask("put jam plum"), "ok");
        assert_eq!(client.ask("put jam sour cherry"), "ok");
        assert_eq!(client.ask("get jam"), "sour cherry");
        assert_eq!(pantry.set(&["pantry.show_versions", "on"]), "pantry.show_versions: off → on\n");
        assert_eq!(client.ask("get jam"), "sour cherry (version 2)");
        assert_eq!(pantry.set(&["pantry.show_versions", "off"]), "pantry.show_versions: on → off\n");
        assert_eq!(client.ask("get jam"), "sour cherry");

        // The log level, back and forth.
        client.ask("nonsense");
        assert!(pantry.log().contains("bad request: nonsense") && !pantry.log().contains("has a batch"));
        pantry.set(&["pantry.log_level", "0"]);
        client.ask("silly");
        assert!(!pantry.log().contains("silly"));

        // Batches are never larger than the limit, and soon reach it.
        let said = pantry.set(&["pantry.log_level", "3", "pantry.batch_size", "1"]);
        assert_eq!(said, "pantry.log_level: 0 → 3\npantry.batch_size: 16 → 1\n");
        let me = client.stream.local_addr().unwrap();
        let batches = |client: &mut Client| -> Vec<usize> {
            let before = pantry.log().len();
            client.ask_all("get jam", 200);
            let log = pantry.log().split_off(before);
            let size = |line: &str| line.strip_prefix(&format!("{me} has a batch of "))?.parse().ok();
            log.lines().filter_map(size).collect()
        };
        assert_eq!(batches(&mut client), [1; 200]);
        pantry.set(&["pantry.batch_size", "8"]);
        let started = Instant::now();
        loop {
            let sizes = batches(&mut client);
            assert_eq!(sizes.iter().sum::<usize>(), 200);
            assert!(sizes.iter().all(|size| *size <= 8), "{sizes:?}");
            if sizes.contains(&8) {
                break;
            }
            assert!(started.elapsed() < PATIENCE, "{sizes:?}");
        }

        // All or none, repeatedly.
        for round in 0..20 {
            let (on, size) = if round % 2 == 0 { ("on", "4") } else { ("off", "900") };
            pantry.set(&["pantry.show_versions", on, "pantry.batch_size", size]);
        }
        is_over.store(true, Ordering::Relaxed);
        assert!(others.into_iter().all(|other| other.join().unwrap() > 0));
    });
}

#[test]
fn tunables_are_listed() {
    let pantry = Pantry::start(&[]);
    let pid = pantry.pid();
    let output = pantry.imv(&["list", &pid]);
    let text = String::from_utf8(output.stdout).unwrap();
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines.len(), 5, "{text}");
    assert!(lines[0].starts_with(&format!("process {pid}; ")) && lines[0].contains(" sites patched by "), "{text}");
    let words = |line: usize| lines[line].split_whitespace().collect::<Vec<_>>();
    assert_eq!(words(1), ["NAME", "TYPE", "VALUE", "RANGE", "SITES", "DESCRIPTION"]);
    assert_eq!(words(2)[..4], ["pantry.batch_size", "u32", "16", "1..1024"]);
    assert!(lines[2].ends_with("requests answered per batch"), "{text}");
    assert_eq!(words(3)[..4], ["pantry.log_level", "u8", "1", "0..3"]);
    assert_eq!(words(4)[..5], ["pantry.show_versions", "key", "off", "on,", "off"]);

    let json = pantry.json();
    assert_eq!(json.as_array().unwrap().len(), 1);
    let batch_size = &json[0]["tunables"][0];
    assert_eq!(batch_size["name"], "pantry.batch_size");
    assert_eq!((&batch_size["value"], &batch_size["min"], &batch_size["max"]), (&16.into(), &1.into(), &1024.into()));
    assert_eq!(batch_size["type"], "u32");
    assert!(batch_size["object"].as_str().unwrap().ends_with("/pantry"), "{json}");
    assert_eq!(json[0]["tunables"][2]["value"], false);
    let is_patched =
        |tunable: &Value| tunable["sites"].as_u64().unwrap() > 0 && tunable["sites"] == tunable["sites_patched"];
    if cfg!(any(target_arch = "x86_64", target_arch = "aarch64")) {
        assert_eq!(json[0]["writer"], "mprotect", "{json}");
        assert!(is_patched(&json[0]["tunables"][2]), "{json}");
    }
    if cfg!(target_arch = "x86_64") {
        assert!(is_patched(batch_size), "{json}");
    }
}

#[test]
fn a_program_that_cannot_be_patched_is_tuned_too() {
    let pantry = Pantry::start(&[("DORMOUSE_IMV_WRITER", "none")]);
    let text = String::from_utf8(pantry.imv(&["list", &pantry.pid()]).stdout).unwrap();
    if cfg!(any(target_arch = "x86_64", target_arch = "aarch64")) {
        assert!(text.contains("sites patched by none (forced by DORMOUSE_IMV_WRITER)"), "{text}");
    }
    if cfg!(target_arch = "x86_64") {
        assert!(text.contains(" 0/1 "), "{text}");
    }
    let mut client = pantry.client();
    client.ask("put jam plum");
    pantry.set(&["pantry.show_versions", "on", "pantry.batch_size", "3"]);
    assert_eq!(client.ask("get jam"), "plum (version 1)");
    assert_eq!(pantry.value("pantry.batch_size"), 3);
}

#[test]
fn refused_values_are_one_line_and_nothing_is_set() {
    let pantry = Pantry::start(&[]);
    let text = pantry.refuse(&["pantry.batch_size", "abc"]);
    assert!(
        text.contains("`abc` is not of type u32: `pantry.batch_size` takes a whole number from 1 to 1024"),
        "{text}"
    );
    for beyond in ["0", "1025", "-5", "99999999999999999999999"] {
        let text = pantry.refuse(&["pantry.batch_size", beyond]);
        assert!(text.contains(&format!("`{beyond}` is out of range")) && text.contains("1 to 1024"), "{text}");
    }
    let text = pantry.refuse(&["pantry.show_versions", "maybe"]);
    assert!(text.contains("takes on or off"), "{text}");
    let text = pantry.refuse(&["pantry.size", "5"]);
    assert!(text.contains("no tunable `pantry.size`; it has pantry.batch_size, pantry.log_level"), "{text}");
    let text = pantry.refuse(&["pantry.batch_size", "5", "pantry.log_level"]);
    assert!(text.contains("`pantry.log_level` has no value"), "{text}");
    let text = pantry.refuse(&["pantry.batch_size", "5", "pantry.batch_size", "6"]);
    assert!(text.contains("twice"), "{text}");
    // The first two values would be valid.
    let text = pantry.refuse(&["pantry.batch_size", "5", "pantry.show_versions", "on", "pantry.log_level", "4"]);
    assert!(text.contains("`4` is out of range") && text.contains("nothing was set"), "{text}");
    assert_eq!(pantry.value("pantry.batch_size"), 16);
    assert_eq!(pantry.value("pantry.show_versions"), false);
    let text = pantry.refuse(&["pantry.\u{1b}[2J", "5"]);
    assert!(!text.trim_end().chars().any(char::is_control), "{text:?}");

    let mut stranger = Command::new("sleep").arg("infinity").spawn().unwrap();
    for arguments in [vec!["list"], vec!["set", "a", "1"]] {
        let with_pid = |pid: &str| {
            let mut words = arguments.clone();
            words.insert(1, pid);
            one_line(&pantry.imv(&words))
        };
        assert!(with_pid("4194304").contains("there is no process 4194304"));
        assert!(with_pid(&stranger.id().to_string()).contains("has no Dormouse tracepoints"));
    }
    stranger.kill().unwrap();
    stranger.wait().unwrap();
    let silent = Pantry::start(&[("DORMOUSE_LISTEN", "0")]);
    assert!(silent.refuse(&["pantry.batch_size", "5"]).contains("DORMOUSE_LISTEN=0"));
}

#[test]
fn two_concurrent_operators_leave_one_of_both_states() {
    let pantry = Pantry::start(&[]);
    let set = |values: [&'static str; 4]| {
        let pantry = &pantry;
        move || {
            for _ in 0..15 {
                pantry.set(&values);
            }
        }
    };
    std::thread::scope(|scope| {
        scope.spawn(set(["pantry.batch_size", "10", "pantry.log_level", "0"]));
        scope.spawn(set(["pantry.batch_size", "20", "pantry.log_level", "2"]));
        for _ in 0..15 {
            let json = pantry.json();
            let pair = (&json[0]["tunables"][0]["value"], &json[0]["tunables"][1]["value"]);
            let states = [(16, 1), (10, 0), (20, 2)];
            assert!(states.iter().any(|(size, level)| pair == (&(*size).into(), &(*level).into())), "{pair:?}");
        }
    });
}

/// A process that may connect can send anything.
#[test]
fn hostile_requests_are_refused_and_the_next_is_answered() {
    let pantry = Pantry::start(&[]);
    let directory = pantry.place.path().join("dormouse");
    let entries = std::fs::read_dir(directory).unwrap().map(|entry| entry.unwrap());
    let mut own = entries.filter(|entry| is_program_socket(entry.file_name().to_str().unwrap(), pantry.child.id()));
    let socket = own.next().expect("it listens").path();
    let send = |bytes: &[u8]| answer(&socket, bytes);
    let ask = |frame: &[u8]| {
        let answer = send(&[&Preamble::of(Edge::ToolProgram).encode(), frame].concat())?;
        ProgramToTool::decode(answer.get(Preamble::SIZE_BYTES..)?).ok()
    };
    let many = ToolToProgram::SetTunables { values: vec![("pantry.batch_size".into(), "1".into()); 1025] }.encode();
    let mut cut = ToolToProgram::SetTunables { values: vec![("pantry.batch_size".into(), "5".into())] }.encode();
    cut.pop();
    let len = cut.len() as u32 - 5;
    cut[1..5].copy_from_slice(&len.to_le_bytes());
    // Lists whose items are missing, an unknown message, and one that is too long: its body is not even awaited.
    for frame in
        [many.as_slice(), &cut, &[7, 4, 0, 0, 0, 255, 255, 255, 255], &[200, 0, 0, 0, 0], &[7, 255, 255, 255, 255]]
    {
        assert!(matches!(ask(frame), Some(ProgramToTool::Error { .. })), "{:?}", &frame[..5]);
    }
    let huge = ToolToProgram::SetTunables { values: vec![("x".repeat(60_000), "9".repeat(60_000))] };
    assert!(matches!(ask(&huge.encode()), Some(ProgramToTool::Error { .. })));
    // A client of another protocol gets no answer; one of another version gets this version's preamble.
    assert_eq!(send(b"GET / HTTP/1.1\r\n\r\n"), Some(Vec::new()));
    let newer = Preamble { version: 99, ..Preamble::of(Edge::ToolProgram) };
    let own = Preamble::of(Edge::ToolProgram).encode();
    assert_eq!(send(&newer.encode()), Some(own.to_vec()));
    let good = ToolToProgram::SetTunables { values: vec![("pantry.batch_size".into(), "5".into())] };
    assert!(matches!(ask(&good.encode()), Some(ProgramToTool::TunablesSet { changes }) if changes.len() == 1));
    assert_eq!(pantry.value("pantry.batch_size"), 5);
}

/// Returns everything that is received until the program closes the connection.
fn answer(socket: &Path, bytes: &[u8]) -> Option<Vec<u8>> {
    let mut stream = UnixStream::connect(socket).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.write_all(bytes).unwrap();
    let mut answer = Vec::new();
    // Data that a program leaves unread resets the connection, once everything that it has sent is read.
    match stream.read_to_end(&mut answer) {
        Err(error) if error.kind() != std::io::ErrorKind::ConnectionReset => None,
        _ => Some(answer),
    }
}

#[test]
fn another_users_program_cannot_be_tuned() {
    use std::os::unix::fs::PermissionsExt;
    use std::os::unix::process::CommandExt;
    if !rustix::process::geteuid().is_root() {
        return skip(Lack::machine("only root can become another user", "run the tests as root"));
    }
    let pantry = Pantry::start(&[]);
    // A directory where every user may run it.
    let place = tempfile::tempdir().unwrap();
    std::fs::set_permissions(place.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
    let copy = place.path().join("dormouse");
    copy_program(dormouse(), &copy);
    for arguments in [&["list"][..], &["set", "pantry.batch_size", "5"]] {
        let mut words = arguments.to_vec();
        let pid = pantry.pid();
        words.insert(1, &pid);
        let output =
            Command::new(&copy).arg("imv").args(words).uid(65_534).gid(65_534).current_dir("/").output().unwrap();
        let text = one_line(&output);
        assert!(text.contains("belongs to user 0; run dormouse as that user or as root"), "{text}");
    }
    assert_eq!(pantry.value("pantry.batch_size"), 16);
}

/// A Rust library has a tracer, a socket and a site registry of its own.
#[test]
fn a_library_with_a_tracer_of_its_own_is_tuned_too() {
    let place = tempfile::tempdir().unwrap();
    let mut child = Command::new(env!("CARGO_BIN_EXE_e2e-tuned"))
        .arg(plugin())
        .env("XDG_RUNTIME_DIR", place.path())
        .env("DORMOUSE_LISTEN", "thread")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let (mut stdin, mut stdout) = (child.stdin.take().unwrap(), BufReader::new(child.stdout.take().unwrap()));
    let mut line = || {
        let mut line = String::new();
        stdout.read_line(&mut line).unwrap();
        line.trim_end().to_string()
    };
    assert_eq!(line(), "ready");
    let pid = child.id().to_string();
    let imv = |command: &str, rest: &[&str]| {
        let mut dormouse = Command::new(dormouse());
        dormouse.args(["imv", command, &pid]).args(rest).env("XDG_RUNTIME_DIR", place.path()).output().unwrap()
    };
    let json: Value = serde_json::from_slice(&imv("list", &["--json"]).stdout).unwrap();
    let names = |tracer: usize| -> Vec<&str> {
        json[tracer]["tunables"].as_array().unwrap().iter().map(|tunable| tunable["name"].as_str().unwrap()).collect()
    };
    // The threads of both tracers start to listen at the same time.
    let mut all = [names(0), names(1)];
    all.sort_unstable();
    assert_eq!(all, [["e2e.twin", "e2e.width"], ["e2e.twin", "plugin.depth"]]);

    assert!(imv("set", &["plugin.depth", "12"]).status.success());
    assert!(imv("set", &["e2e.width", "8"]).status.success());
    writeln!(stdin).unwrap();
    assert_eq!(line(), "8 12");
    let text = one_line(&imv("set", &["e2e.width", "9", "plugin.depth", "13"]));
    assert!(text.contains("set them one after the other"), "{text}");
    let text = one_line(&imv("set", &["e2e.twin", "9"]));
    assert!(text.contains("several variables called `e2e.twin`") && text.contains("plugin.so"), "{text}");
    writeln!(stdin).unwrap();
    assert_eq!(line(), "8 12");
    drop(stdin);
    assert!(child.wait().unwrap().success());
}
