//! Fuzzes the driver side of a queue while its device writes arbitrary values at any time.
#![no_main]

use dormouse_fuzz::ring::{Input, Victim, check};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: Input| check(&input, Victim::Driver));
