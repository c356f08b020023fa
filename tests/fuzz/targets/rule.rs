//! Arbitrary bytes as the rules of a session: no panic, and what is decoded is encoded as the same bytes and holds, or
//! not, for each of some events.
#![no_main]

use dormouse_abi::rule::value::{Fields, Labels, Value};
use dormouse_abi::rule::{from_bytes, to_bytes};
use libfuzzer_sys::fuzz_target;

/// `0` is OFF, `1` is ON and ACTIVE.
#[derive(Debug)]
struct Switch;

impl Labels for Switch {
    fn any(&self, number: i128, is_it: &mut dyn FnMut(&[u8]) -> bool) -> bool {
        let labels: &[&str] = match number {
            0 => &["OFF"],
            1 => &["ON", "ACTIVE"],
            _ => &[],
        };
        labels.iter().any(|label| is_it(label.as_bytes()))
    }
}

/// Number of events, and of kinds of values.
const EVENT_COUNT: usize = 12;

/// An event in which every name has a value of the next kind.
struct Event(usize);

impl<'a> Fields<'a> for Event {
    fn value(&mut self, name: usize) -> Option<Value<'a>> {
        Some(match (self.0 + name) % EVENT_COUNT {
            0 => Value::Integer(0),
            1 => Value::Integer(i64::MIN.into()),
            2 => Value::Integer(u64::MAX.into()),
            3 => Value::Float(1.5),
            4 => Value::Float(f64::NAN),
            5 => Value::Float(f64::NEG_INFINITY),
            6 => Value::Text(b""[..].into()),
            7 => Value::Text(b"a\xffb"[..].into()),
            8 => Value::Boolean(true),
            9 => Value::Enumeration(1, &Switch),
            10 => Value::Enumeration(7, &Switch),
            _ => return None,
        })
    }
}

fuzz_target!(|bytes: &[u8]| {
    let Some(rules) = from_bytes(bytes) else { return };
    assert_eq!(to_bytes(&rules), bytes);
    for rule in &rules {
        for event in 0..EVENT_COUNT {
            let is_recorded = rule.condition.holds(&mut Event(event));
            assert_eq!(rule.condition.holds(&mut Event(event)), is_recorded);
        }
    }
});
