//! A census for people.
//!
//! ```text
//!   NAME                                 size  unbacked   zero   small  huge  swapped
//!   .bss of frames                        16M      4.0M   6.0M    6.0M     –        –
//!   …
//!   all                                   …
//!
//!   on the zero page: read, and never written
//!   4.0M of 4.0M  read_only_of_zeroes in frames
//! ```

use std::fmt::Write;
use std::path::Path;

use crate::{Census, Name, Pages};

/// Columns of figures, and how wide each is.
const COLUMNS: [&str; 6] = ["size", "unbacked", "zero", "small", "huge", "swapped"];
const COLUMN_WIDTH: usize = 10;
/// Columns that a name has at least.
const NAME_WIDTH_MIN: usize = 24;
/// Variables that are listed.
const VARIABLES_MAX: usize = 20;

/// The census as a table of at most `columns` columns, with a line break at its end. Neighbours of the same name are one line, or with
/// `is_each` as many as there are.
pub fn table(census: &Census, columns: usize, is_each: bool) -> String {
    let name_width = columns.saturating_sub(COLUMNS.len() * COLUMN_WIDTH).max(NAME_WIDTH_MIN);
    let mut text = format!("{}, process {}\n\n{:name_width$}", census.command, census.pid, "");
    // Writing to a String does not fail.
    for column in COLUMNS {
        let _ = write!(text, "{column:>COLUMN_WIDTH$}");
    }
    text.push('\n');
    let mut lines: Vec<(String, u64, Pages)> = Vec::new();
    for area in &census.areas {
        let mut name = area.name.to_string();
        if is_each {
            name = format!("{:x} {} {name}", area.start, area.access);
        }
        match lines.last_mut().filter(|(last, ..)| *last == name) {
            Some((_, size, pages)) => {
                *size += area.end - area.start;
                pages.add(&area.pages);
            }
            None => lines.push((name, area.end - area.start, area.pages)),
        }
    }
    let total = census.areas.iter().map(|area| area.end - area.start).sum();
    lines.push(("all".into(), total, census.total));
    for (name, size, pages) in lines {
        let name = shortened(&name, name_width - 1);
        let _ = write!(text, "{name:name_width$}");
        for bytes in [size, pages.unbacked, pages.zero, pages.small, pages.huge, pages.swapped] {
            let _ = write!(text, "{:>COLUMN_WIDTH$}", bytes_text(bytes));
        }
        text.push('\n');
    }
    if !census.zero_variables.is_empty() {
        text.push_str("\non the zero page: read, and never written\n");
        for variable in census.zero_variables.iter().take(VARIABLES_MAX) {
            let (zero, size) = (bytes_text(variable.zero), bytes_text(variable.size));
            let _ = writeln!(text, "{zero:>8} of {size:>6}  {} in {}", variable.name, file_name(&variable.path));
        }
        let more = census.zero_variables.len().saturating_sub(VARIABLES_MAX);
        if more > 0 {
            let _ = writeln!(text, "         and {more} smaller ones; --json has all");
        }
    }
    if !census.unseen.is_empty() {
        text.push('\n');
        census.unseen.iter().for_each(|line| {
            let _ = writeln!(text, "not seen: {line}");
        });
    }
    text
}

/// The last part of a path, by which a person knows it.
fn file_name(path: &Path) -> std::path::Display<'_> {
    path.file_name().map_or(path, Path::new).display()
}

impl std::fmt::Display for Name {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Name::Object { path, access } => write!(f, "{access} of {}", file_name(path)),
            Name::Bss { path } => write!(f, ".bss of {}", file_name(path)),
            Name::Heap => f.write_str("heap"),
            Name::Stack { thread, name } => write!(f, "stack of {name} ({thread})"),
            Name::File { path } => write!(f, "file {}", path.display()),
            Name::Shared { name } if name.is_empty() => f.write_str("shared"),
            Name::Shared { name } => write!(f, "shared {name}"),
            Name::Anonymous { name } if name.is_empty() => f.write_str("anonymous"),
            Name::Anonymous { name } => write!(f, "anonymous {name}"),
            Name::Kernel { name } => f.write_str(name),
        }
    }
}

/// The end of a text that is too long, which tells more of a path than its beginning.
fn shortened(text: &str, width: usize) -> String {
    let count = text.chars().count();
    if count <= width {
        return text.into();
    }
    std::iter::once('…').chain(text.chars().skip(count - (width - 1))).collect()
}

/// `–`, `4.0K`, `12M`
fn bytes_text(bytes: u64) -> String {
    if bytes == 0 {
        return "–".into();
    }
    let mut value = bytes as f64 / 1024.0;
    let mut units = ['K', 'M', 'G', 'T', 'P', 'E'].into_iter().peekable();
    loop {
        let unit = units.next().unwrap_or('E');
        if value < 1023.5 || units.peek().is_none() {
            return if value < 9.95 { format!("{value:.1}{unit}") } else { format!("{value:.0}{unit}") };
        }
        value /= 1024.0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Area, ZeroVariable};

    #[test]
    fn sizes_are_short() {
        let cases =
            [(0, "–"), (512, "0.5K"), (4096, "4.0K"), (10 << 10, "10K"), (1 << 20, "1.0M"), (1023 << 10, "1023K")];
        for (bytes, text) in cases {
            assert_eq!(bytes_text(bytes), text);
        }
        assert_eq!(bytes_text(u64::MAX), "16E");
    }

    #[test]
    fn neighbours_of_a_name_are_one_line() {
        let area = |start: u64, name: Name, small: u64| Area {
            start,
            end: start + 8192,
            access: "rw-p".into(),
            name,
            pages: Pages { small, unbacked: 8192 - small, ..Pages::default() },
        };
        let object = || Name::Object { path: "/usr/bin/sleep".into(), access: "r--".into() };
        let mut census = Census {
            pid: 7,
            command: "sleep".into(),
            areas: vec![area(0, object(), 4096), area(8192, object(), 8192), area(16384, Name::Heap, 0)],
            total: Pages { small: 12288, unbacked: 12288, ..Pages::default() },
            zero_variables: Vec::new(),
            unseen: vec!["much".into()],
        };
        let text = table(&census, 80, false);
        let line = |start: &str| {
            text.lines().find(|line| line.starts_with(start)).unwrap_or_else(|| panic!("{start}: {text}"))
        };
        let words = |start: &str| line(start).split_whitespace().map(String::from).collect::<Vec<_>>();
        assert_eq!(words("r-- of sleep")[3..], ["16K", "4.0K", "–", "12K", "–", "–"]);
        assert_eq!(words("all")[1..], ["24K", "12K", "–", "12K", "–", "–"]);
        assert!(text.contains("not seen: much") && !text.contains("zero page"));
        assert_eq!(table(&census, 80, true).matches("r-- of sleep").count(), 2);
        let variable = |index: u64| ZeroVariable {
            name: format!("array{index}"),
            path: "/bin/program".into(),
            address: 0,
            size: 8192,
            zero: 4096,
        };
        census.zero_variables = (0..22).map(variable).collect();
        let text = table(&census, 80, false);
        assert!(text.contains("4.0K of   8.0K  array0 in program") && text.contains("and 2 smaller ones"), "{text}");
    }

    #[test]
    fn the_end_of_a_name_is_kept() {
        assert_eq!(shortened("/usr/lib/libc.so.6", 10), "…libc.so.6");
        assert_eq!(shortened("short", 10), "short");
    }
}
