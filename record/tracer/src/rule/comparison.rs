//! Tests that one comparison of a section decides.

use dormouse_abi::class::Kind;
use dormouse_abi::rule::value::Operator;
use dormouse_abi::session::Reason;
use dormouse_relay::arch::{Comparison, Source};

use super::event::is_signed;
use super::{ACCEPT, Ask, Pattern, REJECT, Step, Tests};

/// Size of the words that sections compare, in bytes.
const WORD_SIZE_BYTES: usize = size_of::<u64>();

/// Numbers from the first to the last, in the circle of all numbers of 64 bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Range {
    first: u64,
    last: u64,
}

impl Range {
    /// Returns the numbers that are not in the range; `None` if there are none.
    fn others(self) -> Option<Range> {
        let (first, last) = (self.last.wrapping_add(1), self.first.wrapping_sub(1));
        (first != self.first).then_some(Range { first, last })
    }

    /// Returns the other range's first and last number, and the last one of this range, counted from this range's first.
    fn relative(self, other: Range) -> [u64; 3] {
        [other.first, other.last, self.last].map(|number| number.wrapping_sub(self.first))
    }

    /// Returns a range by numbers that count from this range's first.
    fn absolute(self, first: u64, last: u64) -> Range {
        Range { first: self.first.wrapping_add(first), last: self.first.wrapping_add(last) }
    }

    /// Returns the numbers that are in both ranges; `None` if there are none, or if they are two ranges.
    fn and(self, other: Range) -> Option<Range> {
        let [first, last, end] = self.relative(other);
        match (first <= last, first <= end) {
            (true, true) => Some(self.absolute(first, last.min(end))),
            // The other range begins behind this one, and goes on from its first number.
            (false, false) => Some(self.absolute(0, last.min(end))),
            (false, true) if end == u64::MAX => Some(other),
            (false, true) => (first == last + 1).then_some(self),
            (true, false) => None,
        }
    }

    /// Returns the numbers that are in one of the ranges; `None` if they are two ranges.
    fn or(self, other: Range) -> Option<Range> {
        let [first, last, end] = self.relative(other);
        match (first <= last, first <= end.saturating_add(1)) {
            (true, true) => Some(self.absolute(0, last.max(end))),
            (false, true) => Some(self.absolute(0, u64::MAX)),
            (false, false) => Some(self.absolute(first, last.max(end))),
            (true, false) => (last == u64::MAX).then(|| self.absolute(first, end)),
        }
    }
}

impl Tests {
    /// Returns the comparison that gives the same answers, if there is one.
    pub(crate) fn comparison(&self) -> Option<Comparison> {
        let mut found: Option<(Range, Comparison)> = None;
        // From the last step to the first: the numbers that are accepted from there on.
        for (index, Step { ask, wanted, passed, failed }) in self.0.iter().enumerate().rev() {
            let (range, comparison) = ask.range()?;
            let passing = |is_passed| if *wanted == is_passed { Some(range) } else { range.others() };
            let next = index as u32 + 1;
            let accepted = match (found, *passed, *failed) {
                (None, ACCEPT, REJECT) => passing(true)?,
                (None, REJECT, ACCEPT) => passing(false)?,
                (Some((_, other)), ..) if other != comparison => return None,
                (Some((later, _)), ACCEPT, failed) if failed == next => passing(true)?.or(later)?,
                (Some((later, _)), passed, REJECT) if passed == next => passing(true)?.and(later)?,
                (Some((later, _)), passed, ACCEPT) if passed == next => passing(false)?.or(later)?,
                (Some((later, _)), REJECT, failed) if failed == next => passing(false)?.and(later)?,
                _ => return None,
            };
            found = Some((accepted, comparison));
        }
        let (Range { first, last }, comparison) = found?;
        Some(Comparison { first, span: last.wrapping_sub(first), ..comparison })
    }
}

