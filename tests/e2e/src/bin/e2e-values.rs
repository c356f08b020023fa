//! Emits every kind of value that an event can have, each in an event whose name its test knows.

use std::ffi::CString;
use std::pin::pin;
use std::task::{Context, Poll, Waker};

use dormouse::{Value, event};

fn main() {
    integers();
    others();
    text();
    slices();
    shapes();
    names();
    awaited();
    places();
    enumerations();
    levels();
}

fn integers() {
    let (pointer_sized, signed) = (usize::MAX, isize::MIN);
    event!(values.unsigned, a = 0xFEu8, b = 0xFEDCu16, c = 0xFEDC_BA98u32, d = u64::MAX - 1, pointer_sized);
    event!(values.signed, a = i8::MIN, b = -2i16, c = i32::MIN, d = i64::MIN + 1, signed);
}

fn others() {
    event!(values.floats, a = 1.5f32, b = -0.0f32, c = f32::NAN, d = f64::MIN_POSITIVE, e = f64::NEG_INFINITY);
    event!(values.others, yes = true, no = false, letter = 'ß', last = char::MAX);
    let address = std::ptr::without_provenance::<u32>(0xDEAD_BEEF_0000);
    let text: *const str = std::ptr::slice_from_raw_parts(address.cast::<u8>(), 3) as *const str;
    event!(values.pointers, address, mutable = address.cast_mut(), null = std::ptr::null::<u8>(), text);
}

fn text() {
    let owned = String::from("owned");
    let nested: &&str = &"nested";
    event!(values.text, empty = "", plain = "plain", owned, nested, words = "Grüße, 世界 🐭", nul = "before\0after");
    event!(values.c_text, borrowed = c"borrowed", owned = CString::new("made").unwrap_or_default());
    let long = "0123456789".repeat(2_048);
    event!(values.long, before = 1u8, long, after = 2u8);
}

fn slices() {
    let (bytes, none): (&[u8], &[u16]) = (&[0, 1, 255], &[]);
    event!(values.bytes, bytes, array = [7u8; 5], vector = vec![9u8, 8], empty = [0u8; 0], none);
    event!(values.wide, a = [1u16, 2], b = vec![3u32], c = &[4u64, u64::MAX][..], d = [5usize], e = [-6i8, 7]);
    event!(values.more, a = [-1i16], b = [-2i32], c = [-3i64], d = [-4isize], e = [0.5f32], f = [0.25f64, 1.0]);
    event!(
        values.odd,
        flags = [true, false],
        letters = ['a', 'ß'],
        boxed = Box::new(5u8),
        slice = vec![1u8].into_boxed_slice()
    );
}

fn shapes() {
    event!(values.nothing);
    let (id, path) = (7u32, "/index");
    event!(values.shorthand, id, path, sum = id + 1,);
    event!(
        values.wide_open,
        f0 = 0u8,
        f1 = 1u16,
        f2 = 2u32,
        f3 = 3u64,
        f4 = "4",
        f5 = 5u8,
        f6 = 6u16,
        f7 = 7u32,
        f8 = 8u64,
        f9 = "9",
        f10 = 10u8,
        f11 = 11u16,
        f12 = 12u32,
        f13 = 13u64,
        f14 = "14",
        f15 = 15u8,
        f16 = 16u16,
        f17 = 17u32,
        f18 = 18u64,
        f19 = "19",
        f20 = 20u8,
        f21 = 21u16,
        f22 = 22u32,
        f23 = 23u64,
        f24 = "24",
        f25 = 25u8,
        f26 = 26u16,
        f27 = 27u32,
        f28 = 28u64,
        f29 = "29",
        f30 = 30u8,
        f31 = 31u16,
    );
}

