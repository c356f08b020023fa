//! What programs have entered in the session's register of themselves and their classes, checked.

use dormouse_abi::class::{Announcement, ClassDecl};
use dormouse_abi::register::Register;
use dormouse_abi::text::{printable, shown};
use dormouse_ctf::Refusal;

/// What a program says is made fit to be printed; the reason is.
pub(crate) fn refusal_of(class: &str, program: &str, reason: &str) -> Refusal {
    Refusal { name: shown(class), program: shown(program), reason: reason.into() }
}

/// A class as it has been entered, if it can be in a trace; `None` where there is none, or none yet.
pub(crate) fn class_of(
    register: &Register,
    id: u16,
    program_of: impl Fn(u16) -> String,
) -> Option<Result<ClassDecl, Refusal>> {
    let class = register.class(id)?;
    let announced = Announcement::from_text(&class.text);
    let refused = |name: &str, reason: &str| refusal_of(name, &program_of(class.process), reason);
    Some(match &announced {
        Some(announced) => announced.check().map_err(|reason| refused(&announced.full_name(), &reason)),
        None => Err(refused("(a class)", "what it says of itself cannot be read")),
    })
}

/// The program that a process says it is.
pub(crate) fn program_of(register: &Register, number: u16) -> String {
    let known = register.process(number).map(|process| printable(&process.program));
    known.filter(|program| !program.is_empty()).unwrap_or_else(|| "an unknown program".into())
}
