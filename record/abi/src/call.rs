//! Signal by which a tool calls a program that listens by a signal: `SIGURG`, queued with a value (`SI_QUEUE`). The
//! program's handler makes the next tracepoint start the listener. Also the mask by which the tracers of one process
//! recognise one another's handlers.

/// Value that a tool sends with the signal.
pub const CALL: usize = 0x646d_6361;

/// Real-time signals that the action of a tracer blocks while its handler runs; it blocks no other real-time signal.
/// Programs do not set this mask.
pub const MARKED_SIGNALS: [i32; 6] = [36, 41, 47, 52, 58, 63];

/// Whether a signal mask is that of a tracer's action.
pub fn is_marked(is_blocked: impl Fn(i32) -> bool) -> bool {
    (34..=64).all(|signal| is_blocked(signal) == MARKED_SIGNALS.contains(&signal))
}
