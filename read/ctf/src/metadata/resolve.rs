//! Converts the tree of the text to the model. Names are looked up in their scopes, and everything is checked.

use std::collections::{BTreeMap, HashMap, HashSet};

use super::error::{Checked, MetadataError, fail};
use super::scalars::flag;
use super::syntax::{Assignment, At, Block, Declaration, Entry, Value};
use super::types::Types;
use crate::model::{ByteOrder, ClockClass, EnvValue, EventClass, Scope, StreamClass, Struct, TraceClass};
use dormouse_abi::class::Level;

/// Returns the model of a text's declarations.
pub(super) fn resolve(text: &str, declarations: &[Declaration<'_>]) -> Result<TraceClass, MetadataError> {
    resolved(text, declarations).map_err(|(at, what)| MetadataError::at(text, at.0, what))
}

/// Returns the blocks with this keyword.
fn blocks<'a>(
    declarations: &'a [Declaration<'a>],
    keyword: &'static str,
) -> impl Iterator<Item = &'a Block<'a>> + Clone {
    declarations.iter().filter_map(move |declaration| match declaration {
        Declaration::Block(block) if block.keyword == keyword => Some(block),
        _ => None,
    })
}

pub(super) fn resolved(text: &str, declarations: &[Declaration<'_>]) -> Checked<TraceClass> {
    let mut traces = blocks(declarations, "trace");
    let Some(trace_block) = traces.next() else { return fail(At(0), "there is no trace declaration") };
    if let Some(second) = traces.next() {
        return fail(second.at, "there is a trace declaration already");
    }
    let entries = Entries::new([trace_block])?;
    for (key, expected) in [("major", 1), ("minor", 8)] {
        match entries.number(key)? {
            Some((_, number)) if number == expected => {}
            Some((at, number)) => {
                return fail(at, format!("{key} is {number}: the text of CTF 1.8 is read, where it is {expected}"));
            }
            None => return fail(trace_block.at, format!("the trace declaration has no {key}")),
        }
    }
    let byte_order = match entries.word("byte_order")? {
        Some((_, "le")) => ByteOrder::Little,
        Some((_, "be" | "network")) => ByteOrder::Big,
        Some((at, other)) => return fail(at, format!("expected le, be or network, found {other:?}")),
        None => return fail(trace_block.at, "the trace declaration has no byte_order"),
    };
    let uuid = optional_uuid(&entries)?;
    let mut trace = TraceClass { uuid, env: env(declarations)?, ..TraceClass::default() };
    let mut names = HashSet::new();
    for block in blocks(declarations, "clock") {
        let clock = clock(block)?;
        // babeltrace2's writer declares a clock once for each stream class.
        if names.insert(clock.name.clone()) {
            trace.clocks.push(clock);
        }
    }

    let mut types = Types::new(byte_order, trace.clocks, text.len());
    let mut streams: BTreeMap<u64, StreamClass> = BTreeMap::new();
    for declaration in declarations {
        match declaration {
            Declaration::Type(declaration) => types.declare(declaration)?,
            Declaration::Block(block) if block.keyword == "trace" => {
                types.open();
                for entry in &block.entries {
                    match entry {
                        Entry::Type(declaration) => types.declare(declaration)?,
                        Entry::Class(_, key, class) if key == "packet.header" => {
                            trace.packet_header = Some(types.root(Scope::PacketHeader, class, &[])?);
                        }
                        _ => {}
                    }
                }
                types.close();
            }
            _ => {}
        }
    }
    for block in blocks(declarations, "stream") {
        let stream = stream(block, &mut types, trace.packet_header.as_ref())?;
        if streams.contains_key(&stream.id) {
            return fail(block.at, format!("stream id {} is declared twice", stream.id));
        }
        streams.insert(stream.id, stream);
    }
    let mut ids: HashMap<u64, HashSet<u64>> = HashMap::new();
    let has_one_stream = streams.len() <= 1;
    for block in blocks(declarations, "event") {
        let entries = Entries::new([block])?;
        let stream_id = match entries.id("stream_id")? {
            Some(id) => id,
            None if has_one_stream => streams.keys().next().copied().unwrap_or(0),
            None => return fail(block.at, "this event declaration does not say its stream_id"),
        };
        if has_one_stream && streams.is_empty() {
            streams.insert(stream_id, StreamClass { id: stream_id, ..StreamClass::default() });
        }
        let Some(stream) = streams.get_mut(&stream_id) else {
            return fail(block.at, format!("there is no stream declaration with the id {stream_id}"));
        };
        let event = event(block, &entries, &mut types, trace.packet_header.as_ref(), stream)?;
        if !ids.entry(stream_id).or_default().insert(event.id) {
            return fail(block.at, format!("event id {} is declared twice", event.id));
        }
        stream.events.push(event);
    }
    for stream in streams.values_mut() {
        stream.events.sort_by_key(|event| event.id);
        if stream.clock.is_none() {
            stream.clock = types.clock_of_stream(stream);
        }
    }
    trace.clocks = types.into_clocks();
    trace.streams = streams.into_values().collect();
    super::check::check(&trace, trace_block.at)?;
    Ok(trace)
}

fn env(declarations: &[Declaration<'_>]) -> Checked<Vec<(String, EnvValue)>> {
    let value = |at: At, value: &Value<'_>| {
        Ok(match value {
            Value::Text(text) => EnvValue::Text(text.clone()),
            Value::Word(word) => EnvValue::Text(word.to_string()),
            Value::Number(number) => match i64::try_from(*number) {
                Ok(number) => EnvValue::Number(number),
                // An unsigned 64-bit number wraps, as in babeltrace2.
                Err(_) if *number > 0 => EnvValue::Number(*number as u64 as i64),
                Err(_) => return fail(at, "this number has more than 64 bits"),
            },
        })
    };
    // Some writers repeat a key. The last value counts.
    let mut env: Vec<(String, EnvValue)> = Vec::new();
    let mut places: HashMap<&str, usize> = HashMap::new();
    for block in blocks(declarations, "env") {
        for entry in Entries::of(block) {
            let entry = entry?;
            let (key, value) = (entry.key.as_ref(), value(entry.value_at, &entry.value)?);
            match places.get(key) {
                Some(place) => env[*place].1 = value,
                None => {
                    places.insert(key, env.len());
                    env.push((key.to_string(), value));
                }
            }
        }
    }
    Ok(env)
}

fn clock(block: &Block<'_>) -> Checked<ClockClass> {
    let entries = Entries::new([block])?;
    let Some((_, name)) = entries.any_text("name")? else { return fail(block.at, "this clock has no name") };
    optional_uuid(&entries)?;
    let frequency_hz = match entries.number("freq")? {
        None => 1_000_000_000,
        Some((at, number)) => match u64::try_from(number) {
            Ok(number) if number > 0 => number,
            _ => return fail(at, "a clock has at least one tick a second, and at most 2^64 - 1"),
        },
    };
    let offset_s = match entries.number("offset_s")? {
        None => 0,
        Some((at, number)) => i64::try_from(number).or_else(|_| fail(at, "this offset has more than 64 bits"))?,
    };
    let offset_cycles = match entries.number("offset")? {
        None => 0,
        Some((at, ticks)) => u64::try_from(ticks).or_else(|_| fail(at, "an offset in ticks is not negative"))?,
    };
    Ok(ClockClass {
        name: name.to_string(),
        description: entries.any_text("description")?.map(|(_, text)| text.to_string()).unwrap_or_default(),
        frequency_hz,
        offset_s,
        offset_cycles,
        is_absolute: entries.flag("absolute")?.unwrap_or(false),
    })
}

fn stream<'a>(block: &'a Block<'a>, types: &mut Types<'a>, packet_header: Option<&Struct>) -> Checked<StreamClass> {
    let mut stream = StreamClass { id: Entries::new([block])?.id("id")?.unwrap_or(0), ..StreamClass::default() };
    types.open();
    // Scopes can refer to the ones read before them, in whatever order they are declared.
    for entry in &block.entries {
        if let Entry::Type(declaration) = entry {
            types.declare(declaration)?;
        }
    }
    for (name, scope) in [
        ("packet.context", Scope::PacketContext),
        ("event.header", Scope::EventHeader),
        ("event.context", Scope::EventContext),
    ] {
        for entry in &block.entries {
            let Entry::Class(at, key, class) = entry else { continue };
            if key != name {
                continue;
            }
            let before = [
                (Scope::PacketHeader, packet_header),
                (Scope::PacketContext, stream.packet_context.as_ref()),
                (Scope::EventHeader, stream.event_header.as_ref()),
            ];
            let class = Some(types.root(scope, class, &before)?);
            let place = match scope {
                Scope::PacketContext => &mut stream.packet_context,
                Scope::EventHeader => &mut stream.event_header,
                _ => &mut stream.event_context,
            };
            if place.is_some() {
                return fail(
                    *at,
                    format!("the key {name} is in the stream declaration twice; take one of the two away"),
                );
            }
            *place = class;
        }
    }
    types.close();
    Ok(stream)
}

