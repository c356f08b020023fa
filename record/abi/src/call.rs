//! How a tool calls a program that listens by a signal: `SIGURG`, queued with a value (`SI_QUEUE`), at which the program's handler has the next
//! tracepoint start what listens. And how the tracers of one process know one another's handlers: by the signals that their actions block.

/// The value that a tool sends.
pub const CALL: usize = 0x646d_6361;

/// Real-time signals that the action of a tracer blocks while its handler runs; it blocks no other real-time signal. No program sets such a mask.
pub const MARKED_SIGNALS: [i32; 6] = [36, 41, 47, 52, 58, 63];

/// Whether a mask is that of a tracer's action.
pub fn is_marked(is_blocked: impl Fn(i32) -> bool) -> bool {
    (34..=64).all(|signal| is_blocked(signal) == MARKED_SIGNALS.contains(&signal))
}
