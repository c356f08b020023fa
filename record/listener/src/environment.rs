//! The environment of a program, which one with privileges that its caller does not have (`AT_SECURE`: set-user-ID, file
//! capabilities) ignores, because its caller sets it.

/// Whether the program has privileges that its caller does not have.
pub fn is_secure() -> bool {
    // SAFETY: getauxval(3) has no conditions.
    (unsafe { libc::getauxval(libc::AT_SECURE) }) != 0
}

/// Returns a variable's value if it is set and not empty.
pub fn variable(name: &str) -> Option<String> {
    if is_secure() {
        return None;
    }
    std::env::var(name).ok().filter(|value| !value.is_empty())
}
