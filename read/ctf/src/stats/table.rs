//! Statistics of a trace as a table for people.

use std::fmt;

use dormouse_abi::text::printable;

use super::Stats;
use dormouse_format::loss::{Uncounted, how_many};

impl fmt::Display for Stats {
    /// Writes a table for people, with aligned columns and without colour.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let duration = self.span.map_or(0.0, |span| span.duration_ns as f64 / 1e9);
        match self.is_own {
            true => writeln!(f, "events    {} (and {} of the session itself)", self.events, self.state_events)?,
            false => writeln!(f, "events    {}", self.events)?,
        }
        writeln!(f, "lost      {}", how_many(self.events_lost, self.loss_possible.is_empty()))?;
        for Uncounted { cause, count } in &self.loss_possible {
            let count = if *count > 0 { format!(" ({count})") } else { String::new() };
            writeln!(f, "          because {}{count}", printable(cause))?;
        }
        writeln!(f, "duration  {duration:.6} s")?;
        if let Some(rate) = self.events_per_s {
            writeln!(f, "rate      {rate:.0} events/s, {:.0} bytes/s", self.bytes as f64 / duration)?;
        }
        match self.threads {
            Some(threads) => writeln!(f, "threads   {threads}")?,
            None if self.is_own => writeln!(f, "threads   not recorded (--context none)")?,
            None => writeln!(f, "threads   not recorded")?,
        }
        writeln!(f, "packets   {}", self.packets)?;
        writeln!(f, "bytes     {}", self.bytes)?;
        let rows = self.classes.iter().map(|class| {
            vec![class.count.to_string(), class.bytes.to_string(), class.id.to_string(), class.name.clone()]
        });
        table(f, &["EVENTS", "BYTES", "ID", "CLASS"], rows.collect())?;
        let rows = self.lost_by_class.iter().map(|lost| vec![lost.count.to_string(), printable(&lost.name)]);
        table(f, &["LOST", "CLASS"], rows.collect())?;
        let rows = self.loss_places.places.iter().map(|place| {
            let counts = [place.events.to_string(), place.packets.to_string()];
            let times = [place.begin_ns, place.end_ns].map(seconds);
            counts.into_iter().chain(times).chain([printable(&place.stream)]).collect()
        });
        table(f, &["LOST", "PACKETS", "FROM", "TO", "STREAM"], rows.collect())?;
        if self.loss_places.more > 0 {
            writeln!(f, "… and {} more", self.loss_places.more)?;
        }
        let rows = self
            .cpus
            .iter()
            .map(|cpu| vec![cpu.count.to_string(), cpu.cpu.map_or("unknown".to_string(), |cpu| cpu.to_string())]);
        table(f, &["EVENTS", "CPU"], rows.collect())?;
        let shown = |text: &str| if text.is_empty() { "unknown".into() } else { printable(text) };
        let width = self.processes.iter().map(|process| shown(&process.name).chars().count()).max().unwrap_or(0).max(4);
        let rows = self.processes.iter().map(|process| {
            let count = process.count.map(|count| count.to_string());
            let who = format!("{:width$}  {}", shown(&process.name), shown(&process.program));
            count.into_iter().chain([process.vpid.to_string(), who]).collect()
        });
        let who = format!("{:width$}  PROGRAM", "NAME");
        let heads = ["EVENTS", "VPID", &who];
        // If records do not identify processes, there is no column of counts.
        table(f, if self.threads.is_some() { &heads } else { &heads[1..] }, rows.collect())?;
        for refusal in &self.classes_refused {
            writeln!(f, "\n{}", printable(&refusal.to_string()))?;
        }
        self.warnings.iter().try_for_each(|warning| writeln!(f, "\nwarning: {}", printable(warning)))?;
        if !self.is_closed {
            writeln!(f, "\nnote: this trace was not closed, so a stream that is missing cannot be told")?;
        }
        Ok(())
    }
}

/// Formats a time as seconds since the epoch, like `dormouse view --clock seconds`.
fn seconds(ns: Option<i64>) -> String {
    let shown = |ns: i64| format!("{}.{:09}", ns.div_euclid(1_000_000_000), ns.rem_euclid(1_000_000_000));
    ns.map_or("unknown".into(), shown)
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
