//! The page: one document with its style, script and data.
//!
//! Script and style are modules in `page/`. They are bundled into one script and one style, and the content policy
//! permits only their hashes.

use std::io::Write;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use sha2::{Digest, Sha256};

/// The document, with placeholders.
const DOCUMENT: &str = include_str!("../page/index.html");
const STYLE: &str = include_str!("../page/style.css");
/// Modules, each after those that it imports.
const MODULES: [(&str, &str); 14] = [
    ("text.js", include_str!("../page/text.js")),
    ("data.js", include_str!("../page/data.js")),
    ("rows.js", include_str!("../page/rows.js")),
    ("fields.js", include_str!("../page/fields.js")),
    ("during.js", include_str!("../page/during.js")),
    ("groups.js", include_str!("../page/groups.js")),
    ("figures.js", include_str!("../page/figures.js")),
    ("colors.js", include_str!("../page/colors.js")),
    ("draw.js", include_str!("../page/draw.js")),
    ("timeline.js", include_str!("../page/timeline.js")),
    ("charts.js", include_str!("../page/charts.js")),
    ("diff.js", include_str!("../page/diff.js")),
    ("panel.js", include_str!("../page/panel.js")),
    ("main.js", include_str!("../page/main.js")),
];

/// Returns the modules as one script. Imports are left out, since a module only imports from earlier ones.
pub fn script() -> String {
    let mut script = String::new();
    for (name, text) in MODULES {
        script.push_str(&format!("// {name}\n"));
        for line in text.lines().filter(|line| !line.starts_with("import ")) {
            script.push_str(line.strip_prefix("export ").unwrap_or(line));
            script.push('\n');
        }
    }
    script
}

fn hash(text: &str) -> String {
    format!("'sha256-{}'", STANDARD.encode(Sha256::digest(text)))
}

/// Returns the content policy: the page may run its script and use its style; if it is served, it may also send
/// requests to its origin.
pub(crate) fn policy(is_served: bool) -> String {
    let [script, style] = [format!("\n{}", script()), format!("\n{STYLE}")].map(|text| hash(&text));
    let connect = if is_served { " connect-src 'self';" } else { "" };
    format!("default-src 'none'; script-src {script}; style-src {style};{connect} base-uri 'none'; form-action 'none'")
}

/// Returns the number of base64 letters for this many bytes.
pub(crate) fn base64_size(size_bytes: usize) -> usize {
    size_bytes.div_ceil(3) * 4
}

/// Reusable buffer for the letters of a block.
#[derive(Debug, Default)]
pub(crate) struct Base64(String);

/// The document around the data.
#[derive(Debug)]
pub(crate) struct Page {
    before: String,
    behind: String,
}

/// Text before, within and after the start of a block of data.
const BLOCK: [&str; 3] = ["<script type=\"application/octet-stream\" id=\"", "\">", "</script>\n"];
/// Names of the blocks.
const BLOCKS: [&str; 4] = ["head", "rows", "heat", "fields"];

impl Page {
    /// `is_served`: whether the page may send requests to its origin.
    pub(crate) fn new(is_served: bool) -> Page {
        let script = format!("\n{}", script());
        let style = format!("\n{STYLE}");
        let policy = policy(is_served);
        let document = DOCUMENT.replace("{policy}", &policy).replace("{style}", &style);
        let (before, rest) = document.split_once("{data}").unwrap_or((&document, ""));
        Page { before: before.into(), behind: rest.replace("{script}", &script) }
    }

    /// Returns the size of the page without the letters of the blocks.
    pub(crate) fn size_bytes(&self) -> u64 {
        let blocks: usize =
            BLOCKS.iter().map(|name| name.len() + BLOCK.iter().map(|part| part.len()).sum::<usize>()).sum();
        (self.before.len() + self.behind.len() + blocks) as u64
    }

    /// Writes the page with these blocks.
    pub(crate) fn write(
        &self,
        out: &mut impl Write,
        blocks: [(&str, &[Box<[u8]>]); 4],
        letters: &mut Base64,
    ) -> std::io::Result<()> {
        out.write_all(self.before.as_bytes())?;
        for (name, parts) in blocks {
            write!(out, "{}{name}{}", BLOCK[0], BLOCK[1])?;
            for part in parts {
                letters.0.clear();
                STANDARD.encode_string(part, &mut letters.0);
                out.write_all(letters.0.as_bytes())?;
            }
            out.write_all(BLOCK[2].as_bytes())?;
        }
        out.write_all(self.behind.as_bytes())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modules_use_only_earlier_modules_and_close_no_element() {
        for (index, (name, text)) in MODULES.iter().enumerate() {
            for line in text.lines().filter(|line| line.starts_with("import ")) {
                let of = line.split("\"./").nth(1).and_then(|rest| rest.strip_suffix("\";"));
                let of = of.unwrap_or_else(|| panic!("{name}: {line}: not an import of one line"));
                assert!(MODULES[..index].iter().any(|(before, _)| *before == of), "{name} uses {of}");
            }
        }
        let script = script();
        for forbidden in [
            "</script",
            "<!--",
            "eval(",
            "innerHTML",
            "outerHTML",
            "insertAdjacentHTML",
            "new Function",
            "http:",
            "https:",
        ] {
            assert!(!script.contains(forbidden), "{forbidden}");
        }
        assert!(!STYLE.contains("</style") && !STYLE.contains("url("));
        assert!(!script.lines().any(|line| line.starts_with("import ") || line.starts_with("export ")));
    }

    #[test]
    fn the_policy_names_what_the_document_has() {
        let page = Page::new(false);
        let between = |text: &str, begin: &str, end: &str| {
            text.split_once(begin)
                .and_then(|(_, rest)| rest.split_once(end))
                .map(|(inner, _)| inner.to_owned())
                .unwrap()
        };
        let style = between(&page.before, "<style>", "</style>");
        let script = between(&page.behind, "<script type=\"module\">", "</script>");
        assert!(page.before.contains(&hash(&style)) && page.before.contains(&hash(&script)));
        assert!(!page.before.contains("connect-src") && Page::new(true).before.contains("connect-src 'self';"));
        assert!(!page.before.contains("{policy}") && !page.behind.contains("{script}"));
    }
}
