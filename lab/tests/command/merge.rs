//! `dormouse lab merge`: the command to run elsewhere, and rows of another machine in a result.

use dormouse_lab::Report;

use crate::common::{lab, succeed};

const FULL: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/results/full.json.gz");

#[test]
fn rows_that_are_missing_come_from_another_machine() {
    let told = succeed(lab().args(["merge", FULL]));
    let told = String::from_utf8_lossy(&told.stdout);
    let first = told.lines().next().unwrap_or_default();
    assert!(first.starts_with("dormouse lab run ") && first.contains("vring"), "{told}");
    assert!(told.contains("hyperthreads") && told.contains("why not"), "{told}");

    // The other machine has two hyperthreads, on which both rings take as long as between cores here.
    let dir = tempfile::tempdir().expect("a temporary directory");
    let [there, merged, page] = ["there.json", "merged.json", "page.md"].map(|name| dir.path().join(name));
    let mut other: Report = dormouse_lab::compare::load(FULL.as_ref()).expect("a result");
    other.host.cpu = "A CPU with hyperthreads".into();
    other.experiments.retain(|experiment| experiment.name == "vring");
    for figure in &mut other.experiments[0].measurements {
        if !figure.name.ends_with(".far") {
            figure.name += ".hyperthreads";
        }
    }
    std::fs::write(&there, serde_json::to_string(&other).expect("JSON")).expect("a file");
    succeed(lab().args(["merge", FULL]).arg(&there).arg("-o").arg(&merged));
    succeed(lab().arg("papers").arg(&merged).arg("-o").arg(&page));
    let page = std::fs::read_to_string(&page).expect("a page");
    // Letters that the stored result uses are taken.
    let mut marked =
        page.split("Rows marked ").filter(|rest| rest.split('.').next().is_some_and(|told| told.contains("A CPU")));
    let mark = marked.next().and_then(|told| told.chars().next()).expect("the other machine is named");
    let own = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/PAPERS.md")).expect("the stored page");
    let of = |page: &str, place: &str| -> Vec<String> {
        page.lines().filter(|line| line.contains(&format!("↳ {place} |"))).map(String::from).collect()
    };
    assert_eq!(of(&page, "near"), of(&own, "near"), "rows of this machine are as they were");
    assert!(of(&own, "hyperthreads").iter().all(|row| row.contains("not measured")));
    assert!(of(&page, "hyperthreads").iter().any(|row| row.trim_end().ends_with(&format!("({mark}) |"))), "{page}");
}
