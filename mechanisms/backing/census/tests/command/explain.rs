//! `--explain`: the instruction that read a buffer first and the call that obtained it, compared with what objdump finds in the
//! program.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use dormouse_testing::{Lack, has, skip};
use serde_json::Value;

use crate::PAGES;

/// Each buffer is obtained and read by functions of its own. The first quarter of `written` is written before, by another
/// function; all are read again, by another function.
const PROGRAM: &str = r#"
#define _GNU_SOURCE
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>
enum { SIZE = 4 << 20 };
#define FUNCTION __attribute__((noinline, noclone))
static char frame[SIZE];
static volatile long sum;
#define READER(name) FUNCTION static void name(volatile char *at) { for (long i = 0; i < SIZE; i += 64) sum += at[i]; }
READER(read_frame) READER(read_block) READER(read_written) READER(read_mapped) READER(read_moved) READER(read_by_thread) READER(read_again)
FUNCTION static char *obtain_block(void) { char *at = calloc(1, SIZE); sum++; return at; }
FUNCTION static char *obtain_written(void) { char *at = malloc(SIZE); sum++; return at; }
FUNCTION static void write_part(char *at) { memset(at, 1, SIZE / 4); }
FUNCTION static char *obtain_mapped(void) { char *at = mmap(0, SIZE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0); sum++; return at; }
FUNCTION static char *obtain_moved(char *old) { char *at = realloc(old, SIZE); sum++; return at; }
FUNCTION static char *obtain_in_thread(void) { char *at = malloc(SIZE); sum++; return at; }
static void *thread(void *nothing) { char *own = obtain_in_thread(); read_by_thread(own); return own; }
int main(void) {
    char *all[] = { frame, obtain_block(), obtain_written(), obtain_mapped(), obtain_moved(malloc(300000)), 0 };
    write_part(all[2]);
    void (*read[])(volatile char *) = { read_frame, read_block, read_written, read_mapped, read_moved };
    for (int buffer = 0; buffer < 5; buffer++) read[buffer](all[buffer]);
    pthread_t other;
    void *own;
    pthread_create(&other, 0, thread, 0);
    pthread_join(other, &own);
    all[5] = own;
    for (int buffer = 0; buffer < 6; buffer++) read_again(all[buffer]);
    return 0;
}
"#;

fn build(dir: &Path, name: &str, options: &[&str]) -> PathBuf {
    let (file, program) = (dir.join("program.c"), dir.join(name));
    fs::write(&file, PROGRAM).unwrap();
    let built = Command::new("cc").args(["-O1", "-pthread"]).args(options).arg(file).arg("-o").arg(&program).status();
    assert!(built.unwrap().success());
    program
}

/// Returns the buffers of at least 1 MiB on the zero page; or `None`, and says what is skipped.
fn explained(program: &Path) -> Option<Vec<Value>> {
    let output = Command::new(PAGES).args(["--watch", "--explain", "--json", "--"]).arg(program).output().unwrap();
    let report: Value = serde_json::from_slice(&output.stderr).unwrap();
    if report["unseen"].as_array().unwrap().iter().any(|line| !line.as_str().unwrap().contains("vsyscall")) {
        skip(Lack::machine(&report["unseen"], "Linux 6.7 or later, and kernel.perf_event_paranoid of 2 or less"));
        return None;
    }
    assert_eq!(output.status.code(), Some(3));
    let buffers = report["buffers"].as_array().unwrap().iter();
    Some(buffers.filter(|buffer| buffer["zero"].as_u64().unwrap() >= 1 << 20).cloned().collect())
}

/// Returns objdump's lines for a function: the offset of each instruction, and its text.
fn instructions(program: &Path, function: &str) -> Vec<(u64, String)> {
    let mut objdump = Command::new("objdump");
    let output = objdump.args(["-d", "--no-show-raw-insn", &format!("--disassemble={function}")]).arg(program).output();
    let text = String::from_utf8(output.unwrap().stdout).unwrap();
    let lines = text.lines().filter_map(|line| line.strip_prefix(' ')?.split_once(":\t"));
    let found: Vec<(u64, &str)> =
        lines.map(|(address, text)| (u64::from_str_radix(address.trim(), 16).unwrap(), text)).collect();
    found.iter().map(|(address, text)| (address - found[0].0, text.to_string())).collect()
}

