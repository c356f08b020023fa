//! Properties of a trace that readers of its streams need.

use super::notice::ClockSaid;
use crate::metadata::Metadata;
use crate::model::EnvValue;
use crate::plan::Plan;
use crate::time::{Clock, Correction, Scale};

/// Properties of a trace that readers of its streams need.
#[derive(Debug, Clone, Copy)]
pub struct TraceRef<'a> {
    pub(crate) plan: &'a Plan,
    pub(crate) uuid: Option<&'a [u8; 16]>,
    clocks: &'a [Clock],
    correction: Option<&'a Correction>,
    origin: Option<&'a str>,
    own: Option<&'a Metadata>,
    env: &'a [(String, EnvValue)],
}

impl<'a> TraceRef<'a> {
    pub(crate) fn new(
        plan: &'a Plan,
        uuid: Option<&'a [u8; 16]>,
        clocks: &'a [Clock],
        origin: Option<&'a str>,
    ) -> TraceRef<'a> {
        TraceRef { plan, uuid, clocks, correction: None, origin, own: None, env: &[] }
    }

    /// Returns a copy with this environment.
    pub(crate) fn with_env(self, env: &'a [(String, EnvValue)]) -> TraceRef<'a> {
        TraceRef { env, ..self }
    }

    /// Returns a copy with corrected times.
    pub(crate) fn with_correction(self, correction: Option<&'a Correction>) -> TraceRef<'a> {
        TraceRef { correction, ..self }
    }

    /// Environment of the trace; empty for Dormouse's traces.
    pub fn env(&self) -> &'a [(String, EnvValue)] {
        self.env
    }

    /// Clocks of the trace.
    pub fn clocks(&self) -> &'a [Clock] {
        self.clocks
    }

    /// Whether barectf before 2.3.1 wrote the trace. Its packets, except the first, can begin with events that are
    /// earlier than the packet's begin time.
    pub(crate) fn do_packets_begin_late(&self) -> bool {
        let number = |name: &str| match self.env_value(name) {
            Some(EnvValue::Number(number)) => Some(*number),
            _ => None,
        };
        let is_barectf = matches!(self.env_value("tracer_name"), Some(EnvValue::Text(name)) if name == "barectf");
        let part = |name| number(name).unwrap_or(0);
        let version = number("tracer_major").map(|major| (major, part("tracer_minor"), part("tracer_patch")));
        is_barectf && version.is_some_and(|version| version < (2, 3, 1))
    }

    fn env_value(&self, name: &str) -> Option<&'a EnvValue> {
        self.env.iter().find(|(key, _)| key == name).map(|(_, value)| value)
    }

    /// Whether Dormouse wrote the trace.
    #[inline]
    pub(crate) fn is_own(&self) -> bool {
        self.own.is_some()
    }

    /// Returns the additional metadata of a Dormouse trace.
    pub fn own(&self) -> Option<&'a Metadata> {
        self.own
    }

    /// Returns the name that is printed before the trace's events: the host, if the trace states it.
    pub fn origin(&self) -> Option<&'a str> {
        self.origin
    }

    /// Describes this clock for a notice about a time that does not fit.
    pub(super) fn clock_said(&self, clock: Option<usize>) -> ClockSaid {
        ClockSaid::new(clock.and_then(|clock| self.clocks.get(clock)))
    }

    /// Returns the conversion of this clock's ticks to nanoseconds.
    pub(crate) fn scale(&self, clock: Option<usize>) -> Option<Scale> {
        let scale = self.clocks.get(clock?)?.scale();
        Some(self.correction.map_or(scale, |correction| scale.corrected(correction)))
    }
}

impl<'a> From<&'a Metadata> for TraceRef<'a> {
    fn from(metadata: &'a Metadata) -> TraceRef<'a> {
        let options = &metadata.options;
        TraceRef {
            plan: metadata.classes.plan(),
            uuid: Some(&options.uuid),
            clocks: std::slice::from_ref(&options.clock),
            correction: None,
            origin: Some(&options.hostname),
            own: Some(metadata),
            env: &[],
        }
    }
}
