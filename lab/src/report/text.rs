//! Text for people: numbers, and characters that mean something to a browser.

use std::fmt::Write;

/// Text within HTML, also within a quoted attribute.
pub(super) fn html(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            '\'' => escaped.push_str("&#39;"),
            // Neither is a character of HTML.
            '\0' => escaped.push('\u{fffd}'),
            _ => escaped.push(character),
        }
    }
    escaped
}

/// Text within a plot: the plotting library reads a few tags and entities, and nothing else.
pub(super) fn plot(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

/// JSON that stands within `<script type="application/json">`, where only `</script` and `<!--` mean something.
pub(super) fn script_json(value: &serde_json::Value) -> String {
    value.to_string().replace('<', "\\u003c")
}

/// Four significant digits, as far as that is readable: `14.53`, `0.0521`, `12 345`, `1.2e-6`.
pub(super) fn number(value: f64) -> String {
    digits(value, 4)
}

/// A number by its significant digits; those before the point all stand.
pub(super) fn digits(value: f64, digits: i32) -> String {
    let size = value.abs();
    match size {
        _ if value.is_nan() => "n/a".into(),
        _ if value.is_infinite() => if value > 0.0 { "∞" } else { "−∞" }.into(),
        0.0 => "0".into(),
        _ if !(1e-4..1e12).contains(&size) => minus(format!("{value:.1e}")),
        _ => {
            // Of the rounded value, so that 9.9996 is 10.00 and not 10.000.
            let decimals = |size: f64| (digits - 1 - size.log10().floor() as i32).clamp(0, 6) as usize;
            let rounded: f64 = format!("{size:.*}", decimals(size)).parse().unwrap_or(size);
            thousands(&format!("{value:.*}", decimals(rounded)))
        }
    }
}

/// A number and its unit; a count has none.
pub(super) fn quantity(value: f64, unit: &str) -> String {
    if unit.is_empty() || unit == "count" { number(value) } else { format!("{}\u{a0}{unit}", number(value)) }
}

/// How far something spreads, of which two digits say enough.
pub(super) fn spread(value: f64, unit: &str) -> String {
    if unit.is_empty() || unit == "count" { digits(value, 2) } else { format!("{}\u{a0}{unit}", digits(value, 2)) }
}

/// `[14.1, 14.9]`
pub(super) fn interval(ci95: [f64; 2]) -> String {
    format!("[{}, {}]", number(ci95[0]), number(ci95[1]))
}

fn minus(text: String) -> String {
    text.replacen('-', "−", usize::from(text.starts_with('-')))
}

/// Groups of three digits before the point, by a narrow space that does not break; four digits stay together.
fn thousands(text: &str) -> String {
    let (sign, digits) = text.strip_prefix('-').map_or(("", text), |rest| ("−", rest));
    let whole = digits.find('.').unwrap_or(digits.len());
    let mut grouped = String::from(sign);
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && index < whole && whole > 4 && (whole - index) % 3 == 0 {
            grouped.push('\u{202f}');
        }
        grouped.push(digit);
    }
    grouped
}

/// `1 round`, `20 rounds`
pub(super) fn count(count: usize, one: &str) -> String {
    format!("{} {one}{}", thousands(&count.to_string()), if count == 1 { "" } else { "s" })
}

/// A few sentences of many, for those who hear a plot in place of seeing it.
pub(super) fn digest(sentences: &[String], most: usize) -> String {
    let mut text = sentences.iter().take(most).cloned().collect::<Vec<_>>().join("; ");
    if sentences.len() > most {
        let _ = write!(text, "; and {} more, which the table has", sentences.len() - most);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_short() {
        let cases = [
            (0.0, "0"),
            (14.527, "14.53"),
            (9.99996, "10.00"),
            (152.34, "152.3"),
            (0.05213, "0.05213"),
            (-0.5, "−0.5000"),
            (1234.4, "1234"),
            (12345.6, "12\u{202f}346"),
            (-1234567.0, "−1\u{202f}234\u{202f}567"),
            (1.21e-6, "1.2e-6"),
            (f64::NAN, "n/a"),
            (f64::NEG_INFINITY, "−∞"),
        ];
        for (value, text) in cases {
            assert_eq!(number(value), text, "{value}");
        }
    }

    #[test]
    fn nothing_leaves_its_place() {
        let hostile = "</script><script>alert('1')</script><!-- \" &amp; \0";
        assert!(!html(hostile).contains(['<', '>', '"', '\'', '\0']));
        assert_eq!(plot("<b>&lt;"), "&lt;b&gt;&amp;lt;");
        let json = script_json(&serde_json::json!({ hostile: [hostile] }));
        assert!(!json.contains('<'));
        assert_eq!(
            serde_json::from_str::<serde_json::Value>(&json).unwrap(),
            serde_json::json!({ hostile: [hostile] })
        );
    }
}
