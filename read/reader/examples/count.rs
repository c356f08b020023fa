//! Counts the events of traces by class, from the headers of their records.

use std::path::PathBuf;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let paths: Vec<PathBuf> = std::env::args_os().skip(1).map(PathBuf::from).collect();
    let files = dormouse_reader::TraceFiles::open_all(paths.iter().map(PathBuf::as_path))?;
    let counts = files.counts();
    files.left_out.iter().chain(&counts.warnings).for_each(|line| eprintln!("warning: {line}"));
    counts.classes.iter().for_each(|class| println!("{:>12} {}", class.events, class.name));
    println!("{:>12} in all", counts.events());
    Ok(())
}