fn event<'a>(
    block: &'a Block<'a>,
    entries: &Entries<'_>,
    types: &mut Types<'a>,
    packet_header: Option<&Struct>,
    stream: &StreamClass,
) -> Checked<EventClass> {
    let Some((_, name)) = entries.any_text("name")? else {
        return fail(block.at, "this event declaration has no name");
    };
    let id = entries.id("id")?.unwrap_or(0);
    // A level that is not known is none.
    let level = entries.id("loglevel")?.and_then(|number| Level::from_number(u8::try_from(number).ok()?));
    let mut event = EventClass { id, name: name.to_string(), level, context: None, fields: None };
    types.open();
    for entry in &block.entries {
        if let Entry::Type(declaration) = entry {
            types.declare(declaration)?;
        }
    }
    for (name, scope) in [("context", Scope::OwnContext), ("fields", Scope::Fields)] {
        for entry in &block.entries {
            let Entry::Class(at, key, class) = entry else { continue };
            if key != name {
                continue;
            }
            let before = [
                (Scope::PacketHeader, packet_header),
                (Scope::PacketContext, stream.packet_context.as_ref()),
                (Scope::EventHeader, stream.event_header.as_ref()),
                (Scope::EventContext, stream.event_context.as_ref()),
                (Scope::OwnContext, event.context.as_ref()),
            ];
            let class = Some(types.root(scope, class, &before)?);
            let place = if scope == Scope::Fields { &mut event.fields } else { &mut event.context };
            if place.is_some() {
                return fail(
                    *at,
                    format!("the key {name} is in the event declaration twice; take one of the two away"),
                );
            }
            *place = class;
        }
    }
    types.close();
    Ok(event)
}

