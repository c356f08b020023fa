//! Statistics of a trace as a table for people.

use std::fmt;

use dormouse_abi::text::printable;
use dormouse_ctf::Stats;
use dormouse_ctf::stats::ClassStats;

use crate::loss;
use crate::sample::{NOTE, clauses, estimate};

/// Statistics of a trace as a table for people, with aligned columns and without colour.
#[derive(Debug, Clone, Copy)]
pub struct StatsTable<'a>(pub &'a Stats);

impl fmt::Display for StatsTable<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let StatsTable(stats) = self;
        let duration = stats.span.map_or(0.0, |span| span.duration_ns as f64 / 1e9);
        match stats.is_own {
            true => writeln!(f, "events    {} (and {} of the session itself)", stats.events, stats.state_events)?,
            false => writeln!(f, "events    {}", stats.events)?,
        }
        f.write_str(&loss::summary(stats.events_lost, &stats.loss_possible))?;
        writeln!(f, "duration  {duration:.6} s")?;
        if let Some(rate) = stats.events_per_s {
            writeln!(f, "rate      {rate:.0} events/s, {:.0} bytes/s", stats.bytes as f64 / duration)?;
        }
        match stats.threads {
            Some(threads) => writeln!(f, "threads   {threads}")?,
            None if stats.is_own => writeln!(f, "threads   not recorded (--context none)")?,
            None => writeln!(f, "threads   not recorded")?,
        }
        writeln!(f, "packets   {}", stats.packets)?;
        writeln!(f, "bytes     {}", stats.bytes)?;
        classes(f, &stats.classes)?;
        let rows = stats.lost_by_class.iter().map(|lost| vec![lost.count.to_string(), printable(&lost.name)]);
        table(f, &["LOST", "CLASS"], rows.collect())?;
        if !stats.unrecorded.is_empty() {
            f.write_str("\nnot recorded, by the session's rules")?;
        }
        let rows = stats.unrecorded.iter().map(|class| {
            let counts = [class.rejected, class.sampled_out, class.not_kept].map(|count| count.to_string());
            counts.into_iter().chain([printable(&class.name)]).collect()
        });
        table(f, &["REJECTED", "SAMPLED OUT", "NOT KEPT", "CLASS"], rows.collect())?;
        table(f, &loss::HEADS, loss::rows(&stats.loss_places))?;
        if stats.loss_places.more > 0 {
            writeln!(f, "… and {} more", stats.loss_places.more)?;
        }
        let rows = stats
            .cpus
            .iter()
            .map(|cpu| vec![cpu.count.to_string(), cpu.cpu.map_or("unknown".to_string(), |cpu| cpu.to_string())]);
        table(f, &["EVENTS", "CPU"], rows.collect())?;
        let shown = |text: &str| if text.is_empty() { "unknown".into() } else { printable(text) };
        let width =
            stats.processes.iter().map(|process| shown(&process.name).chars().count()).max().unwrap_or(0).max(4);
        let rows = stats.processes.iter().map(|process| {
            let count = process.count.map(|count| count.to_string());
            let who = format!("{:width$}  {}", shown(&process.name), shown(&process.program));
            count.into_iter().chain([process.vpid.to_string(), who]).collect()
        });
        let who = format!("{:width$}  PROGRAM", "NAME");
        let heads = ["EVENTS", "VPID", &who];
        // If records do not identify processes, there is no column of counts.
        table(f, if stats.threads.is_some() { &heads } else { &heads[1..] }, rows.collect())?;
        for refusal in &stats.classes_refused {
            writeln!(f, "\n{}", printable(&refusal.to_string()))?;
        }
        stats.warnings.iter().try_for_each(|warning| writeln!(f, "\nwarning: {}", printable(warning)))?;
        if !stats.is_closed {
            writeln!(f, "\nnote: this trace was not closed, so a stream that is missing cannot be told")?;
        }
        Ok(())
    }
}

