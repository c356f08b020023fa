//! `cargo xtask picture`: makes an SVG of a command's terminal output, for the documents.
//!
//! The command runs in tmux, in a window of a given size. `tmux capture-pane -e` prints the contents of the window with
//! their colours (SGR of ECMA-48), and each run of one colour becomes a text of the picture. With `--page`, the picture
//! is a browser's view of a page, as WebP.

use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use clap::Args;
use dormouse_testing::browser::{self, Browser};

use crate::system::{self, CHROMIUM};

/// Make an SVG of a command's terminal output, or a WebP of a page
#[derive(Debug, Args)]
pub(crate) struct Picture {
    /// Columns of the terminal
    #[arg(long, default_value = "100")]
    columns: u32,
    /// Rows of the terminal
    #[arg(long, default_value = "16")]
    rows: u32,
    /// A page of HTML, instead of a command
    #[arg(long, conflicts_with = "command")]
    page: Option<PathBuf>,
    /// Width of the page, in pixels
    #[arg(long, default_value = "1500", requires = "page")]
    width: u32,
    /// Height of the page, in pixels
    #[arg(long, default_value = "860", requires = "page")]
    height: u32,
    /// Colour scheme that the reader's system prefers: light or dark
    #[arg(long, default_value = "light", requires = "page")]
    scheme: String,
    /// Keys to press before the picture is made
    #[arg(long, requires = "page")]
    keys: Option<String>,
    /// File for the picture
    output: PathBuf,
    /// Command to run
    #[arg(last = true, required_unless_present = "page")]
    command: Vec<String>,
}

/// Width and height of a character of a monospaced font, in pixels, for a font size of 14 pixels.
const CELL: (f64, u32) = (8.4, 18);
const MARGIN: u32 = 12;
/// Maximum duration of the command.
const TIME_MAX: Duration = Duration::from_secs(60);
/// Interval at which the window is polled. Each poll starts a process.
const NAP: Duration = Duration::from_millis(100);

/// Colours 30 to 37.
const COLORS: [&str; 8] = ["#3b4252", "#e06c75", "#98c379", "#e5c07b", "#61afef", "#c678dd", "#56b6c2", "#d8dee9"];

impl Picture {
    pub(crate) fn run(self) -> anyhow::Result<()> {
        if let Some(page) = &self.page {
            return self.of_page(page);
        }
        let session = format!("picture-{}", std::process::id());
        let (columns, rows) = (self.columns.to_string(), self.rows.to_string());
        let quoted: Vec<String> =
            self.command.iter().map(|word| format!("'{}'", word.replace('\'', r"'\''"))).collect();
        // `sleep` keeps the window open until it is captured.
        let script = format!("{}; exec sleep {}", quoted.join(" "), TIME_MAX.as_secs());
        tmux(&["new-session", "-d", "-s", &session, "-x", &columns, "-y", &rows, "sh", "-c", &script])?;
        let shown = wait(&session);
        let captured = shown.and_then(|()| tmux(&["capture-pane", "-p", "-e", "-t", &session]));
        tmux(&["kill-session", "-t", &session])?;
        let text = captured?;
        ensure!(!text.trim().is_empty(), "the command has printed nothing");
        std::fs::write(&self.output, svg(&text, self.columns))
            .with_context(|| format!("cannot write {}", self.output.display()))
    }
}

impl Picture {
    fn of_page(&self, page: &Path) -> anyhow::Result<()> {
        system::ensure(&[CHROMIUM])?;
        let page = page.canonicalize().with_context(|| format!("cannot open {}", page.display()))?;
        let program = browser::program().context("a picture of a page needs Chromium")?;
        let mut browser = Browser::start(&program);
        browser.emulate(self.width, self.height, &self.scheme);
        browser.open(&page);
        browser.wait("document.documentElement.dataset.ready === ''");
        self.keys.iter().flat_map(|keys| keys.chars()).for_each(|key| browser.press(&key.to_string()));
        // The second frame from now on shows the effect of all keys.
        browser.evaluate("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(() => done(1))))");
        let picture = STANDARD.decode(browser.picture("webp"))?;
        ensure!(!picture.is_empty(), "the browser made no picture");
        std::fs::write(&self.output, picture).with_context(|| format!("cannot write {}", self.output.display()))
    }
}

/// Waits until the command has ended, and `sleep` runs instead.
fn wait(session: &str) -> anyhow::Result<()> {
    let begin = Instant::now();
    while tmux(&["display-message", "-p", "-t", session, "#{pane_current_command}"])?.trim() != "sleep" {
        if begin.elapsed() > TIME_MAX {
            bail!("the command did not end within {} s", TIME_MAX.as_secs());
        }
        // tmux reports the process in a pane only on request, so poll.
        std::thread::sleep(NAP);
    }
    Ok(())
}

