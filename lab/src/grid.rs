//! A table, and three ways to write it: for a terminal, for a browser, for a document.
//!
//! The content of a column decides its format: figures are aligned right, sentences are wrapped, and a column with
//! empty cells only is left out.

/// Rows of text with a head. Cells may be missing at the end of a row; a cell that starts with a blank belongs to the
/// row above.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Grid {
    /// Head of each column.
    pub head: Vec<String>,
    /// Rows of cells.
    pub rows: Vec<Vec<String>>,
}

/// Maximum width of a table for a terminal, in characters, if its cells can be wrapped that far.
const WIDTH: usize = 108;
/// Initial maximum width of a column, in characters.
const COLUMN_WIDTH: usize = 64;
/// Minimum width of a column of sentences, in characters.
const SENTENCES_WIDTH: usize = 26;
/// Maximum width of a column that its head alone requires, in characters.
const HEAD_WIDTH: usize = 14;
/// Length in characters above which a cell with blanks is a sentence.
const FIGURE_WIDTH: usize = 30;

/// Formats a figure with three or four significant digits.
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

/// Formats an interval: `[1.000, 2.000]`. A figure without one is exact, or has too few rounds.
pub fn interval(ci95: Option<[f64; 2]>, is_exact: bool) -> String {
    match ci95 {
        _ if is_exact => "exact".into(),
        Some([low, high]) => format!("[{}, {}]", number(low), number(high)),
        None => "too few rounds".into(),
    }
}

