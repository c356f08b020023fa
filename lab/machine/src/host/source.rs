//! Where facts are read: `/proc` and `/sys`, or copies of them elsewhere; and the forms that the kernel has for them.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use super::Fact;

/// The root that paths are taken from.
#[derive(Debug, Clone)]
pub(crate) struct Source(PathBuf);

impl Source {
    /// The running machine, or a copy of its files.
    pub(crate) fn at(root: impl AsRef<Path>) -> Source {
        Source(root.as_ref().into())
    }

    fn path(&self, path: &str) -> PathBuf {
        self.0.join(path.trim_start_matches('/'))
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

    /// The names in a directory, sorted; none if it is not there.
    pub(crate) fn names(&self, path: &str) -> Vec<String> {
        let entries = std::fs::read_dir(self.path(path)).into_iter().flatten().flatten();
        let mut names: Vec<String> = entries.filter_map(|entry| entry.file_name().into_string().ok()).collect();
        names.sort();
        names
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

/// The choice in brackets of a file such as `always [madvise] never`; the whole text if there is none.
pub(crate) fn chosen(text: &str) -> String {
    let inside = text.split_once('[').and_then(|(_, rest)| rest.split_once(']')).map(|(inside, _)| inside);
    inside.unwrap_or(text).trim().to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn forms_of_the_kernel() {
        assert_eq!(cpu_list("0-3,8\n"), Some(vec![0, 1, 2, 3, 8]));
        assert_eq!(cpu_list(""), Some(vec![]));
        for none in ["3-1", "0-4294967295", "all"] {
            assert_eq!(cpu_list(none), None, "{none}");
        }
        assert_eq!(chosen("always [madvise] never"), "madvise");
        assert_eq!(chosen("1"), "1");
    }
}
