//! What each program of a command preloads that `dormouse record --libc` runs: glibc's loader puts the name of the system's directory of libraries
//! where `$LIB` stands, which for 32-bit programs is another one.
//!
//! ```text
//!   libc-by-lib/lib64/libdormouse_libc.so       a link to the library; likewise in lib/x86_64-linux-gnu
//!   libc-by-lib/lib32/libdormouse_libc.so       a 32-bit library in which there is nothing; likewise in lib/i386-linux-gnu and lib
//! ```
//! The loader of a 32-bit program would write to its standard error that a library for 64 bits cannot be preloaded. Where programs of 64 bits have
//! `lib` for `$LIB`, the tree is not used.

/// What `$LIB` is for 64-bit programs of systems whose 32-bit programs have another one of the table below.
pub(crate) const OF_64_BITS: [&str; 2] = ["lib64", "lib/x86_64-linux-gnu"];
/// What it is for 32-bit programs.
pub(crate) const OF_32_BITS: [&str; 3] = ["lib32", "lib/i386-linux-gnu", "lib"];

/// A shared library for 32-bit x86 (System V gABI, chapters 4 and 5) without a symbol or a function.
///
/// | offset | |
/// | ---: | --- |
/// | 0 | header, of a shared library with three segments |
/// | 52 | segments: all of the file; its dynamic section; a stack that is not executable |
/// | 148 | hash table with one bucket, symbol table with the entry that is none, table of names |
/// | 184 | dynamic section |
pub(crate) fn empty_library() -> Vec<u8> {
    let (header, segment, hash, symbols, names, dynamic, size) = (52, 32, 148, 164, 180, 184, 232);
    // The magic number, 32 bits, little endian; a shared library (3) for machine 3; version 1; no entry point; where the segments are, no
    // sections; sizes of the header and of a segment's, number of segments.
    let mut words = vec![0x464c_457f, 0x0001_0101, 0, 0, 3 | 3 << 16, 1, 0, header, 0, 0, header | segment << 16, 3, 0];
    // PT_LOAD, PT_DYNAMIC, PT_GNU_STACK: offset, two addresses, two sizes, flags (4 readable, 2 writable), alignment.
    words.extend([1, 0, 0, 0, size, size, 6, 4096]);
    words.extend([2, dynamic, dynamic, dynamic, size - dynamic, size - dynamic, 6, 4]);
    words.extend([0x6474_e551, 0, 0, 0, 0, 0, 6, 16]);
    // One bucket and one entry of its chain, both the symbol that is none; that symbol; the name that is none.
    words.extend([1, 1, 0, 0, 0, 0, 0, 0, 0]);
    // DT_HASH, DT_SYMTAB, DT_STRTAB, DT_STRSZ, DT_SYMENT, DT_NULL.
    words.extend([4, hash, 6, symbols, 5, names, 10, 1, 11, 16, 0, 0]);
    words.into_iter().flat_map(u32::to_le_bytes).collect()
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    /// What binutils make of it.
    #[test]
    fn the_empty_library_is_one_for_32_bits() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("empty.so");
        std::fs::write(&file, empty_library()).unwrap();
        let Ok(output) = Command::new("readelf").env("LC_ALL", "C").arg("-Whld").arg(&file).output() else { return };
        let (text, wrong) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        for expected in [
            "ELF32",
            "DYN (Shared object file)",
            "Intel 80386",
            "GNU_STACK      0x000000 0x00000000 0x00000000 0x00000 0x00000 RW  0x10",
            "LOAD           0x000000 0x00000000 0x00000000 0x000e8 0x000e8 RW  0x1000",
            "contains 6 entries",
        ] {
            assert!(wrong.is_empty() && text.contains(expected), "{expected}: {text}{wrong}");
        }
    }
}
