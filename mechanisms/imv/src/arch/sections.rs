//! The bounds of an object's records, and the record of a tunable. They need no instruction, so all architectures share
//! them.

use dormouse_abi::site::{SITES_SECTION, SiteRecord, TUNABLES_SECTION, TunableRecord};

/// Defines a function that returns the first and one-past-last record of a section, in the object that contains this
/// code.
///
/// ```text
///   section += nothing      so that the object has the section, and the linker its bounds
///   hidden: never another object's
/// ```
#[doc(hidden)]
#[macro_export]
macro_rules! __own_records {
    ($function:ident, $record:ty, $section:literal = $name:ident, $flags:literal) => {
        /// Returns the first and one-past-last record of the object that contains this code.
        pub(crate) fn $function() -> (*const $record, *const $record) {
            unsafe extern "C" {
                #[link_name = ::core::concat!("__start_", $section)]
                static START: $record;
                #[link_name = ::core::concat!("__stop_", $section)]
                static STOP: $record;
            }
            // SAFETY: no instruction; the directives open a section and set the binding of symbols, which the linker
            // defines (ELF linkers define `__start_` and `__stop_` for sections whose names are C identifiers).
            unsafe {
                ::core::arch::asm!(
                    ::core::concat!(".pushsection ", $section, ",\"", $flags, "\",%progbits"),
                    ".balign 8",
                    ".popsection",
                    ::core::concat!(".weak __start_", $section),
                    ::core::concat!(".hidden __start_", $section),
                    ::core::concat!(".weak __stop_", $section),
                    ::core::concat!(".hidden __stop_", $section),
                    options(nomem, nostack, preserves_flags),
                );
            }
            (&raw const START, &raw const STOP)
        }

        // Templates of assembly cannot name constants.
        const _: () = assert!($crate::is_same_text($section, $name));
    };
}

__own_records!(own_sites, SiteRecord, "dormouse_sites" = SITES_SECTION, "aR");
__own_records!(own_tunables, TunableRecord, "dormouse_tunables" = TUNABLES_SECTION, "awR");

/// Whether two texts are equal; `==` is not usable in constant functions yet.
#[doc(hidden)]
pub const fn is_same_text(one: &str, other: &str) -> bool {
    let (one, other) = (one.as_bytes(), other.as_bytes());
    let mut index = 0;
    while index < one.len() && index < other.len() && one[index] == other[index] {
        index += 1;
    }
    index == one.len() && index == other.len()
}

/// Adds the record of a [`tunable!`](crate::tunable), from inside a function that the linker keeps:
///
/// ```text
///   section dormouse_tunables += { name, description, variable, type, 0, min, max }      retained
/// ```
#[doc(hidden)]
#[macro_export]
macro_rules! __tunable_record {
    ($name:path, $description:path, $variable:path, $range:path) => {
        // SAFETY: no instruction; the directives add data to another section.
        unsafe {
            ::core::arch::asm!(
                ".pushsection dormouse_tunables,\"awR\",%progbits",
                ".balign {align}",
                ".{address_bytes}byte {name}",
                ".{address_bytes}byte {description}",
                ".{address_bytes}byte {variable}",
                ".4byte {value_type}",
                ".4byte 0",
                ".balign {align}",
                ".8byte {min}",
                ".8byte {max}",
                ".popsection",
                align = const ::core::mem::align_of::<$crate::TunableRecord>(),
                address_bytes = const ::core::mem::size_of::<usize>(),
                name = sym $name,
                description = sym $description,
                variable = sym $variable,
                value_type = const $range.value_type as u32,
                min = const $range.min as i64,
                max = const $range.max as i64,
                options(nomem, nostack, preserves_flags),
            );
        }
    };
}