fn tmux(arguments: &[&str]) -> anyhow::Result<String> {
    let output = Command::new("tmux").args(arguments).output().context("cannot run tmux; install it")?;
    ensure!(output.status.success(), "tmux: {}", String::from_utf8_lossy(&output.stderr).trim());
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Appearance of a run of text.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
struct Look {
    color: Option<usize>,
    is_bold: bool,
    is_dim: bool,
}

impl Look {
    /// Applies the parameters of a Select Graphic Rendition.
    fn select(&mut self, parameters: &str) {
        for parameter in parameters.split(';') {
            match parameter.parse::<usize>().unwrap_or(0) {
                0 => *self = Look::default(),
                1 => self.is_bold = true,
                2 => self.is_dim = true,
                22 => (self.is_bold, self.is_dim) = (false, false),
                color @ 30..=37 => self.color = Some(color - 30),
                39 => self.color = None,
                _ => {}
            }
        }
    }

    fn attributes(self) -> String {
        let color = self.color.map(|color| format!(" fill=\"{}\"", COLORS[color])).unwrap_or_default();
        let bold = if self.is_bold { " font-weight=\"bold\"" } else { "" };
        let dim = if self.is_dim { " opacity=\"0.6\"" } else { "" };
        format!("{color}{bold}{dim}")
    }
}

/// Splits a line into runs of the same appearance, each with its first column.
fn runs(line: &str, look: &mut Look) -> Vec<(usize, Look, String)> {
    let (mut found, mut column): (Vec<(usize, Look, String)>, usize) = (Vec::new(), 0);
    let mut rest = line;
    while let Some(c) = rest.chars().next() {
        if let Some(behind) = rest.strip_prefix("\x1b[")
            && let Some((parameters, behind)) = behind.split_once('m')
        {
            look.select(parameters);
            rest = behind;
            continue;
        }
        match found.last_mut() {
            Some((_, last, text)) if last == look => text.push(c),
            _ => found.push((column, *look, c.to_string())),
        }
        column += 1;
        rest = &rest[c.len_utf8()..];
    }
    // Nothing is drawn for blanks.
    let drawn = found.into_iter().filter(|(.., text)| !text.trim().is_empty());
    drawn
        .map(|(column, look, text)| (column + text.len() - text.trim_start().len(), look, text.trim().into()))
        .collect()
}

fn svg(text: &str, columns: u32) -> String {
    let lines: Vec<&str> = text.trim_end().lines().collect();
    let (width, height) =
        ((f64::from(columns) * CELL.0).ceil() as u32 + 2 * MARGIN, lines.len() as u32 * CELL.1 + 2 * MARGIN);
    let mut out = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{height}\" viewBox=\"0 0 {width} {height}\">\n\
         <rect width=\"100%\" height=\"100%\" rx=\"6\" fill=\"#22272e\"/>\n\
         <g font-family=\"ui-monospace, Menlo, Consolas, 'DejaVu Sans Mono', monospace\" font-size=\"14\" fill=\"#d8dee9\" style=\"white-space: pre\">\n"
    );
    let mut look = Look::default();
    for (row, line) in lines.into_iter().enumerate() {
        let y = MARGIN + row as u32 * CELL.1 + 14;
        for (column, look, text) in runs(line, &mut look) {
            let x = f64::from(MARGIN) + column as f64 * CELL.0;
            let length = text.chars().count() as f64 * CELL.0;
            let text = text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;");
            // `textLength` keeps columns aligned whatever the font's width.
            let _ = writeln!(
                out,
                "<text x=\"{x:.1}\" y=\"{y}\" textLength=\"{length:.1}\"{}>{text}</text>",
                look.attributes()
            );
        }
    }
    out + "</g>\n</svg>\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn colours_and_columns_are_kept() {
        let mut look = Look::default();
        let found = runs("\x1b[2mab \x1b[0;1;36mc<\x1b[39;22m  \x1b[34md", &mut look);
        let dim = Look { is_dim: true, ..Look::default() };
        let bold = Look { is_bold: true, color: Some(6), ..Look::default() };
        let blue = Look { color: Some(4), ..Look::default() };
        assert_eq!(found, [(0, dim, "ab".into()), (3, bold, "c<".into()), (7, blue, "d".into())]);
        let picture = svg("\x1b[1;36mc<\n", 10);
        assert!(
            picture.contains(
                "<text x=\"12.0\" y=\"26\" textLength=\"16.8\" fill=\"#56b6c2\" font-weight=\"bold\">c&lt;</text>"
            ),
            "{picture}"
        );
    }
}
