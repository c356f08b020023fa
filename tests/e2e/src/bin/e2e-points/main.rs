//! Kills or overtakes processes at chosen instructions of a record call, in a session that they share with two
//! siblings.
//!
//! ```text
//!   this program ──fork──▶ sibling 0, on the victim's CPU         ┐ write a burst each, one before the victim's death, the
//!                ──fork──▶ sibling 1, on another one              ┘ other after it, on the streams that the victim has left
//!                ──fork──▶ victim: writes until the next event is the chosen one, and stops
//!                          ── ptrace ── continues to the chosen instruction ── SIGKILL
//! ```
//! A first victim is led through the whole call, which discovers the instructions. An instruction outside of critical
//! sections is reached by a breakpoint, and so is one inside: a thread that is stopped there would be aborted when it
//! continues, but it never does. The loop of a transaction's stores cannot be stopped at twice; so the transaction is
//! given fewer stores, and its thread dies before the final one. The code after the kernel's abort is reached by
//! stopping at a section's final store and continuing from there.
//!
//! In the other mode the victim is not killed: the sibling on the same CPU overtakes it by two pages, and then the
//! victim continues to the end of the call.
//!
//! Prints which points were reached, and how many events each process has finished.

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
fn main() {
    println!("cannot: this architecture has no critical sections of ours");
}

#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
mod machine;
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
mod points;
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
mod sections;
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
mod session;
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
mod tracee;

#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
fn main() {
    points::main();
}
