//! Environment variables and socket names by which programs, session owners and tools find one another.

use alloc::format;
use alloc::string::String;

/// Environment variable: absolute paths of the sessions' sockets, separated by `:`; that of the innermost recording first.
pub const ENV_SESSION: &str = "DORMOUSE_SESSION";
/// Environment variable: the sessions' memory, for programs that inherit it, in the same order and separated by `,`: the
/// descriptor's number, `:`, and the session's uuid in hexadecimal.
pub const ENV_MEMORY: &str = "DORMOUSE_MEMORY";
/// Environment variable: with `thread` (or `1`) a thread of the program listens, with `signal` a signal starts it, with
/// `0` the program does not listen.
pub const ENV_LISTEN: &str = "DORMOUSE_LISTEN";
/// Environment variable: `1` forces the path for machines without rseq.
pub const ENV_NO_RSEQ: &str = "DORMOUSE_NO_RSEQ";
/// Environment variable: maximum number of bytes that all live sessions of the user may write to disk together, unless
/// `--disk-max-user` is given.
pub const ENV_DISK_MAX_USER: &str = "DORMOUSE_DISK_MAX_USER";

/// Returns the directory of a user's sockets, given `$XDG_RUNTIME_DIR` (if set and not empty) and the user's id.
pub fn socket_dir(xdg_runtime_dir: Option<&str>, uid: u32) -> String {
    match xdg_runtime_dir.filter(|dir| !dir.is_empty()) {
        Some(dir) => format!("{dir}/dormouse"),
        None => format!("/tmp/dormouse-{uid}"),
    }
}

/// Extension of the file beside a session's socket to which a program appends a byte if the socket has not accepted it
/// in time.
pub const UNHEARD_EXTENSION: &str = "unheard";

/// Returns the sockets and the memory that the values of [`ENV_SESSION`] and [`ENV_MEMORY`] name.
pub fn sessions<'v>(sockets: &'v str, memory: &'v str) -> impl Iterator<Item = (&'v str, Option<(i32, [u8; 16])>)> {
    // A path may contain the separator, but is absolute.
    let ends = sockets.match_indices(":/").map(|(at, _)| at).chain([sockets.len()]);
    let begins = core::iter::once(0).chain(sockets.match_indices(":/").map(|(at, _)| at + 1));
    let paths = begins.zip(ends).map(|(begin, end)| &sockets[begin..end]).filter(|path| !path.is_empty());
    paths.zip(memory.split(',').map(parse_memory_name).chain(core::iter::repeat(None)))
}

/// Returns the values of [`ENV_SESSION`] and [`ENV_MEMORY`] that add a session to those of others. It is the first, so a
/// program's own requests for snapshots go to it rather than to a recording around it.
pub fn with_session(others: (&str, &str), socket: &str, memory: &str) -> (String, String) {
    let mut lists = (String::from(socket), String::from(memory));
    for (other, of_other) in sessions(others.0, others.1) {
        lists.0 += ":";
        lists.0 += other;
        lists.1 += ",";
        lists.1 += &of_other.map(|(descriptor, uuid)| memory_name(descriptor, &uuid)).unwrap_or_default();
    }
    lists
}

/// Returns the entry of a session's memory in [`ENV_MEMORY`].
pub fn memory_name(descriptor: i32, uuid: &[u8; 16]) -> String {
    let uuid: String = uuid.iter().map(|byte| format!("{byte:02x}")).collect();
    format!("{descriptor}:{uuid}")
}

/// Reads [`memory_name`]. Returns `None` for any other text.
pub fn parse_memory_name(name: &str) -> Option<(i32, [u8; 16])> {
    let (descriptor, uuid) = name.split_once(':')?;
    let digits = (uuid.len() == 32 && uuid.is_ascii()).then_some(uuid)?;
    let mut bytes = [0; 16];
    for (byte, at) in bytes.iter_mut().zip((0..32).step_by(2)) {
        *byte = u8::from_str_radix(&digits[at..at + 2], 16).ok()?;
    }
    Some((descriptor.parse().ok().filter(|descriptor| *descriptor >= 0)?, bytes))
}

/// Returns the file name of a program's socket. A process has several sockets if several of its loaded objects contain
/// a tracer.
pub fn program_socket_name(pid: u32, number: u32) -> String {
    format!("{pid}.{number}.sock")
}

/// Whether a file name is that of a socket of process `pid`.
pub fn is_program_socket(file_name: &str, pid: u32) -> bool {
    let number = file_name.strip_prefix(&format!("{pid}.")).and_then(|rest| rest.strip_suffix(".sock"));
    number.is_some_and(|number| number.parse::<u32>().is_ok())
}

#[cfg(test)]
mod tests {
    use alloc::vec::Vec;

    use super::*;

    #[test]
    fn the_variables_are_lists() {
        let one = memory_name(9, &[1; 16]);
        let two = memory_name(8, &[2; 16]);
        let first = with_session(("", ""), "/run/user/0/dormouse/session-1-0.sock", &one);
        assert_eq!(first, ("/run/user/0/dormouse/session-1-0.sock".into(), one.clone()));
        let both = with_session((&first.0, &first.1), "/a:b/session-2-0.sock", &two);
        let found: Vec<_> = sessions(&both.0, &both.1).collect();
        assert_eq!(
            found,
            [
                ("/a:b/session-2-0.sock", Some((8, [2; 16]))),
                ("/run/user/0/dormouse/session-1-0.sock", Some((9, [1; 16])))
            ]
        );
        // Without the second variable, or part of it, programs ask at the sockets.
        assert_eq!(sessions("/a:/b", "x,").collect::<Vec<_>>(), [("/a", None), ("/b", None)]);
        let third = with_session(("/a", ""), "/b", &one);
        assert_eq!(sessions(&third.0, &third.1).collect::<Vec<_>>(), [("/b", Some((9, [1; 16]))), ("/a", None)]);
        assert_eq!(sessions("", "").count(), 0);
    }

    #[test]
    fn the_variable_names_the_memory() {
        assert_eq!(parse_memory_name(&memory_name(9, &[0xAB; 16])), Some((9, [0xAB; 16])));
        for wrong in ["", "9", "9:", ":00", "-1:000102030405060708090a0b0c0d0e0f", "9:000102030405060708090a0b0c0d0eßx"]
        {
            assert_eq!(parse_memory_name(wrong), None, "{wrong}");
        }
    }
}