/// Names that are words of Rust and of TSDL (CTF 1.8.3, clause C.2.1).
fn names() {
    let r#type = 1u8;
    event!(values.r#match, r#type, type_ = 2u8, r#async = 3u8);
    event!(
        values.trait,
        align = 0u8,
        callsite = 1u8,
        const = 2u8,
        char = 3u8,
        clock = 4u8,
        double = 5u8,
        enum = 6u8,
        env = 7u8,
        event = 8u8,
        floating_point = 9u8,
        float = 10u8,
        integer = 11u8,
        int = 12u8,
        long = 13u8,
        short = 14u8,
        signed = 15u8,
        stream = 16u8,
        string = 17u8,
        struct = 18u8,
        trace = 19u8,
        typealias = 20u8,
        typedef = 21u8,
        unsigned = 22u8,
        variant = 23u8,
        void = 24u8,
        _Bool = 25u8,
        _Complex = 26u8,
        _Imaginary = 27u8,
        map = "28",
        id = [29u16],
        r#fn = 30u8
    );
}

/// A future that is ready when it is polled for the second time.
async fn later<T>(value: T) -> T {
    let mut is_asked = false;
    std::future::poll_fn(|_| if std::mem::replace(&mut is_asked, true) { Poll::Ready(()) } else { Poll::Pending })
        .await;
    value
}

/// Polls a future on several threads in turn, as a work-stealing runtime does; it must be `Send`.
fn drive(future: impl Future<Output = ()> + Send) {
    let mut future = pin!(future);
    let mut poll = || future.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_ready();
    while !std::thread::scope(|scope| scope.spawn(&mut poll).join()).unwrap_or(true) {}
}

async fn awaited_in_generic<T: Value + Send + Sync>(value: T) {
    event!(values.awaited, first = "generic", value, last = later(1u8).await);
}

fn awaited() {
    let text = String::from("text");
    drive(async {
        event!(values.awaited, first = later(text.as_str()).await, value = vec![1u16, 2], last = later(3u8).await);
        event!(values.awaited_short, first = 1u8, last = later(2u64).await);
    });
    drive(awaited_in_generic(4i64));
    // A value is taken when it is evaluated: later expressions may change or move its source.
    let mut number = 1u32;
    let owned = String::from("owned");
    event!(
        values.taken,
        number,
        next = {
            number += 1;
            number
        },
        len = owned.len(),
        text = owned
    );
}

#[derive(Clone, Copy)]
enum State {
    Ready,
    Running = 300,
    Failed = -1,
}
dormouse::enumeration!(State { Ready, Running, Failed });

#[derive(Clone, Copy)]
enum Light {
    Red,
    Green,
}
dormouse::enumeration!(Light { Red, Green });

#[derive(Clone, Copy)]
enum Door {
    Open,
    Shut,
}
dormouse::enumeration!(Door { Open, Shut });

fn enumerations() {
    for state in [State::Ready, State::Running, State::Failed] {
        event!(values.state, before = 1u8, state, after = "text");
    }
    // One site, two classes with equal types and different labels.
    fn seen<T: Value>(value: T) {
        event!(values.seen, value);
    }
    [Light::Red, Light::Green].into_iter().for_each(seen);
    [&Door::Open, &Door::Shut].into_iter().for_each(seen);
}

/// Events with levels, one of which has a field that is called so.
fn levels() {
    event!(level: ERR, values.failed, code = -5i32);
    event!(level: INFO, values.told);
    event!(level: DEBUG, values.level, level = 3u8);
}

/// One site with several classes.
fn generic<T: Value>(value: T, round: u32) {
    event!(values.generic, value, round);
}

/// A site in code that is inlined into its callers.
mod elsewhere {
    /// Emits from another module.
    #[inline(always)]
    pub fn inlined(number: u32) {
        dormouse::event!(values.inlined, number);
    }
}

macro_rules! traced {
    ($name:ident, $($value:expr),*) => {
        $(event!(values.$name, value = $value);)*
    };
}

fn places() {
    for round in 0..2 {
        generic(1u8, round);
        generic(-2i64, round);
        generic("three", round);
        generic([4u16, 5], round);
        generic(Box::new(6.5f64), round);
    }
    let base = 10u32;
    let closure = |number: u32| event!(values.closure, number = base + number);
    closure(1);
    (2..4).for_each(closure);
    elsewhere::inlined(1);
    std::thread::scope(|scope| {
        scope.spawn(|| elsewhere::inlined(2)).join().unwrap_or_default();
    });
    traced!(by_macro, 1u8, "two", 3i32);
    let result: Result<u8, String> = Err("no".into());
    if let Err(error) = &result {
        event!(values.matched, error);
    }
}
