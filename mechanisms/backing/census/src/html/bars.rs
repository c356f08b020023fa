//! The address space as bars: one for each mapping, in order of address. A larger mapping has a longer bar.

use std::fmt::Write;

use super::{KINDS, escaped, legend, line};
use crate::Census;
use crate::census::Row;
use crate::text::bytes_text;

/// Width of the picture of a bar, in its units.
const WIDTH: f64 = 1000.0;
/// Minimum width of a part, so that it is visible.
const PART_WIDTH_MIN: f64 = 4.0;
/// Maximum number of bars. The table has every mapping.
const BARS_MAX: usize = 2000;
/// Minimum size of an unmapped range that is mentioned.
const GAP_BYTES_MIN: u64 = 1 << 30;

pub(super) fn draw(body: &mut String, census: &Census) {
    let rows = census.rows(|mapping| mapping.name.to_string());
    let size_max = rows.iter().map(|row| row.size).max().unwrap_or(0);
    line(
        body,
        "<p class=\"quiet\">By address. A bar is longer by the same length each time its mapping is twice as large; its parts are shares.</p>",
    );
    legend(body, KINDS.iter().map(|(name, colour, _)| (*name, *colour)));
    line(body, "<ol class=\"bars\">");
    let mut last_end = None;
    for row in rows.iter().take(BARS_MAX) {
        if let Some(gap) =
            last_end.map(|end| row.addresses.start.saturating_sub(end)).filter(|gap| *gap >= GAP_BYTES_MIN)
        {
            line(body, &format!("<li class=\"gap\" aria-hidden=\"true\">{} of nothing</li>", bytes_text(gap)));
        }
        last_end = Some(row.addresses.end);
        line(body, &bar(row, size_max));
    }
    line(body, "</ol>");
    if rows.len() > BARS_MAX {
        line(body, &format!("<p class=\"quiet\">{} more are in the table.</p>", rows.len() - BARS_MAX));
    }
}

/// Returns the length of a bar, from 0 to 1.
fn length(size: u64, size_max: u64) -> f64 {
    let steps = |size: u64| (size as f64 / 4096.0).max(1.0).log2() + 1.0;
    steps(size) / steps(size_max)
}

fn bar(row: &Row, size_max: u64) -> String {
    let whole = WIDTH * length(row.size, size_max);
    let parts: Vec<_> = KINDS.iter().map(|(name, colour, of)| (*name, *colour, of(&row.pages))).collect();
    let parts: Vec<_> = parts.into_iter().filter(|(.., bytes)| *bytes > 0).collect();
    let widths: Vec<f64> =
        parts.iter().map(|(.., bytes)| (whole * *bytes as f64 / row.size.max(1) as f64).max(PART_WIDTH_MIN)).collect();
    // Keeps the intended length although small parts are widened.
    let scale = whole / widths.iter().sum::<f64>().max(whole);
    let (mut rects, mut x) = (String::new(), 0.0);
    for ((name, colour, bytes), width) in parts.iter().zip(&widths) {
        let (width, bytes) = (width * scale, bytes_text(*bytes));
        // Writing to a String does not fail.
        let _ = write!(
            rects,
            "<rect class=\"{colour}\" x=\"{x:.1}\" y=\"1\" width=\"{width:.1}\" height=\"12\"><title>{bytes} {name}</title></rect>"
        );
        x += width;
    }
    let told: Vec<String> = parts.iter().map(|(name, _, bytes)| format!("{} {name}", bytes_text(*bytes))).collect();
    let (name, size) = (escaped(&row.name), bytes_text(row.size));
    format!(
        "<li><span class=\"name\" title=\"{:x} … {:x}\">{name}</span><span class=\"size\">{size}</span>\
         <svg viewBox=\"0 0 {WIDTH} 14\" preserveAspectRatio=\"none\" role=\"img\" aria-label=\"{}\">{rects}</svg></li>",
        row.addresses.start,
        row.addresses.end,
        told.join(", ")
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Pages;

    #[test]
    fn doubling_a_size_adds_one_step_to_its_bar() {
        let steps: Vec<f64> = [4096, 8192, 16384, 32768].iter().map(|size| length(*size, 32768)).collect();
        assert_eq!(steps, [0.25, 0.5, 0.75, 1.0]);
        assert_eq!(length(0, 0), 1.0);
    }

    #[test]
    fn parts_fill_the_bar_and_each_is_visible() {
        let pages = Pages { zero: 4096, small: 1 << 30, unbacked: 4096, ..Pages::default() };
        let row = Row { name: "a".into(), addresses: 0..8, size: (1 << 30) + 8192, pages };
        let bar = bar(&row, row.size);
        let widths = bar.split(" width=\"").skip(1).map(|part| part.split('"').next().unwrap().parse::<f64>().unwrap());
        let widths: Vec<f64> = widths.collect();
        assert_eq!(widths.len(), 3);
        assert!((widths.iter().sum::<f64>() - WIDTH).abs() < 0.2 && widths.iter().all(|width| *width > 3.0), "{bar}");
    }
}
