//! `dormouse lab run percpu`: the rows that tell code from memory, sets from pages, and C from Rust, and the statements that
//! are judged by them.

use std::path::Path;

use dormouse_lab::{Report, RunOptions, Verdict};
use dormouse_testing::{Lack, skip, skip_part};

use crate::common::{lab, succeed};

fn run(json: &Path) -> Report {
    succeed(lab().args(["run", "percpu", "--quick", "--rounds", "8", "--no-peers", "--json"]).arg(json));
    let text = std::fs::read_to_string(json).expect("the figures are written");
    serde_json::from_str(&text).expect("they are a result")
}

#[test]
fn percpu_has_its_controls_and_its_engine_in_c() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let report = run(&dir.path().join("result.json"));
    let [experiment] = report.experiments.as_slice() else { panic!("one experiment: {report:#?}") };
    if experiment.notes.iter().any(|note| note.contains("no restartable sequences here")) {
        return skip(Lack::machine("libc registers no restartable sequences", "glibc 2.35 and Linux 4.18"));
    }
    let find = |name: &str| experiment.measurements.iter().find(|found| found.name == name);
    let all = if RunOptions::new(true).cpus.len() > 1 { &["", ".all-threads"][..] } else { &[""] };
    for threads in all {
        for name in ["random.static", "random.relative", "random.interlaced", "random.interlaced.of-32"]
            .into_iter()
            .chain(["hot.counter-32", "hot.counter-1024", "hot.c-atomic", "hot.c-this-cpu", "hot.c-called"])
            .chain(["hot.c-percpu", "hot.c-counter-32", "random.c-this-cpu", "random.c-percpu"])
        {
            let name = format!("{name}{threads}");
            assert!(find(&name).is_some(), "there is no {name}");
        }
    }
    for ratio in
        ["relative_vs_interlaced", "interlaced_of_32_vs_interlaced", "c_this_cpu_vs_atomic", "c_called_vs_inline"]
    {
        let is_explained = || experiment.notes.iter().any(|note| note.starts_with(&format!("{ratio}: no ratio")));
        assert!(experiment.ratios.iter().any(|found| found.name == ratio) || is_explained(), "{ratio}");
    }
    let in_c = experiment.notes.iter().find(|note| note.starts_with("dormouse in C: ")).expect("its count");
    assert_eq!(find("hot.c-librseq").is_some(), !in_c.contains("built without librseq"), "{in_c}");

    let sets = experiment.statements.iter().find(|judged| judged.text.contains("few sets") && judged.place == "warm");
    let sets = sets.expect("the statement on associativity");
    match find("random.few-sets") {
        Some(_) => assert!(sets.value.is_some() || sets.verdict == Verdict::CannotBeTold, "{sets:?}"),
        None => {
            assert_eq!(sets.verdict, Verdict::NotMeasured, "{sets:?}");
            let told = experiment.notes.iter().any(|note| note.contains("no cases of few and all sets"));
            assert!(told && sets.why.contains("cannot be told here"), "{sets:?}");
            skip_part(
                "few and all sets",
                Lack::machine("no huge pages", "/sys/kernel/mm/transparent_hugepage/enabled: madvise"),
            );
        }
    }
}
