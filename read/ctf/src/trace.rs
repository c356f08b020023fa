//! A trace of anybody, as far as its metadata describe it.

use crate::metadata::{Described, Format, Metadata, MetadataError, MetadataOptions, in_ctf2};
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

impl Trace {
    /// The metadata in CTF 2. The streams are the same in both.
    ///
    /// # Errors
    /// What of them CTF 2 has no words for.
    pub fn in_ctf2(&self) -> Result<String, String> {
        let text = match &self.own {
            Some(own) => {
                let options = MetadataOptions { format: Format::Ctf2, ..own.options.clone() };
                Metadata { options, ..own.clone() }.text()
            }
            None => in_ctf2(&self.class)?,
        };
        // A name that CTF 1.8 has twice, for one, is known as a fault there.
        Trace::decode(text.as_bytes()).map_err(|error| error.to_string())?;
        Ok(text)
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
