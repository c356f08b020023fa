//! The zero page on a machine that works: every fault of the work by `perf`, and its mappings in all processes meanwhile.
//!
//! ```text
//!   a round: each work once under perf      ──▶ rates of its faults (`faults`)
//!            each work once more, beside it ──▶ census of all processes, again and again ──▶ the largest number of mappings
//! ```
//! A build is make with four jobs, a browser is Chromium with a page that a script fills, a database is SQLite with a table that
//! is filled, indexed and grouped. Programs that are not installed are left out.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use dormouse_testing::printed;

use super::faults;
use crate::experiments::compile_job::find_project;
use crate::experiments::compile_job::project::{Goals, Project};
use crate::plan::{Samples, in_turn};
use crate::statistics::ROUNDS_MIN;
use crate::{LabError, RunOptions};

/// Pause between two censuses.
const PAUSE: Duration = Duration::from_millis(50);

/// Page of the browser.
const PAGE: &str = "<!doctype html><body><script>
let rows = '';
for (let row = 0; row < 20000; row++) rows += `<tr><td>${row}<td>${Math.sin(row)}`;
document.body.innerHTML = `<table>${rows}</table>`;
</script>";

/// Statements for the database.
const STATEMENTS: &str = "create table numbers(number integer, text text);
    with recursive counted(number) as (select 1 union all select number + 1 from counted where number < 300000)
    insert into numbers select number, hex(randomblob(16)) from counted;
    create index by_text on numbers(text);
    select count(*) from (select substr(text, 1, 3), sum(number) from numbers group by 1);";

/// A work: a program with its arguments, in a directory of its own.
struct Work {
    name: &'static str,
    program: &'static str,
    arguments: fn(&Path) -> Vec<OsString>,
}

const WORKS: [Work; 2] = [
    Work {
        name: "browser",
        program: "chromium",
        arguments: |dir| {
            let profile = format!("--user-data-dir={}", dir.join("profile").display());
            let page = format!("file://{}", dir.join("page.html").display());
            // Root has no sandbox.
            let fixed = ["--headless", "--no-sandbox", "--disable-gpu", "--dump-dom"].map(String::from);
            fixed.into_iter().chain([profile, page]).map(OsString::from).collect()
        },
    },
    Work {
        name: "database",
        program: "sqlite3",
        arguments: |dir| vec![dir.join("database").into(), STATEMENTS.into()],
    },
];

impl Work {
    /// Runs the work to its end, under a program if words are given.
    fn run(&self, under: &[OsString]) -> Result<(), LabError> {
        let failed = |error| LabError::System { what: "cannot run a work", error };
        let dir = tempfile::tempdir().map_err(failed)?;
        std::fs::write(dir.path().join("page.html"), PAGE).map_err(failed)?;
        let mut words = under.iter().cloned().chain([self.program.into()]).chain((self.arguments)(dir.path()));
        let mut command = Command::new(words.next().unwrap_or_default());
        printed(command.args(words), self.program).map(drop).map_err(LabError::Peer)
    }

    fn is_installed(&self) -> bool {
        let found = Command::new(self.program).arg("--version").stdin(Stdio::null()).output();
        found.is_ok_and(|output| output.status.success())
    }
}

/// Runs `work`, and asks for a number again and again meanwhile. Returns the largest; none if there was none.
fn largest_beside(
    work: impl FnOnce() -> Result<(), LabError>,
    ask: impl Fn() -> Option<f64> + Sync,
) -> Result<Option<f64>, LabError> {
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let asking = scope.spawn(|| {
            let mut largest: Option<f64> = None;
            while !is_over.load(Ordering::Relaxed) {
                largest = ask().into_iter().chain(largest).max_by(f64::total_cmp);
                std::thread::sleep(PAUSE);
            }
            largest
        });
        let worked = work();
        is_over.store(true, Ordering::Relaxed);
        let largest = asking.join().unwrap_or_default();
        worked.map(|()| largest)
    })
}

