//! Libraries for `dormouse record --libc` to preload, by kind of program. glibc's loader replaces `$LIB` in a path by
//! the system's library directory, which differs for 32-bit programs.
//!
//! ```text
//!   libc-by-lib/lib64/libdormouse_libc.so       a link to the library; also in lib/x86_64-linux-gnu
//!   libc-by-lib/lib32/libdormouse_libc.so       an empty 32-bit library; also in lib/i386-linux-gnu and lib
//! ```
//! Otherwise, the loader of a 32-bit program would report on standard error that it cannot preload a 64-bit library.
//! The tree is not used if `$LIB` is `lib` for 64-bit programs.

/// Values of `$LIB` for 64-bit programs, on systems with a different value for 32-bit programs.
pub(crate) const OF_64_BITS: [&str; 2] = ["lib64", "lib/x86_64-linux-gnu"];
/// Values of `$LIB` for 32-bit programs.
pub(crate) const OF_32_BITS: [&str; 3] = ["lib32", "lib/i386-linux-gnu", "lib"];

/// Returns a shared library for 32-bit x86 (System V gABI, chapters 4 and 5) without symbols and functions.
///
/// | offset | |
/// | ---: | --- |
/// | 0 | header of a shared library with three segments |
/// | 52 | segments: the whole file; the dynamic section; a stack that is not executable |
/// | 148 | hash table with one bucket, symbol table with the null entry, string table |
/// | 184 | dynamic section |
pub(crate) fn empty_library() -> Vec<u8> {
    let (header, segment, hash, symbols, names, dynamic, size) = (52, 32, 148, 164, 180, 184, 232);
    // Magic number, 32 bits, little endian; a shared library (3) for machine 3; version 1; no entry point; offset of
    // the segments, no sections; sizes of the header and of a segment header, number of segments.
    let mut words = vec![0x464c_457f, 0x0001_0101, 0, 0, 3 | 3 << 16, 1, 0, header, 0, 0, header | segment << 16, 3, 0];
    // PT_LOAD, PT_DYNAMIC, PT_GNU_STACK: offset, two addresses, two sizes, flags (4 readable, 2 writable), alignment.
    words.extend([1, 0, 0, 0, size, size, 6, 4096]);
    words.extend([2, dynamic, dynamic, dynamic, size - dynamic, size - dynamic, 6, 4]);
    words.extend([0x6474_e551, 0, 0, 0, 0, 0, 6, 16]);
    // One bucket and one chain entry, both for the null symbol; the null symbol; the empty name.
    words.extend([1, 1, 0, 0, 0, 0, 0, 0, 0]);
    // DT_HASH, DT_SYMTAB, DT_STRTAB, DT_STRSZ, DT_SYMENT, DT_NULL.
    words.extend([4, hash, 6, symbols, 5, names, 10, 1, 11, 16, 0, 0]);
    words.into_iter().flat_map(u32::to_le_bytes).collect()
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    /// binutils accept the library.
    #[test]
    fn the_empty_library_is_for_32_bits() {
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