#[test]
fn first_readers_and_callers_are_those_that_objdump_finds() {
    if !has("objdump") {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    for (name, options) in [("dynamic", &[][..]), ("static", &["-static"])] {
        let program = build(dir.path(), name, options);
        let Some(buffers) = explained(&program) else { return };
        check_places(&program, &buffers);
    }
}

/// Checks that each buffer of the program above has the function that obtained it and the one that read it, and that objdump finds a
/// call before the one place and a load at the other.
fn check_places(program: &Path, buffers: &[Value]) {
    let mut found: Vec<(String, String)> = Vec::new();
    for buffer in buffers {
        let (read, by) = (&buffer["first_read"], &buffer["what"]["by"]);
        let reader = read["function"].as_str().unwrap_or_else(|| panic!("{buffer:#}"));
        assert_eq!((read["path"].as_str(), buffer["is_found"].as_bool()), (program.to_str(), Some(true)));
        let instruction = instructions(program, reader).into_iter().find(|(offset, _)| read["offset"] == *offset);
        let (_, instruction) = instruction.unwrap_or_else(|| panic!("{buffer:#}"));
        // A load: memory is the operand before the last, which is a register.
        let is_load = instruction.contains("mov") && instruction.contains("),%") || instruction.contains("ldr");
        assert!(is_load, "{reader}: {instruction}");
        let name = match by["function"].as_str() {
            None => buffer["what"]["name"].as_str().unwrap().to_string(),
            Some(caller) => {
                let code = instructions(program, caller);
                let behind =
                    code.iter().position(|(offset, _)| by["offset"] == *offset).unwrap_or_else(|| panic!("{buffer:#}"));
                let (_, call) = &code[behind - 1];
                assert!(["call", "bl"].iter().any(|name| call.starts_with(name)), "{call}");
                assert!(["alloc", "mmap"].iter().any(|name| call.contains(name)), "{call}");
                caller.into()
            }
        };
        found.push((name, reader.into()));
    }
    found.sort_unstable();
    let expected = [
        ("frame", "read_frame"),
        ("obtain_block", "read_block"),
        ("obtain_in_thread", "read_by_thread"),
        ("obtain_mapped", "read_mapped"),
        ("obtain_moved", "read_moved"),
        ("obtain_written", "read_written"),
    ];
    assert_eq!(found, expected.map(|(name, reader)| (name.to_string(), reader.to_string())));
}

/// A reader in which a function of another file is inlined, and in that one another.
const INLINED: &str = r#"
#include "sum.h"
#include <stdlib.h>
enum { SIZE = 4 << 20 };
__attribute__((noinline, noclone)) static long read_all(volatile char *at)
{
    long total = 0;
    for (long i = 0; i < SIZE; i += 4096)
        total = add(total,
                    at + i);
    return total;
}
int main(void)
{
    char *block = calloc(1, SIZE);
    return read_all(block) != 0;
}
"#;
const INLINED_HEADER: &str = r#"
#define INLINE static inline __attribute__((always_inline))
INLINE long value(volatile char *at)
{
    return *at;
}
INLINE long add(long total, volatile char *at)
{
    return total +
           value(at);
}
"#;

/// Returns the address of a function in a program, by nm.
fn address_of(program: &Path, function: &str) -> u64 {
    let output = Command::new("nm").arg(program).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let line =
        text.lines().find(|line| line.split(' ').next_back() == Some(function)).unwrap_or_else(|| panic!("{text}"));
    u64::from_str_radix(line.split(' ').next().unwrap(), 16).unwrap()
}

/// Returns the functions and places of an address, the innermost first, by addr2line of binutils.
fn lines_by_addr2line(program: &Path, address: u64) -> Vec<(String, String)> {
    let mut tool = Command::new("addr2line");
    let output = tool.args(["-i", "-f", "-e"]).arg(program).arg(format!("{address:#x}")).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let lines: Vec<&str> = text.lines().map(|line| line.split(" (discriminator").next().unwrap()).collect();
    lines.chunks(2).map(|pair| (pair[0].to_string(), pair[1].to_string())).collect()
}

/// Returns the functions and places that a place in the code names.
fn lines_of(place: &Value) -> Vec<(String, String)> {
    let lines = place["lines"].as_array().map(Vec::as_slice).unwrap_or_default();
    let text = |value: &Value| value.as_str().unwrap().to_string();
    let pair = |line: &Value| (text(&line["function"]), format!("{}:{}", text(&line["file"]), line["line"]));
    lines.iter().map(pair).collect()
}

#[test]
fn source_lines_are_those_of_addr2line_also_of_inlined_functions() {
    if !has("addr2line") || !has("nm") {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("sum.h"), INLINED_HEADER).unwrap();
    let source = dir.path().join("inlined.c");
    fs::write(&source, INLINED).unwrap();
    for (name, options) in
        [("dwarf5", &["-gdwarf-5"][..]), ("dwarf4", &["-gdwarf-4"]), ("static", &["-g", "-static"]), ("plain", &[])]
    {
        let program = dir.path().join(name);
        let built = Command::new("cc").args(["-O1"]).args(options).arg(&source).arg("-o").arg(&program).status();
        assert!(built.unwrap().success());
        let Some(buffers) = explained(&program) else { return };
        let [buffer] = &buffers[..] else { panic!("{name}: {buffers:#?}") };
        let (read, by) = (&buffer["first_read"], &buffer["what"]["by"]);
        if name == "plain" {
            assert!(
                read["function"] == "read_all" && read.get("lines").is_none() && by.get("lines").is_none(),
                "{buffer:#}"
            );
            continue;
        }
        // The call is the instruction before the place behind it.
        for (place, back) in [(read, 0), (by, 1)] {
            let function = place["function"].as_str().unwrap();
            let address = address_of(&program, function) + place["offset"].as_u64().unwrap() - back;
            assert_eq!(lines_of(place), lines_by_addr2line(&program, address), "{name}: {place:#}");
        }
        let functions: Vec<String> = lines_of(read).into_iter().map(|(function, _)| function).collect();
        assert_eq!(functions, ["value", "add", "read_all"], "{name}");
        let output = Command::new(PAGES).args(["--watch", "--explain", "--"]).arg(&program).output().unwrap();
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        for part in ["(value at sum.h:5, inlined in add at sum.h:10, inlined in inlined.c:9)", "(inlined.c:15)"] {
            assert!(text.contains(part), "{name}: {part} is not in {text}");
        }
    }
}

/// Functions of Rust's crate `alloc` are part of the program, and yet not named.
#[test]
fn callers_of_rusts_allocator_are_named() {
    const SOURCE: &str = r"
#[inline(never)]
fn obtain() -> Vec<u8> { std::hint::black_box(vec![0; 4 << 20]) }
#[inline(never)]
fn obtain_words() -> Box<[u64]> { std::hint::black_box(vec![0; 1 << 19].into_boxed_slice()) }
fn main() {
    let (bytes, words) = (obtain(), obtain_words());
    let sum = bytes.iter().map(|byte| u64::from(*byte)).sum::<u64>() + words.iter().sum::<u64>();
    assert_eq!(std::hint::black_box(sum), 0);
}
";
    if !has("rustc") {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("main.rs");
    fs::write(&file, SOURCE).unwrap();
    for (name, options) in
        [("unoptimised", &[][..]), ("optimised", &["-O"]), ("newer", &["-Csymbol-mangling-version=v0"])]
    {
        let program = dir.path().join(name);
        assert!(Command::new("rustc").args(options).arg(&file).arg("-o").arg(&program).status().unwrap().success());
        let Some(buffers) = explained(&program) else { return };
        let functions = buffers.iter().filter_map(|buffer| buffer["what"]["by"]["function"].as_str());
        let mut functions: Vec<&str> = functions.collect();
        // The mangled names have their length before them.
        functions.sort_unstable_by_key(|name| name.contains("12obtain_words"));
        let [bytes, words] = functions[..] else { panic!("{name}: {buffers:#?}") };
        assert!(bytes.contains("6obtain") && words.contains("12obtain_words"), "{name}: {functions:?}");
    }
}

#[test]
fn the_text_names_both_places() {
    let dir = tempfile::tempdir().unwrap();
    let program = build(dir.path(), "program", &["-s"]);
    if explained(&program).is_none() {
        return;
    }
    for option in ["--watch", "--fix"] {
        let output = Command::new(PAGES).args([option, "--explain", "--"]).arg(&program).output().unwrap();
        let report = String::from_utf8_lossy(&output.stderr).into_owned();
        // Without symbols, places are addresses in the file.
        for part in ["obtained by 0x", " in program", "first read by 0x"] {
            assert!(report.contains(part), "{option}: {part} is not in {report}");
        }
    }
}
