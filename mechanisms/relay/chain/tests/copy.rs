//! Copies of every length and alignment, compared with a slice's own.

use dormouse_relay_chain::copy_bytes;

const LEN_MAX: usize = 300;
const ALIGNMENTS: usize = 17;
const SIZE: usize = LEN_MAX + 2 * ALIGNMENTS;

/// An array with the largest alignment that these tests need.
#[repr(align(32))]
struct Bench([u8; SIZE]);

fn sources() -> Bench {
    Bench(core::array::from_fn(|index| (index * 37 + 11) as u8))
}

#[test]
fn every_length_and_alignment() {
    let source = sources();
    for len in (0..=70).chain([127, 128, 129, 255, 256, LEN_MAX]) {
        for to in 0..ALIGNMENTS {
            for from in 0..ALIGNMENTS {
                let mut target = Bench([0xEE; SIZE]);
                let mut expected = [0xEE; SIZE];
                expected[to..to + len].copy_from_slice(&source.0[from..from + len]);
                let (at, of) = (target.0.as_mut_ptr().wrapping_add(to), source.0.as_ptr().wrapping_add(from));
                // SAFETY: both pointers have `len` bytes, in different arrays.
                unsafe { copy_bytes(at, of, len) };
                assert!(target.0 == expected, "{len} bytes from {from} to {to}");
            }
        }
    }
}

/// A length that the compiler knows selects other code.
#[test]
fn constant_lengths() {
    fn one<const LEN: usize>() {
        let source = sources();
        for to in 0..ALIGNMENTS {
            let mut target = Bench([0xEE; SIZE]);
            let mut expected = [0xEE; SIZE];
            expected[to..to + LEN].copy_from_slice(&source.0[3..3 + LEN]);
            // SAFETY: both arrays have room for `LEN` bytes there, and they are different.
            unsafe { copy_bytes(target.0.as_mut_ptr().wrapping_add(to), source.0.as_ptr().wrapping_add(3), LEN) };
            assert!(target.0 == expected, "{LEN} bytes to {to}");
        }
    }
    macro_rules! each {
        ($($len:literal)*) => { $(one::<$len>();)* };
    }
    each!(0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 23 24 25 31 32 33 40 48 63 64 65 100 128 256);
}
