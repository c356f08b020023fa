//! Checks exports with speedscope: its own page reads them in a browser, and saves what it has read.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;

use dormouse_testing::browser::{self, Browser};
use dormouse_testing::random;

use super::*;

const PACKAGE: &str = "speedscope@1.25.0";

/// Script that runs before the page's own ones: it records warnings, and catches what the page saves.
const PREPARE: &str = r#"
    window.warnings = [];
    const warn = console.warn;
    console.warn = (text) => { window.warnings.push(text); warn(text); };
    window.alert = (text) => { window.failed = text; };
    URL.createObjectURL = (blob) => { blob.text().then((text) => { window.saved = text; }); return "about:blank"; };
    HTMLAnchorElement.prototype.click = () => {};
"#;
/// Condition: a file was read, or reading has failed.
const IS_READ: &str =
    "window.failed || document.title.endsWith(' - speedscope') || document.body.innerText.includes('went wrong')";
/// Condition: there is something saved; asks the page to save until then.
const IS_SAVED: &str =
    "window.saved || (window.dispatchEvent(new KeyboardEvent('keydown', { key: 's', ctrlKey: true })), window.saved)";

/// Returns the path of speedscope's page, which is installed within cargo's target directory; `None` counts the test as
/// skipped.
fn page() -> Option<&'static Path> {
    static PAGE: OnceLock<Option<PathBuf>> = OnceLock::new();
    let make = || {
        let program = std::env::current_exe().unwrap();
        let dir = program.parent().and_then(Path::parent).unwrap().join("export-tests").join(PACKAGE);
        let page = dir.join("node_modules/speedscope/dist/release/index.html");
        if !page.is_file() && is_installed("npm") {
            std::fs::create_dir_all(&dir).unwrap();
            let mut npm = Command::new("npm");
            npm.args(["install", "--no-save", "--ignore-scripts", "--no-audit", "--no-fund", "--fetch-retries", "1"]);
            npm.arg("--prefix").arg(&dir).arg(PACKAGE);
            npm.stdin(Stdio::null()).output().ok();
        }
        page.is_file().then_some(page)
    };
    let page = PAGE.get_or_init(make).as_deref();
    if page.is_none() {
        let lack = Lack::machine("speedscope is not installed", format!("`npm install {PACKAGE}`"));
        skip(if is_installed("npm") { lack } else { Lack::program("npm") });
    }
    page
}

/// Profiles, and the names of all frames.
struct Read {
    profiles: Vec<Json>,
    frames: Vec<String>,
    /// Warnings of the page.
    warnings: Vec<String>,
}

/// Returns what speedscope reads; an error of the page is a failure.
fn read(name: &str, bytes: &[u8]) -> Option<Read> {
    let (page, program) = (page()?, browser::program()?);
    let dir = tempfile::tempdir().unwrap();
    let script = dir.path().join("profile.js");
    // The speedscope command passes a file on in this form.
    let encode = format!("speedscope.loadFileFromBase64({}, btoa(\"", json!(name));
    let bytes: String = bytes.iter().map(|byte| format!("\\x{byte:02x}")).collect();
    std::fs::write(&script, format!("{encode}{bytes}\"));")).unwrap();
    let mut browser = Browser::start(&program);
    browser.call("Page.addScriptToEvaluateOnNewDocument", json!({ "source": PREPARE }));
    browser.open_url(&format!("file://{}#localProfilePath={}", page.display(), script.display()));
    browser.wait(IS_READ);
    assert_eq!(browser.evaluate("window.failed"), Json::Null);
    browser.wait(IS_SAVED);
    let saved: Json = serde_json::from_str(browser.evaluate("window.saved").as_str().unwrap()).unwrap();
    let warnings = texts(&browser.evaluate("window.warnings"), |warning| warning);
    assert_eq!(browser.script_errors(), [""; 0]);
    let frames = texts(&saved["shared"]["frames"], |frame| &frame["name"]);
    Some(Read { profiles: saved["profiles"].as_array().unwrap().clone(), frames, warnings })
}

