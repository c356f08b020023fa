//! A table, and the three ways to write it: for a terminal, for a browser, for a document.
//!
//! What a column holds decides how it is written: figures stand on the right, sentences are broken, and a column in which no cell has
//! anything is left out.

use std::fmt::Write;

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

/// A column in which there is something.
struct Column<'a> {
    head: &'a str,
    cells: Vec<&'a str>,
    is_figures: bool,
    is_sentences: bool,
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

impl Column<'_> {
    /// As wide as its cells are, and as narrow as its words allow.
    fn widths(&self) -> (usize, usize) {
        let words = self.cells.iter().chain([&self.head]).flat_map(|cell| cell.split_whitespace());
        let narrowest = words.map(count).max().unwrap_or(0).max(if self.is_sentences { SENTENCES_WIDTH } else { 0 });
        let cells = self.cells.iter().map(|cell| count(cell)).max().unwrap_or(0);
        (cells.min(COLUMN_WIDTH).max(count(self.head).min(HEAD_WIDTH)).max(narrowest), narrowest)
    }
}

impl Grid {
    fn columns(&self) -> Vec<Column<'_>> {
        let is_figure = |cell: &&str| {
            count(cell) <= FIGURE_WIDTH
                && cell.trim_start_matches('-').starts_with(|c: char| c.is_ascii_digit() || c == '–')
        };
        let is_sentence = |cell: &&str| count(cell) > FIGURE_WIDTH && cell.trim().contains(' ');
        let column = |(index, head)| -> Column<'_> {
            let cells: Vec<&str> =
                self.rows.iter().map(|row: &Vec<String>| row.get(index).map_or("", String::as_str)).collect();
            let filled = || cells.iter().copied().filter(|cell| !cell.trim().is_empty());
            let (is_figures, is_sentences) =
                (filled().all(|cell| is_figure(&cell)), filled().any(|cell| is_sentence(&cell)));
            Column { head, is_figures, is_sentences, cells }
        };
        let columns = self.head.iter().map(String::as_str).enumerate().map(column);
        columns.filter(|column| column.cells.iter().any(|cell| !cell.trim().is_empty())).collect()
    }

    /// For a terminal: columns as wide as their cells, sentences broken.
    pub fn text(&self) -> String {
        let columns = self.columns();
        let (mut widths, narrowest): (Vec<usize>, Vec<usize>) = columns.iter().map(Column::widths).unzip();
        // The widest gives way first.
        while widths.iter().map(|width| width + 2).sum::<usize>() > WIDTH {
            let others = widths.iter_mut().zip(&narrowest).filter(|(width, narrowest)| **width > **narrowest);
            let Some((width, _)) = others.max_by_key(|(width, _)| **width) else { break };
            *width -= 1;
        }
        let mut text = String::new();
        let mut row = |cells: Vec<&str>| {
            let broken: Vec<Vec<String>> =
                cells.iter().zip(&widths).map(|(cell, width)| broken(cell, *width)).collect();
            for index in 0..broken.iter().map(Vec::len).max().unwrap_or(0) {
                let mut line = String::from(" ");
                for ((lines, column), width) in broken.iter().zip(&columns).zip(&widths) {
                    let cell = lines.get(index).map_or("", String::as_str);
                    // Writing to a String does not fail.
                    let _ = if column.is_figures {
                        write!(line, " {cell:>width$} ")
                    } else {
                        write!(line, " {cell:width$} ")
                    };
                }
                text.push_str(line.trim_end());
                text.push('\n');
            }
        };
        row(columns.iter().map(|column| column.head).collect());
        (0..self.rows.len()).for_each(|index| row(columns.iter().map(|column| column.cells[index]).collect()));
        text
    }

    /// For a document.
    pub fn markdown(&self) -> String {
        let columns = self.columns();
        let line = |cells: Vec<&str>| {
            let cell = |cell: &str| {
                let mark = if cell.starts_with(' ') { "↳ " } else { "" };
                format!("{mark}{}", cell.trim().replace('|', "\\|").replace('<', "&lt;").replace('\n', " "))
            };
            format!("| {} |\n", cells.into_iter().map(cell).collect::<Vec<_>>().join(" | "))
        };
        let rule = columns.iter().map(|column| if column.is_figures { " ---: |" } else { " --- |" });
        let head = line(columns.iter().map(|column| column.head).collect()) + "|" + &rule.collect::<String>() + "\n";
        let rows = (0..self.rows.len()).map(|index| line(columns.iter().map(|column| column.cells[index]).collect()));
        head + &rows.collect::<String>()
    }

    /// For a browser: a table in a box of its own, whose rows are cards on a phone where it has sentences. `escape` makes text safe.
    pub fn html(&self, label: &str, escape: impl Fn(&str) -> String) -> String {
        let columns = self.columns();
        let class = |column: &Column| match (column.is_figures, column.is_sentences) {
            (true, _) => "figures",
            (_, true) => "sentences",
            _ => "",
        };
        let sentences = columns.iter().position(|column| column.is_sentences);
        let name = sentences.or_else(|| columns.iter().position(|column| !column.is_figures)).unwrap_or(0);
        let head = columns.iter().enumerate().map(|(index, column)| {
            let name = if index == name { " name" } else { "" };
            format!("<th scope=\"col\" class=\"{}{name}\">{}</th>", class(column), escape(column.head))
        });
        let cell = |row: usize, index: usize, column: &Column| {
            let cell = column.cells[row];
            let inner = if cell.starts_with(' ') { " inner" } else { "" };
            let text = escape(cell.trim());
            let (open, close, text) = if index == name {
                // Long names break where their parts end.
                ("th scope=\"row\"", "th", text.replace('.', ".<wbr>").replace('_', "_<wbr>"))
            } else {
                ("td", "td", text)
            };
            format!("<{open} class=\"{}{inner}\" data-head=\"{}\">{text}</{close}>", class(column), escape(column.head))
        };
        let row = |row| {
            let cells = columns.iter().enumerate().map(|(index, column)| cell(row, index, column));
            format!("<tr>{}</tr>\n", cells.collect::<String>())
        };
        format!(
            "<div class=\"scroll\" tabindex=\"0\" role=\"region\" aria-label=\"{}\">\n<table{}><thead><tr>{}</tr></thead>\n\
             <tbody>{}</tbody></table>\n</div>",
            escape(label),
            if sentences.is_some() { " class=\"cards\"" } else { "" },
            head.collect::<String>(),
            (0..self.rows.len()).map(row).collect::<String>()
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn grid() -> Grid {
        let row = |cells: &[&str]| cells.iter().map(ToString::to_string).collect::<Vec<_>>();
        let words = "a sentence that is so long that no terminal would be wide enough for it and the rest of the table beside it";
        let rows = vec![row(&["7", words, "", "x < 2 | 3"]), row(&["", "  in"])];
        Grid { head: row(&["line", "statement", "nothing", "here"]), rows }
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
        let text = Grid { head: vec![String::new(); 9], rows: vec![cells] }.text();
        assert!(text.lines().count() > 2 && text.lines().all(|line| line.chars().count() <= WIDTH), "{text}");
    }

    #[test]
    fn no_cell_ends_its_row() {
        let markdown = grid().markdown();
        assert!(
            markdown.contains("x &lt; 2 \\| 3 |\n|  | ↳ in |") && markdown.contains("\n| ---: | --- | --- |\n"),
            "{markdown}"
        );
        let html = grid().html("x", |text| text.replace('<', "&lt;"));
        assert!(
            html.contains(">x &lt; 2 | 3</td>")
                && html.contains("class=\"sentences inner\" data-head=\"statement\">in</th>"),
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
