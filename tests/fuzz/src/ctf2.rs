//! Metadata in CTF 2, made of the format's words: field classes of every kind, which refer to one another.

use arbitrary::Arbitrary;

/// A field class, which later ones can use as length or selector.
#[derive(Debug, Arbitrary)]
#[allow(missing_docs)]
pub enum Class {
    Bits { kind: u8, length: u8, is_big: bool, order: Option<bool>, align: u8, role: u8 },
    Variable { is_signed: bool, role: u8 },
    Text { encoding: u8, length: Length },
    Blob { length: Length },
    Structure { align: u8, members: Vec<Class> },
    Array { align: u8, length: Length, element: Box<Class> },
    Optional { of: Location, has_ranges: bool, class: Box<Class> },
    Variant { of: Location, options: [Box<Class>; 2] },
    Alias(u8),
}

/// Number of elements or bytes.
#[derive(Debug, Arbitrary)]
#[allow(missing_docs)]
pub enum Length {
    None,
    Fixed(u8),
    Field(Location),
}

/// Location of a member by its number, a number of structures further out, or in another scope.
#[derive(Debug, Arbitrary)]
pub struct Location {
    up: u8,
    of: u8,
    below: Option<u8>,
    origin: u8,
}

const ROLES: [&str; 11] = [
    "packet-magic-number",
    "data-stream-class-id",
    "data-stream-id",
    "default-clock-timestamp",
    "packet-end-default-clock-timestamp",
    "packet-total-length",
    "packet-content-length",
    "packet-sequence-number",
    "discarded-event-record-counter-snapshot",
    "event-record-class-id",
    "metadata-stream-uuid",
];

