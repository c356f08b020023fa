//! Dormouse's engine for the experiment `relay-write`, from C: `c/relay.c` has the cases. The library's functions are linked
//! statically, so a call of them has no detour by a table of the loader.

#![cfg_attr(not(has_c_compiler), allow(unused))]

#[cfg(has_c_compiler)]
mod c;
#[path = "../../../mechanisms/relay/capi/face.rs"]
mod relay;

use std::process::ExitCode;

#[cfg(has_c_compiler)]
fn verify() -> Result<u64, String> {
    dormouse_lab_harness::report(c::arrived(), 0, "records from C were read back and are right")
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