/// Writes the table of classes, with estimates if some have samples.
fn classes(f: &mut fmt::Formatter<'_>, classes: &[ClassStats]) -> fmt::Result {
    let is_sampled = classes.iter().any(|class| !class.samples.is_empty());
    let width = classes.iter().map(|class| class.name.chars().count()).max().unwrap_or(0);
    let row = |class: &ClassStats| {
        let mut cells = vec![class.count.to_string()];
        if is_sampled {
            cells.push(estimate(class.estimated));
            cells.push(estimate(class.estimated_error));
        }
        cells.extend([class.bytes.to_string(), class.id.to_string()]);
        cells.push(match class.samples.is_empty() {
            true => class.name.clone(),
            false => format!("{:width$}  {}", class.name, printable(&clauses(&class.samples))),
        });
        cells
    };
    let class_head = format!("{:width$}  SAMPLE", "CLASS");
    let heads: &[&str] = match is_sampled {
        true => &["EVENTS", "ESTIMATED", "ERROR", "BYTES", "ID", &class_head],
        false => &["EVENTS", "BYTES", "ID", "CLASS"],
    };
    table(f, heads, classes.iter().map(row).collect())?;
    if is_sampled { writeln!(f, "\n{NOTE}") } else { Ok(()) }
}

/// Writes a table. All columns but the last are right-aligned.
fn table(f: &mut fmt::Formatter<'_>, heads: &[&str], rows: Vec<Vec<String>>) -> fmt::Result {
    if rows.is_empty() {
        return Ok(());
    }
    let heads: Vec<String> = heads.iter().map(|head| head.to_string()).collect();
    let last = heads.len() - 1;
    let width = |column: usize| rows.iter().chain([&heads]).map(|row| row[column].chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..last).map(width).collect();
    writeln!(f)?;
    for row in [&heads].into_iter().chain(&rows) {
        for (cell, width) in row.iter().zip(&widths) {
            write!(f, "{cell:>width$}  ")?;
        }
        writeln!(f, "{}", row[last])?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use dormouse_ctf::Refusal;
    use dormouse_ctf::loss::Uncounted;
    use dormouse_ctf::stats::{CpuStats, LossPlace, LossPlaces, LostStats, ProcessStats, Span, UnrecordedStats};

    use super::*;

    fn class(name: &str, id: u64, count: u64, bytes: u64) -> ClassStats {
        let (estimated, estimated_error) = (Some(count as f64), Some(0.0));
        ClassStats { name: name.into(), id, count, bytes, estimated, estimated_error, samples: vec![] }
    }

    fn lost(name: &str, count: u64) -> LostStats {
        LostStats { name: name.into(), count }
    }

    fn process(vpid: u32, name: &str, program: &str, count: Option<u64>) -> ProcessStats {
        ProcessStats { vpid, name: name.into(), program: program.into(), count }
    }

    fn stats() -> Stats {
        const BEGIN_NS: i64 = 1_700_000_000_000_000_020;
        let place =
            |end_ns, events| LossPlace { stream: "cpu3".into(), begin_ns: Some(BEGIN_NS), end_ns, events, packets: 0 };
        let cause = |cause: &str, count| Uncounted { cause: cause.into(), count };
        Stats {
            events: 5,
            state_events: 12,
            events_lost: 108,
            loss_places: LossPlaces { places: vec![place(Some(BEGIN_NS), 5), place(None, 12)], more: 3 },
            loss_possible: vec![cause("a \x1b[2Jword", 2), cause("another", 0)],
            lost_by_class: vec![lost("http:request", 13), lost("(other classes)", 2)],
            unrecorded: vec![
                UnrecordedStats { name: "http:request".into(), rejected: 1234, sampled_out: 0, not_kept: 0 },
                UnrecordedStats { name: "a\x1b:b".into(), rejected: 0, sampled_out: 7, not_kept: 40 },
            ],
            classes_refused: vec![Refusal {
                name: "größe:a".into(),
                program: "/bin/\x1b[ls".into(),
                reason: "no name".into(),
            }],
            packets: 4,
            bytes: 4097,
            threads: Some(4),
            span: Some(Span { begin_ns: BEGIN_NS, end_ns: BEGIN_NS + 1_000_000_000, duration_ns: 1_000_000_000 }),
            events_per_s: Some(5.0),
            classes: vec![class("http:request", 0, 3, 60), class("sched:idle", 1, 2, 32)],
            cpus: vec![CpuStats { cpu: Some(3), count: 3 }, CpuStats { cpu: None, count: 2 }],
            processes: vec![
                process(7, "list", "/bin/ls", Some(2)),
                process(5, "", "", Some(1)),
                process(18, "clear\n", "/bin/\x1b[2J", Some(1)),
            ],
            is_own: true,
            is_closed: false,
            warnings: vec!["odd: packet 0 at byte 0 is cut off: 1 of 80 bytes".into(), "state: a \x1b[2Jword".into()],
        }
    }

    #[test]
    fn columns_are_aligned_and_controls_are_replaced() {
        let expected = "\
events    5 (and 12 of the session itself)
lost      at least 108
          because a \u{fffd}[2Jword (2)
          because another
duration  1.000000 s
rate      5 events/s, 4097 bytes/s
threads   4
packets   4
bytes     4097

EVENTS  BYTES  ID  CLASS
     3     60   0  http:request
     2     32   1  sched:idle

LOST  CLASS
  13  http:request
   2  (other classes)

not recorded, by the session's rules
REJECTED  SAMPLED OUT  NOT KEPT  CLASS
    1234            0         0  http:request
       0            7        40  a\u{fffd}:b

LOST  PACKETS                  FROM                    TO  STREAM
   5        0  1700000000.000000020  1700000000.000000020  cpu3
  12        0  1700000000.000000020               unknown  cpu3
… and 3 more

EVENTS  CPU
     3  3
     2  unknown

EVENTS  VPID  NAME     PROGRAM
     2     7  list     /bin/ls
     1     5  unknown  unknown
     1    18  clear\u{fffd}   /bin/\u{fffd}[2J

not recorded: größe:a of /bin/\u{fffd}[ls: no name

warning: odd: packet 0 at byte 0 is cut off: 1 of 80 bytes

warning: state: a \u{fffd}[2Jword

note: this trace was not closed, so a stream that is missing cannot be told
";
        assert_eq!(StatsTable(&stats()).to_string(), expected);
    }

    #[test]
    fn samples_are_scaled_and_named() {
        let sampled = |class: ClassStats, estimate: [Option<f64>; 2], samples: &[&str]| {
            let samples = samples.iter().map(|sample| sample.to_string()).collect();
            ClassStats { estimated: estimate[0], estimated_error: estimate[1], samples, ..class }
        };
        let classes = vec![
            sampled(class("shop:request", 0, 12_345, 60), [Some(1_234_500.0), Some(11_055.2)], &["1/100"]),
            class("shop:end", 1, 7, 32),
            sampled(class("shop:item", 2, 6, 32), [Some(17.6), None], &["1/10", "by \x1b[user 1/4"]),
            sampled(class("shop:tick", 3, 5, 32), [None, None], &["50/s", "unknown"]),
        ];
        let text = StatsTable(&Stats { classes, ..stats() }).to_string();
        let expected = "\n
EVENTS  ESTIMATED  ERROR  BYTES  ID  CLASS         SAMPLE
 12345    1234500  11055     60   0  shop:request  1/100
     7          7      0     32   1  shop:end
     6         18      -     32   2  shop:item     1/10, by \u{fffd}[user 1/4
     5          -      -     32   3  shop:tick     at most 50 a second: not scaled, by a rule of another version: not scaled

note: the trace is a sample. ESTIMATED is about how many events happened";
        assert!(text.contains(expected), "{text}");
    }

    #[test]
    fn processes_without_counts_have_no_column_of_counts() {
        let processes = vec![process(9, "sh", "/bin/sh", None), process(3, "ls", "/bin/ls", None)];
        let text = StatsTable(&Stats { threads: None, processes, ..stats() }).to_string();
        assert!(text.contains("threads   not recorded (--context none)\n"), "{text}");
        assert!(text.contains("\nVPID  NAME  PROGRAM\n   9  sh    /bin/sh\n   3  ls    /bin/ls\n\nnot "), "{text}");
    }
}
