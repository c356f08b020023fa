//! One site of each kind in a function of its own, for `tests/golden.rs` to disassemble. Prints the functions with branches as
//! they are in memory while the key is disabled, and while it is enabled.

use std::fmt::Write;

use dormouse_imv::{StaticKey, disable, enable, imv, imv_read, static_branch, static_branch_likely};

imv! {
    static U8: u8 = 1;
    static I8: i8 = -1;
    static U16: u16 = 1;
    static I16: i16 = -1;
    static U32: u32 = 1;
    static I32: i32 = -1;
    static F32: f32 = 0.5;
    static BOOL: bool = true;
    static U64: u64 = 1;
    static F64: f64 = 0.5;
    static FUNCTION: fn() = nothing;
}
static KEY: StaticKey = StaticKey::new();

fn nothing() {}

macro_rules! functions {
    ($($name:ident -> $type:ty { $read:expr })*) => {
        $(
            /// One site.
            #[unsafe(no_mangle)]
            #[inline(never)]
            extern "C" fn $name() -> $type {
                $read
            }
        )*

        /// Executes every site.
        fn execute() {
            $(std::hint::black_box($name());)*
        }
    };
}

functions! {
    site_unlikely -> u32 { if static_branch!(KEY) { 1 } else { 2 } }
    site_likely -> u32 { if static_branch_likely!(KEY) { 1 } else { 2 } }
    site_u8 -> u8 { imv_read!(U8) }
    site_i8 -> i8 { imv_read!(I8) }
    site_u16 -> u16 { imv_read!(U16) }
    site_i16 -> i16 { imv_read!(I16) }
    site_u32 -> u32 { imv_read!(U32) }
    site_i32 -> i32 { imv_read!(I32) }
    site_f32 -> f32 { imv_read!(F32) }
    site_bool -> bool { imv_read!(BOOL) }
    site_u64 -> u64 { imv_read!(U64) }
    site_f64 -> f64 { imv_read!(F64) }
    site_function -> () { imv_read!(FUNCTION)() }
}

/// Number of bytes that contain a whole function.
const LEN: usize = 256;

fn print(state: &str) {
    let functions: [(&str, extern "C" fn() -> u32); 2] = [("unlikely", site_unlikely), ("likely", site_likely)];
    for (name, function) in functions {
        let mut digits = String::new();
        for offset in 0..LEN {
            // SAFETY: text of this program, which is readable; no thread changes it. More text follows the functions.
            let byte = unsafe { (function as *const u8).wrapping_add(offset).read_volatile() };
            write!(digits, "{byte:02x}").expect("memory");
        }
        println!("{name} {state} {digits}");
    }
}

fn main() {
    execute();
    print("dormant");
    enable(&KEY).expect("a change");
    assert_eq!((site_unlikely(), site_likely()), (1, 1));
    print("armed");
    disable(&KEY).expect("a change");
    assert_eq!((site_unlikely(), site_likely()), (2, 2));
}
