//! A table, and the three ways to write it: for a terminal, for a browser, for a document.
//!
//! What a column holds decides how it is written: figures stand on the right, sentences are broken, and a column in which no cell has
//! anything is left out.

/// Rows of text under heads. Cells may be missing at the end of a row; one that starts with a blank belongs to the row above.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Grid {
    /// One for each column.
    pub head: Vec<String>,
    /// The rows.
    pub rows: Vec<Vec<String>>,
}

/// How wide a table for a terminal is, where words can be broken so.
const WIDTH: usize = 108;
/// How wide a column of it may be before others are made narrower.
const COLUMN_WIDTH: usize = 64;
/// Sentences are not broken to be narrower than this, and heads not than the next.
const SENTENCES_WIDTH: usize = 26;
const HEAD_WIDTH: usize = 14;
/// A cell with more characters, and blanks among them, is a sentence.
const FIGURE_WIDTH: usize = 30;

/// With as many digits as a figure deserves: three or four.
pub fn number(value: f64) -> String {
    match value.abs() {
        size if !size.is_finite() => "n/a".into(),
        size if size >= 1e7 => format!("{value:.3e}"),
        size if size >= 1000.0 => format!("{value:.0}"),
        size if size >= 100.0 => format!("{value:.1}"),
        size if size >= 10.0 => format!("{value:.2}"),
        size if size >= 0.01 || size == 0.0 => format!("{value:.3}"),
        _ => format!("{value:.2e}"),
    }
}

/// `[1.000, 2.000]`. Without an interval there were too few rounds, unless the figure is exact.
pub fn interval(ci95: Option<[f64; 2]>, is_exact: bool) -> String {
    match ci95 {
        _ if is_exact => "exact".into(),
        Some([low, high]) => format!("[{}, {}]", number(low), number(high)),
        None => "too few rounds".into(),
    }
}

/// What a column holds.
#[derive(Clone, Copy, PartialEq)]
enum Kind {
    Figures,
    Sentences,
    Words,
}

fn count(text: &str) -> usize {
    text.chars().count()
}

fn broken(cell: &str, width: usize) -> Vec<String> {
    let indent = &cell[..cell.len() - cell.trim_start().len()];
    let options = textwrap::Options::new(width).initial_indent(indent).subsequent_indent(indent);
    let options = options.break_words(false).word_splitter(textwrap::WordSplitter::NoHyphenation);
    textwrap::wrap(cell.trim_start(), options).into_iter().map(|line| line.into_owned()).collect()
}

/// Text within HTML, also within a quoted attribute.
pub fn escaped(text: &str) -> String {
    // The zero is no character of HTML.
    let of = [('&', "&amp;"), ('<', "&lt;"), ('>', "&gt;"), ('"', "&quot;"), ('\'', "&#39;"), ('\0', "\u{fffd}")];
    of.into_iter().fold(text.to_string(), |text, (character, escape)| text.replace(character, escape))
}

impl Grid {
    /// Rows under heads.
    pub fn new(head: &[&str], rows: impl IntoIterator<Item = Vec<String>>) -> Grid {
        Grid { head: head.iter().map(ToString::to_string).collect(), rows: rows.into_iter().collect() }
    }

    /// The columns in which there is something: what they hold, and of each line its cells. The first line has the heads.
    fn filled(&self) -> (Vec<Kind>, Vec<Vec<&str>>) {
        let mut kinds = Vec::new();
        let mut lines = vec![Vec::new(); self.rows.len() + 1];
        for (column, head) in self.head.iter().enumerate() {
            let cells = self.rows.iter().map(|row| row.get(column).map_or("", String::as_str));
            let texts = || cells.clone().map(str::trim).filter(|cell| !cell.is_empty());
            let is_figure =
                |cell: &str| cell.trim_start_matches('-').starts_with(|c: char| c.is_ascii_digit() || c == '–');
            if texts().next().is_some() {
                kinds.push(match () {
                    () if texts().any(|cell| count(cell) > FIGURE_WIDTH && cell.contains(' ')) => Kind::Sentences,
                    () if texts().all(is_figure) => Kind::Figures,
                    () => Kind::Words,
                });
                lines
                    .iter_mut()
                    .zip(std::iter::once(head.as_str()).chain(cells))
                    .for_each(|(line, cell)| line.push(cell));
            }
        }
        (kinds, lines)
    }

    /// For a terminal: columns as wide as their cells, sentences broken.
    pub fn text(&self) -> String {
        let (kinds, lines) = self.filled();
        let longest =
            |column: usize, of: fn(&str) -> usize| lines.iter().map(|line| of(line[column])).max().unwrap_or(0);
        let word = |cell: &str| cell.split_whitespace().map(count).max().unwrap_or(0);
        let least = |column: usize| {
            longest(column, word).max(if kinds[column] == Kind::Sentences { SENTENCES_WIDTH } else { 0 })
        };
        let width = |column: usize| {
            let cells = lines.iter().skip(1).map(|line| count(line[column])).max().unwrap_or(0).min(COLUMN_WIDTH);
            cells.max(count(lines[0][column]).min(HEAD_WIDTH)).max(least(column))
        };
        let mut widths: Vec<usize> = (0..kinds.len()).map(width).collect();
        // The widest gives way first.
        while widths.iter().map(|width| width + 2).sum::<usize>() > WIDTH {
            let others = widths.iter_mut().enumerate().filter(|(column, width)| **width > least(*column));
            let Some((_, width)) = others.max_by_key(|(_, width)| **width) else { break };
            *width -= 1;
        }
        let mut text = String::new();
        for line in &lines {
            let cells: Vec<Vec<String>> = line.iter().zip(&widths).map(|(cell, width)| broken(cell, *width)).collect();
            for index in 0..cells.iter().map(Vec::len).max().unwrap_or(0) {
                let parts = cells.iter().zip(&kinds).zip(&widths).map(|((parts, kind), width)| {
                    let part = parts.get(index).map_or("", String::as_str);
                    if *kind == Kind::Figures { format!("  {part:>width$}") } else { format!("  {part:width$}") }
                });
                text.push_str(parts.collect::<String>().trim_end());
                text.push('\n');
            }
        }
        text
    }