/// The `name = value;` entries of all blocks of one kind, in order.
pub(super) struct Entries<'a>(Vec<(&'a str, (At, &'a Value<'a>))>);

impl<'a> Entries<'a> {
    pub(super) fn new(blocks: impl IntoIterator<Item = &'a Block<'a>>) -> Checked<Entries<'a>> {
        let (mut entries, mut keys) = (Vec::new(), HashSet::new());
        for block in blocks {
            for entry in Entries::of(block) {
                let entry = entry?;
                let key = entry.key.as_ref();
                if !keys.insert(key) {
                    let keyword = block.keyword;
                    let what = format!("the key {key} is in the {keyword} declaration twice; take one of the two away");
                    return fail(entry.at, what);
                }
                entries.push((key, (entry.value_at, &entry.value)));
            }
        }
        Ok(Entries(entries))
    }

    fn of(block: &'a Block<'a>) -> impl Iterator<Item = Checked<&'a Assignment<'a>>> {
        block.entries.iter().filter_map(|entry| match entry {
            Entry::Value(assignment) => Some(Ok(assignment)),
            Entry::Class(at, key, _) if matches!(key.as_ref(), "id" | "name" | "stream_id" | "loglevel") => {
                Some(fail(*at, format!("{key} has a value, with `=`")))
            }
            Entry::Type(_) if matches!(block.keyword, "env" | "clock") => {
                Some(fail(block.at, format!("types are not declared in {}", block.keyword)))
            }
            Entry::Class(..) | Entry::Type(_) => None,
        })
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (&'a str, At, &'a Value<'a>)> {
        self.0.iter().map(|(key, (at, value))| (*key, *at, *value))
    }

    fn get(&self, key: &str) -> Option<(At, &'a Value<'a>)> {
        self.0.iter().find(|(name, _)| *name == key).map(|(_, value)| *value)
    }

    pub(super) fn number(&self, key: &str) -> Checked<Option<(At, i128)>> {
        match self.get(key) {
            None => Ok(None),
            Some((at, Value::Number(number))) => Ok(Some((at, *number))),
            Some((at, _)) => fail(at, format!("expected a number for {key}")),
        }
    }

    fn id(&self, key: &str) -> Checked<Option<u64>> {
        match self.number(key)? {
            None => Ok(None),
            Some((at, number)) => u64::try_from(number).map(Some).or_else(|_| fail(at, "an id is not negative")),
        }
    }

    pub(super) fn text(&self, key: &str) -> Checked<Option<(At, &'a str)>> {
        match self.get(key) {
            None => Ok(None),
            Some((at, Value::Text(text))) => Ok(Some((at, text))),
            Some((at, _)) => fail(at, format!("expected a text in quotes for {key}")),
        }
    }

    fn word(&self, key: &str) -> Checked<Option<(At, &'a str)>> {
        match self.get(key) {
            None => Ok(None),
            Some((at, Value::Word(word))) => Ok(Some((at, word))),
            Some((at, _)) => fail(at, format!("expected a word for {key}")),
        }
    }

    fn any_text(&self, key: &str) -> Checked<Option<(At, &'a str)>> {
        match self.get(key) {
            Some((_, Value::Word(_))) => self.word(key),
            _ => self.text(key),
        }
    }

    fn flag(&self, key: &str) -> Checked<Option<bool>> {
        self.get(key).map(|(at, value)| flag(at, value)).transpose()
    }
}

fn optional_uuid(entries: &Entries<'_>) -> Checked<Option<[u8; 16]>> {
    let Some((at, text)) = entries.text("uuid")? else { return Ok(None) };
    uuid(text).map_or_else(|| fail(at, "this is no uuid: 32 hexadecimal digits"), |uuid| Ok(Some(uuid)))
}

/// Parses 32 hexadecimal digits, with dashes anywhere.
pub(super) fn uuid(text: &str) -> Option<[u8; 16]> {
    let digits: String = text.chars().filter(|c| *c != '-').collect();
    let is_hexadecimal = digits.len() == 32 && digits.bytes().all(|byte| byte.is_ascii_hexdigit());
    is_hexadecimal.then(|| u128::from_str_radix(&digits, 16).ok())?.map(u128::to_be_bytes)
}
