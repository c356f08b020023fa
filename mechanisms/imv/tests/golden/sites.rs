//! One site of each kind in a function of its own, for `tests/golden.rs` to disassemble.

use dormouse_imv::{StaticKey, imv, imv_read, static_branch};

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

        fn main() {
            $(std::hint::black_box($name());)*
        }
    };
}

functions! {
    site_branch -> bool { static_branch!(KEY) }
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
