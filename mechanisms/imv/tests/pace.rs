//! Values that are set often are variables, and immediates again later: each type, in many registers, with the right value
//! at every read.
#![cfg(all(any(target_arch = "x86_64", target_arch = "aarch64"), target_os = "linux", not(feature = "generic")))]

use dormouse_imv::{imv, imv_read, set_patch_rate, static_call};

/// Whether values have sites on this architecture.
const HAS_SITES: bool = cfg!(target_arch = "x86_64");

/// Sets a value often, and checks each read.
macro_rules! check {
    ($($name:ident: $type:ty = $first:expr, $second:expr;)*) => {$({
        imv! { static VALUE: $type = $first; }
        // More values than there are registers that calls preserve are alive at once, so each register has some.
        let reads = || {
            let all: [$type; 16] = [
                imv_read!(VALUE), imv_read!(VALUE), imv_read!(VALUE), imv_read!(VALUE), imv_read!(VALUE), imv_read!(VALUE),
                imv_read!(VALUE), imv_read!(VALUE), imv_read!(VALUE), imv_read!(VALUE), imv_read!(VALUE), imv_read!(VALUE),
                imv_read!(VALUE), imv_read!(VALUE), imv_read!(VALUE), imv_read!(VALUE),
            ];
            std::hint::black_box(all)
        };
        let patched = || VALUE.sites().unwrap();
        assert!((patched().sites > 0) == HAS_SITES && patched().patched == patched().sites, stringify!($name));
        for _ in 0..2 {
            set_patch_rate(0).unwrap();
            for number in 0..200 {
                let value: $type = if number % 2 == 0 { $second } else { $first };
                VALUE.set(value).unwrap();
                assert_eq!(reads(), [value; 16], "{} {number}", stringify!($name));
            }
            assert_eq!(patched().patched, 0, "{}: a variable", stringify!($name));
            set_patch_rate(u32::MAX).unwrap();
            VALUE.set($second).unwrap();
            assert_eq!(reads(), [$second; 16]);
            assert_eq!(patched().patched, patched().sites, "{}: an immediate again", stringify!($name));
        }
    })*};
}

static ONE: u32 = 1;
static TWO: u32 = 2;

extern "C" fn one() -> u32 {
    1
}
extern "C" fn two() -> u32 {
    2
}
static_call! {
    mod number: extern "C" fn() -> u32 = crate::one;
}

#[test]
fn a_value_that_is_set_often_is_a_variable_for_that_time() {
    check! {
        u8s: u8 = 3, 255;
        i8s: i8 = -3, 127;
        u16s: u16 = 3, u16::MAX;
        i16s: i16 = -300, i16::MAX;
        u32s: u32 = 70_000, u32::MAX;
        i32s: i32 = -70_000, i32::MAX;
        u64s: u64 = 0x0123_4567_89AB_CDEF, u64::MAX;
        i64s: i64 = -2, i64::MIN;
        bools: bool = true, false;
        floats: f64 = 0.1, -1.5;
        references: &'static u32 = &ONE, &TWO;
    }
    for _ in 0..2 {
        set_patch_rate(0).unwrap();
        for count in 0..200 {
            number::update(if count % 2 == 0 { two } else { one }).unwrap();
            assert_eq!(number::call(), 2 - count % 2);
        }
        assert_eq!(number::sites().unwrap().patched, 0, "calls load the function's address");
        set_patch_rate(u32::MAX).unwrap();
        number::update(two).unwrap();
        assert_eq!((number::call(), number::sites().unwrap().patched), (2, 1), "calls are direct again");
    }
}
