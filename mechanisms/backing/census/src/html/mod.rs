//! A census as an HTML page: one file, without scripts, that loads nothing from the network.
//!
//! ```text
//!   Census ──▶ bars: one for each mapping, longer for larger ones, divided by kind of page ────────┐
//!   Run    ──▶ curves: memory and faults over time; buffers on the zero page                       ├─▶ one file
//!   both   ──▶ tables with every figure                                                          ──┘
//! ```
//! Names of processes, files and variables are escaped wherever they appear, and the page's policy refuses every load
//! and every script.

mod bars;
mod curves;

use std::fmt::Write;

use crate::text::{bytes_text, speed_text, time_text};
use crate::{Census, Pages, Run, Verdict, run_table};

const CSS: &str = include_str!("page.css");

/// A browser that follows this policy makes no request for the page, and runs no script.
const POLICY: &str =
    "default-src 'none'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; form-action 'none'";

/// A kind of memory behind a mapping: its name, its colour in the style sheet, and the function that counts its bytes.
pub(crate) type MemoryKind = (&'static str, &'static str, fn(&Pages) -> u64);

/// All kinds, in the order of the bars. `small` and `huge` exclude shared memory, so that the sum over all kinds is the
/// size.
pub(crate) const KINDS: [MemoryKind; 6] = [
    ("zero page", "zero", |pages| pages.zero),
    ("small pages", "small", |pages| pages.small.saturating_sub(pages.shared)),
    ("huge pages", "huge", |pages| pages.huge.min(pages.resident().saturating_sub(pages.shared))),
    ("a file's, or shared", "shared", |pages| pages.shared),
    ("swapped", "swapped", |pages| pages.swapped),
    ("unbacked", "unbacked", |pages| pages.unbacked),
];

/// Returns a census as HTML.
pub fn html(census: &Census) -> String {
    let title = format!("{}, process {}", census.command, census.pid);
    let mut body = String::new();
    address_space(&mut body, "space", "Address space", census);
    notes(&mut body, &census.unseen);
    page(&title, "What stands behind its memory, at about one moment.", &body)
}

/// Returns the result of a command as HTML.
pub fn html_of_run(run: &Run) -> String {
    let title = run.command.first().map_or("no command", String::as_str);
    let words = run.command.join(" ");
    let subtitle = format!("{words}: {}, exit code {}", time_text(run.duration_ms), run.exit_code);
    let mut body = String::new();
    if run.period_ms.is_some() {
        let class = if run.verdict == Verdict::NotFound { "quiet" } else { "note" };
        let lines = run_table(run, 120, false);
        // The last line of the text is the verdict.
        let verdict = lines.trim_end().lines().next_back().unwrap_or_default();
        section(&mut body, "summary", "Read from the zero page", &|body| {
            line(body, &format!("<p class=\"{class}\">{}</p>", escaped(verdict)));
            buffers(body, run);
            line(body, &format!("<details><summary>As text</summary><pre>{}</pre></details>", escaped(&lines)));
        });
        section(&mut body, "time", "Over time", &|body| curves::draw(body, run));
    }
    if let Some(census) = &run.worst {
        let title = "Address space when most of it was the zero page";
        address_space(
            &mut body,
            "worst",
            &format!("{title}: {}, process {}", escaped(&census.command), census.pid),
            census,
        );
    }
    match &run.census {
        Some(census) => address_space(&mut body, "space", "Address space at its end", census),
        None => line(&mut body, "<p class=\"note\">The command ended before it was looked at.</p>"),
    }
    if !run.others.is_empty() {
        section(&mut body, "others", "Other processes, at their end", &|body| {
            let head = ["process", "", "zero", "small", "huge", "swapped"];
            let row = |other: &crate::EndedProcess| {
                let Pages { zero, small, huge, swapped, .. } = other.total;
                let bytes = [zero, small, huge, swapped].map(bytes_text);
                [other.pid.to_string(), escaped(&other.command)].into_iter().chain(bytes).collect()
            };
            table(body, "Other processes", &head, run.others.iter().map(row));
        });
    }
    notes(&mut body, &run.unseen);
    page(title, &subtitle, &body)
}

fn page(title: &str, subtitle: &str, body: &str) -> String {
    let (title, subtitle) = (escaped(title), escaped(subtitle));
    format!(
        r#"<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{POLICY}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<meta name="generator" content="dormouse pages {version}">
<title>{title}: pages</title>
<link rel="icon" href="data:,">
<style>{CSS}</style>
</head>
<body>
<header><p class="mark">Dormouse pages</p><h1>{title}</h1><p class="quiet">{subtitle}</p></header>
<main>
{body}</main>
<footer><p>Written by <code>dormouse pages</code> {version}. The zero page is one page of zeroes that stands for all memory that was read and never
written; unbacked memory has nothing yet, and its next access faults.</p></footer>
</body>
</html>
"#,
        version = env!("CARGO_PKG_VERSION"),
    )
}

