//! Scratch: prints a foreign trace.
use dormouse_ctf::text::Formatter;
use dormouse_ctf::*;
fn find(dir: &std::path::Path, out: &mut Vec<std::path::PathBuf>) {
    if dir.join("metadata").is_file() {
        out.push(dir.to_path_buf());
    }
    let mut entries: Vec<_> =
        std::fs::read_dir(dir).unwrap().map(|e| e.unwrap().path()).filter(|p| p.is_dir()).collect();
    entries.sort();
    entries.iter().for_each(|dir| find(dir, out));
}
fn main() {
    let mut dirs = vec![];
    for a in std::env::args().skip(1) {
        find(a.as_ref(), &mut dirs);
    }
    let mut traces = vec![];
    for dir in &dirs {
        match Trace::decode(&std::fs::read(dir.join("metadata")).unwrap()) {
            Ok(t) => traces.push((t, dir.clone())),
            Err(e) => {
                eprintln!("{}: {e}", dir.display());
                std::process::exit(2)
            }
        }
    }
    let mut streams = vec![];
    for (t, dir) in &traces {
        let mut files: Vec<_> = std::fs::read_dir(dir)
            .unwrap()
            .map(|e| e.unwrap().path())
            .filter(|p| {
                p.is_file()
                    && p.file_name().unwrap() != "metadata"
                    && !p.file_name().unwrap().to_string_lossy().starts_with('.')
            })
            .collect();
        files.sort();
        for f in files {
            streams.push((t, std::fs::read(f).unwrap()));
        }
    }
    let mut f = Formatter::new(Default::default(), |_| 0);
    let mut out = vec![];
    for item in Merge::new(streams.iter().enumerate().map(|(i, (t, b))| StreamReader::new(*t, i, b))) {
        match item {
            Ok(e) => f.event(&e, &mut out),
            Err(n) => eprintln!("{}", f.warning(&n, "s")),
        }
    }
    use std::io::Write;
    std::io::stdout().write_all(&out).unwrap();
}
