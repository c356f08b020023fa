//! The program without a tracer.

mod program;

fn main() {
    program::run();
}
