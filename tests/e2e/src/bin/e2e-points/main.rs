//! Kills or overtakes processes at chosen instructions of a record call, in a session that they share with two siblings.
//!
//! ```text
//!   this program ──fork──▶ sibling 0, on the victim's processor   ┐ write a burst each, the one while the victim is at it, the
//!                ──fork──▶ sibling 1, on another one              ┘ other after its death, on the streams that it has left
//!                ──fork──▶ victim: writes until the next event is the one that is wanted, and stops
//!                          ── ptrace ── goes on to the chosen instruction ── SIGKILL
//! ```
//! A first victim is led through the whole call, which tells the instructions that there are. An instruction outside of critical
//! sections is reached by a breakpoint. So is one within: whoever stops there is aborted as soon as he goes on, but he never does. The
//! loop of a transaction's stores cannot be stopped at twice; so the transaction is given fewer of them, and its thread dies before
//! the final one. What the kernel's abort leads to is reached by stopping at a section's final store and going on from there.
//!
//! Or it is not killed there: the sibling on the same processor overtakes it by two pages, and then it goes on to the end of the call.
//!
//! Prints what was reached, and for each process how many of its events were finished.

#[cfg(not(target_arch = "x86_64"))]
fn main() {
    println!("cannot: this architecture has no critical sections of ours");
}

#[cfg(target_arch = "x86_64")]
mod points;
#[cfg(target_arch = "x86_64")]
mod sections;
#[cfg(target_arch = "x86_64")]
mod session;
#[cfg(target_arch = "x86_64")]
mod tracee;

#[cfg(target_arch = "x86_64")]
fn main() {
    points::main();
}
