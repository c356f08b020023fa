//! Counting the events of a trace.

use std::collections::HashSet;
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};

use datafusion::arrow::array::RecordBatch;
use datafusion::error::{DataFusionError, Result};
use dormouse_columns::Damage;
use dormouse_ctf::IntervalCounts;

use super::GROUPS;
use super::spec::Spec;
use crate::leaf::Work;
use crate::scan::Scan;

/// Counts the events of a trace.
pub(super) struct Counted {
    pub scan: Arc<Scan>,
    pub spec: Spec,
}

impl Work for Counted {
    fn run(&self, _: usize, run: usize, give: &mut dyn FnMut(RecordBatch) -> bool) -> Result<()> {
        let Counted { scan, spec } = self;
        let parts = scan.parts(run);
        let classes: HashSet<&str> = scan.classes.iter().flatten().map(String::as_str).collect();
        let mut counts = IntervalCounts::new(spec.length_ns());
        let mut taken = |counts: &mut IntervalCounts<'_>| {
            let groups = counts.take().map(|(begin, class, count)| (begin, class.full_name.as_str(), count));
            let chosen = groups.filter(|(_, class, _)| classes.is_empty() || classes.contains(class));
            let batch = spec.batch(chosen.map(|(begin, class, count)| (begin, [Some(class)], count as i64)))?;
            Ok::<_, DataFusionError>(give(batch))
        };
        loop {
            let part = parts.lock().unwrap_or_else(PoisonError::into_inner).next();
            let Some(mut part) = part else {
                taken(&mut counts)?;
                return Ok(());
            };
            let (size_bytes, mut damage) = (part.reader.rest_bytes(), Damage::default());
            part.reader.count_intervals(&mut counts, |notice| damage.note(notice));
            scan.traces.note(&damage);
            scan.traces.read_bytes.fetch_add(size_bytes, Ordering::Relaxed);
            if counts.len() >= GROUPS && !taken(&mut counts)? {
                return Ok(());
            }
        }
    }
}
