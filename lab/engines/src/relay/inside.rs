//! Copies with and without a check of alignment, as two loops of one function, whose places are drawn anew for each run.
//!
//! A loop may take a quarter more or less time at another place, by how its instructions lie in the lines that a CPU fetches, and
//! in two functions two loops never lie alike. So the function is compiled sixteen times, with different numbers of no-ops before
//! its loops, and each run takes one of the sixteen at random. Over many rounds the places of both loops are distributed alike:
//! what is left between them is the check, and their intervals say what places do.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use dormouse_relay_chain::OutOfBounds;

use super::copies::{Bytewise, Copying, Switch};
use super::{Buffer, List, Shape, Way, write_all};

/// Copies in the loop itself.
struct Inside<C>(std::marker::PhantomData<C>);

impl<C: Copying> Way for Inside<C> {
    #[inline(always)]
    fn value<const N: usize>(buffer: &mut impl Buffer, offset: usize, bytes: [u8; N]) -> Result<(), OutOfBounds> {
        buffer.copied::<C>(offset, &bytes)
    }

    #[inline(always)]
    fn bytes(buffer: &mut impl Buffer, offset: usize, bytes: &[u8]) -> Result<(), OutOfBounds> {
        buffer.copied::<C>(offset, bytes)
    }
}

/// Both loops, each `PAD` bytes after the start of a cache line.
#[inline(never)]
fn either<S: Shape, const PAD: usize>(is_checked: bool, iterations: u64, first: u64) {
    let place = || {
        dormouse_lab_harness::align();
        dormouse_lab_harness::pad::<PAD>();
    };
    if is_checked {
        write_all::<List, S, Inside<Bytewise>>(iterations, first, place);
    } else {
        write_all::<List, S, Inside<Switch>>(iterations, first, place);
    }
}

/// A copy of [`either`].
type Either = fn(bool, u64, u64);

/// Returns the copies of [`either`], four bytes apart.
macro_rules! copies_of_either {
    ($shape:ident: $($pad:literal)*) => { [$(either::<$shape, $pad>),*] };
}

pub extern "C" fn run<S: Shape, const IS_CHECKED: bool>(iterations: u64, first: u64) {
    static RANDOM: AtomicU64 = AtomicU64::new(1);
    let copies: [Either; 16] = copies_of_either!(S: 0 4 8 12 16 20 24 28 32 36 40 44 48 52 56 60);
    // The high bits of a linear congruential generator (Knuth), whose order is the same in every process.
    let random = RANDOM.load(Relaxed).wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    RANDOM.store(random, Relaxed);
    copies[(random >> 60) as usize](IS_CHECKED, iterations, first);
}