fn address_space(body: &mut String, id: &str, title: &str, census: &Census) {
    section(body, id, title, &|body| {
        bars::draw(body, census);
        let head = ["name", "from", "access", "size", "unbacked", "zero", "small", "huge", "shared", "swapped"];
        let row = |mapping: &crate::Mapping| {
            let Pages { unbacked, zero, small, huge, shared, swapped, .. } = mapping.pages;
            let bytes = [mapping.end - mapping.start, unbacked, zero, small, huge, shared, swapped].map(bytes_text);
            let name = [escaped(&mapping.name.to_string()), format!("{:x}", mapping.start), escaped(&mapping.access)];
            name.into_iter().chain(bytes).collect()
        };
        table(body, "Mappings, by address", &head, census.mappings.iter().map(row));
    });
    if !census.zero_variables.is_empty() {
        section(body, &format!("{id}-variables"), "Variables on the zero page", &|body| {
            let head = ["variable", "object", "address", "size", "zero"];
            let row = |variable: &crate::ZeroVariable| {
                let path = variable.path.display().to_string();
                let bytes = [variable.size, variable.zero].map(bytes_text);
                let name = [escaped(&variable.name), escaped(&path), format!("{:x}", variable.address)];
                name.into_iter().chain(bytes).collect()
            };
            table(body, "Read, and never written", &head, census.zero_variables.iter().map(row));
        });
    }
}

fn buffers(body: &mut String, run: &Run) {
    let head = ["buffer", "process", "zero", "at end", "size", "share", "found"];
    let row = |buffer: &crate::Buffer| {
        let bytes = [buffer.zero, buffer.zero_at_end, buffer.size].map(bytes_text);
        let found = if buffer.is_found { "yes" } else { "–" };
        let name = [escaped(&buffer.what.to_string()), escaped(&format!("{} ({})", buffer.command, buffer.pid))];
        let share = [format!("{:.1} %", buffer.share_percent), found.into()];
        name.into_iter().chain(bytes).chain(share).collect()
    };
    if !run.buffers.is_empty() {
        table(body, "Buffers, at their worst", &head, run.buffers.iter().map(row));
    }
    if let Some(speed) = &run.speed {
        line(body, &format!("<p>{}; measured on this machine after the command</p>", speed_text(speed)));
    }
}

fn section(body: &mut String, id: &str, title: &str, inside: &dyn Fn(&mut String)) {
    line(body, &format!("<section aria-labelledby=\"{id}\">\n<h2 id=\"{id}\">{title}</h2>"));
    inside(body);
    line(body, "</section>");
}

fn table(body: &mut String, caption: &str, head: &[&str], rows: impl Iterator<Item = Vec<String>>) {
    let head: String = head.iter().map(|name| format!("<th scope=\"col\">{name}</th>")).collect();
    let region = format!("<div class=\"scroll\" tabindex=\"0\" role=\"region\" aria-label=\"{caption}\">");
    line(body, &format!("{region}\n<table><caption>{caption}</caption>\n<thead><tr>{head}</tr></thead>\n<tbody>"));
    for row in rows {
        let mut cells = row.into_iter();
        let first = cells.next().unwrap_or_default();
        let cells: String = cells.map(|cell| format!("<td>{cell}</td>")).collect();
        line(body, &format!("<tr><th scope=\"row\">{first}</th>{cells}</tr>"));
    }
    line(body, "</tbody></table>\n</div>");
}

fn notes(body: &mut String, unseen: &[String]) {
    for text in unseen {
        line(body, &format!("<p class=\"note\"><b>Not seen</b> {}</p>", escaped(text)));
    }
}

fn line(body: &mut String, html: &str) {
    // Writing to a String does not fail.
    let _ = writeln!(body, "{html}");
}

/// Adds a legend: coloured squares with their names.
fn legend<'a>(body: &mut String, entries: impl Iterator<Item = (&'a str, &'a str)>) {
    let entry = |(name, colour): (&str, &str)| {
        format!(
            "<li><svg viewBox=\"0 0 12 12\" aria-hidden=\"true\"><rect class=\"{colour}\" width=\"12\" height=\"12\"/></svg>{name}</li>"
        )
    };
    line(body, &format!("<ul class=\"legend\" aria-label=\"Colours\">{}</ul>", entries.map(entry).collect::<String>()));
}

