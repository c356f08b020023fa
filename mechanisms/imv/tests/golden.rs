//! Compares rustc's code for each kind of site, with and without optimisation, with the architecture's file in `golden`,
//! which `DORMOUSE_BLESS=1` rewrites.
#![cfg(all(any(target_arch = "x86_64", target_arch = "aarch64"), target_os = "linux", not(feature = "generic")))]

use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::process::Command;

use dormouse_abi::site::{
    SITE_DIRECT_BRANCH, SITE_FORM_MASK, SITE_VALUE, SITES_SECTION, X86_BRANCH_LEN, X86_VALUE_LEN,
};
use dormouse_testing::c_programs::{stdout, succeed};
use dormouse_testing::code::{JUMP, NOP, has_memory_operand, listed_functions};
use object::{Object, ObjectSection, ObjectSymbol};

const FUNCTION_PREFIX: &str = "site_";
/// Size of the gate, the rest of the aligned word, and the immediate, in bytes.
const GATED_LEN: u64 = 15;
const IS_X86: bool = cfg!(target_arch = "x86_64");
const BRANCH_LEN: u64 = if IS_X86 { X86_BRANCH_LEN as u64 } else { 4 };
/// Golden file of this architecture. On AArch64 only branches have sites.
const GOLDEN: &str = if IS_X86 { "tests/golden/rustc.txt" } else { "tests/golden/rustc-aarch64.txt" };

fn build(arguments: &[&str], profile_dir: &str) -> PathBuf {
    let target = Path::new(env!("CARGO_TARGET_TMPDIR")).join("golden");
    let status = Command::new(env!("CARGO"))
        .args(["build", "--quiet", "--offline", "--features", "golden-program", "--target-dir"])
        .arg(&target)
        .args(["--bin", "dormouse_imv_sites"])
        .args(arguments)
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .status()
        .unwrap();
    assert!(status.success());
    target.join(profile_dir).join("dormouse_imv_sites")
}

/// A site: the function that contains it, its address, and its length.
struct Site {
    function: String,
    address: u64,
    len: u64,
    distance: u64,
}

fn sites(program: &Path) -> Vec<Site> {
    let bytes = std::fs::read(program).unwrap();
    let file = object::File::parse(bytes.as_slice()).unwrap();
    let section = file.section_by_name(SITES_SECTION).unwrap();
    let functions: Vec<_> = file
        .symbols()
        .filter_map(|symbol| Some((symbol.name().ok()?.strip_prefix(FUNCTION_PREFIX)?.to_string(), symbol)))
        .collect();
    let mut all = Vec::new();
    for (index, record) in section.data().unwrap().chunks_exact(16).enumerate() {
        let site = i32::from_le_bytes(*record.first_chunk().unwrap());
        let kind = u32::from_le_bytes(*record[4..].first_chunk().unwrap());
        let address = (section.address() + 16 * index as u64).wrapping_add_signed(site.into());
        let within =
            |symbol: &object::Symbol<'_, '_>| (symbol.address()..symbol.address() + symbol.size()).contains(&address);
        let Some((name, function)) = functions.iter().find(|(_, function)| within(function)) else { continue };
        let len = match kind & SITE_FORM_MASK {
            SITE_DIRECT_BRANCH => BRANCH_LEN,
            SITE_VALUE => X86_VALUE_LEN as u64,
            _ => GATED_LEN,
        };
        all.push(Site { function: name.clone(), address, len, distance: address - function.address() });
    }
    all.sort_by(|a, b| (&a.function, a.distance).cmp(&(&b.function, b.distance)));
    all
}

/// Normalises an operand: `movzx eax` with the register's size instead of its name, `0x0` as `0`.
fn nameless(operand: &str) -> String {
    let (front, last) = operand.rsplit_once(' ').map_or(("", operand), |(front, last)| (front, last));
    let last = match last {
        "0x0" => "0",
        "PTR" | "" => last,
        register if register.starts_with('e') || register.ends_with('d') => "r32",
        _ => "r64",
    };
    if front.is_empty() { last.to_string() } else { format!("{front} {last}") }
}

/// Returns the instructions of a site, without addresses and names of registers.
fn disassembly(program: &Path, site: &Site) -> Vec<String> {
    let output = Command::new("objdump")
        .args(["-d", "--no-show-raw-insn"])
        .args(if IS_X86 { &["-M", "intel"][..] } else { &[] })
        .arg(format!("--start-address={}", site.address))
        .arg(format!("--stop-address={}", site.address + site.len))
        .arg(program)
        .output()
        .unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    text.lines()
        .filter_map(|line| line.split_once(":\t"))
        .map(|(_, instruction)| {
            let instruction = instruction.split(" # ").next().unwrap().trim();
            if instruction.starts_with(JUMP) && (IS_X86 || instruction.starts_with("b\t")) {
                return format!("{JUMP} slow");
            }
            if instruction.starts_with("test") {
                return instruction.split_whitespace().collect::<Vec<_>>().join(" ");
            }
            let memory = instruction.find('[').unwrap_or(instruction.len());
            let (before, memory) = instruction.split_at(memory);
            let words: Vec<_> = before.split_whitespace().collect();
            let before = words.join(" ").split(',').map(nameless).collect::<Vec<_>>().join(",");
            before + if memory.starts_with("[rip+") { " [variable]" } else { memory }
        })
        .collect()
}

#[test]
fn each_kind_of_site_has_the_documented_bytes() {
    if !dormouse_testing::has("objdump") || !dormouse_testing::has("cargo") {
        return;
    }
    let mut text = String::new();
    for (name, arguments, profile_dir) in [
        ("debug", &["--config", "profile.dev.opt-level=0"] as &[&str], "debug"),
        ("release", &["--release"], "release"),
    ] {
        let program = build(arguments, profile_dir);
        writeln!(text, "{name}").unwrap();
        for site in sites(&program) {
            writeln!(text, "  {:10} {}", site.function, disassembly(&program, &site).join("; ")).unwrap();
        }
    }
    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join(GOLDEN);
    if std::env::var_os("DORMOUSE_BLESS").is_some() {
        std::fs::write(&golden, &text).unwrap();
    }
    let expected = std::fs::read_to_string(&golden).unwrap_or_default();
    assert_eq!(text, expected, "\n{text}");
}

#[test]
fn a_patched_branch_reads_no_data() {
    if !dormouse_testing::has("objdump") || !dormouse_testing::has("cargo") {
        return;
    }
    let directory = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let printed = stdout(&succeed(&mut Command::new(build(&["--release"], "release"))));
    let functions = listed_functions(directory, &printed);
    let instructions = |name: &str| &functions.iter().find(|(known, _)| known == name).expect("a function").1;
    assert_eq!(functions.len(), 4, "{printed}");
    for (name, answer) in [("unlikely dormant", 2), ("unlikely armed", 1), ("likely dormant", 2), ("likely armed", 1)] {
        let falls_through = matches!(name, "unlikely dormant" | "likely armed");
        let mut found = instructions(name).clone();
        assert!(!found.iter().any(|text| has_memory_operand(text)), "{name}: {found:?}");
        // The compiler may set the answer before the branch, and again behind it.
        found.retain(|text| !text.starts_with("mov "));
        assert_eq!(found, [if falls_through { NOP } else { JUMP }, "ret"], "{name}");
        let set = instructions(name).iter().rfind(|text| text.starts_with("mov ")).expect("an answer").clone();
        let expected = if IS_X86 { format!("mov $0x{answer},%eax") } else { format!("mov w0, #0x{answer}") };
        assert_eq!(set, expected, "{name}");
    }
}
