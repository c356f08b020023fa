//! Checks what programs have entered in the session's register about themselves and their classes.

use dormouse_abi::class::{Announcement, ClassDecl};
use dormouse_abi::register::Register;
use dormouse_abi::text::{printable, shown};
use dormouse_format::Refusal;

/// Returns a refusal. A program's texts are made printable; the reason is already.
pub(crate) fn refusal_of(class: &str, program: &str, reason: &str) -> Refusal {
    Refusal { name: shown(class), program: shown(program), reason: reason.into() }
}

/// Returns the entered class with this id, if a trace can contain it, or its refusal; `None` if nothing is entered, or
/// not yet.
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

/// Returns the program that a process says it is.
pub(crate) fn program_of(register: &Register, number: u16) -> String {
    let known = register.process(number).map(|process| printable(&process.program));
    known.filter(|program| !program.is_empty()).unwrap_or_else(|| "an unknown program".into())
}