fn roles(role: u8) -> String {
    ROLES.get(role as usize % 16).map_or_else(String::new, |role| format!(r#","roles":["{role}"]"#))
}

impl Location {
    fn json(&self, key: &str) -> String {
        let up = "null,".repeat(self.up as usize % 3);
        let below = self.below.map_or_else(String::new, |below| format!(r#","f{}""#, below % 4));
        let scopes = ["packet-context", "event-record-header", "event-record-payload"];
        let origin =
            scopes.get(self.origin as usize % 8).map_or_else(String::new, |scope| format!(r#""origin":"{scope}","#));
        format!(r#","{key}":{{{origin}"path":[{up}"f{}"{below}]}}"#, self.of % 6)
    }
}

impl Length {
    fn json(&self, kind: &str) -> String {
        match self {
            Length::None => format!("null-terminated-{kind}\""),
            Length::Fixed(length) => format!("static-length-{kind}\",\"length\":{length}"),
            Length::Field(of) => format!("dynamic-length-{kind}\"{}", of.json("length-field-location")),
        }
    }
}

impl Class {
    fn json(&self, depth: usize) -> String {
        let below = |class: &Class| if depth < 6 { class.json(depth + 1) } else { "\"a0\"".into() };
        match self {
            Class::Bits { kind, length, is_big, order, align, role } => {
                let (kind, more) = match kind % 7 {
                    0 => ("bit-array", String::new()),
                    1 => ("bit-map", r#","flags":{"a":[[0,0]]}"#.into()),
                    2 => ("boolean", String::new()),
                    3 => ("signed-integer", r#","mappings":{"b":[[-5,7]]}"#.into()),
                    4 => ("floating-point-number", String::new()),
                    _ => (
                        "unsigned-integer",
                        format!(r#","preferred-display-base":{}{}"#, [2, 8, 10, 16][*role as usize % 4], roles(*role)),
                    ),
                };
                let length = if kind == "floating-point-number" { 16 << (length % 3) } else { length % 64 + 1 };
                let order = order.map_or("", |order| {
                    if order { r#","bit-order":"first-to-last""# } else { r#","bit-order":"last-to-first""# }
                });
                let byte_order = if *is_big { "big" } else { "little" };
                let align = 1u64 << (align % 7);
                format!(
                    r#"{{"type":"fixed-length-{kind}","length":{length},"byte-order":"{byte_order}-endian","alignment":{align}{order}{more}}}"#
                )
            }
            Class::Variable { is_signed: true, .. } => r#"{"type":"variable-length-signed-integer"}"#.into(),
            Class::Variable { role, .. } => format!(r#"{{"type":"variable-length-unsigned-integer"{}}}"#, roles(*role)),
            Class::Text { encoding, length } => {
                let encoding = ["utf-8", "utf-16be", "utf-16le", "utf-32be", "utf-32le"][*encoding as usize % 5];
                format!(r#"{{"encoding":"{encoding}","type":"{}}}"#, length.json("string"))
            }
            Class::Blob { length } => {
                let length = if matches!(length, Length::None) { &Length::Fixed(16) } else { length };
                format!(r#"{{"type":"{}}}"#, length.json("blob"))
            }
            Class::Structure { align, members } => structure(*align, members, depth + 1),
            Class::Array { align, length, element } => {
                let (align, length) =
                    (1u64 << (align % 7), if matches!(length, Length::None) { &Length::Fixed(3) } else { length });
                format!(
                    r#"{{"minimum-alignment":{align},"element-field-class":{},"type":"{}}}"#,
                    below(element),
                    length.json("array")
                )
            }
            Class::Optional { of, has_ranges, class } => {
                let ranges = if *has_ranges { r#","selector-field-ranges":[[0,1],[3,200]]"# } else { "" };
                let of = of.json("selector-field-location");
                format!(r#"{{"type":"optional","field-class":{}{ranges}{of}}}"#, below(class))
            }
            Class::Variant { of, options: [first, second] } => {
                let of = of.json("selector-field-location");
                let option = |class: &Class, ranges: &str| {
                    format!(r#"{{"field-class":{},"selector-field-ranges":{ranges}}}"#, below(class))
                };
                let options = [option(first, "[[0,9]]"), option(second, "[[10,255]]")].join(",");
                format!(r#"{{"type":"variant","options":[{options}]{of}}}"#)
            }
            Class::Alias(number) => format!("\"a{}\"", number % 3),
        }
    }
}

/// Returns a structure whose members are named by their numbers.
pub fn structure(align: u8, members: &[Class], depth: usize) -> String {
    let members = if depth < 6 { members } else { &[] };
    let member =
        |(index, class): (usize, &Class)| format!(r#"{{"name":"f{index}","field-class":{}}}"#, class.json(depth));
    let members: Vec<String> = members.iter().enumerate().map(member).collect();
    format!(
        r#"{{"type":"structure","minimum-alignment":{},"member-classes":[{}]}}"#,
        1u64 << (align % 7),
        members.join(",")
    )
}

/// Returns a JSON text sequence.
pub fn sequence(fragments: &[String]) -> String {
    fragments.iter().map(|fragment| format!("\u{1e}{fragment}\n")).collect()
}

/// Returns the fragments of a trace whose packet contexts, record headers and events have these fields; `aliases` are
/// called `a0` and so on.
pub fn fragments(aliases: &[Class], [context, header, fields]: [&[Class]; 3]) -> Vec<String> {
    let alias = |(index, class): (usize, &Class)| {
        format!(r#"{{"type":"field-class-alias","name":"a{index}","field-class":{}}}"#, class.json(3))
    };
    let mut fragments = vec![r#"{"type":"preamble","version":2}"#.to_string()];
    fragments.extend(aliases.iter().enumerate().map(alias));
    fragments.push(r#"{"type":"clock-class","id":"c","frequency":1000}"#.into());
    let (context, header, fields) = (structure(0, context, 0), structure(0, header, 0), structure(0, fields, 0));
    fragments.push(format!(r#"{{"type":"data-stream-class","default-clock-class-id":"c","packet-context-field-class":{context},"event-record-header-field-class":{header}}}"#));
    fragments.push(format!(r#"{{"type":"event-record-class","name":"e","payload-field-class":{fields}}}"#));
    fragments
}
