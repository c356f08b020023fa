//! A trace of any tracer, as its metadata describe it.

use crate::metadata::{Described, Metadata, MetadataError, in_ctf2};
use crate::model::{EnvValue, TraceClass};
use crate::plan::Plan;
use crate::stream::TraceRef;
use crate::time::Correction;
use dormouse_format::{Clock, Format, MetadataOptions};

/// A trace of any tracer: its metadata, and the plan that reads its streams.
#[derive(Debug)]
pub struct Trace {
    /// Model of the metadata.
    pub class: TraceClass,
    /// Additional metadata that only Dormouse's traces have.
    pub own: Option<Metadata>,
    /// Correction of the trace's times, if there is one.
    pub correction: Option<Correction>,
    plan: Plan,
    clocks: Vec<Clock>,
    /// Host name, and the process if the trace is of a single one.
    origin: Option<String>,
}

impl Trace {
    /// Decodes the content of a metadata file.
    ///
    /// # Errors
    /// Returns the fault and its position.
    pub fn decode(bytes: &[u8]) -> Result<Trace, MetadataError> {
        let Described { class, own } = Described::decode(bytes)?;
        // The plan of a Dormouse trace is part of its classes.
        let plan = if own.is_some() { Ok(Plan::default()) } else { Plan::new(&class) };
        let plan = plan.map_err(|error| MetadataError::Unreadable(error.to_string()))?;
        let clock = |clock: &crate::model::ClockClass| Clock {
            name: clock.name.clone(),
            description: clock.description.clone(),
            frequency_hz: clock.frequency_hz,
            offset_s: clock.offset_s,
            offset_cycles: clock.offset_cycles,
        };
        let clocks = class.clocks.iter().map(clock).collect();
        Ok(Trace { origin: origin(&class), class, own, correction: None, plan, clocks })
    }
}

impl Trace {
    /// Returns the metadata in CTF 2. The streams are the same in both formats.
    ///
    /// # Errors
    /// Returns what CTF 2 cannot express.
    pub fn in_ctf2(&self) -> Result<String, String> {
        let text = match &self.own {
            Some(own) => {
                let options = MetadataOptions { format: Format::Ctf2, ..own.options.clone() };
                Metadata { options, ..own.clone() }.text()
            }
            None => in_ctf2(&self.class)?,
        };
        // Decoding finds faults that CTF 1.8 tolerates, for example a duplicate name.
        Trace::decode(text.as_bytes()).map_err(|error| error.to_string())?;
        Ok(text)
    }
}

/// Returns `host`, `host:process:(7)`, or those parts that are known.
fn origin(class: &TraceClass) -> Option<String> {
    let text = |name| class.env_text(name).map(str::to_string);
    let vpid = class.env.iter().find_map(|(name, value)| match value {
        EnvValue::Number(vpid) if name == "vpid" => Some(format!("({vpid})")),
        _ => None,
    });
    let parts: Vec<String> = [text("hostname"), text("procname"), vpid].into_iter().flatten().collect();
    (!parts.is_empty()).then(|| parts.join(":"))
}

impl<'a> From<&'a Trace> for TraceRef<'a> {
    fn from(trace: &'a Trace) -> TraceRef<'a> {
        let plain = match &trace.own {
            Some(metadata) => metadata.into(),
            None => TraceRef::new(&trace.plan, trace.class.uuid.as_ref(), &trace.clocks, trace.origin.as_deref())
                .with_env(&trace.class.env),
        };
        plain.with_correction(trace.correction.as_ref())
    }
}