impl Ask {
    /// Returns the numbers for which the answer is true, and what is compared with them.
    fn range(&self) -> Option<(Range, Comparison)> {
        let nothing = Comparison {
            source: Source::None,
            first_run_size_bytes: 0,
            word: 0,
            run_size_bytes_min: 0,
            scale: 1,
            first: 0,
            span: 0,
            reason: Reason::Rejected,
        };
        match self {
            Ask::Chance(count) => {
                let range = Range { first: 0, last: u64::MAX / u64::from(*count) };
                Some((range, Comparison { source: Source::Random, reason: Reason::SampledOut, ..nothing }))
            }
            Ask::Integer { offset, kind, operator, constant } => {
                let size_bytes = kind.element_size_bytes();
                let in_word = offset % WORD_SIZE_BYTES;
                if in_word + size_bytes > WORD_SIZE_BYTES {
                    return None;
                }
                let comparison = Comparison {
                    source: Source::Word,
                    word: u32::try_from(offset / WORD_SIZE_BYTES).ok()?,
                    run_size_bytes_min: u32::try_from(offset + size_bytes).ok()?,
                    scale: 1 << (8 * (WORD_SIZE_BYTES - in_word - size_bytes)),
                    ..nothing
                };
                Some((integers(*kind, *operator, *constant)?, comparison))
            }
            Ask::Matches(place, Pattern::Prefix(prefix), true) if (1..=WORD_SIZE_BYTES).contains(&prefix.len()) => {
                let comparison = Comparison {
                    source: Source::Text,
                    first_run_size_bytes: u32::try_from(place.fixed_text_offset()?).ok()?,
                    run_size_bytes_min: WORD_SIZE_BYTES as u32,
                    ..nothing
                };
                let mut bytes = [0; WORD_SIZE_BYTES];
                bytes[..prefix.len()].copy_from_slice(prefix);
                let first = u64::from_be_bytes(bytes);
                Some((Range { first, last: first | below(prefix.len()) }, comparison))
            }
            _ => None,
        }
    }
}

/// Returns the greatest number that the bytes of a word below its first `size_bytes` have.
fn below(size_bytes: usize) -> u64 {
    u64::MAX.checked_shr(8 * size_bytes as u32).unwrap_or(0)
}

