//! Where a process runs: its user, control group and container, as the kernel tells them.

use std::path::Path;

use dormouse_abi::text::printable;
use dormouse_format::StateRecord;

/// User id of a process of which nothing is known.
const UNKNOWN: u32 = u32::MAX;
/// Number of characters from which a word in a control group's name counts as a container's id: 64 hexadecimal digits
/// (Docker, containerd, Podman, CRI-O).
const ID_LEN: usize = 64;

/// User, control group and container of a process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Context {
    uid: u32,
    user: String,
    cgroup: String,
    container: String,
}

impl Default for Context {
    fn default() -> Context {
        Context { uid: UNKNOWN, user: String::new(), cgroup: String::new(), container: String::new() }
    }
}

impl Context {
    /// Reads it for a process; `None` if there is no such process, or it may not be looked at.
    pub(crate) fn of(pid: u32) -> Option<Context> {
        let uid = dormouse_control::Status::of(pid)?.number("Uid:", 1)?;
        let uid = u32::try_from(uid).ok()?;
        let groups = std::fs::read(format!("/proc/{pid}/cgroup")).unwrap_or_default();
        let cgroup = cgroup_in(&String::from_utf8_lossy(&groups));
        let users = std::fs::read_to_string("/etc/passwd").unwrap_or_default();
        Some(Context { uid, user: user_in(&users, uid), container: container_of(&cgroup), cgroup })
    }

    /// Returns the record of the process with this number.
    pub(crate) fn record(&self, number: u16) -> StateRecord<'_> {
        let Context { uid, user, cgroup, container } = self;
        StateRecord::ProcessContext { process: number.into(), uid: *uid, user, cgroup, container }
    }
}

/// Returns the path of the control group of version 2 in the contents of /proc/PID/cgroup (cgroups(7)).
fn cgroup_in(groups: &str) -> String {
    groups.lines().find_map(|line| line.strip_prefix("0::")).map(printable).unwrap_or_default()
}

/// Returns the user's name in the contents of /etc/passwd. Users of a directory service have only a number: libc would
/// load libraries to ask for them.
fn user_in(users: &str, uid: u32) -> String {
    let name_of = |line: &str| {
        let mut parts = line.split(':');
        let (name, number) = (parts.next()?, parts.nth(1)?);
        (number.parse() == Ok(uid)).then(|| printable(name))
    };
    users.lines().find_map(name_of).unwrap_or_default()
}

/// Returns the container's id in the path of a control group, from the innermost name that has one:
/// `docker-ID.scope`, `cri-containerd-ID.scope`, `libpod-ID.scope`, or `ID` alone.
fn container_of(cgroup: &str) -> String {
    let is_id = |word: &&str| word.len() == ID_LEN && word.bytes().all(|byte| byte.is_ascii_hexdigit());
    let names = Path::new(cgroup).components().rev().filter_map(|name| name.as_os_str().to_str());
    let words = names.filter_map(|name| name.split(['-', '.', ':']).find(is_id));
    words.map(String::from).next().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn containers_are_found_in_the_names_of_control_groups() {
        let id = "0123456789abcdef".repeat(4);
        for (cgroup, expected) in [
            (format!("/system.slice/docker-{id}.scope"), id.as_str()),
            (format!("/kubepods.slice/kubepods-besteffort.slice/kubepods-pod1.slice/cri-containerd-{id}.scope"), &id),
            (format!("/kubepods/besteffort/pod12/{id}"), &id),
            (format!("/machine.slice/libpod-{id}.scope/container"), &id),
            (format!("/docker/{id}x"), ""),
            ("/user.slice/user-1000.slice/session-2.scope".into(), ""),
            (String::new(), ""),
        ] {
            assert_eq!(container_of(&cgroup), expected, "{cgroup}");
        }
    }

    #[test]
    fn users_and_control_groups_are_read() {
        let users = "root:x:0:0:root:/root:/bin/sh\nbroken\nwww-data:x:33:33::/var/www:\n";
        assert_eq!([0, 33, 34].map(|uid| user_in(users, uid)), ["root", "www-data", ""]);
        assert_eq!(cgroup_in("12:cpu:/old\n0::/user.slice/a\x1bb\n"), printable("/user.slice/a\x1bb"));
        assert_eq!(cgroup_in("1:name=systemd:/x\n"), "");
        let own = Context::of(std::process::id()).unwrap();
        assert_eq!(own.uid, rustix::process::geteuid().as_raw());
        assert_eq!(Context::of(0), None);
    }
}
