//! Generated C and C++ programs: the events that a rule selects in the program are those that `view --where` selects in
//! a trace of all.
//!
//! ```text
//!   source with 32 classes ──▶ program ──┬─ record                 ──▶ trace ──▶ view --where CONDITION ──▶ numbers
//!    of 1 to 32 fields, seeded           └─ record -e 'RULE where CONDITION' ──▶ view                   ──▶ numbers
//! ```
//! The two are one run of the program in two sessions, of which either is the first, or two runs. Each run of a program
//! emits the same events, which have numbers. The variable `DORMOUSE_ORACLE_RULES` sets the number of rules for each
//! language.
#![cfg(all(any(target_arch = "x86_64", target_arch = "aarch64"), target_os = "linux"))]

use std::ffi::OsStr;
use std::fmt::Write;
use std::iter;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::OnceLock;

use dormouse_testing::c_programs::{install, pkg_config, stdout, succeed};
use dormouse_testing::has_part;
use dormouse_testing::programs::dormouse;
use rand::rngs::SmallRng;
use rand::seq::IndexedRandom;
use rand::{RngExt, SeedableRng};

/// Pattern of the program's classes.
const ALL: &str = "oracle:*";
const CLASS_COUNT: usize = 32;
/// Number of times that a program emits an event of each class.
const ROUNDS: u32 = 20;

/// Fields: the form of a declaration, with `N` for the number of the field, and the kind of its literals.
const FIELDS: [(&str, Kind); 18] = [
    ("(fN, (int8_t)integer())", Kind::Number),
    ("(fN, (uint8_t)integer())", Kind::Number),
    ("(fN, (int16_t)integer())", Kind::Number),
    ("(fN, (uint16_t)integer())", Kind::Number),
    ("(fN, (int32_t)integer())", Kind::Number),
    ("(fN, (uint32_t)integer())", Kind::Number),
    ("(fN, (int64_t)integer())", Kind::Number),
    ("(fN, (uint64_t)integer())", Kind::Number),
    ("(fN, (bool)(integer() & 1))", Kind::Number),
    ("(fN, (float)real())", Kind::Number),
    ("(fN, real())", Kind::Number),
    ("(fN, text())", Kind::Text),
    ("(fN, text())", Kind::Text),
    ("(fN, text())", Kind::Text),
    ("(fN, pointer())", Kind::Number),
    ("(fN, DORMOUSE_BYTES(\"\\0\\1\\377x\", next() % 5))", Kind::Elements),
    ("(fN, DORMOUSE_ARRAY(numbers, next() % 4))", Kind::Elements),
    ("(DORMOUSE_ENUM(fN, LOW, HIGH, (\"ab\", MIDDLE)), state())", Kind::Label),
];

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Number,
    Text,
    Elements,
    Label,
}

/// Beginning of a program. `next` is a generator by Marsaglia (2003).
const PRELUDE: &str = r#"
#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <dormouse/event.h>
#include <dormouse/tag.h>

enum state { LOW, MIDDLE, HIGH };
static uint64_t seed = 88172645463325252u;
static uint64_t number = UINT64_MAX;

static unsigned next(void) {
    seed ^= seed << 13, seed ^= seed >> 7, seed ^= seed << 17;
    return (unsigned)(seed >> 33);
}
/* Values depend on the number alone: those of an event that nobody asks for are not evaluated. */
static void begin(void) {
    seed = ++number * 0x9e3779b97f4a7c15u + 1;
    next();
}
static uint64_t integer(void) {
    static const uint64_t all[] = {0, 1, 2, 3, 100, UINT64_MAX, INT64_MAX, (uint64_t)INT64_MIN, 128, 65535};
    return all[next() % 10];
}
static double real(void) {
    static const double all[] = {0.0, -0.0, 0.1, 1.0, 2.5, -1e300, 18446744073709551616.0};
    unsigned index = next() % 10;
    return index < 7 ? all[index] : index == 7 ? (double)NAN : index == 8 ? (double)INFINITY : -(double)INFINITY;
}
static const char *text(void) {
    static const char *const all[] = {"", "a", "ab", "b", "a\xff" "b", "LOW", "/var/lib/shop/orders/1831", NULL};
    return all[next() % 8];
}
static const void *pointer(void) { return (const void *)(uintptr_t)(next() % 4 * 4096); }
static enum state state(void) { return (enum state)(next() % 4); }
static const uint16_t numbers[] = {0, 1, 65535};
static const char *const users[] = {"", "a", "ab", "LOW", "/var/lib/shop/orders/1831", NULL, "x"};
static const uint64_t groups[] = {0, 1, 2, 100, UINT64_MAX};

