//! Names the shared library by the version of its interface, so that programs find the one that they were linked with.

fn main() {
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libdormouse.so.0");
    // What the archive asks a static program's libc for: the shared library looks names up, and starts on a libc without these.
    for name in ["__rseq_size", "__rseq_offset", "__rseq_flags"] {
        println!("cargo:rustc-cdylib-link-arg=-Wl,--defsym={name}=0");
    }
    println!("cargo:rerun-if-changed=build.rs");
}
