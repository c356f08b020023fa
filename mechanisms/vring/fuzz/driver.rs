//! The driver side of a queue, whose device writes whatever it likes, whenever it likes.
#![no_main]

use dormouse_fuzz::ring::{Input, Victim, check};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: Input| check(&input, Victim::Driver));
