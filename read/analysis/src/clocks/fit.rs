//! Straight lines within bounds.

use dormouse_ctf::Correction;

/// A time of the clock here, at which the clock beside shows at least, or at most, `beside_ns`.
#[derive(Debug, Clone, Copy)]
pub(super) struct Bound {
    pub here_ns: i64,
    pub beside_ns: i64,
}

/// Greatest drift between two clocks, as a part of 1. Lines with more are not considered.
const DRIFT_MAX: f64 = 1e-3;
/// Error of a bound by rounding, in nanoseconds: both of its times are whole nanoseconds.
const ROUNDING_NS: f64 = 2.0;

/// The line in the middle of those that the bounds allow.
#[derive(Debug, Clone)]
pub(super) struct Fit {
    pub line: Line,
    /// Corners of the polygon of allowed lines, in the form of [`Line::later`].
    corners: Vec<[f64; 2]>,
}

impl Fit {
    /// Returns the greatest error of the line at a time, in nanoseconds. `at`: nanoseconds since the begin of the span.
    pub(super) fn error_ns(&self, at: f64) -> f64 {
        let share = at / self.line.length();
        let apart = |side: usize, corner: &[f64; 2]| corner[side] - self.line.later[side];
        let errors = self.corners.iter().map(|corner| (1.0 - share) * apart(0, corner) + share * apart(1, corner));
        errors.fold(0.0, |most, error| f64::max(most, error.abs())) + ROUNDING_NS
    }
}

/// Time beside minus time here, in nanoseconds, over a span of time here. It is `base_ns + later[0]` at the begin of
/// the span, `base_ns + later[1]` at its end, and changes evenly in between.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Line {
    span: (i64, i64),
    base_ns: i128,
    later: [f64; 2],
}

impl Line {
    pub(super) fn length(&self) -> f64 {
        length(self.span)
    }

    fn drift(&self) -> f64 {
        (self.later[1] - self.later[0]) / self.length()
    }

    /// Returns the nanoseconds that pass beside for each nanosecond here.
    pub(super) fn slope(&self) -> f64 {
        1.0 + self.drift()
    }

    /// Returns the line as a correction; `None` if 64 bits do not hold the offset.
    pub(super) fn correction(&self) -> Option<Correction> {
        let offset_ns = i64::try_from(self.base_ns + self.later[0].round() as i128).ok()?;
        Some(Correction::new(self.span.0, offset_ns, self.drift()))
    }

    /// Returns the begin and the end of the span as times beside, relative to the begin of the span of `outer`.
    pub(super) fn ends_in(&self, outer: &Line) -> [f64; 2] {
        let from = |here_ns: i64| (i128::from(here_ns) + self.base_ns - i128::from(outer.span.0)) as f64;
        [from(self.span.0) + self.later[0], from(self.span.1) + self.later[1]]
    }

    /// Returns the composition: this line, then `outer`.
    pub(super) fn then(&self, outer: &Line) -> Line {
        let ends = self.ends_in(outer);
        let later = [0, 1].map(|side| self.later[side] + outer.later[0] + outer.drift() * ends[side]);
        Line { span: self.span, base_ns: self.base_ns + outer.base_ns, later }
    }
}

fn length((begin, end): (i64, i64)) -> f64 {
    ((i128::from(end) - i128::from(begin)) as f64).max(1.0)
}

/// A half-plane of lines, which have `u` at the begin of the span and `v` at its end: `a * u + b * v >= c`.
type Half = [f64; 3];

/// Returns the part of a polygon that lies in a half-plane.
fn cut(polygon: &[[f64; 2]], [a, b, c]: Half) -> Vec<[f64; 2]> {
    let side = |[u, v]: [f64; 2]| a * u + b * v - c;
    let mut rest = Vec::with_capacity(polygon.len() + 1);
    for (index, &from) in polygon.iter().enumerate() {
        let to = polygon[(index + 1) % polygon.len()];
        let (here, there) = (side(from), side(to));
        if here >= 0.0 {
            rest.push(from);
        }
        if (here >= 0.0) != (there >= 0.0) {
            let share = here / (here - there);
            rest.push([from[0] + share * (to[0] - from[0]), from[1] + share * (to[1] - from[1])]);
        }
    }
    rest
}

/// Returns the line in the middle of all lines that meet both kinds of bounds over a span of time here; `None` if no
/// line does.
pub(super) fn fit(at_least: &[Bound], at_most: &[Bound], span: (i64, i64)) -> Option<Fit> {
    let difference = |bound: &Bound| i128::from(bound.beside_ns) - i128::from(bound.here_ns);
    let base_ns = difference(at_least.first()?);
    let later = |bound: &Bound| (difference(bound) - base_ns) as f64;
    let all = || at_least.iter().chain(at_most).map(later);
    let drifted = DRIFT_MAX * length(span) + ROUNDING_NS;
    let (low, high) = (all().fold(0.0, f64::min) - drifted, all().fold(0.0, f64::max) + drifted);
    let mut polygon = vec![[low, low], [high, low], [high, high], [low, high]];
    polygon = cut(&polygon, [1.0, -1.0, -drifted]);
    polygon = cut(&polygon, [-1.0, 1.0, -drifted]);
    let share = |bound: &Bound| (i128::from(bound.here_ns) - i128::from(span.0)) as f64 / length(span);
    for bound in at_least {
        let share = share(bound);
        polygon = cut(&polygon, [1.0 - share, share, later(bound) - ROUNDING_NS]);
    }
    for bound in at_most {
        let share = share(bound);
        polygon = cut(&polygon, [share - 1.0, -share, -later(bound) - ROUNDING_NS]);
    }
    let middle = |side: usize| {
        let least = polygon.iter().map(|corner| corner[side]).fold(f64::INFINITY, f64::min);
        let most = polygon.iter().map(|corner| corner[side]).fold(f64::NEG_INFINITY, f64::max);
        (least <= most).then_some((least + most) / 2.0)
    };
    Some(Fit { line: Line { span, base_ns, later: [middle(0)?, middle(1)?] }, corners: polygon.clone() })
}