/// Works, and adds the rates of faults and the largest numbers of mappings to the samples. `mappings` counts the mappings
/// of the zero page now. Adds a note for each work that is left out.
pub(super) fn measure(
    options: &RunOptions,
    samples: &mut Samples,
    notes: &mut Vec<String>,
    mappings: impl Fn() -> Option<f64> + Copy + Sync,
) -> Result<(), LabError> {
    let rounds = options.rounds(0, ROUNDS_MIN);
    if rounds == 0 {
        return Ok(());
    }
    let failed = |error| LabError::System { what: "cannot make a directory", error };
    let dir = tempfile::tempdir().map_err(failed)?;
    let data: PathBuf = dir.path().join("perf.data");
    let perf = faults::perf_words(&data);
    let (works, absent): (Vec<Work>, Vec<Work>) = WORKS.into_iter().partition(Work::is_installed);
    notes.extend(absent.iter().map(|work| format!("{}: {} is not installed", work.name, work.program)));
    let project = find_project(options.project.as_deref()).and_then(|source| Project::copy(&source, Goals::All));
    let mut project = project.map_err(|why| notes.push(format!("mappings during a build: {why}"))).ok();
    if let Some(project) = &mut project {
        project.job_count = faults::JOBS;
    }
    let mut enter = |name: String, value: Option<f64>| samples.entry((name, "count")).or_default().extend(value);
    let mut of_all = Samples::new();
    // The first round, in which programs are read from disk, is not counted.
    in_turn("zero page at work", rounds + 1, works.len() + 1, None, |_, index, _| {
        let Some(work) = works.get(index) else {
            let Some(project) = &project else { return Ok(()) };
            let largest = largest_beside(|| project.build::<OsString>(&[]).map(drop), mappings)?;
            enter("machine.zero-mappings.build".into(), largest);
            return Ok(());
        };
        work.run(&perf)?;
        for (name, rate) in faults::rates_of(&data).map_err(|error| LabError::System { what: faults::NEEDS, error })? {
            of_all.entry((format!("{}.{name}", work.name), "1/s")).or_default().push(rate);
        }
        let largest = largest_beside(|| work.run(&[]), mappings)?;
        enter(format!("machine.zero-mappings.{}", work.name), largest);
        Ok(())
    })?;
    samples.extend(of_all);
    notes
        .push(format!("at work: {rounds} rounds of each; the largest number of mappings in all processes during each"));
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicU32;

    use dormouse_testing::{Lack, skip};

    use super::*;

    #[test]
    fn the_faults_of_a_database_at_work_are_counted() {
        let [.., database] = &WORKS;
        let dir = tempfile::tempdir().expect("a directory");
        let perf = faults::perf_words(&dir.path().join("perf.data"));
        if !database.is_installed() || printed(Command::new(&perf[0]).args(&perf[1..]).arg("true"), "perf").is_err() {
            return skip(Lack::machine("sqlite3 or the tracepoints of page faults are not available", faults::NEEDS));
        }
        database.run(&perf).expect("it works");
        let rates = faults::rates_of(&dir.path().join("perf.data")).expect("no record is lost");
        assert!(rates["zero-mapped"] >= rates["zero-written"] && rates["faults"] > rates["zero-mapped"], "{rates:?}");
    }

    #[test]
    fn the_largest_number_during_the_work_is_kept() {
        let asked = AtomicU32::new(0);
        // 3, 7, 7, …: the work lasts until the second question at least.
        let ask = || Some(if asked.fetch_add(1, Ordering::Relaxed) == 0 { 3.0 } else { 7.0 });
        let work = || {
            while asked.load(Ordering::Relaxed) < 2 {
                std::thread::sleep(Duration::from_millis(1));
            }
            Ok(())
        };
        assert_eq!(largest_beside(work, ask).expect("it works"), Some(7.0));
        assert_eq!(largest_beside(|| Ok(()), || None).expect("it works"), None);
        assert!(largest_beside(|| Err(LabError::Interrupted), || None).is_err());
    }
}