static void tagged(void (*emit)(void)) {
    DORMOUSE_TAG(user, users[number % 7]);
    DORMOUSE_TAG(group, groups[number % 5]);
    emit();
}
"#;

/// Returns a program, and the kinds of its fields by their numbers.
fn program(rng: &mut SmallRng) -> (String, Vec<Vec<Kind>>) {
    let (mut text, mut kinds) = (PRELUDE.to_string(), vec![Vec::new(); CLASS_COUNT]);
    for class in 0..CLASS_COUNT {
        let mut fields: Vec<String> = Vec::new();
        for (field, kinds) in kinds.iter_mut().take(class).enumerate() {
            let (form, kind) = FIELDS[rng.random_range(0..FIELDS.len())];
            fields.push(form.replace("fN", &format!("f{field}")));
            kinds.push(kind);
        }
        // The number is the first field, or the last one.
        fields.insert(if class % 2 == 0 { 0 } else { class }, "(n, number)".into());
        let fields = fields.join(", ");
        writeln!(text, "static void emit_{class}(void) {{ DORMOUSE_EVENT(oracle, c{class}, {fields}); }}").unwrap();
    }
    let calls: String = (0..CLASS_COUNT).map(|class| format!("begin(); tagged(emit_{class}); ")).collect();
    writeln!(text, "int main(void) {{ for (int round = 0; round < {ROUNDS}; round++) {{ {calls} }} return 0; }}")
        .unwrap();
    (text, kinds)
}

/// Returns a condition on tags, and on fields, of which some do not exist, or not in all classes.
fn condition(kinds: &[Vec<Kind>], depth: u32, rng: &mut SmallRng) -> String {
    match rng.random_range(0..if depth < 3 { 8 } else { 5 }) {
        5 => format!("not {}", condition(kinds, depth + 1, rng)),
        join @ 6.. => {
            let word = if join == 6 { "and" } else { "or" };
            format!("({} {word} {})", condition(kinds, depth + 1, rng), condition(kinds, depth + 1, rng))
        }
        0 => comparison_of_tag(rng),
        _ => comparison(kinds, rng),
    }
}

