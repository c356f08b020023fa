//! Writes functions with a tracepoint each, for cases that run over many of them.

use std::fmt::Write;
use std::path::Path;

/// How many functions there are of each kind.
const SITES: usize = 1_000;

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    let mut text = String::new();
    for (kind, is_traced) in [("empty", false), ("dormant", true), ("armed", true)] {
        for number in 0..SITES {
            let event =
                if is_traced { format!("dormouse::event!(lab.{kind}_site_{number}, number);") } else { String::new() };
            // Different in each, so that no two functions become one.
            writeln!(
                text,
                "#[inline(never)] fn {kind}_site_{number}(number: u64) {{ opaque(number ^ {number}); {event} }}"
            )
            .expect("a String takes all");
        }
        let names: Vec<String> = (0..SITES).map(|number| format!("{kind}_site_{number}")).collect();
        writeln!(text, "static {}_SITES: [fn(u64); {SITES}] = [{}];", kind.to_uppercase(), names.join(", "))
            .expect("a String takes all");
    }
    let dir = std::env::var_os("OUT_DIR").expect("cargo tells where to write");
    std::fs::write(Path::new(&dir).join("sites.rs"), text).expect("the sites can be written");
}
