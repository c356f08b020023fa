//! The page: one document with its style, its script and its data.
//!
//! Script and style are modules in `page/`. They become one script and one style, whose hashes are all that the content policy permits.

use std::io::Write;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use sha2::{Digest, Sha256};

/// The document, with places for what is put into it.
const DOCUMENT: &str = include_str!("../page/index.html");
const STYLE: &str = include_str!("../page/style.css");
/// Each stands behind those that it uses.
const MODULES: [(&str, &str); 10] = [
    ("text.js", include_str!("../page/text.js")),
    ("data.js", include_str!("../page/data.js")),
    ("rows.js", include_str!("../page/rows.js")),
    ("colors.js", include_str!("../page/colors.js")),
    ("draw.js", include_str!("../page/draw.js")),
    ("timeline.js", include_str!("../page/timeline.js")),
    ("charts.js", include_str!("../page/charts.js")),
    ("diff.js", include_str!("../page/diff.js")),
    ("panel.js", include_str!("../page/panel.js")),
    ("main.js", include_str!("../page/main.js")),
];

/// The modules as one: without imports, of which each names what stands before it.
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

/// What the page may do: run its script, have its style; and if it is served ask for more where it has come from.
pub(crate) fn policy(is_served: bool) -> String {
    let [script, style] = [format!("\n{}", script()), format!("\n{STYLE}")].map(|text| hash(&text));
    let connect = if is_served { " connect-src 'self';" } else { "" };
    format!("default-src 'none'; script-src {script}; style-src {style};{connect} base-uri 'none'; form-action 'none'")
}

/// Letters that so many bytes take.
pub(crate) fn base64_size(size_bytes: usize) -> usize {
    size_bytes.div_ceil(3) * 4
}

/// Letters of a block, to be used again.
#[derive(Debug, Default)]
pub(crate) struct Base64(String);

/// The document around the data.
#[derive(Debug)]
pub(crate) struct Page {
    before: String,
    behind: String,
}

/// Around each block of data.
const BLOCK: [&str; 3] = ["<script type=\"application/octet-stream\" id=\"", "\">", "</script>\n"];
/// Names of the blocks.
const BLOCKS: [&str; 4] = ["head", "rows", "heat", "fields"];

impl Page {
    /// `is_served`: it may ask for more where it has come from.
    pub(crate) fn new(is_served: bool) -> Page {
        let script = format!("\n{}", script());
        let style = format!("\n{STYLE}");
        let policy = policy(is_served);
        let document = DOCUMENT.replace("{policy}", &policy).replace("{style}", &style);
        let (before, rest) = document.split_once("{data}").unwrap_or((&document, ""));
        Page { before: before.into(), behind: rest.replace("{script}", &script) }
    }

    /// Of all but the letters of the blocks.
    pub(crate) fn size_bytes(&self) -> u64 {
        let blocks: usize =
            BLOCKS.iter().map(|name| name.len() + BLOCK.iter().map(|part| part.len()).sum::<usize>()).sum();
        (self.before.len() + self.behind.len() + blocks) as u64
    }

    /// Writes it with these blocks.
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
    fn modules_use_what_stands_before_them_and_end_no_element() {
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