/// Escapes text for HTML, also for a quoted attribute.
pub fn escaped(text: &str) -> String {
    // HTML has no character for NUL.
    let of = [('&', "&amp;"), ('<', "&lt;"), ('>', "&gt;"), ('"', "&quot;"), ('\'', "&#39;"), ('\0', "\u{fffd}")];
    of.into_iter().fold(text.to_string(), |text, (character, escape)| text.replace(character, escape))
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Kind {
    Figures,
    Sentences,
    Words,
}

/// A column that is not empty: its head, followed by the cells of all rows.
struct Column<'a> {
    kind: Kind,
    cells: Vec<&'a str>,
    /// Width for a terminal, in characters.
    width: usize,
    /// Minimum to which the width can be reduced.
    width_min: usize,
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

impl Grid {
    /// Makes a table from a head and rows.
    pub fn new(head: &[&str], rows: impl IntoIterator<Item = Vec<String>>) -> Grid {
        Grid { head: head.iter().map(ToString::to_string).collect(), rows: rows.into_iter().collect() }
    }

    fn columns(&self) -> Vec<Column<'_>> {
        let starts_figure = |start: char| start.is_ascii_digit() || start == '–';
        let mut columns = Vec::new();
        for (index, head) in self.head.iter().enumerate() {
            let below = self.rows.iter().map(|row| row.get(index).map_or("", String::as_str));
            let cells: Vec<&str> = std::iter::once(head.as_str()).chain(below).collect();
            let texts: Vec<&str> = cells[1..].iter().map(|cell| cell.trim()).filter(|cell| !cell.is_empty()).collect();
            let kind = match () {
                () if texts.is_empty() => continue,
                () if texts.iter().any(|cell| count(cell) > FIGURE_WIDTH && cell.contains(' ')) => Kind::Sentences,
                () if texts.iter().all(|cell| cell.trim_start_matches('-').starts_with(starts_figure)) => Kind::Figures,
                () => Kind::Words,
            };
            let words = cells.iter().flat_map(|cell| cell.split_whitespace()).map(count).max().unwrap_or(0);
            let width_min = words.max(if kind == Kind::Sentences { SENTENCES_WIDTH } else { 0 });
            let below = cells[1..].iter().map(|cell| count(cell)).max().unwrap_or(0);
            let width = below.min(COLUMN_WIDTH).max(count(head).min(HEAD_WIDTH)).max(width_min);
            columns.push(Column { kind, cells, width, width_min });
        }
        columns
    }

    /// Formats the table for a terminal: columns as wide as their cells, with sentences wrapped.
    pub fn text(&self) -> String {
        let mut columns = self.columns();
        // The widest column is reduced first.
        while columns.iter().map(|column| column.width + 2).sum::<usize>() > WIDTH {
            let others = columns.iter_mut().filter(|column| column.width > column.width_min);
            let Some(widest) = others.max_by_key(|column| column.width) else { break };
            widest.width -= 1;
        }
        let mut text = String::new();
        for row in 0..=self.rows.len() {
            let cells: Vec<_> = columns.iter().map(|column| broken(column.cells[row], column.width)).collect();
            for index in 0..cells.iter().map(Vec::len).max().unwrap_or(0) {
                let line = columns.iter().zip(&cells).map(|(Column { kind, width, .. }, parts)| {
                    let part = parts.get(index).map_or("", String::as_str);
                    if *kind == Kind::Figures { format!("  {part:>width$}") } else { format!("  {part:width$}") }
                });
                text += line.collect::<String>().trim_end();
                text.push('\n');
            }
        }
        text
    }

    /// Formats the table as markdown.
    pub fn markdown(&self) -> String {
        let columns = self.columns();
        let cell = |cell: &str| {
            let mark = if cell.starts_with(' ') { "↳ " } else { "" };
            format!(" {mark}{} |", cell.trim().replace('|', "\\|").replace('<', "&lt;").replace('\n', " "))
        };
        let line = |row: usize| columns.iter().map(|column| cell(column.cells[row])).collect::<String>();
        let mut lines: Vec<String> = (0..=self.rows.len()).map(line).collect();
        let rule = |column: &Column<'_>| if column.kind == Kind::Figures { " ---: |" } else { " --- |" };
        lines.insert(1, columns.iter().map(rule).collect());
        lines.iter().map(|line| format!("|{line}\n")).collect()
    }

    /// Formats the table for a browser, in a box of its own. On a phone its rows are cards. A table with sentences is
    /// shown in full height.
    pub fn html(&self, label: &str) -> String {
        let columns = self.columns();
        let place = |kind| columns.iter().position(|column| column.kind == kind);
        let name = place(Kind::Sentences).or(place(Kind::Words)).unwrap_or(0);
        let row = |row: usize| {
            let cell = |(index, column): (usize, &Column<'_>)| {
                let cell = column.cells[row];
                let mut class = format!("{:?}", column.kind).to_lowercase();
                let (mut text, head) = (escaped(cell.trim()), escaped(column.cells[0]));
                class += if cell.starts_with(' ') { " inner" } else { "" };
                if index == name {
                    class += " name";
                    // Long names may wrap at the ends of their parts.
                    text = text.replace('.', ".<wbr>").replace('_', "_<wbr>");
                }
                let (tag, scope) = match row {
                    0 => ("th", " scope=\"col\""),
                    _ if index == name => ("th", " scope=\"row\""),
                    _ => ("td", ""),
                };
                format!("<{tag}{scope} class=\"{class}\" data-head=\"{head}\">{text}</{tag}>")
            };
            let cells: String = columns.iter().enumerate().map(cell).collect();
            if row == 0 { format!("<thead><tr>{cells}</tr></thead>\n") } else { format!("<tr>{cells}</tr>\n") }
        };
        format!(
            "<div class=\"scroll\" tabindex=\"0\" role=\"region\" aria-label=\"{}\">\n<table{}>{}</table>\n</div>",
            escaped(label),
            if place(Kind::Sentences).is_some() { " class=\"whole\"" } else { "" },
            (0..=self.rows.len()).map(row).collect::<String>()
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
        let cells: Vec<String> = (0..9).map(|column| format!("{column}00.0 of some of these")).collect();
        let wide = Grid::new(&[""; 9], [cells]).text();
        assert!(wide.lines().count() > 2 && wide.lines().all(|line| line.chars().count() <= WIDTH), "{wide}");
    }

    #[test]
    fn no_cell_ends_its_row() {
        let (markdown, html) = (grid().markdown(), grid().html("x"));
        for part in ["x &lt; 2 \\| 3 |\n|  | ↳ in |", "\n| ---: | --- | --- |\n"] {
            assert!(markdown.contains(part), "{markdown}");
        }
        for part in [">x &lt; 2 | 3</td>", "class=\"sentences inner name\" data-head=\"statement\">in</th>"] {
            assert!(html.contains(part), "{html}");
        }
    }

    #[test]
    fn figures_have_few_significant_digits() {
        assert_eq!(
            ["0.012", "12.35", "123.5", "1235", "-0.500", "1.20e-3", "1.235e7", "0.000", "n/a"],
            [0.0123, 12.345, 123.456, 1234.6, -0.5, 0.0012, 12_345_678.0, 0.0, f64::NAN].map(number).as_slice()
        );
        assert_eq!([interval(None, true), interval(None, false)], ["exact", "too few rounds"]);
    }
}
