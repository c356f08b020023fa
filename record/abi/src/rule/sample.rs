//! Samples: some of the events that a rule selects, in place of all.
//!
//! ```text
//!   sample 1/100            by chance: a random number of 64 bits that is at most 2^64 / 100
//!   sample by user 1/100    by the value of a field or tag: its hash is at most 2^64 / 100
//!   sample 50/s             the first ones, until there are too many
//! ```
//! The hash is the same in all programs and on all machines, so that they choose the same users.

use super::Name;
use super::value::Value;

/// Greatest number in a sample.
pub const SAMPLE_MAX: u32 = 1_000_000_000;

/// A sample. Numbers are from 1 to [`SAMPLE_MAX`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Sample {
    /// One in this many events, by chance.
    OneIn(u32),
    /// At most this many events a second, of each class in each process.
    PerSecond(u32),
    /// All events of one in this many values of a field or tag. An event without the field is in no sample; one without
    /// the tag has the value 0.
    By(Name, u32),
}

/// Whether a random number or a hash, of 64 bits, selects an event of a sample of one in `count`.
#[inline(always)]
pub fn is_in_sample(number: u64, count: u32) -> bool {
    // A multiplication is cheaper than a division, and correct: number < 2^64 / count.
    (u128::from(number) * u128::from(count)) >> 64 == 0
}

/// Odd constants, from the digits of π.
const KEYS: [u64; 2] = [0x243F_6A88_85A3_08D3, 0x1319_8A2E_0370_7345];

/// Returns the two halves of a product, folded.
#[inline(always)]
fn fold(a: u64, b: u64) -> u64 {
    let product = u128::from(a) * u128::from(b);
    product as u64 ^ (product >> 64) as u64
}

/// Step and key of the sequence of random numbers: those of wyrand (Wang Yi), which passes BigCrush and PractRand.
pub const RANDOM_KEYS: [u64; 2] = [0xA076_1D64_78BD_642F, 0xE703_7ED1_A0B4_28DB];

/// Returns the next place in a sequence of random numbers, and the random number there.
#[inline(always)]
pub fn random(place: u64) -> (u64, u64) {
    let place = place.wrapping_add(RANDOM_KEYS[0]);
    (place, fold(place, place ^ RANDOM_KEYS[1]))
}

/// Returns a number whose bits each depend on all bits of another: the last steps of SplitMix64 (Steele, Lea and Flood,
/// 2014). Different numbers give different ones.
#[inline(always)]
pub const fn mixed(number: u64) -> u64 {
    let number = (number ^ number >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let number = (number ^ number >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
    number ^ number >> 31
}

/// Returns the hash of a value. Values that are equal by `==` of rules have the same hash if both are numbers or both
/// are text; a label counts as its number.
pub fn hash(value: &Value<'_>) -> u64 {
    match value {
        Value::Integer(number) | Value::Enumeration(number, _) => of_integer(*number),
        Value::Boolean(boolean) => of_integer((*boolean).into()),
        // Floating-point numbers that are integers.
        Value::Float(number) if *number as i64 as f64 == *number => of_integer((*number as i64).into()),
        Value::Float(number) => mixed(number.to_bits()),
        Value::Text(text) => {
            let mut hash = KEYS[0];
            let mut chunks = text.chunks_exact(8);
            for chunk in &mut chunks {
                hash = fold(hash ^ word(chunk), KEYS[1]);
            }
            // The length is part of the hash, so the last word may be filled up with zeroes.
            mixed(fold(hash ^ word(chunks.remainder()), KEYS[1]) ^ text.len() as u64)
        }
    }
}

fn of_integer(number: i128) -> u64 {
    mixed((number as u64) ^ ((number >> 64) as u64).wrapping_mul(KEYS[0]) ^ KEYS[1])
}

/// Returns up to eight bytes as a number.
fn word(bytes: &[u8]) -> u64 {
    bytes.iter().rev().fold(0, |word, byte| word << 8 | u64::from(*byte))
}

#[cfg(test)]
mod tests {
    use alloc::format;

    use super::*;

    #[test]
    fn a_sample_has_its_part_of_all_numbers() {
        for count in [1, 2, 3, 7, 100, SAMPLE_MAX] {
            let end = (1u128 << 64).div_ceil(count.into());
            assert!(is_in_sample((end - 1) as u64, count), "{count}");
            assert!(count == 1 || !is_in_sample(end as u64, count), "{count}");
            assert!(is_in_sample(0, count), "{count}");
        }
    }

    /// The constants are part of the format: other programs choose by the same hash.
    #[test]
    fn hashes_never_change() {
        let text = |text: &'static str| hash(&Value::Text(text.as_bytes().into()));
        let integer = |number| hash(&Value::Integer(number));
        let found = [integer(0), integer(1), integer(-1), text(""), text("a"), text("12345678"), text("123456789")];
        assert_eq!(found, HASHES, "{found:#x?}");
    }

    const HASHES: [u64; 7] = [
        0x4796_C1E9_F15F_55FD,
        0xDFC7_A999_51F2_4649,
        0xD384_FFAB_7559_412A,
        0x7BBC_B7AC_933E_7F12,
        0x6E13_150B_9398_E045,
        0xB1B2_F041_22DA_AD45,
        0x84CB_7DB6_A08D_903D,
    ];

    #[test]
    fn equal_numbers_have_equal_hashes() {
        for number in [0, 1, -1, 4096, i64::MAX >> 11] {
            let integer = hash(&Value::Integer(number.into()));
            assert_eq!(integer, hash(&Value::Float(number as f64)), "{number}");
        }
        assert_eq!(hash(&Value::Float(-0.0)), hash(&Value::Integer(0)));
        assert_eq!(hash(&Value::Boolean(true)), hash(&Value::Integer(1)));
    }

    /// Hashes of neighbouring values are spread evenly: by the chi-squared statistic with 63 degrees of freedom, which
    /// is below 114 for all but one in ten thousand random sequences.
    #[test]
    fn hashes_are_spread() {
        let spread = |hash_of: &dyn Fn(u32) -> u64| {
            let mut counts = [0u32; 64];
            (0..64_000).for_each(|number| counts[(hash_of(number) >> 58) as usize] += 1);
            let of_count = |count: &u32| (f64::from(*count) - 1_000.0).powi(2) / 1_000.0;
            counts.iter().map(of_count).sum::<f64>()
        };
        let integers = spread(&|number| hash(&Value::Integer(number.into())));
        let multiples = spread(&|number| hash(&Value::Integer(i128::from(number) << 32)));
        let texts = spread(&|number| hash(&Value::Text(format!("user-{number}").into_bytes().into())));
        let long = spread(&|number| hash(&Value::Text(format!("{number:032}").into_bytes().into())));
        assert!(
            [integers, multiples, texts, long].iter().all(|sum| *sum < 114.0),
            "{integers} {multiples} {texts} {long}"
        );
    }
}
