//! Code that obtains memory for other code, recognised by its names: its caller is the place that obtained a buffer.

/// Beginnings of the file names of such libraries.
const LIBRARIES: [&str; 10] = [
    "libc.so",
    "libc-2",
    "libc.musl",
    "ld-",
    "libpthread",
    "libstdc++",
    "libc++",
    "libjemalloc",
    "libtcmalloc",
    "libmimalloc",
];

/// Names of such functions of a C library, which a statically linked program contains, and of those inside them; without
/// underscores at the beginning, the prefix `libc_`, and what a compiler appends.
const FUNCTIONS: [&str; 20] = [
    "malloc",
    "calloc",
    "realloc",
    "reallocarray",
    "memalign",
    "aligned_alloc",
    "posix_memalign",
    "valloc",
    "pvalloc",
    "mmap",
    "mmap64",
    "mremap",
    "sysmalloc",
    "sysmalloc_mmap",
    "sysmalloc_mmap_fallback",
    "int_malloc",
    "int_realloc",
    "int_memalign",
    "mid_memalign",
    "mremap_chunk",
];

/// Beginnings of the names of C++'s `operator new`, of Rust's functions for allocators, and of functions of its crate `alloc`.
const PREFIXES: [&str; 6] = ["_Znw", "_Zna", "__rust_", "__rdl_", "__rg_", "_ZN5alloc"];

/// Whether a library with that file name obtains memory for others.
pub(crate) fn is_library(name: &str) -> bool {
    LIBRARIES.iter().any(|start| name.starts_with(start))
}

/// Whether a function with that name, as the symbol table has it, obtains memory for others.
pub(crate) fn is_function(name: &str) -> bool {
    let plain = name.trim_start_matches('_');
    let plain = plain.strip_prefix("libc_").unwrap_or(plain);
    let plain = plain.split_once('.').map_or(plain, |(plain, _)| plain);
    // Functions of implementations in Rust's crate `alloc`, in the older and in the newer form of names.
    let is_of_impl =
        name.starts_with("_ZN") && ["_$LT$alloc..", "$u20$as$u20$alloc.."].iter().any(|part| name.contains(part));
    let first_crate = name.strip_prefix("_R").and_then(|path| path.split_once("Cs")?.1.split_once('_'));
    let is_of_alloc = is_of_impl || first_crate.is_some_and(|(_, path)| path.starts_with("5alloc"));
    FUNCTIONS.contains(&plain) || PREFIXES.iter().any(|start| name.starts_with(start)) || is_of_alloc
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn allocators_are_known_by_name() {
        assert!(["libc.so.6", "ld-linux-x86-64.so.2", "libstdc++.so.6"].into_iter().all(is_library));
        assert!(!["libcrypto.so.3", "program", ""].into_iter().any(is_library));
        let allocators = [
            "malloc",
            "__libc_calloc",
            "_int_malloc",
            "sysmalloc_mmap.isra.0",
            "__mmap64",
            "_Znwm",
            "__rust_alloc_zeroed",
            "_ZN5alloc5alloc6Global10alloc_impl17h0E",
            "_ZN62_$LT$T$u20$as$u20$alloc..vec..spec_from_elem..SpecFromElem$GT$9from_elem17h0E",
            "_RNvNtCsabc_5alloc5alloc12alloc_zeroed",
        ];
        assert!(allocators.into_iter().all(is_function));
        assert!(
            ![
                "main",
                "xmalloc",
                "allocate",
                "malloc_info",
                "_ZN7program6obtain17h0E",
                "_RINvCsabc_7program6obtainNtNtCsdef_5alloc6string6StringE",
                ""
            ]
            .into_iter()
            .any(is_function)
        );
    }
}
