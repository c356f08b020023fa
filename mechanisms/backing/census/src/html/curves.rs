//! Memory and page faults over time.

use std::fmt::Write;

use super::{KINDS, legend, line};
use crate::Run;
use crate::text::{bytes_text, fault_rates, time_text};

/// Dimensions of the picture, and of the plots in it.
const WIDTH: f64 = 960.0;
const LEFT: f64 = 70.0;
const RIGHT: f64 = 950.0;
const HEIGHT: f64 = 180.0;
const TOP: f64 = 12.0;
const FAULTS_TOP: f64 = 240.0;
const FAULTS_HEIGHT: f64 = 100.0;
const FAULTS_BARS: usize = 120;

pub(super) fn draw(body: &mut String, run: &Run) {
    if run.samples.len() < 2 {
        line(body, "<p class=\"quiet\">It ended before there was a second sample.</p>");
        return;
    }
    // Unbacked addresses would hide the rest.
    let kinds: Vec<_> = KINDS.iter().filter(|(_, colour, _)| *colour != "unbacked").collect();
    legend(body, kinds.iter().map(|(name, colour, _)| (*name, *colour)).chain([("page faults", "faults")]));
    let samples = &run.samples;
    let end_ms = run.duration_ms.max(samples.last().map_or(0.0, |sample| sample.time_ms)).max(f64::MIN_POSITIVE);
    let x = |ms: f64| LEFT + (RIGHT - LEFT) * ms / end_ms;
    let total = |sample: &crate::Sample| kinds.iter().map(|(.., of)| of(&sample.pages)).sum::<u64>();
    let top = samples.iter().map(total).max().unwrap_or(0).max(1);
    let y = |bytes: u64| TOP + HEIGHT * (1.0 - bytes as f64 / top as f64);
    let mut svg = String::new();
    // Writing to a String does not fail.
    let [from, until] = run.measured_ms.map(x);
    let _ = write!(
        svg,
        "<rect class=\"measured\" x=\"{from:.1}\" y=\"{TOP}\" width=\"{:.1}\" height=\"{:.1}\"><title>the measured time</title></rect>",
        until - from,
        FAULTS_TOP + FAULTS_HEIGHT - TOP
    );
    let mut below = vec![0_u64; samples.len()];
    for (name, colour, of) in &kinds {
        let above: Vec<u64> = samples.iter().zip(&below).map(|(sample, below)| below + of(&sample.pages)).collect();
        if above != below {
            let mut points = String::new();
            let upper = samples.iter().zip(&above);
            for (sample, bytes) in upper.chain(samples.iter().zip(&below).rev()) {
                let _ = write!(points, "{:.1},{:.1} ", x(sample.time_ms), y(*bytes));
            }
            let points = points.trim_end();
            let _ = write!(svg, "<polygon class=\"{colour}\" points=\"{points}\"><title>{name}</title></polygon>");
        }
        below = above;
    }
    let rates = fault_rates(samples, end_ms, FAULTS_BARS);
    let rate_max = rates.iter().copied().fold(0.0, f64::max);
    for (at, rate) in rates.iter().enumerate().filter(|(_, rate)| **rate > 0.0) {
        let [start, end] = [at, at + 1].map(|part| part as f64 * end_ms / FAULTS_BARS as f64);
        let height = FAULTS_HEIGHT * rate / rate_max;
        let _ = write!(
            svg,
            "<rect class=\"faults\" x=\"{:.1}\" y=\"{:.1}\" width=\"{:.1}\" height=\"{height:.1}\"><title>{} … {}: {rate:.0} page faults \
             a second</title></rect>",
            x(start),
            FAULTS_TOP + FAULTS_HEIGHT - height,
            x(end) - x(start) - 0.5,
            time_text(start),
            time_text(end)
        );
    }
    for (top, height) in [(TOP, HEIGHT), (FAULTS_TOP, FAULTS_HEIGHT)] {
        let bottom = top + height;
        let _ = write!(svg, "<path class=\"axis\" d=\"M{LEFT} {top}V{bottom}H{RIGHT}\"/>");
    }
    let mut text = |x: f64, y: f64, anchor: &str, text: &str| {
        let _ = write!(svg, "<text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\">{text}</text>");
    };
    let left = LEFT - 8.0;
    text(left, TOP + 10.0, "end", &bytes_text(top));
    text(left, TOP + HEIGHT, "end", "0");
    text(left, FAULTS_TOP + 10.0, "end", &format!("{rate_max:.0}/s"));
    text(left, FAULTS_TOP + FAULTS_HEIGHT, "end", "0");
    for (y, title) in [(TOP + HEIGHT + 16.0, "memory"), (FAULTS_TOP + FAULTS_HEIGHT + 16.0, "page faults")] {
        text(LEFT, y, "start", "0");
        text((LEFT + RIGHT) / 2.0, y, "middle", title);
        text(RIGHT, y, "end", &time_text(end_ms));
    }
    let label = format!(
        "Memory up to {} and page faults up to {rate_max:.0} a second, over {}",
        bytes_text(top),
        time_text(end_ms)
    );
    let height = FAULTS_TOP + FAULTS_HEIGHT + 24.0;
    line(
        body,
        &format!(
            "<svg class=\"curves\" viewBox=\"0 0 {WIDTH} {height}\" role=\"img\" aria-label=\"{label}\">{svg}</svg>"
        ),
    );
    let looks = format!("{} looks; the ground is tinted for the measured time.", run.sample_count);
    line(body, &format!("<p class=\"quiet\">{looks}</p>"));
}
