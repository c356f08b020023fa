//! The number of rounds of an experiment whose rounds take minutes: as many as a paper's effects need, by the spread of a pilot.

use crate::statistics::power::Precision;

/// Power that is planned for, and the level of the test, as notes have them.
const OF_TEST: &str = "with power 0.8 at 5 %";

/// An effect that a paper has found.
pub(crate) struct Effect {
    /// Name of the comparison in notes.
    pub(crate) what: String,
    /// Size of the effect, of 1.
    pub(crate) size: f64,
    /// Precision of the comparison by the pilot's rounds; none from too few.
    pub(crate) precision: Option<Precision>,
}

/// Returns the number of rounds that show all effects, at least that of the pilot and at most `rounds_max`. The notes
/// have what the pilot, the planned rounds and this number show.
pub(crate) fn plan(effects: &[Effect], pilot: usize, rounds_max: usize, notes: &mut Vec<String>) -> usize {
    let known = || effects.iter().filter_map(|effect| Some((effect, effect.precision?)));
    let needed = known().map(|(effect, precision)| precision.rounds(effect.size)).max().unwrap_or(pilot);
    let rounds = needed.min(rounds_max).max(pilot);
    notes.extend(known().map(|(Effect { what, size, .. }, precision)| {
        let percent = |effect: f64| format!("{:.2} %", 100.0 * effect);
        format!(
            "{what}: by a pilot of {pilot} rounds, {} see the paper's effect of {} {OF_TEST}; {rounds} see one of {}",
            precision.rounds(*size),
            percent(*size),
            percent(precision.effect(rounds))
        )
    }));
    if needed > rounds {
        notes.push(format!("{needed} rounds were needed for all effects, and at most {rounds_max} are run"));
    }
    rounds
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns times of two ways to build with noise of this size, injected: the second always takes 80 s.
    fn precision(noise: f64) -> Option<Precision> {
        let signs = [1.0, -1.0, 0.5, -0.5, 0.25, -0.25];
        Precision::of_ratio(&signs.map(|sign| 80.0 * (1.0 + sign * noise)), &[80.0; 6])
    }

    #[test]
    fn more_noise_needs_more_rounds_and_the_limit_is_said() {
        let planned = |noise: f64| {
            let effects = [("b to a", 0.1), ("c to b", 0.008)].map(|(what, size)| Effect {
                what: what.into(),
                size,
                precision: precision(noise),
            });
            let mut notes = Vec::new();
            (plan(&effects, 6, 20, &mut notes), notes)
        };
        let (calm, notes) = planned(0.001);
        assert_eq!((calm, notes.len()), (6, 2), "{notes:?}");
        let (noisy, notes) = planned(0.01);
        assert!((7..=20).contains(&noisy), "{noisy}: {notes:?}");
        let needed = precision(0.01).unwrap().rounds(0.008);
        assert!(
            notes[1].contains(&format!("pilot of 6 rounds, {needed} see the paper's effect of 0.80 %")),
            "{notes:?}"
        );
        let (noisiest, notes) = planned(0.1);
        assert_eq!((noisiest, notes.len()), (20, 3), "{notes:?}");
        let none = Effect { what: "b to a".into(), size: 0.01, precision: Precision::of_ratio(&[1.0], &[1.0]) };
        assert_eq!((plan(&[none], 1, 20, &mut Vec::new()), notes[2].contains("at most 20")), (1, true));
    }
}
