//! How the library is linked.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    // initfirst: its constructor runs before those of all other objects, so their allocations are traced too.
    // nodelete: the fork handlers and gates stay where they are until the process ends.
    println!("cargo::rustc-cdylib-link-arg=-Wl,-z,initfirst,-z,nodelete");
}
