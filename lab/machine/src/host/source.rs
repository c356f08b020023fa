//! Where facts are read: `/proc` and `/sys`, or copies of them elsewhere.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use super::Fact;

/// The root that paths are taken from.
#[derive(Debug, Clone)]
pub(crate) struct Source {
    root: PathBuf,
}

impl Source {
    /// The running machine.
    pub(crate) fn live() -> Source {
        Source { root: "/".into() }
    }

    /// A copy.
    #[cfg(test)]
    pub(crate) fn at(root: &Path) -> Source {
        Source { root: root.into() }
    }

    pub(crate) fn path(&self, path: &str) -> PathBuf {
        self.root.join(path.trim_start_matches('/'))
    }

    /// A file's text without white space around it.
    pub(crate) fn text(&self, path: &str) -> Fact<String> {
        match std::fs::read_to_string(self.path(path)) {
            Ok(text) => Fact::Told(text.trim().to_string()),
            Err(error) => Fact::NotTold(match error.kind() {
                ErrorKind::NotFound => format!("the kernel has no {path}"),
                ErrorKind::PermissionDenied => format!("{path} may not be read by this user"),
                _ => format!("{path}: {error}"),
            }),
        }
    }

    /// A file that holds one number.
    pub(crate) fn number<T: std::str::FromStr>(&self, path: &str) -> Fact<T> {
        self.text(path)
            .and_then(|text| Fact::from_option(text.parse().ok(), || format!("{path} holds `{text}`, no number")))
    }

    /// The names in a directory, sorted; none if it is not there.
    pub(crate) fn names(&self, path: &str) -> Vec<String> {
        let entries = std::fs::read_dir(self.path(path)).into_iter().flatten().flatten();
        let mut names: Vec<String> = entries.filter_map(|entry| entry.file_name().into_string().ok()).collect();
        names.sort();
        names
    }

    pub(crate) fn exists(&self, path: &str) -> bool {
        Path::exists(&self.path(path))
    }
}

/// The numbers of a list such as `0-3,8`. `None` if it is none.
pub(crate) fn cpu_list(text: &str) -> Option<Vec<u32>> {
    let mut cpus = Vec::new();
    for part in text.trim().split(',').filter(|part| !part.is_empty()) {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last) = (first.trim().parse::<u32>().ok()?, last.trim().parse::<u32>().ok()?);
        if last < first || last - first >= 1 << 16 {
            return None;
        }
        cpus.extend(first..=last);
    }
    Some(cpus)
}

/// The list that [`cpu_list`] reads.
pub fn list_text(cpus: &[u32]) -> String {
    let mut parts: Vec<(u32, u32)> = Vec::new();
    for &cpu in cpus {
        match parts.last_mut() {
            Some((_, last)) if *last + 1 == cpu => *last = cpu,
            _ => parts.push((cpu, cpu)),
        }
    }
    let part = |&(first, last): &(u32, u32)| if first == last { first.to_string() } else { format!("{first}-{last}") };
    parts.iter().map(part).collect::<Vec<_>>().join(",")
}

/// The choice in brackets of a file such as `always [madvise] never`; the whole text if there is none.
pub(crate) fn chosen(text: &str) -> String {
    let inside = text.split_once('[').and_then(|(_, rest)| rest.split_once(']')).map(|(inside, _)| inside);
    inside.unwrap_or(text).trim().to_string()
}

/// Bytes of a size such as `32K`.
pub(crate) fn size_bytes(text: &str) -> Option<u64> {
    let text = text.trim();
    let (digits, factor) = match text.strip_suffix(['K', 'k']) {
        Some(digits) => (digits, 1 << 10),
        None => text.strip_suffix('M').map_or((text, 1), |digits| (digits, 1 << 20)),
    };
    digits.parse::<u64>().ok()?.checked_mul(factor)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists() {
        assert_eq!(cpu_list("0-3,8\n"), Some(vec![0, 1, 2, 3, 8]));
        assert_eq!(cpu_list(""), Some(vec![]));
        assert_eq!(cpu_list("3-1"), None);
        assert_eq!(cpu_list("0-4294967295"), None);
        assert_eq!(cpu_list("all"), None);
        assert_eq!(list_text(&[0, 1, 2, 3, 8]), "0-3,8");
        assert_eq!(list_text(&[]), "");
    }

    #[test]
    fn choices_and_sizes() {
        assert_eq!(chosen("always [madvise] never"), "madvise");
        assert_eq!(chosen("1"), "1");
        assert_eq!(size_bytes("32K"), Some(32 << 10));
        assert_eq!(size_bytes("8M"), Some(8 << 20));
        assert_eq!(size_bytes("512"), Some(512));
        assert_eq!(size_bytes("many"), None);
    }

    #[test]
    fn what_is_not_there_has_a_cause() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let source = Source::at(dir.path());
        assert_eq!(source.text("/proc/loadavg").cause(), Some("the kernel has no /proc/loadavg"));
        std::fs::write(dir.path().join("n"), "twelve").expect("a file");
        assert_eq!(source.number::<u32>("/n").cause(), Some("/n holds `twelve`, no number"));
    }
}