/// Returns a comparison of the tag `user`, which is a text, or `group`, a number. A rule refuses to put texts of tags in
/// order.
fn comparison_of_tag(rng: &mut SmallRng) -> String {
    let equality = *["==", "!="].choose(rng).unwrap();
    let operator = *["==", "!=", "<", "<=", ">", ">="].choose(rng).unwrap();
    let text = *[r#""""#, r#""a""#, r#""ab""#, r#""LOW""#, r#""x""#, r#""nobody""#].choose(rng).unwrap();
    let glob =
        *[r#""*""#, r#""a*""#, r#""*b""#, r#""?""#, r#""/var/*""#, r#""*shop*""#, r#""ab""#].choose(rng).unwrap();
    let number = *["0", "1", "2.5", "100", "-1", "true", "18446744073709551615", "tag.user"].choose(rng).unwrap();
    let user = *["tag.user", "context.tag.user"].choose(rng).unwrap();
    let field = format!("f{}", rng.random_range(0..CLASS_COUNT - 1));
    match rng.random_range(0..9) {
        0 | 1 => format!("{user} {equality} {text}"),
        2 => format!("{text} {equality} {user}"),
        3 => format!("{user} ~ {glob}"),
        4 => format!("{user} {operator} {field}"),
        5 => format!("{user} {operator} 7"),
        6 => user.into(),
        _ => format!("tag.group {operator} {number}"),
    }
}

fn comparison(kinds: &[Vec<Kind>], rng: &mut SmallRng) -> String {
    let operator = *["==", "!=", "<", "<=", ">", ">="].choose(rng).unwrap();
    let number =
        *["0", "1", "2", "100", "-1", "127.5", "0.1", "1e300", "18446744073709551615", "-9223372036854775808", "4K"]
            .choose(rng)
            .unwrap();
    let text = *[r#""""#, r#""a""#, r#""ab""#, r#""LOW""#, r#""HIGH""#, r#""x""#].choose(rng).unwrap();
    let glob = *[r#""*""#, r#""a*""#, r#""*b""#, r#""?""#, r#""L*""#, r#""/var/*""#, r#""*shop*""#, r#""a?b""#]
        .choose(rng)
        .unwrap();
    let field = rng.random_range(0..CLASS_COUNT - 1);
    let Some(kind) = kinds[field].choose(rng).copied() else { return format!("f{field} == 1") };
    let name = if rng.random_range(0..8) == 0 { format!("fields.f{field}") } else { format!("f{field}") };
    match (kind, rng.random_range(0..8)) {
        (_, 0) => format!("event {} \"oracle:c{}*\"", ["~", "=="][rng.random_range(0..2)], rng.random_range(0..4)),
        (Kind::Number, 1) => name,
        (Kind::Number, 2) => format!("{number} {operator} {name}"),
        (Kind::Number, 3) => format!("{name} {operator} n"),
        (Kind::Number, _) => format!("{name} {operator} {number}"),
        (Kind::Text, 1..4) => format!("{name} ~ {glob}"),
        (Kind::Text, _) => format!("{name} {operator} {text}"),
        (Kind::Elements, 1..4) => format!("_f{field}_length {operator} {}", rng.random_range(0..5)),
        (Kind::Elements, _) => format!("{name}[{}] {operator} {number}", rng.random_range(0..5)),
        (Kind::Label, 1 | 2) => format!("{name} {operator} {number}"),
        (Kind::Label, 3) => format!("{name} ~ {glob}"),
        (Kind::Label, _) => format!("{name} {} {text}", ["==", "!="][rng.random_range(0..2)]),
    }
}

/// Runs `dormouse view`, and returns the numbers of the events in ascending order.
fn numbers(output: &Output) -> Vec<u64> {
    let number = |line: &str| line.rsplit([' ', '=']).next().and_then(|word| word.parse().ok());
    let mut numbers: Vec<u64> =
        stdout(output).lines().map(|line| number(line).unwrap_or_else(|| panic!("no number: {line}"))).collect();
    numbers.sort_unstable();
    numbers
}

/// Prints the numbers of the events whose names match a pattern.
fn view(trace: &Path, pattern: &str) -> Command {
    let mut command = Command::new(dormouse());
    command.args(["view", "--fields", "n", "-e", pattern]).arg(trace);
    command
}

/// Compares rules with conditions in one language.
fn compare(language: &str, compiler: &str, name: &str) {
    static PREFIX: OnceLock<PathBuf> = OnceLock::new();
    let prefix = PREFIX.get_or_init(|| install("capi-rules-prefix"));
    let place = tempfile::tempdir().unwrap();
    let place = place.path();
    let seed: u64 = rand::random();
    println!("{language}: seed {seed}");
    let mut rng = SmallRng::seed_from_u64(seed);
    let (text, kinds) = program(&mut rng);
    let (source, program) = (place.join(name), place.join("program"));
    std::fs::write(&source, text).unwrap();
    let mut build = Command::new(compiler);
    build.args(["-O2", "-o"]).arg(&program).arg(&source).args(pkg_config(prefix, &["--cflags", "--libs", "dormouse"]));
    succeed(build.arg(format!("-Wl,-rpath,{}", prefix.join("lib").display())));

    // Records a run of the program in these sessions: of each, the trace and the rule, if any.
    let record = |sessions: &[(&Path, Option<&str>)]| {
        let words = sessions.iter().flat_map(|(trace, rule)| {
            let record = ["record".as_ref(), "--budget".as_ref(), "4M".as_ref(), "-o".as_ref(), trace.as_os_str()];
            // A session with a rule records no tags.
            let rule = match rule {
                Some(rule) => ["-e".as_ref(), rule.as_ref()],
                None => ["--context".as_ref(), "tag.user,tag.group".as_ref()],
            };
            iter::once(dormouse().as_os_str()).chain(record).chain(rule).chain(["--".as_ref()])
        });
        let words: Vec<&OsStr> = words.chain([program.as_os_str()]).collect();
        succeed(Command::new(words[0]).args(&words[1..]))
    };
    let all = place.join("all");
    record(&[(&all, None)]);
    let everything = numbers(&succeed(&mut view(&all, ALL)));
    assert_eq!(everything, (0..u64::from(ROUNDS) * CLASS_COUNT as u64).collect::<Vec<u64>>());

    let wanted = std::env::var("DORMOUSE_ORACLE_RULES").ok().and_then(|count| count.parse().ok()).unwrap_or(60);
    let (mut compared, mut refused, mut selective) = (0, 0, 0);
    while compared < wanted {
        let pattern = *["oracle:*", "oracle:*", "oracle:c1*", "oracle:c?", "*"].choose(&mut rng).unwrap();
        let condition = condition(&kinds, 0, &mut rng);
        // Without the events of the session itself.
        let named = if pattern == "*" { ALL } else { pattern };
        let asked = view(&all, named).args(["--where", &condition]).output().unwrap();
        if !asked.status.success() {
            // A name that no event has, or a comparison of text with numbers. A rule says the same.
            refused += 1;
            assert!(refused < 20 * (compared + 10), "{condition}: {}", String::from_utf8_lossy(&asked.stderr));
            continue;
        }
        let rule = format!("{pattern} where {condition}");
        let trace = place.join(format!("trace-{compared}"));
        let all_again = place.join("all-again");
        let (whole, selected) = ((&*all_again, None), (&*trace, Some(&*rule)));
        let sessions = [whole, selected, whole];
        record(&sessions[[1..2, 0..2, 1..3][compared as usize % 3].clone()]);
        if whole.0.exists() {
            assert_eq!(numbers(&succeed(&mut view(whole.0, ALL))), everything, "seed {seed}: beside {rule}");
            std::fs::remove_dir_all(whole.0).unwrap();
        }
        let (asked, recorded) = (numbers(&asked), numbers(&succeed(&mut view(&trace, ALL))));
        let differing = || {
            asked
                .iter()
                .filter(|number| !recorded.contains(number))
                .chain(recorded.iter().filter(|number| !asked.contains(number)))
        };
        assert!(
            asked == recorded,
            "seed {seed}: {rule}\n{} and {} events, differing {:?}",
            asked.len(),
            recorded.len(),
            differing().take(5).collect::<Vec<_>>()
        );
        compared += 1;
        selective += u64::from(!asked.is_empty() && asked.len() < everything.len());
        std::fs::remove_dir_all(&trace).unwrap();
    }
    println!("{language}: {compared} rules, {selective} of them select some events; {refused} refused");
    assert!(selective * 3 > compared, "{selective} of {compared}");
}

#[test]
fn rules_select_in_c_as_view_does() {
    if has_part("gcc") {
        compare("C", "gcc", "oracle.c");
    }
}

#[test]
fn rules_select_in_cpp_as_view_does() {
    if has_part("g++") {
        compare("C++", "g++", "oracle.cc");
    }
}
