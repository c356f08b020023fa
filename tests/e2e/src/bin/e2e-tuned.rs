//! Loads a library with a tracer of its own, and for each line that it reads prints the values that both are tuned to.

use std::ffi::{CString, c_void};
use std::io::BufRead;

use dormouse::imv::{imv, imv_read, tunable};

imv! {
    static WIDTH: u32 = 4;
    static TWIN: i32 = 1;
}
tunable!(WIDTH, "e2e.width", "how wide", 0..=9);
tunable!(TWIN, "e2e.twin", "of the program");

fn main() {
    let path = std::env::args().nth(1).and_then(|path| CString::new(path).ok()).expect("the library's path");
    // SAFETY: the library was built by the tests, and the path ends in NUL.
    let library = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
    assert!(!library.is_null());
    // SAFETY: the library is loaded, and the name ends in NUL.
    let symbol = unsafe { libc::dlsym(library, c"dormouse_e2e_plugin_depth".as_ptr()) };
    assert!(!symbol.is_null());
    // SAFETY: the plugin's function has this type.
    let depth = unsafe { std::mem::transmute::<*mut c_void, extern "C" fn() -> u32>(symbol) };
    println!("ready");
    for _ in std::io::stdin().lock().lines() {
        println!("{} {}", imv_read!(WIDTH), depth());
    }
}
