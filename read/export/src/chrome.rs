//! Chrome's JSON: an array of events, each with its process and thread. Tracks that are not threads (lanes, counters,
//! losses) have thread numbers above all that Linux assigns.
//!
//! Times are microseconds with three decimals, counted from a base time that `otherData` contains: seconds since 1970
//! have more digits than a JSON number holds in most programs.
//!
//! speedscope sorts begins and ends by time, ends first, and only lets an end close a slice of its name. So ends have
//! the name. If the order within a nanosecond matters, the times of later ones have two more digits.

use std::sync::Arc;

use dormouse_abi::page::CPU_UNKNOWN;
use dormouse_analysis::Number;
use dormouse_analysis::timeline::{NameText, TrackKind};
use dormouse_ctf::Event;
use dormouse_print::{JsonFields, put_json_text};

use crate::op::{At, Batch, Kind, More, NewTrack, Op, loss_name};
use crate::wire::Wire;

/// Encodes operations as Chrome's JSON.
#[derive(Debug)]
pub(crate) struct Chrome {
    names: Arc<Vec<NameText>>,
    base_ns: i64,
    fields: JsonFields,
}

/// Maximum number of steps within a nanosecond: as many as two digits can express.
const STEP_MAX: u8 = 99;

fn put(out: &mut Vec<u8>, text: &str) {
    out.extend_from_slice(text.as_bytes());
}

fn put_number(out: &mut Vec<u8>, number: impl std::fmt::Display) {
    put(out, &number.to_string());
}

fn put_us(out: &mut Vec<u8>, ns: i128) {
    let sign = if ns < 0 { "-" } else { "" };
    let ns = ns.unsigned_abs();
    put(out, &format!("{sign}{}.{:03}", ns / 1000, ns % 1000));
}

impl Chrome {
    pub(crate) fn new(names: &Arc<Vec<NameText>>, base_ns: i64) -> Chrome {
        Chrome { names: Arc::clone(names), base_ns, fields: JsonFields::default() }
    }

    /// Appends the text before all events.
    pub(crate) fn begin(&self, out: &mut Vec<u8>) {
        put(out, "{\"displayTimeUnit\":\"ns\",\"otherData\":{\"begin_ns\":\"");
        put_number(out, self.base_ns);
        put(out, "\"},\"traceEvents\":[\n");
        // A first event, so that every later event can begin with a comma.
        put(out, "{\"ph\":\"M\",\"pid\":0,\"tid\":0,\"name\":\"trace_begin\",\"args\":{}}");
    }

    /// Appends the text after all events.
    pub(crate) fn end(out: &mut Vec<u8>) {
        put(out, "\n]}\n");
    }

    /// Appends the start of an event.
    fn head(&self, kind: &str, at: At, out: &mut Vec<u8>) {
        put(out, ",\n{\"ph\":\"");
        put(out, kind);
        put(out, "\",\"pid\":");
        put_number(out, at.pid);
        put(out, ",\"tid\":");
        put_number(out, at.tid);
        put(out, ",\"ts\":");
        put_us(out, i128::from(at.ns) - i128::from(self.base_ns));
    }

    /// Appends the start of a slice's begin or end.
    fn slice_head(&self, kind: &str, op: &Op, out: &mut Vec<u8>) {
        self.head(kind, op.at, out);
        // Additional digits would make a negative time earlier.
        if op.step > 0 && op.at.ns >= self.base_ns {
            put(out, &format!("{:02}", op.step.min(STEP_MAX)));
        }
    }

    /// Appends the start of a slice's end.
    fn end_head(&self, op: &Op, out: &mut Vec<u8>) {
        self.slice_head("E", op, out);
        if let Some(name) = self.names.get(op.name as usize) {
            put(out, ",\"name\":");
            put_json_text(out, name.text.as_bytes());
        }
    }

    fn name(&self, name: u32, out: &mut Vec<u8>) {
        let Some(NameText { text, category, .. }) = self.names.get(name as usize) else { return };
        put(out, ",\"name\":");
        put_json_text(out, text.as_bytes());
        put(out, ",\"cat\":");
        put_json_text(out, if category.is_empty() { b"event" } else { category.as_bytes() });
    }

    /// Appends CPU, contexts and fields.
    fn fields(&mut self, event: &Event<'_>, out: &mut Vec<u8>) {
        if event.cpu_id != CPU_UNKNOWN {
            put(out, "\"cpu\":");
            put_number(out, event.cpu_id);
            out.push(b',');
        }
        self.fields.put(event, out);
    }