fn texts(array: &Json, text: impl Fn(&Json) -> &Json) -> Vec<String> {
    array.as_array().unwrap().iter().map(|one| text(one).as_str().unwrap().to_owned()).collect()
}

/// A slice of a profile: depth, name without fields, begin and end in nanoseconds since the first one.
type Slice = (usize, String, i64, i64);

impl Read {
    /// Returns each profile with its slices in the order of begins. speedscope saves no slices without a duration.
    fn slices(&self) -> Vec<(String, Vec<Slice>)> {
        let of_profile = |profile: &Json| {
            let unit_ns = if profile["unit"] == "microseconds" { 1000.0 } else { 1.0 };
            let (mut slices, mut open) = (Vec::<Slice>::new(), Vec::new());
            for event in profile["events"].as_array().unwrap() {
                let ns = (event["at"].as_f64().unwrap() * unit_ns).round() as i64;
                let name = &self.frames[event["frame"].as_u64().unwrap() as usize];
                let name = name.split_once(" {").map_or(name.as_str(), |(name, _)| name);
                if event["type"] == "O" {
                    slices.push((open.len(), name.into(), ns, i64::MIN));
                    open.push(slices.len() - 1);
                } else {
                    let slice = &mut slices[open.pop().unwrap()];
                    assert_eq!(slice.1, name);
                    slice.3 = ns;
                }
            }
            assert!(open.is_empty());
            (profile["name"].as_str().unwrap().into(), slices)
        };
        self.profiles.iter().map(of_profile).collect()
    }

    /// Returns the warnings, except those of ends whose fields differ from those of the begin: speedscope then takes
    /// those of the begin.
    fn serious_warnings(&self) -> Vec<&String> {
        self.warnings.iter().filter(|warning| !warning.contains("was on the top of the stack. Ending")).collect()
    }
}

/// Returns sorted folded stacks of slices, each of which starts with `begin`.
fn folded(begin: &str, slices: &[Slice]) -> Vec<String> {
    let mut own_ns = BTreeMap::<String, i64>::new();
    let mut stacks = vec![begin.to_owned()];
    for (depth, name, begin, end) in slices {
        stacks.truncate(depth + 1);
        let outer = stacks[*depth].clone();
        stacks.push(format!("{outer}{name};"));
        *own_ns.entry(outer).or_default() -= end - begin;
        *own_ns.entry(stacks[depth + 1].clone()).or_default() += end - begin;
    }
    let lines = own_ns.iter().filter(|(_, ns)| **ns > 0);
    sorted(lines.map(|(stack, ns)| format!("{} {ns}", stack.trim_end_matches(';'))))
}

fn sorted(lines: impl Iterator<Item = String>) -> Vec<String> {
    let mut lines: Vec<String> = lines.collect();
    lines.sort();
    lines
}

fn lines(bytes: &[u8]) -> Vec<String> {
    sorted(std::str::from_utf8(bytes).unwrap().lines().map(str::to_owned))
}