/// Returns the words whose upper end is an integer of this kind to which the constant has the relation. Below the integer
/// are bytes of other fields. `None`: there is no such integer, or the constant is none of this kind.
fn integers(kind: Kind, operator: Operator, constant: i64) -> Option<Range> {
    let size_bytes = kind.element_size_bytes();
    let (below, bits) = (below(size_bytes), 8 * size_bytes as u32);
    let unused = u64::BITS - bits;
    let at_upper_end = constant.cast_unsigned() << unused;
    let (min, is_of_kind) = if is_signed(kind) {
        (1 << 63, (at_upper_end.cast_signed() >> unused) == constant)
    } else {
        (0, at_upper_end >> unused == constant.cast_unsigned())
    };
    if !is_of_kind {
        return None;
    }
    let equal = Range { first: at_upper_end, last: at_upper_end | below };
    let max = u64::wrapping_sub(min, 1);
    let less = (equal.first != min).then_some(Range { first: min, last: equal.first.wrapping_sub(1) });
    let greater = (equal.last != max).then_some(Range { first: equal.last.wrapping_add(1), last: max });
    match operator {
        Operator::Equal => Some(equal),
        Operator::NotEqual => equal.others(),
        Operator::Less => less,
        Operator::LessOrEqual => Some(Range { first: min, last: equal.last }),
        Operator::Greater => greater,
        Operator::GreaterOrEqual => Some(Range { first: equal.first, last: max }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn contains(Range { first, last }: Range, number: u64) -> bool {
        number.wrapping_sub(first) <= last.wrapping_sub(first)
    }

    #[test]
    fn ranges_are_combined() {
        let points: Vec<u64> = [0, 1, 2, 5, 6, 1 << 63, u64::MAX - 1, u64::MAX].to_vec();
        let ranges = || points.iter().flat_map(|first| points.iter().map(|last| Range { first: *first, last: *last }));
        // The points, and one number between each two that have others between them.
        let numbers = [points.clone(), vec![3, 4, 100, (1 << 63) + 100]].concat();
        let (mut both, mut either) = (0, 0);
        for (one, other) in ranges().flat_map(|one| ranges().map(move |other| (one, other))) {
            let has = |range: Option<Range>, number| range.is_some_and(|range| contains(range, number));
            if let Some(range) = one.and(other) {
                both += 1;
                for number in &numbers {
                    let expected = contains(one, *number) && contains(other, *number);
                    assert_eq!(contains(range, *number), expected, "{one:?} and {other:?}: {range:?}, {number}");
                }
            }
            if let Some(range) = one.or(other) {
                either += 1;
                for number in &numbers {
                    let expected = contains(one, *number) || contains(other, *number);
                    assert_eq!(contains(range, *number), expected, "{one:?} or {other:?}: {range:?}, {number}");
                }
            }
            // Where there is no range, the numbers are none or two ranges.
            let parts = |is_in: &dyn Fn(u64) -> bool| {
                let mut sorted = numbers.clone();
                sorted.sort_unstable();
                let before = sorted.iter().cycle().skip(sorted.len() - 1);
                sorted.iter().zip(before).filter(|(number, before)| is_in(**number) && !is_in(**before)).count()
            };
            let is_in_both = |number| contains(one, number) && contains(other, number);
            let is_in_either = |number| contains(one, number) || contains(other, number);
            let is_none = !numbers.iter().any(|number| is_in_both(*number));
            assert_eq!(one.and(other).is_none(), is_none || parts(&is_in_both) == 2, "{one:?} and {other:?}");
            assert_eq!(one.or(other).is_none(), parts(&is_in_either) == 2, "{one:?} or {other:?}");
            assert!(numbers.iter().all(|number| has(one.others(), *number) != contains(one, *number)));
        }
        assert!(both > 1_000 && either > 1_000, "{both} {either}");
    }

    #[test]
    fn a_range_has_the_integers_with_the_relation() {
        let operators = [
            Operator::Equal,
            Operator::NotEqual,
            Operator::Less,
            Operator::LessOrEqual,
            Operator::Greater,
            Operator::GreaterOrEqual,
        ];
        let wide = [0, 1, 2, 127, 128, 129, 254, 255, 256, 257, 32_767, 32_768, 65_535, 65_536, 1 << 31, 1 << 32];
        let wide = wide.into_iter().flat_map(|number: i64| [number, -number, -number - 1]);
        let wide: Vec<i64> = wide.chain([i64::MIN, i64::MIN + 1, i64::MAX, i64::MAX - 1]).collect();
        for kind in [Kind::U8, Kind::I8, Kind::U16, Kind::I16, Kind::U32, Kind::I32, Kind::U64, Kind::I64] {
            let unused = u64::BITS - 8 * kind.element_size_bytes() as u32;
            let of_kind = |bits: i64| {
                kind.integer(super::super::extended(
                    bits.cast_unsigned() << unused >> unused,
                    kind.element_size_bytes(),
                    kind,
                ))
            };
            for (operator, constant) in
                operators.iter().flat_map(|operator| wide.iter().map(move |it| (*operator, *it)))
            {
                let constant_of_kind = kind.integer(constant);
                let Some(range) = integers(kind, operator, constant) else { continue };
                for bits in &wide {
                    let holds = operator.holds(Some(of_kind(*bits).cmp(&constant_of_kind)));
                    // The bytes below the integer do not matter.
                    let word = bits.cast_unsigned() << unused;
                    for number in [word, word | below(kind.element_size_bytes())] {
                        assert_eq!(
                            contains(range, number),
                            holds,
                            "{kind:?} {bits} {operator:?} {constant}: {range:?}"
                        );
                    }
                    assert_ne!(range.others().is_some_and(|others| contains(others, word)), holds);
                }
            }
        }
    }
}
