//! Dormouse's engine for the experiment `imv`, from C: `c/imv.c` has the cases.

#![cfg_attr(not(has_c_compiler), allow(unused))]

#[cfg(has_c_compiler)]
mod c;
#[path = "../../../mechanisms/imv/capi/face.rs"]
#[expect(dead_code, reason = "the engine does not listen")]
mod imv;

use std::process::ExitCode;

#[cfg(has_c_compiler)]
fn verify() -> Result<u64, String> {
    let wrong = c::arrived();
    if wrong > 0 {
        return Err(format!("{wrong} gates or values of C answered wrongly"));
    }
    let status = dormouse_imv::status().map_err(|error| error.to_string())?;
    let count = status.count;
    dormouse_lab_harness::report(
        0,
        0,
        &format!("{} of {} sites of C are as they should be", count.patched, count.sites),
    )
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
