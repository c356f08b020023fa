//! Gives the shared library a soname with the version of its interface, so that programs find the version that they
//! were linked with.

fn main() {
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libdormouse.so.0");
    // Symbols that the archive needs from a static program's libc. The shared library looks them up by name, and also
    // starts on a libc that has none.
    for name in ["__rseq_size", "__rseq_offset", "__rseq_flags"] {
        println!("cargo:rustc-cdylib-link-arg=-Wl,--defsym={name}=0");
    }
    println!("cargo:rerun-if-changed=build.rs");
}
