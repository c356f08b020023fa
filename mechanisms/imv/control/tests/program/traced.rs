//! The program with a tracer.

mod program;

fn main() {
    dormouse::event!(steered.started);
    program::run();
}
