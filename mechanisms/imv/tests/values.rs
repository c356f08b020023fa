//! Tests that a value is read correctly for each type and in each place, patched or not (`--features generic`).
#![cfg(target_os = "linux")]

use std::fmt::Debug;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use dormouse_imv::{
    Change, Error, Imv, StaticKey, Value, imv, imv_enum, imv_read, set_patch_rate, static_branch, update,
};

/// Whether values are plain variables on this architecture.
const IS_LOAD: bool = cfg!(any(feature = "generic", not(target_arch = "x86_64")));

fn shows<T: Value + PartialEq + Debug>(value: &'static Imv<T>, read: impl Fn() -> T, first: T, others: &[T]) {
    assert_eq!(read(), first);
    assert_eq!(value.read(), first);
    for other in others.iter().chain([&first]) {
        value.set(*other).unwrap();
        assert_eq!(read(), *other);
        assert_eq!(value.read(), *other);
    }
    let count = value.sites().unwrap();
    if IS_LOAD {
        assert_eq!(count.sites, 0);
    } else {
        assert!(count.sites > 0, "{count:?}");
        assert_eq!(count.patched, count.sites, "{count:?}");
    }
}

macro_rules! each_type {
    ($($name:ident: $type:ty = $first:expr => [$($other:expr),*];)*) => {$(
        #[test]
        fn $name() {
            imv! { static VALUE: $type = $first; }
            shows(&VALUE, || imv_read!(VALUE), $first, &[$($other),*]);
        }
    )*};
}

#[derive(Debug, Clone, Copy, PartialEq)]
#[repr(i16)]
enum Level {
    Off = -1,
    Error = 1,
    Info = 300,
}
imv_enum!(Level: i16);

fn twice(value: u32) -> u32 {
    value * 2
}
fn thrice(value: u32) -> u32 {
    value * 3
}
extern "C" fn seven() -> i32 {
    7
}
extern "C" fn eight() -> i32 {
    8
}

each_type! {
    u8s: u8 = 3 => [0, 1, 127, 128, 255];
    i8s: i8 = -3 => [0, 1, i8::MIN, i8::MAX];
    u16s: u16 = 3 => [0, 255, 256, 0x8000, u16::MAX];
    i16s: i16 = -300 => [0, 1, i16::MIN, i16::MAX];
    u32s: u32 = 70_000 => [0, 1, 0x8000_0000, u32::MAX];
    i32s: i32 = -70_000 => [0, 1, i32::MIN, i32::MAX];
    u64s: u64 = 0x0123_4567_89AB_CDEF => [0, 1, 1 << 63, u64::MAX];
    i64s: i64 = -2 => [0, 1, i64::MIN, i64::MAX];
    usizes: usize = 1 => [0, usize::MAX];
    isizes: isize = -1 => [0, isize::MAX];
    bools: bool = true => [false, true];
    chars: char = 'a' => ['\0', 'ß', '🐭', char::MAX];
    f32s: f32 = 0.5 => [0.0, -1.5, f32::MAX, f32::INFINITY, f32::MIN_POSITIVE];
    f64s: f64 = 0.1 => [0.0, -1.5, f64::MAX, f64::NEG_INFINITY, f64::MIN_POSITIVE];
    enums: Level = Level::Error => [Level::Off, Level::Info];
}

#[test]
fn pointers_and_references() {
    static NUMBERS: [u64; 3] = [10, 20, 30];
    imv! {
        static MAYBE: Option<&'static u64> = None;
        static REFERENCE: &'static u64 = &NUMBERS[0];
        static POINTER: *const u64 = std::ptr::null();
        static MUTABLE: *mut u64 = std::ptr::null_mut();
        static HANDLER: Option<fn(u32) -> u32> = None;
    }
    shows(&MAYBE, || imv_read!(MAYBE), None, &[Some(&NUMBERS[1]), None, Some(&NUMBERS[2])]);
    shows(&REFERENCE, || imv_read!(REFERENCE), &NUMBERS[0], &[&NUMBERS[2], &NUMBERS[1]]);
    shows(&POINTER, || imv_read!(POINTER), std::ptr::null(), &[&raw const NUMBERS[1]]);
    shows(&MUTABLE, || imv_read!(MUTABLE), std::ptr::null_mut(), &[std::ptr::without_provenance_mut(usize::MAX)]);
    MAYBE.set(Some(Box::leak(Box::new(40)))).unwrap();
    assert_eq!(imv_read!(MAYBE).copied(), Some(40));
    let call = || imv_read!(HANDLER).map(|function| function(7));
    assert_eq!(call(), None);
    HANDLER.set(Some(thrice)).unwrap();
    assert_eq!(call(), Some(21));
    HANDLER.set(None).unwrap();
    assert_eq!((call(), HANDLER.read()), (None, None));
}