    /// For a document.
    pub fn markdown(&self) -> String {
        let (kinds, lines) = self.filled();
        let cell = |cell: &&str| {
            let mark = if cell.starts_with(' ') { "↳ " } else { "" };
            format!(" {mark}{} |", cell.trim().replace('|', "\\|").replace('<', "&lt;").replace('\n', " "))
        };
        let mut lines: Vec<String> = lines.iter().map(|line| line.iter().map(cell).collect()).collect();
        lines.insert(1, kinds.iter().map(|kind| if *kind == Kind::Figures { " ---: |" } else { " --- |" }).collect());
        lines.iter().map(|line| format!("|{line}\n")).collect()
    }

    /// For a browser: a table in a box of its own, whose rows are cards on a phone where it has sentences.
    pub fn html(&self, label: &str) -> String {
        let (kinds, lines) = self.filled();
        let place = |kind| kinds.iter().position(|other| *other == kind);
        let name = place(Kind::Sentences).or(place(Kind::Words)).unwrap_or(0);
        let row = |(number, line): (usize, &Vec<&str>)| {
            let cell = |(column, cell): (usize, &&str)| {
                let kind = match kinds[column] {
                    Kind::Figures => "figures",
                    Kind::Sentences => "sentences",
                    Kind::Words => "words",
                };
                let inner = if cell.starts_with(' ') { " inner" } else { "" };
                let name_class = if column == name { " name" } else { "" };
                let (text, head) = (escaped(cell.trim()), escaped(lines[0][column]));
                // Long names break where their parts end.
                let text = if column == name { text.replace('.', ".<wbr>").replace('_', "_<wbr>") } else { text };
                let (tag, scope) = match number {
                    0 => ("th", " scope=\"col\""),
                    _ if column == name => ("th", " scope=\"row\""),
                    _ => ("td", ""),
                };
                format!("<{tag}{scope} class=\"{kind}{inner}{name_class}\" data-head=\"{head}\">{text}</{tag}>")
            };
            let row = format!("<tr>{}</tr>", line.iter().enumerate().map(cell).collect::<String>());
            if number == 0 { format!("<thead>{row}</thead>\n") } else { row + "\n" }
        };
        format!(
            "<div class=\"scroll\" tabindex=\"0\" role=\"region\" aria-label=\"{}\">\n<table{}>{}</table>\n</div>",
            escaped(label),
            if kinds.contains(&Kind::Sentences) { " class=\"cards\"" } else { "" },
            lines.iter().enumerate().map(row).collect::<String>()
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn grid() -> Grid {
        let row = |cells: &[&str]| cells.iter().map(ToString::to_string).collect::<Vec<_>>();
        let words = "a sentence that is so long that no terminal would be wide enough for it and the rest of the table beside it";
        Grid::new(&["line", "statement", "nothing", "here"], [row(&["7", words, "", "x < 2 | 3"]), row(&["", "  in"])])
    }

    #[test]
    fn sentences_are_broken_and_columns_stand_below_one_another() {
        let text = grid().text();
        let column = text.lines().next().unwrap().find("here").unwrap();
        assert_eq!(text.lines().nth(1).unwrap().find("x < 2"), Some(column), "{text}");
        assert!(text.lines().count() >= 4 && text.lines().all(|line| line.chars().count() < 90), "{text}");
        assert!(text.ends_with("    in\n") && !text.contains("nothing"), "{text}");
    }

    #[test]
    fn a_wide_table_is_made_narrow() {
        let cells: Vec<String> = (0..9).map(|column| format!("{column}00.0 of some of these")).collect();
        let text = Grid::new(&[""; 9], [cells]).text();
        assert!(text.lines().count() > 2 && text.lines().all(|line| line.chars().count() <= WIDTH), "{text}");
    }

    #[test]
    fn no_cell_ends_its_row() {
        let markdown = grid().markdown();
        assert!(
            markdown.contains("x &lt; 2 \\| 3 |\n|  | ↳ in |") && markdown.contains("\n| ---: | --- | --- |\n"),
            "{markdown}"
        );
        let html = grid().html("x");
        assert!(
            html.contains(">x &lt; 2 | 3</td>")
                && html.contains("class=\"sentences inner name\" data-head=\"statement\">in</th>"),
            "{html}"
        );
    }

    #[test]
    fn digits() {
        assert_eq!(
            ["0.012", "12.35", "123.5", "1235", "-0.500", "1.20e-3", "1.235e7", "0.000", "n/a"],
            [0.0123, 12.345, 123.456, 1234.6, -0.5, 0.0012, 12_345_678.0, 0.0, f64::NAN].map(number).as_slice()
        );
        assert_eq!([interval(None, true), interval(None, false)], ["exact", "too few rounds"]);
    }
}
