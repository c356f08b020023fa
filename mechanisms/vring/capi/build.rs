//! Sets the soname of the shared library to the version of its interface, so that programs find the version that they
//! were linked with.

fn main() {
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libdormouse_vring.so.0");
    println!("cargo:rerun-if-changed=build.rs");
}
