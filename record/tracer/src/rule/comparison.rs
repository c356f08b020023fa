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
}

impl Tests {
    /// Returns the comparison that gives the same answers, if there is one.
    pub(crate) fn comparison(&self) -> Option<Comparison> {
        let [Step { ask, wanted, passed, failed }] = self.0.as_slice() else { return None };
        let is_passed_accepted = match (*passed, *failed) {
            (ACCEPT, REJECT) => true,
            (REJECT, ACCEPT) => false,
            _ => return None,
        };
        let (range, comparison) = ask.range()?;
        let range = if *wanted == is_passed_accepted { range } else { range.others()? };
        Some(Comparison { first: range.first, span: range.last.wrapping_sub(range.first), ..comparison })
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
                    // Whatever the bytes below are.
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