    /// Appends the rest of an event: name, flag, and fields.
    fn finish(&mut self, name: u32, flag: Option<&str>, event: Option<&Event<'_>>, out: &mut Vec<u8>) {
        self.name(name, out);
        put(out, ",\"args\":{");
        if let Some(flag) = flag {
            put_json_text(out, flag.as_bytes());
            put(out, if event.is_some() { ":true," } else { ":true" });
        }
        event.into_iter().for_each(|event| self.fields(event, out));
        put(out, "}}");
    }

    /// Appends the operations of a batch.
    pub(crate) fn encode(&mut self, batch: &mut Batch<'_>) {
        let Batch { block, ops, more, out } = batch;
        let mut text = std::mem::take(out).finish();
        for op in ops.iter() {
            match (op.kind, more.get(op.number as usize)) {
                (Kind::More, Some(more)) => self.more(op, more, &mut text),
                _ => self.op(op, op.event().and_then(|event| block.get(event)).as_ref(), &mut text),
            }
        }
        *out = Wire::of(text);
    }

    fn op(&mut self, op: &Op, event: Option<&Event<'_>>, out: &mut Vec<u8>) {
        let Op { at, name, kind, .. } = *op;
        match kind {
            Kind::Begin => {
                self.slice_head("B", op, out);
                self.finish(name, None, event, out);
            }
            Kind::Continue => {
                self.slice_head("B", op, out);
                self.finish(name, Some("continued"), None, out);
            }
            Kind::Cut => {
                self.end_head(op, out);
                put(out, "}");
            }
            Kind::End | Kind::EndAcrossLoss | Kind::EndDoubtful => {
                self.end_head(op, out);
                put(out, ",\"args\":{\"end\":{");
                match event {
                    Some(event) => self.fields(event, out),
                    None => put(out, "\"not in the trace\":true"),
                }
                put(out, "}");
                put(
                    out,
                    match kind {
                        Kind::EndAcrossLoss => ",\"events lost between begin and end\":true",
                        Kind::EndDoubtful => ",\"begins and ends are on different threads\":true",
                        _ => "",
                    },
                );
                put(out, "}}");
            }
            // Flows can only begin and end at slices.
            Kind::Begins | Kind::Ends | Kind::EndsElsewhere => {
                self.slice_head("X", op, out);
                put(out, ",\"dur\":0");
                self.finish(name, None, event, out);
            }
            Kind::Instant | Kind::EndAlone | Kind::CutBefore => {
                self.head("i", at, out);
                put(out, ",\"s\":\"t\"");
                let flag = match kind {
                    Kind::EndAlone => Some("begin is not in the trace"),
                    Kind::CutBefore => Some("slice is cut before"),
                    _ => None,
                };
                self.finish(name, flag, event, out);
            }
            Kind::More => {}
        }
    }

    fn more(&self, op: &Op, more: &More, out: &mut Vec<u8>) {
        let Op { at, name, .. } = *op;
        match more {
            More::Counter { value } => {
                self.head("C", at, out);
                self.name(name, out);
                put(out, ",\"args\":{\"value\":");
                match value {
                    Number::Whole(value) => put_number(out, value),
                    Number::Real(value) if value.is_finite() => put(out, &format!("{value:?}")),
                    Number::Real(_) => put(out, "null"),
                }
                put(out, "}}");
            }
            More::Flow { to, id } => {
                for (kind, at, rest) in [("s", at, ""), ("f", *to, ",\"bp\":\"e\"")] {
                    self.head(kind, at, out);
                    self.name(name, out);
                    put(out, &format!(",\"id\":{id}{rest}}}"));
                }
            }
            More::Loss { end_ns, loss } => {
                self.head("X", at, out);
                put(out, ",\"dur\":");
                put_us(out, i128::from(*end_ns) - i128::from(at.ns));
                let name = loss_name(loss);
                put(out, &format!(",\"name\":\"{name}\",\"cat\":\"loss\",\"args\":{{\"what\":"));
                put_json_text(out, loss.text.as_bytes());
                put(out, "}}");
            }
            More::Track(track) => self.track(at, track, out),
        }
    }

    fn track(&self, at: At, track: &NewTrack, out: &mut Vec<u8>) {
        let at = At { ns: self.base_ns, ..at };
        let mut describe = |what: &str| {
            self.head("M", at, out);
            put(out, &format!(",\"name\":\"{what}\",\"args\":{{\"name\":"));
            put_json_text(out, track.label().as_bytes());
            put(out, "}}");
        };
        match track.kind {
            TrackKind::Process { .. } => return describe("process_name"),
            TrackKind::Thread { .. } if track.name.is_empty() => return,
            TrackKind::Counter { .. } if track.parent.is_some() => return,
            _ => describe("thread_name"),
        }
        if track.parent.is_none() {
            describe("process_name");
        }
    }
}
