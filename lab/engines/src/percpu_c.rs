//! Dormouse's engine for the experiment `percpu`, from C: `c/percpu.c` has the cases. The library's functions are linked
//! statically, so a call of them has no detour by a table of the loader.

#![cfg_attr(not(has_c_compiler), allow(unused))]

#[cfg(has_c_compiler)]
mod c;
#[path = "../../../mechanisms/percpu/capi/face.rs"]
mod percpu;

use std::process::ExitCode;

/// Version of librseq that it was built with, or empty.
const LIBRSEQ: &str = env!("LAB_LIBRSEQ_VERSION");

#[cfg(has_c_compiler)]
fn verify() -> Result<u64, String> {
    let how = if LIBRSEQ.is_empty() { "built without librseq".into() } else { format!("librseq {LIBRSEQ}") };
    dormouse_lab_harness::report(c::arrived(), 0, &how)
}

fn main() -> ExitCode {
    #[cfg(has_c_compiler)]
    return c::main("dormouse-c", verify);
    #[cfg(not(has_c_compiler))]
    {
        eprintln!("dormouse-c: there was no C compiler when it was built");
        ExitCode::FAILURE
    }
}
