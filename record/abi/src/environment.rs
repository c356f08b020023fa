//! Where programs, session owners and tools find one another: environment variables and the names of sockets.

use alloc::format;
use alloc::string::String;

/// Environment variable: path of the session's socket.
pub const ENV_SESSION: &str = "DORMOUSE_SESSION";
/// Environment variable: `0` keeps a program from listening.
pub const ENV_LISTEN: &str = "DORMOUSE_LISTEN";
/// Environment variable: `1` forces the path for machines without rseq.
pub const ENV_NO_RSEQ: &str = "DORMOUSE_NO_RSEQ";

/// The directory of a user's sockets, given `$XDG_RUNTIME_DIR` (if set and not empty) and the user's id.
pub fn socket_dir(xdg_runtime_dir: Option<&str>, uid: u32) -> String {
    match xdg_runtime_dir.filter(|dir| !dir.is_empty()) {
        Some(dir) => format!("{dir}/dormouse"),
        None => format!("/tmp/dormouse-{uid}"),
    }
}

/// File name of a program's socket. A process has several if several of its loaded objects contain a tracer of their own.
pub fn program_socket_name(pid: u32, number: u32) -> String {
    format!("{pid}.{number}.sock")
}

/// Whether a file name is that of a socket of process `pid`.
pub fn is_program_socket(file_name: &str, pid: u32) -> bool {
    let number = file_name.strip_prefix(&format!("{pid}.")).and_then(|rest| rest.strip_suffix(".sock"));
    number.is_some_and(|number| number.parse::<u32>().is_ok())
}
