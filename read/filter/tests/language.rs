//! Tests of the language: its meaning, its errors, and random filters compared with a simple evaluation.

use dormouse_filter::{Binding, Fields, Filter, Kind, Labels, Test, Value};
use proptest::prelude::*;

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

/// Returns the values of the event that the tests filter.
fn value(name: &str) -> Option<Value<'static>> {
    Some(match name {
        "n" => Value::Integer(5000),
        "neg" => Value::Integer(-1),
        "huge" => Value::Integer(u64::MAX.into()),
        "f" => Value::Float(0.1),
        "nan" => Value::Float(f64::NAN),
        "path" => Value::Text(b"/usr/lib/libc.so"[..].into()),
        "raw" => Value::Text(b"a\xffb"[..].into()),
        "state" => Value::Enumeration(1, &Switch),
        "other" => Value::Enumeration(9, &Switch),
        "flag" => Value::Integer(1),
        "zero" => Value::Integer(0),
        "a.b[2]" => Value::Integer(7),
        "odd name" => Value::Integer(8),
        "größe" => Value::Integer(9),
        "android" => Value::Integer(10),
        _ => return None,
    })
}

struct Event<'f>(&'f [String]);

impl<'a> Fields<'a> for Event<'_> {
    fn value(&mut self, name: usize) -> Option<Value<'a>> {
        value(&self.0[name])
    }
}

/// Whether a filter selects the event. Names are first read from the event, then known from its class; both give the
/// same result.
fn wants(text: &str) -> bool {
    let filter = Filter::parse(text).unwrap_or_else(|error| panic!("{error}"));
    let names: Vec<String> = filter.names().map(ToString::to_string).collect();
    let asked = filter.compile(&vec![Binding::Field(Kind::Any); names.len()]).wants(&mut Event(&names));
    let known: Vec<_> = names.iter().map(|name| value(name).map_or(Binding::Missing, Binding::Constant)).collect();
    let test = filter.compile(&known);
    assert!(!matches!(test, Test::Ask(_)), "{text}: all is known");
    assert_eq!(test.wants(&mut Event(&[])), asked, "{text}");
    asked
}

#[test]
fn true_filters_select_the_event() {
    for text in [
        "n == 5000",
        "n == 0x1388",
        "n == 5_000",
        "n > 4K and n < 5K",
        "n == 5us",
        "n == 0.005ms",
        "n < 1.5s && n<1M&&n<1G and n < 1T",
        "n >= 5000 and n <= 5000 and not n != 5000",
        "5000 == n",
        "neg < 0 and neg == -1 and neg > -0x2",
        "huge == 18446744073709551615",
        "huge > 1.8e19",
        "f == 0.1 and f < 1 and f > 1e-3",
        "nan != 0",
        "path ~ \"*/lib*\" and not path ~ \"lib*\"",
        "path == \"/usr/lib/libc.so\"",
        "path < \"/v\"",
        r#"raw == "a\xFFb" and raw ~ "a?b""#,
        "state == \"ON\" and state == \"ACTIVE\" and state != \"OFF\" and state ~ \"ACT*\"",
        "state == 1 and state and state == true",
        "other != \"ON\" and not other == \"ON\"",
        "flag and flag == true and zero == false and not zero",
        "true and not false",
        "a.b[2] == 7",
        "`odd name` == 8",
        "größe == 9",
        "android == 10",
        "zero or flag and zero or flag",
        "!(zero || zero) && !zero",
        "not not flag",
        "missing == 1 or flag",
        "not (missing == 1 and zero)",
        "(\n\tflag\n)",
    ] {
        assert!(wants(text), "{text}");
    }
}

#[test]
fn false_filters_do_not_select_the_event() {
    for text in [
        "n == 5001",
        "n == 4K",
        "huge == 18446744073709551616.0",
        "nan == nan",
        "nan < 1 or nan >= 1",
        "zero or flag and zero",
        "other == \"ON\"",
        // Unknown, and so is the negation.
        "missing",
        "not missing",
        "missing == 1",
        "missing != 1",
        "not missing == 1",
        "missing == 1 and flag",
        "missing == 1 or zero",
        "missing == missing",
        "missing ~ \"*\"",
        // Values of different kinds.
        "n == \"5000\"",
        "not n == \"5000\"",
        "n ~ \"*\"",
        "path > 1",
        "state < \"X\"",
        "path and flag",
        "flag < true",
    ] {
        assert!(!wants(text), "{text}");
    }
}

