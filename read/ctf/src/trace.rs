//! A trace of anybody, as far as its metadata describe it.

use crate::metadata::{Described, Metadata, MetadataError};
use crate::model::{EnvValue, TraceClass};
use crate::plan::Plan;
use crate::stream::TraceRef;
use crate::time::{Clock, Correction};

/// A trace of anybody: its metadata, and the plan by which its streams are read.
#[derive(Debug)]
pub struct Trace {
    /// What the metadata say.
    pub class: TraceClass,
    /// What those of Dormouse say besides.
    pub own: Option<Metadata>,
    /// What its times are corrected by, if they are.
    pub correction: Option<Correction>,
    plan: Plan,
    clocks: Vec<Clock>,
    /// Host, and process if the trace is of one alone.
    origin: Option<String>,
}

impl Trace {
    /// Reads the bytes of a metadata file.
    ///
    /// # Errors
    /// What is wrong, and where.
    pub fn decode(bytes: &[u8]) -> Result<Trace, MetadataError> {
        let Described { class, own } = Described::decode(bytes)?;
        // The plan of ours comes with their classes.
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

/// `host`, `host:process:(7)`, or what there is of it.
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
