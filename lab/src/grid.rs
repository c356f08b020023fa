//! A table, and the three ways to write it: for a terminal, for a browser, for a document.

use std::fmt::Write;

/// Rows of text under heads. The second column holds sentences, all others figures and words; cells may be missing at the end of a row.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Grid {
    /// One for each column.
    pub head: Vec<String>,
    /// The rows.
    pub rows: Vec<Vec<String>>,
}

/// The column that holds sentences, and how wide it may be on a terminal.
const SENTENCES: usize = 1;
const SENTENCES_WIDTH: usize = 56;
/// How wide others may be.
const WIDTH_MAX: usize = 34;

fn width_max(column: usize) -> usize {
    if column == SENTENCES { SENTENCES_WIDTH } else { WIDTH_MAX }
}

/// With as many digits as a figure deserves: three or four.
pub fn number(value: f64) -> String {
    match value.abs() {
        size if size >= 1e7 => format!("{value:.3e}"),
        size if size >= 1000.0 => format!("{value:.0}"),
        size if size >= 100.0 => format!("{value:.1}"),
        size if size >= 10.0 => format!("{value:.2}"),
        size if size >= 0.01 || size == 0.0 => format!("{value:.3}"),
        _ => format!("{value:.2e}"),
    }
}

impl Grid {
    /// For a terminal: columns as wide as their cells, sentences broken.
    pub fn text(&self) -> String {
        let lines = |cell: &str, column: usize| -> Vec<String> {
            let indent = &cell[..cell.len() - cell.trim_start().len()];
            let options = textwrap::Options::new(width_max(column)).initial_indent(indent).subsequent_indent(indent);
            let options = options.break_words(false).word_splitter(textwrap::WordSplitter::NoHyphenation);
            textwrap::wrap(cell.trim_start(), options).into_iter().map(|line| line.into_owned()).collect()
        };
        let broken: Vec<Vec<Vec<String>>> = std::iter::once(&self.head)
            .chain(&self.rows)
            .map(|row| row.iter().enumerate().map(|(column, cell)| lines(cell, column)).collect())
            .collect();
        let width = |column: usize| {
            let cells = broken.iter().filter_map(|row| row.get(column)).flatten();
            cells.map(|line| line.chars().count()).max().unwrap_or(0)
        };
        let is_number = |column: usize| {
            let cells = self.rows.iter().filter_map(|row| row.get(column)).filter(|cell| !cell.is_empty());
            cells.clone().count() > 0 && { cells }
                .all(|cell| cell.trim_start_matches('-').starts_with(|c: char| c.is_ascii_digit()))
        };
        let columns: Vec<(usize, bool)> =
            (0..self.head.len()).map(|column| (width(column), is_number(column))).collect();
        let mut text = String::new();
        for row in &broken {
            for index in 0..row.iter().map(Vec::len).max().unwrap_or(0) {
                let mut line = String::from(" ");
                for (column, (width, is_number)) in columns.iter().enumerate() {
                    let cell = row.get(column).and_then(|cell| cell.get(index)).map_or("", String::as_str);
                    // Writing to a String does not fail.
                    let _ = if *is_number { write!(line, " {cell:>width$} ") } else { write!(line, " {cell:width$} ") };
                }
                text.push_str(line.trim_end());
                text.push('\n');
            }
        }
        text
    }

    /// For a document.
    pub fn markdown(&self) -> String {
        let line = |cells: &[String]| {
            let mut cells: Vec<String> =
                cells.iter().map(|cell| cell.trim_start().replace('|', "\\|").replace('<', "&lt;")).collect();
            cells.resize(self.head.len(), String::new());
            format!("| {} |\n", cells.join(" | "))
        };
        let rule = format!("|{}\n", " --- |".repeat(self.head.len()));
        line(&self.head) + &rule + &self.rows.iter().map(|row| line(row)).collect::<String>()
    }

    /// For a browser. `escape` makes text of a cell safe.
    pub fn html(&self, label: &str, escape: impl Fn(&str) -> String) -> String {
        let head: String = self.head.iter().map(|cell| format!("<th scope=\"col\">{}</th>", escape(cell))).collect();
        let row = |row: &Vec<String>| {
            let cells = (0..self.head.len()).map(|column| {
                let cell = row.get(column).map_or("", String::as_str);
                let class = match column {
                    SENTENCES if cell.starts_with(' ') => " class=\"words inner\"",
                    SENTENCES => " class=\"words\"",
                    _ => "",
                };
                format!("<td{class}>{}</td>", escape(cell.trim_start()))
            });
            format!("<tr>{}</tr>\n", cells.collect::<String>())
        };
        format!(
            "<div class=\"scroll\" tabindex=\"0\" role=\"region\" aria-label=\"{}\">\n<table class=\"grid\"><thead><tr>{head}</tr></thead>\n\
             <tbody>{}</tbody></table>\n</div>",
            escape(label),
            self.rows.iter().map(row).collect::<String>()
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn grid() -> Grid {
        let row = |cells: &[&str]| cells.iter().map(ToString::to_string).collect::<Vec<_>>();
        let words = "a sentence that is so long that no terminal would be wide enough for it and the rest of the table beside it";
        Grid {
            head: row(&["line", "statement", "here"]),
            rows: vec![row(&["7", words, "x < 2 | 3"]), row(&["", "  in"])],
        }
    }

    #[test]
    fn sentences_are_broken_and_columns_stand_below_one_another() {
        let text = grid().text();
        let column = text.lines().next().unwrap().find("here").unwrap();
        assert_eq!(text.lines().nth(1).unwrap().find("x < 2"), Some(column), "{text}");
        assert!(text.lines().count() >= 4 && text.lines().all(|line| line.chars().count() < 90), "{text}");
        assert!(text.ends_with("    in\n"), "{text}");
    }

    #[test]
    fn no_cell_ends_its_row() {
        assert!(grid().markdown().contains("x &lt; 2 \\| 3 |\n| "));
        let html = grid().html("x", |text| text.replace('<', "&lt;"));
        assert!(
            html.contains("<td>x &lt; 2 | 3</td>") && html.contains("<td class=\"words inner\">in</td><td></td>"),
            "{html}"
        );
    }

    #[test]
    fn digits() {
        assert_eq!(
            ["0.012", "12.35", "123.5", "1235", "-0.500", "1.20e-3", "1.235e7", "0.000"],
            [0.0123, 12.345, 123.456, 1234.6, -0.5, 0.0012, 12_345_678.0, 0.0].map(number).as_slice()
        );
    }
}