#[test]
fn errors_have_their_position_and_what_was_expected() {
    let deep = format!("{}a{}", "(".repeat(65), ")".repeat(65));
    for (text, line, column, what) in [
        ("", 1, 1, "expected a field or a value, the filter ends"),
        ("n >", 1, 4, "expected a field or a value, the filter ends"),
        ("n > and", 1, 5, "expected a field or a value, found `and`"),
        ("n = 5", 1, 3, "which is written `==`"),
        ("n 5", 1, 3, "expected `and`, `or` or the end, found `5`"),
        ("(n > 3", 1, 7, "expected `and`, `or` or `)`, the filter ends"),
        ("n > 3)", 1, 6, "found `)`"),
        ("a and\nb or\n  c ~ 5", 3, 7, "expected a pattern in double quotes, found `5`"),
        ("größe == 'x'", 1, 10, "text is written in double quotes"),
        ("path == \"abc", 1, 9, "this text does not end"),
        (r#"path == "\q""#, 1, 10, "unknown escape"),
        (r#"path == "\xg1""#, 1, 12, "expected two hexadecimal digits"),
        ("n > 5x", 1, 6, "`x` is no unit; there are K M G T ns us"),
        ("n > 0xfg", 1, 5, "expected hexadecimal digits"),
        ("n > 1.", 1, 7, "expected digits behind the point"),
        ("n > 1e999", 1, 5, "the number is too large"),
        ("n > 999999999999999999999999999999999999T", 1, 5, "the number is too large"),
        ("a[x] == 1", 1, 3, "expected the number of an element, found `x`"),
        ("a[1 == 1", 1, 4, "expected `]`"),
        ("a. == 1", 1, 3, "expected a name"),
        ("`a == 1", 1, 1, "a backquote is missing"),
        ("5", 1, 2, "expected a comparison"),
        ("\"x\" and a", 1, 5, "expected a comparison"),
        ("a & b", 1, 3, "expected a comparison"),
        (&deep, 1, 65, "more than 64 parentheses"),
    ] {
        let error = Filter::parse(text).expect_err(text);
        assert_eq!((error.line, error.column), (line, column), "{text}: {error}");
        assert!(error.what.contains(what), "{text}: {error}");
    }
    let error = Filter::parse("a ==\n  b = 3 and c").unwrap_err().to_string();
    assert_eq!(
        error,
        "line 2, column 5: expected `and`, `or` or the end, found `=`, which is written `==`\n    b = 3 and c\n      ^"
    );
    let long = format!("{} =", "a and ".repeat(20_000));
    assert!(Filter::parse(&long).unwrap_err().what.contains("longer than"));
    let many: Vec<String> = (0..300).map(|number| format!("n{number}")).collect();
    assert!(Filter::parse(&many.join(" or ")).unwrap_err().what.contains("more than 256 names"));
}

#[test]
fn unknown_names_are_reported_with_the_nearest_name() {
    let filter = Filter::parse("a == 1 and byts > 4096").unwrap();
    let error = filter.unknown(1, ["path", "bytes", "bits"]);
    assert_eq!((error.column, error.what.as_str()), (12, "no event has byts; bytes is the nearest"));
    assert_eq!(filter.unknown(1, ["x", "qqqqqq"]).what, "no event has byts; there are qqqqqq, x");
    assert!(filter.unknown(1, ["byts"]).what.starts_with("byts has parts"));
    let error = Filter::parse("a > \"x\"").unwrap().mismatch(|_| vec![Kind::Number]).unwrap();
    assert_eq!((error.column, error.what.as_str()), (3, "the left side is a number, the right side is text"));
    assert_eq!(Filter::parse("a > \"x\" or a > 1").unwrap().mismatch(|_| vec![Kind::Any]), None);
    assert_eq!(Filter::parse("a == 1").unwrap().mismatch(|_| vec![Kind::Number, Kind::Text]), None);
}

/// A filter so simple that its evaluation is evidently right: numbers, and names with or without a value.
#[derive(Debug, Clone)]
enum Tree {
    Compare(Side, &'static str, Side),
    Name(usize),
    Not(Box<Tree>),
    Two(bool, Box<Tree>, Box<Tree>),
}

#[derive(Debug, Clone, Copy)]
enum Side {
    Name(usize),
    Number(i8),
}

const NAMES: [&str; 4] = ["a", "b.c", "d[0]", "e"];

fn trees() -> impl Strategy<Value = Tree> {
    let side = || prop_oneof![(0..NAMES.len()).prop_map(Side::Name), (-3..4i8).prop_map(Side::Number)];
    let operator = proptest::sample::select(vec!["==", "!=", "<", "<=", ">", ">="]);
    let leaf = prop_oneof![
        (side(), operator, side()).prop_map(|(left, operator, right)| Tree::Compare(left, operator, right)),
        (0..NAMES.len()).prop_map(Tree::Name),
    ];
    leaf.prop_recursive(5, 40, 2, |inner| {
        prop_oneof![
            inner.clone().prop_map(|tree| Tree::Not(Box::new(tree))),
            (any::<bool>(), inner.clone(), inner).prop_map(|(is_and, left, right)| Tree::Two(
                is_and,
                Box::new(left),
                Box::new(right)
            )),
        ]
    })
}

impl Tree {
    fn text(&self) -> String {
        let side = |side: &Side| match side {
            Side::Name(name) => NAMES[*name].to_string(),
            Side::Number(number) => number.to_string(),
        };
        match self {
            Tree::Compare(left, operator, right) => format!("{} {operator} {}", side(left), side(right)),
            Tree::Name(name) => NAMES[*name].to_string(),
            Tree::Not(inner) => format!("not ({})", inner.text()),
            Tree::Two(is_and, left, right) => {
                format!("({}) {} ({})", left.text(), if *is_and { "and" } else { "or" }, right.text())
            }
        }
    }

    fn answer(&self, values: &[Option<i8>; 4]) -> Option<bool> {
        let of = |side: &Side| match side {
            Side::Name(name) => values[*name],
            Side::Number(number) => Some(*number),
        };
        match self {
            Tree::Compare(left, operator, right) => {
                let (left, right) = (of(left)?, of(right)?);
                Some(match *operator {
                    "==" => left == right,
                    "!=" => left != right,
                    "<" => left < right,
                    "<=" => left <= right,
                    ">" => left > right,
                    _ => left >= right,
                })
            }
            Tree::Name(name) => values[*name].map(|number| number != 0),
            Tree::Not(inner) => inner.answer(values).map(|answer| !answer),
            Tree::Two(is_and, left, right) => match (left.answer(values), right.answer(values)) {
                (Some(answer), _) | (_, Some(answer)) if answer != *is_and => Some(answer),
                (Some(_), Some(_)) => Some(*is_and),
                _ => None,
            },
        }
    }
}

struct Numbers<'f>(&'f [Option<i8>]);

impl<'a> Fields<'a> for Numbers<'_> {
    fn value(&mut self, name: usize) -> Option<Value<'a>> {
        self.0[name].map(|number| Value::Integer(number.into()))
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    /// Any of the names can be known from the class.
    #[test]
    fn random_filters_match_an_oracle(
        tree in trees(),
        values in proptest::array::uniform4(proptest::option::of(-3..4i8)),
        is_known in proptest::array::uniform4(any::<bool>()),
    ) {
        let filter = Filter::parse(&tree.text()).unwrap_or_else(|error| panic!("{error}"));
        let of: Vec<usize> = filter.names().map(|name| {
            NAMES.iter().position(|known| *known == name.to_string()).expect("a name of these")
        }).collect();
        let bindings: Vec<_> = of.iter().map(|name| match (is_known[*name], values[*name]) {
            (true, Some(number)) => Binding::Constant(Value::Integer(number.into())),
            (true, None) => Binding::Missing,
            (false, _) => Binding::Field(Kind::Number),
        }).collect();
        let asked: Vec<_> = of.iter().map(|name| values[*name]).collect();
        let wants = filter.compile(&bindings).wants(&mut Numbers(&asked));
        prop_assert_eq!(wants, tree.answer(&values) == Some(true), "{}", tree.text());
    }

    #[test]
    fn any_text_is_parsed_or_refused(text in "[a-z0-9 \"'~=<>!&|()\\[\\].\\\\_`xKe+-]{0,40}") {
        if let Err(error) = Filter::parse(&text) {
            prop_assert!(!error.to_string().is_empty() && error.column <= text.chars().count() + 1);
        }
    }
}

#[test]
fn single_names_are_parsed_as_in_filters() {
    use dormouse_filter::{Part, parse_name};
    let member = |name: &str| Part::Member(name.into());
    for (text, parts) in [
        ("a", vec![member("a")]),
        ("a.b[2]", vec![member("a"), member("b"), Part::Index(2)]),
        ("`x.y`.z", vec![member("x.y"), member("z")]),
        ("7th-field.a", vec![member("7th-field"), member("a")]),
        ("a[", vec![member("a[")]),
        ("", vec![member("")]),
    ] {
        assert_eq!(parse_name(text).parts, parts, "{text}");
    }
}