/// Escapes text for HTML, also for a quoted attribute. Replaces control characters, which HTML does not allow.
pub(crate) fn escaped(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            '\'' => escaped.push_str("&#39;"),
            '\n' => escaped.push('\n'),
            character if character.is_control() => escaped.push('\u{fffd}'),
            character => escaped.push(character),
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Mapping, Name};

    fn census() -> Census {
        let pages = Pages { zero: 4 << 20, small: 1 << 20, shared: 4096, unbacked: 3 << 20, ..Pages::default() };
        Census {
            pid: 7,
            command: "<script>\u{1b}".into(),
            mappings: vec![Mapping {
                start: 0x1000,
                end: 0x1000 + (8 << 20),
                access: "rw-p".into(),
                name: Name::File { path: "/a\"b&<c>'".into() },
                pages,
            }],
            total: pages,
            zero_variables: Vec::new(),
            sees_zero: true,
            unseen: vec!["a < b".into()],
            zero_runs: Vec::new(),
            allocations: Vec::new(),
        }
    }

    #[test]
    fn names_are_escaped_as_text() {
        let page = html(&census());
        assert!(!page.contains("<script") && !page.contains('\u{1b}') && !page.contains("<c>"), "{page}");
        assert!(page.contains("/a&quot;b&amp;&lt;c&gt;&#39;") && page.contains("a &lt; b"));
    }

    #[test]
    fn every_picture_is_well_formed() {
        let page = html(&census());
        let pictures: Vec<&str> =
            page.split("<svg").skip(1).map(|part| part.split("</svg>").next().unwrap_or_default()).collect();
        assert!(pictures.len() > KINDS.len());
        for picture in pictures {
            let (mut open, mut rest) = (Vec::new(), picture.split_once('>').unwrap().1);
            while let Some((before, tag)) = rest.split_once('<') {
                assert!(!before.contains('>'), "{picture}");
                let (tag, after) = tag.split_once('>').unwrap();
                assert_eq!(tag.matches('"').count() % 2, 0, "{tag}");
                let name = |tag: &str| tag.split_whitespace().next().unwrap_or_default().to_string();
                match tag.strip_prefix('/') {
                    Some(closed) => assert_eq!(open.pop(), Some(name(closed)), "{picture}"),
                    None if !tag.ends_with('/') => open.push(name(tag)),
                    None => {}
                }
                rest = after;
            }
            assert!(open.is_empty(), "{picture}");
        }
    }

    #[test]
    fn kinds_of_pages_add_up_to_the_size() {
        let pages = census().total;
        assert_eq!(KINDS.iter().map(|(.., bytes)| bytes(&pages)).sum::<u64>(), 8 << 20);
        let pages = Pages { huge: 4 << 20, small: 4096, shared: 4 << 20, ..Pages::default() };
        assert_eq!(KINDS.iter().map(|(.., bytes)| bytes(&pages)).sum::<u64>(), (4 << 20) + 4096);
    }

    /// Returns the relative luminance of `#rrggbb`, by <https://www.w3.org/TR/WCAG22/#dfn-relative-luminance>.
    fn luminance(colour: &str) -> f64 {
        let number = u32::from_str_radix(colour, 16).unwrap();
        let linear = |shift: u32| {
            let value = f64::from(number >> shift & 0xff) / 255.0;
            if value <= 0.04045 { value / 12.92 } else { ((value + 0.055) / 1.055).powf(2.4) }
        };
        0.2126 * linear(16) + 0.7152 * linear(8) + 0.0722 * linear(0)
    }

    #[test]
    fn colours_have_contrast_in_both_schemes() {
        for scheme in CSS.split("--scheme:").skip(1) {
            let of = |name: &str| {
                let (_, value) = scheme.split_once(&format!("--{name}: #")).unwrap_or_else(|| panic!("--{name}"));
                luminance(&value[..6])
            };
            let contrast = |a: &str, b: &str| (of(a).max(of(b)) + 0.05) / (of(a).min(of(b)) + 0.05);
            for text in ["ink", "quiet"] {
                assert!(contrast(text, "paper") >= 4.5 && contrast(text, "page") >= 4.5, "{text}");
            }
            // Colours with a meaning contrast with the background by 3 : 1 (WCAG 2.2, 1.4.11); unbacked memory has an edge.
            for colour in ["zero", "small", "huge", "shared", "swapped", "edge"] {
                assert!(contrast(colour, "paper") >= 3.0, "{colour}: {}", contrast(colour, "paper"));
            }
        }
        assert_eq!(CSS.split("--scheme:").count(), 3);
    }
}