/// A thread that reads a reference sees what it refers to, which was written just before.
#[test]
fn what_a_reference_refers_to_is_visible() {
    struct Pair(AtomicU64, AtomicU64);
    imv! { static CURRENT: Option<&'static Pair> = None; }
    static STOP: AtomicBool = AtomicBool::new(false);
    static SEEN: AtomicU64 = AtomicU64::new(0);
    std::thread::scope(|scope| {
        let reader = scope.spawn(|| {
            let mut torn = 0_u64;
            while !STOP.load(Ordering::SeqCst) {
                let Some(pair) = imv_read!(CURRENT) else { continue };
                let numbers = (pair.0.load(Ordering::Relaxed), pair.1.load(Ordering::Relaxed));
                torn += u64::from(numbers.0 == 0 || numbers.1 != 2 * numbers.0);
                SEEN.store(numbers.0, Ordering::SeqCst);
            }
            torn
        });
        // Each change is one of code.
        set_patch_rate(u32::MAX).unwrap();
        for number in 1..=300 {
            let pair = Box::leak(Box::new(Pair(AtomicU64::new(number), AtomicU64::new(2 * number))));
            CURRENT.set(Some(pair)).unwrap();
        }
        while SEEN.load(Ordering::SeqCst) != 300 {
            std::thread::yield_now();
        }
        STOP.store(true, Ordering::SeqCst);
        assert_eq!(reader.join().unwrap(), 0);
    });
}

#[test]
fn function_pointers() {
    imv! {
        static STEP: fn(u32) -> u32 = twice;
        static C: extern "C" fn() -> i32 = seven;
    }
    assert_eq!((imv_read!(STEP)(5), imv_read!(C)()), (10, 7));
    STEP.set(thrice).unwrap();
    C.set(eight).unwrap();
    assert_eq!((imv_read!(STEP)(5), imv_read!(C)()), (15, 8));
}

#[test]
fn generics_closures_and_unrolled_loops() {
    imv! { static FACTOR: i32 = 2; }
    #[inline(always)]
    fn scaled<T: From<i32> + std::ops::Mul<Output = T>>(value: T) -> T {
        value * T::from(imv_read!(FACTOR))
    }
    let all = || {
        let closure = |value: i32| value * imv_read!(FACTOR);
        let mut sum = 0;
        for value in [1, 2, 3, 4] {
            sum += value * imv_read!(FACTOR);
        }
        (scaled(1_i32), scaled(2_i64), scaled(0.5_f64), closure(3), sum)
    };
    assert_eq!(all(), (2, 4, 1.0, 6, 20));
    FACTOR.set(-3).unwrap();
    assert_eq!(all(), (-3, -6, -1.5, -9, -30));
    if !IS_LOAD {
        assert!(FACTOR.sites().unwrap().sites >= 4);
    }
}

/// Many values are live at once, so that every register is used.
#[test]
fn every_register() {
    macro_rules! many {
        ($type:ty: $($name:ident)*) => {{
            imv! { $(static $name: $type = 1;)* }
            #[inline(never)]
            fn read() -> [$type; 24] {
                let all = [$(imv_read!($name)),*];
                let again = [$(imv_read!($name)),*];
                std::hint::black_box(all);
                std::array::from_fn(|index| if index < all.len() { all[index].wrapping_mul(again[index]) } else { 0 })
            }
            let mut expected = [0; 24];
            let mut index = 0;
            $(
                let value = (index as $type).wrapping_mul(0x37).wrapping_sub(90 as $type);
                $name.set(value).unwrap();
                expected[index] = value.wrapping_mul(value);
                index += 1;
            )*
            assert_eq!(index, 18);
            assert_eq!(read(), expected);
        }};
    }
    many!(u8: A B C D E F G H I J K L M N O P Q R);
    many!(i16: A B C D E F G H I J K L M N O P Q R);
    many!(u32: A B C D E F G H I J K L M N O P Q R);
    many!(i64: A B C D E F G H I J K L M N O P Q R);
}

#[test]
fn one_update_changes_keys_and_values() {
    imv! {
        static SMALL: u8 = 1;
        static LARGE: u64 = 2;
    }
    static KEY: StaticKey = StaticKey::new();
    let all = || (imv_read!(SMALL), imv_read!(LARGE), static_branch!(KEY));
    assert_eq!(all(), (1, 2, false));
    update(&[SMALL.to(10), Change::key(&KEY, true), LARGE.to(20), SMALL.to(11)]).unwrap();
    assert_eq!(all(), (11, 20, true));
    assert_eq!(
        update(&[Change::key(&KEY, false), Change::key(&KEY, false), SMALL.to(12)]),
        Err(Error::Unbalanced),
        "the rest is done"
    );
    assert_eq!(all(), (12, 20, false));
    update(&[]).unwrap();
}
