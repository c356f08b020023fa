//! Writes functions with a tracepoint each, for cases that run over many of them.

use std::fmt::Write;
use std::path::Path;

/// How many functions there are of each kind.
const SITES: usize = 1_000;

/// The same without a tracepoint, and as far apart from each other: a function that shares its cache line with others is found
/// there more often, and the difference would be taken for the tracepoint's cost. Only assembly can say so.
const EMPTY_X86_64: &str = "#[unsafe(naked)] extern \"C\" fn empty_site_NUMBER(number: u64) { core::arch::naked_asm!(\
    \"push rax\", \"mov rax, rdi\", \"xor rax, NUMBER\", \"mov [rsp], rax\", \"pop rax\", \"ret\", \".balign 64\") }";

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    let is_x86_64 = std::env::var("CARGO_CFG_TARGET_ARCH").is_ok_and(|arch| arch == "x86_64");
    let mut text = String::new();
    for (kind, is_traced) in [("empty", false), ("dormant", true), ("armed", true)] {
        for number in 0..SITES {
            let event =
                if is_traced { format!("dormouse::event!(lab.{kind}_site_{number}, number);") } else { String::new() };
            // A number in each, so that no two functions become one.
            let function = if is_x86_64 && !is_traced {
                EMPTY_X86_64.replace("NUMBER", &number.to_string())
            } else {
                let other = number + 1;
                format!(
                    "#[inline(never)] extern \"C\" fn {kind}_site_{number}(number: u64) {{ opaque(number ^ {other}); {event} }}"
                )
            };
            writeln!(text, "{function}").expect("a String takes all");
        }
        let names: Vec<String> = (0..SITES).map(|number| format!("{kind}_site_{number}")).collect();
        let table = kind.to_uppercase();
        writeln!(text, "static {table}_SITES: [Site; {SITES}] = [{}];", names.join(", ")).expect("a String takes all");
    }
    let dir = std::env::var_os("OUT_DIR").expect("cargo tells where to write");
    std::fs::write(Path::new(&dir).join("sites.rs"), text).expect("the sites can be written");
}
