//! Where an object has the records of its tunables. No instruction, so it is the same for every architecture.

use core::arch::asm;

use dormouse_abi::site::{TUNABLES_SECTION, TunableRecord};

unsafe extern "C" {
    #[link_name = "__start_dormouse_tunables"]
    static START: TunableRecord;
    #[link_name = "__stop_dormouse_tunables"]
    static STOP: TunableRecord;
}

/// First and one-past-last record of the object that contains this code.
///
/// ```text
///   section dormouse_tunables += nothing      so the object has the section, and the linker its bounds
///   hidden: never another object's
/// ```
pub(crate) fn own_tunables() -> (*const TunableRecord, *const TunableRecord) {
    // SAFETY: no instruction; the directives open a section and say how symbols are bound.
    unsafe {
        asm!(
            ".pushsection dormouse_tunables,\"awR\",%progbits",
            ".balign 8",
            ".popsection",
            ".weak __start_dormouse_tunables",
            ".hidden __start_dormouse_tunables",
            ".weak __stop_dormouse_tunables",
            ".hidden __stop_dormouse_tunables",
            options(nomem, nostack, preserves_flags),
        );
    }
    (&raw const START, &raw const STOP)
}

/// The record that [`tunable!`](crate::tunable) makes, from inside a function that the linker keeps:
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

// The literals of the templates, which cannot name constants.
const _: () = {
    let (written, meant) = (b"dormouse_tunables", TUNABLES_SECTION.as_bytes());
    assert!(written.len() == meant.len());
    let mut index = 0;
    while index < meant.len() {
        assert!(written[index] == meant[index]);
        index += 1;
    }
};
