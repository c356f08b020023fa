//! Emits events whose values have every width, order of bytes and alignment, the same in each run and on each machine.
//! The traces that other machines have made of it are kept: a change here needs new ones of all.

use dormouse::event;

fn main() {
    event!(machine.unsigned, a = 0xFEu8, b = 0xFEDCu16, c = 0xFEDC_BA98u32, d = 0xFEDC_BA98_7654_3210u64);
    event!(machine.signed, a = -2i8, b = -300i16, c = -70_000i32, d = i64::MIN + 1);
    event!(machine.floats, a = 1.5f32, b = -0.25f64);
    event!(machine.others, yes = true, no = false, letter = 'ß');
    event!(machine.text, plain = "plain", words = "Grüße", empty = "", after = 7u32);
    event!(machine.bytes, bytes = [0u8, 1, 255], after = 0x1234u16);
    event!(machine.numbers, a = [1u16, 2], b = [3u32], c = [4u64, u64::MAX], d = [-5i16, 6], e = [0.5f64]);
    event!(machine.mixed, a = 1u8, b = 2u64, c = 3u8, d = 4u32, e = "five", f = 6u16, g = 7u64);
    let long = "0123456789".repeat(100);
    event!(machine.long, before = 1u8, long, after = 2u8);
    for number in 0..10u32 {
        event!(machine.again, number, square = u64::from(number) * u64::from(number));
    }
}
