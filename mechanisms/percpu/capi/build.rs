//! Sets the shared library's soname to its interface version, so that programs find the one that they were linked with.

fn main() {
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libdormouse_percpu.so.0");
    println!("cargo:rerun-if-changed=build.rs");
}