#[test]
fn speedscope_reads_the_whole_timeline() {
    let (bytes, _) = export(Format::Chrome, &options(), &builder().finish());
    let Some(read) = read("trace.json", &bytes) else { return };
    assert_eq!(read.serious_warnings(), [""; 0]);
    let slice = |depth, name: &str, begin, end| (depth, name.to_string(), begin, end);
    let profile = |name: &str, slices: &[Slice]| (name.to_string(), slices.to_vec());
    let thread = [
        slice(0, "http:request", 0, 3000),
        slice(1, "db:query", 500, 1500),
        // Cut where the request ends.
        slice(1, "db:query", 2000, 3000),
        slice(0, "db:query", 3000, 4000),
        // Open at the end of the trace.
        slice(0, "http:request", 8000, 8000),
    ];
    assert_eq!(
        read.slices(),
        [
            profile("web (pid 7, tid 7)", &thread),
            // An end, which has no duration.
            profile("web (pid 7, tid 9)", &[]),
            profile("web (pid 7), job:in..job:out (tid 4194307)", &[slice(0, "job:in..job:out", 0, 1800)]),
            profile("a;b <script>\u{7} (pid 8, tid 8)", &[slice(0, "db:query", 0, 2000)]),
            profile("lost by s2 (pid 4194311), lost by s2 (tid 4194311)", &[slice(0, "6 events lost", 0, 2000)]),
        ]
    );
    let of_query = read.frames.iter().filter(|frame| frame.starts_with("db:query ")).collect::<Vec<_>>();
    assert!(of_query.iter().any(|frame| frame.contains(r#""vtid":8"#)), "{of_query:?}");
}

#[test]
fn speedscope_reads_folded_stacks() {
    let (bytes, _) = export(Format::Folded, &options(), &builder().finish());
    let Some(read) = read("trace.folded", &bytes) else { return };
    assert_eq!(read.serious_warnings(), [""; 0]);
    let [(_, slices)] = &read.slices()[..] else { panic!("{} profiles", read.profiles.len()) };
    assert_eq!((folded("", slices), &read.profiles[0]["endValue"]), (lines(&bytes), &json!(4000)));
}

/// With nested and overlapping slices, slices on a lane, and a clock that stands still for a few events, speedscope's
/// own time of each stack, read from Chrome's format, equals that of the folded stacks.
#[test]
fn own_times_with_a_coarse_clock_equal_those_of_folded_stacks() {
    let mut builder = TraceBuilder::new();
    let fields = [("id", FieldType::scalar(Kind::U64))];
    let classes = ["a", "b", "c", "d"].map(|name| ["begin", "end"].map(|end| builder.class(name, end, &fields)));
    let job = ["in", "out"].map(|name| builder.class("job", name, &fields));
    let streams = [0, 1].map(|cpu| builder.stream(cpu));
    let mut random = random(1);
    for (stream, tid) in streams.into_iter().zip(7..) {
        let (mut ns, mut open) = (0, Vec::new());
        for id in 0..4000 {
            ns += 1000 * (random(3) as u64).saturating_sub(1);
            let is_begin = open.is_empty() || open.len() < 6 && random(2) == 0;
            let class = if is_begin {
                open.push(random(classes.len()));
                classes[open[open.len() - 1]][0]
            } else {
                // Rarely one that is not the innermost.
                let index = if random(10) == 0 { random(open.len()) } else { open.len() - 1 };
                classes[open.remove(index)][1]
            };
            builder.event(stream, ns, 7, tid, class, &[Value::U64(id)]);
            if random(5) == 0 {
                builder.event(stream, ns, 7, tid, job[random(2)], &[Value::U64(random(4) as u64)]);
            }
        }
    }
    let trace = builder.finish();
    let options = Options { counters: Vec::new(), ..options() };
    let [chrome, stacks] = [Format::Chrome, Format::Folded].map(|format| export(format, &options, &trace).0);
    let Some(read) = read("trace.json", &chrome) else { return };
    assert_eq!(read.serious_warnings(), [""; 0]);
    let (lanes, threads): (Vec<_>, Vec<_>) = read.slices().into_iter().partition(|(name, _)| name.contains("job:"));
    assert!(threads.len() == 2 && !lanes.is_empty(), "{} threads, {} lanes", threads.len(), lanes.len());
    let of_thread = |((_, slices), tid): (&(_, Vec<Slice>), u32)| folded(&format!("process 7;thread {tid};"), slices);
    let found = sorted(threads.iter().zip(7..).flat_map(of_thread));
    assert!(found.len() > 100, "{} stacks", found.len());
    assert_eq!(found, lines(&stacks));
}
