//! Tests of rules: their texts, their errors, and conditions compared with the filters that they are made of.

use dormouse_abi::class::Level;
use dormouse_abi::rule::value::Operator;
use dormouse_abi::rule::{
    Condition, LevelBound, Literal, NAME_COUNT_MAX, Next, Operand, PART_COUNT_MAX, Question, Sample, TEST_COUNT_MAX,
    Test, from_bytes, to_bytes,
};
use dormouse_filter::{Binding, Fields, Filter, Kind, Labels, RuleText, Value, parse_name};
use proptest::prelude::*;

#[test]
fn rules_have_a_pattern_and_may_have_a_condition() {
    for (text, pattern, is_exclusion, filter) in [
        ("shop:*", "shop:*", false, None),
        ("  shop:*\n", "shop:*", false, None),
        ("!shop:internal_*", "shop:internal_*", true, None),
        (" !shop:internal_* ", "shop:internal_*", true, None),
        ("shop:* where n > 3", "shop:*", false, Some("n > 3")),
        ("\tshop:*\t where\nn > 3 ", "shop:*", false, Some("n > 3")),
        ("shop:* where(n > 3)", "shop:*", false, Some("(n > 3)")),
        ("shop:* where!n", "shop:*", false, Some("!n")),
        ("größe:* where größe > 3", "größe:*", false, Some("größe > 3")),
        // `where` is a word like others.
        ("where", "where", false, None),
        ("where where where", "where", false, Some("where")),
        ("shop:where where where > 3", "shop:where", false, Some("where > 3")),
    ] {
        let rule = RuleText::parse(text).unwrap_or_else(|error| panic!("{text}: {error}"));
        assert_eq!((rule.pattern.as_str(), rule.is_exclusion), (pattern, is_exclusion), "{text}");
        let condition = rule.to_rule().unwrap().condition;
        let expected = filter.map(|filter| Filter::parse(filter).unwrap().condition().unwrap()).unwrap_or_default();
        assert_eq!((rule.filter.is_some(), condition), (filter.is_some(), expected), "{text}");
    }
}

#[test]
fn rules_may_have_a_bound_on_levels() {
    use Level::{Debug, Emerg, Err, Info, Warning};
    use LevelBound::{AtMost, Only};
    for (text, pattern, levels, filter) in [
        ("shop:* level<=WARNING", "shop:*", AtMost(Warning), None),
        ("shop:* level<=warn where n > 3", "shop:*", AtMost(Warning), Some("n > 3")),
        (" !shop:* \tlevel  ==\n Debug ", "shop:*", Only(Debug), None),
        ("shop:* level==6 where(n)", "shop:*", Only(Info), Some("(n)")),
        ("shop:* level<=0 where!n", "shop:*", AtMost(Emerg), Some("!n")),
        ("shop:* level <= ERROR where level == 3", "shop:*", AtMost(Err), Some("level == 3")),
        ("level level<=Err", "level", AtMost(Err), None),
        ("level:where level<=Err where where", "level:where", AtMost(Err), Some("where")),
    ] {
        let rule = RuleText::parse(text).unwrap_or_else(|error| panic!("{text}: {error}"));
        assert_eq!((rule.pattern.as_str(), rule.levels), (pattern, Some(levels)), "{text}");
        assert_eq!(rule.is_exclusion, text.contains('!') && filter.is_none(), "{text}");
        let rule = rule.to_rule().unwrap();
        let expected = filter.map(|filter| Filter::parse(filter).unwrap().condition().unwrap()).unwrap_or_default();
        assert_eq!((rule.levels, &rule.condition), (Some(levels), &expected), "{text}");
        assert_eq!(from_bytes(&to_bytes(std::slice::from_ref(&rule))), Some(vec![rule]), "{text}");
    }
    for text in ["level", "level:*", "levels level<=3 where levels", "shop:* where level <= 3", "level where level"] {
        let levels = RuleText::parse(text).unwrap().levels;
        assert_eq!(levels.is_some(), text.starts_with("levels "), "{text}");
    }
}

#[test]
fn wrong_bounds_on_levels_have_their_position() {
    let relation = "expected `<=` or `==`, such as `level<=WARNING`".to_string();
    let pattern = "expected a pattern of event classes, such as `shop:*`".to_string();
    let condition =
        "expected `where CONDITION`, `level<=LEVEL`, `sample 1/N` or `tail 10s by FIELD keep CONDITION`".to_string();
    let again = "a rule has at most one clause of this kind".to_string();
    for (text, column, what) in [
        ("shop:* level<=LOUD", 15, format!("there is no level LOUD; there are {}", Level::LIST)),
        ("shop:* level<=15", 15, format!("there is no level 15; there are {}", Level::LIST)),
        ("shop:* level<=", 15, format!("expected a level; there are {}", Level::LIST)),
        ("größe:* level== ,", 17, format!("expected a level; there are {}", Level::LIST)),
        ("shop:* level", 13, relation.clone()),
        ("shop:* level>=3", 13, relation.clone()),
        ("shop:* level <3", 14, relation.clone()),
        ("shop:* level where n", 14, relation),
        ("level<=WARNING", 1, pattern.clone()),
        (" level <= WARNING", 2, pattern.clone()),
        ("! level<=WARNING", 2, pattern.clone()),
        ("!level==WARNING", 2, pattern.clone()),
        ("where n<=WARNING", 1, pattern),
        ("shop:* level<=3 n > 3", 17, condition.clone()),
        ("shop:* level<=3 level<=4", 17, again.clone()),
        ("shop:* where n where n", 16, again.clone()),
        ("shop:* sample 1/2 where n sample 1/3", 27, again),
    ] {
        let error = RuleText::parse(text).expect_err(text);
        assert_eq!((error.line, error.column, error.what), (1, column, what), "{text}");
    }
    let rule = RuleText::parse(" shop:*  level==DEBUG where n").unwrap();
    let error = rule.outside([Level::Info, Level::Err, Level::Info]);
    let told = "no event that shop:* matches has such a level; there are ERR, INFO";
    assert_eq!((error.column, error.what.as_str()), (10, told));
    assert!(rule.outside([]).what.ends_with("has such a level; they have none"));
}

#[test]
fn rules_may_have_a_sample() {
    let by = |name: &str, count| Sample::By(parse_name(name), count);
    for (text, sample) in [
        ("shop:* sample 1/100", Sample::OneIn(100)),
        (" shop:*\tsample  1/1\n", Sample::OneIn(1)),
        ("shop:* sample 50/s", Sample::PerSecond(50)),
        ("shop:* sample 1/s", Sample::PerSecond(1)),
        ("shop:* sample by user 1/1000000000", by("user", 1_000_000_000)),
        ("shop:* sample by  ids[3]  1/7", by("ids[3]", 7)),
        ("sample sample by sample 1/2", by("sample", 2)),
        ("shop:* sample by tag.request 1/100", by("tag.request", 100)),
    ] {
        let parsed = RuleText::parse(text).unwrap_or_else(|error| panic!("{text}: {error}"));
        assert_eq!(parsed.sample, Some(sample), "{text}");
        let rule = parsed.to_rule().unwrap();
        assert_eq!(from_bytes(&to_bytes(std::slice::from_ref(&rule))), Some(vec![rule]), "{text}");
    }
    let number = "the number of a sample is from 1 to 1000000000";
    let any = "expected `1/N`, `N/s` or `by FIELD 1/N`, such as `sample 1/100`";
    let fraction = "expected `1/N`, such as `sample 1/100`";
    let field = "expected a field or a tag, such as `by user 1/100`";
    for (text, column, what) in [
        ("shop:* sample", 14, any),
        ("shop:* sample 100", 15, any),
        ("shop:* sample 2/100", 15, any),
        ("shop:* sample 1/", 15, any),
        ("shop:* sample 1/+5", 15, any),
        ("shop:* sample 0.01", 15, any),
        ("shop:* sample 1/0", 15, number),
        ("shop:* sample 1/1000000001", 15, number),
        ("shop:* sample 99999999999999999999/s", 15, number),
        ("shop:* sample by", 17, field),
        ("shop:* sample by /s", 18, field),
        ("shop:* sample by user", 22, fraction),
        ("shop:* sample by user 10/s", 23, fraction),
    ] {
        let error = RuleText::parse(text).expect_err(text);
        assert_eq!((error.column, error.what.as_str()), (column, what), "{text}");
    }
    let error = RuleText::parse("shop:* sample by user 1/10").unwrap().no_key(["n", "id", "n"]);
    let told = "no event that shop:* matches has the field of this sample; there are id, n";
    assert_eq!((error.column, error.what.as_str()), (8, told));
}

#[test]
fn rules_may_have_a_tail() {
    for (text, window_ns, key, kept) in [
        ("shop:* tail 10s by id keep status >= 500", 10_000_000_000, "id", "status >= 500"),
        (" shop:*\ttail  1ms  by  order.id  keep  failed", 1_000_000, "order.id", "failed"),
        (
            "shop:* tail 10m by tag.request keep not ok or a == b where n",
            600_000_000_000,
            "tag.request",
            "not ok or a == b",
        ),
        ("shop:* where tail > 1 tail 1.5s by id keep keep level<=INFO", 1_500_000_000, "id", "keep"),
        ("tail tail 2s by tail keep tail sample by tail 1/2", 2_000_000_000, "tail", "tail"),
    ] {
        let parsed = RuleText::parse(text).unwrap_or_else(|error| panic!("{text}: {error}"));
        let tail = parsed.tail.clone().unwrap();
        assert_eq!((tail.window_ns, tail.key.to_string().as_str()), (window_ns, key), "{text}");
        assert_eq!(tail.keep.condition(), Filter::parse(kept).unwrap().condition(), "{text}");
        // Programs record what the rest of the rule selects.
        let rest = text.replace(&text[text.rfind("tail ").unwrap()..], "");
        if let Ok(rest) = RuleText::parse(&rest)
            && rest.tail.is_none()
            && parsed.filter.is_none()
            && parsed.sample.is_none()
            && parsed.levels.is_none()
        {
            assert_eq!(parsed.to_rule(), rest.to_rule(), "{text}");
        }
        parsed.to_rule().unwrap();
    }
    let time = "expected a time, such as `tail 10s by id keep status >= 500`";
    let range = "the time of a tail is from 1ms to 10m";
    let by = "expected `by` and a field or a tag, such as `by id`";
    let keep = "expected `keep` and a condition, such as `keep status >= 500`";
    let chance = "a sample by chance would take events away from the requests that the tail keeps; \
                  `sample by FIELD 1/N` takes whole ones";
    for (text, column, what) in [
        ("shop:* tail", 12, time),
        ("shop:* tail by id keep x", 13, time),
        ("shop:* tail -5s by id keep x", 13, time),
        ("shop:* tail 999us by id keep x", 13, range),
        ("shop:* tail 11m by id keep x", 13, range),
        ("shop:* tail 10 by id keep x", 13, range),
        ("shop:* tail 10s", 16, by),
        ("shop:* tail 10s keep x", 17, by),
        ("shop:* tail 10s by", 19, "expected a field or a tag, such as `by id`"),
        ("shop:* tail 10s by /", 20, "expected a field or a tag, such as `by id`"),
        ("shop:* tail 10s by id", 22, keep),
        ("shop:* tail 10s by id where x", 23, keep),
        ("shop:* tail 10s by id keep", 27, "expected a field or a value, the filter ends"),
        ("shop:* tail 10s by id keep x tail 1s by id keep x", 30, "a rule has at most one clause of this kind"),
        ("shop:* sample 1/10 tail 10s by id keep x", 8, chance),
        ("shop:* tail 10s by id keep x sample 5/s", 30, chance),
        ("shop:* tail 5x by id keep x", 14, "`x` is no unit; there are K M G T ns us µs ms s m h d"),
    ] {
        let error = RuleText::parse(text).expect_err(text);
        assert_eq!((error.column, error.what.as_str()), (column, what), "{text}");
    }
    for (text, column) in [("shop:* tail 1s by pid keep x", 8), ("shop:* tail 1s by id keep comm == \"x\"", 27)] {
        let error = RuleText::parse(text).unwrap().to_rule().expect_err(text);
        assert!(error.column == column && error.what.starts_with("a rule is asked before"), "{text}: {error}");
    }
    let rule = RuleText::parse("shop:* tail 1s by tag.request keep tag.user == \"x\" or n").unwrap();
    assert_eq!(rule.tags().map(ToString::to_string).collect::<Vec<_>>(), ["tag.user", "tag.request"]);
    assert!(rule.no_tail_key(["n", "id"]).what.ends_with("has the field of this tail; there are id, n"));
    assert!(RuleText::parse("!shop:* tail 1s by id keep x").is_err());
}

#[test]
fn rules_know_tags_and_no_other_part_of_a_record() {
    for text in [
        "shop:* where tag.user == \"alice\" and bytes > 4K",
        "shop:* where context.tag.user != \"\" or not tag.user ~ \"a*\"",
        "shop:* where \"alice\" == tag.user and tag.request >= 1000 and tag.user < name",
        "shop:* where tag.a == tag.b sample by context.tag.user 1/10",
    ] {
        let parsed = RuleText::parse(text).unwrap_or_else(|error| panic!("{text}: {error}"));
        assert!(parsed.tags().count() > 0 && parsed.tags().all(|name| name.tag().is_some()), "{text}");
        let rule = parsed.to_rule().unwrap_or_else(|error| panic!("{text}: {error}"));
        assert_eq!(from_bytes(&to_bytes(std::slice::from_ref(&rule))), Some(vec![rule]), "{text}");
    }
    assert_eq!(RuleText::parse("shop:* where tag == 1 and fields.tag.a").unwrap().tags().count(), 0);
    let order = "the texts of tags have no order; `==`, `!=` and `~` compare them";
    let name = "the name of a tag consists of ASCII letters, digits and `_`, at most 31, no digit first";
    let other = |name: &str| {
        format!(
            "a rule is asked before there is a record, so it knows fields, tags and `event`, but not {name}; \
             a field of that name is fields.{name}"
        )
    };
    for (text, column, what) in [
        ("shop:* where n and tag.user < \"bob\"", 29, order.to_string()),
        ("shop:* where not (\"bob\" >= context.tag.user)", 25, order.to_string()),
        ("shop:* where n and tag.`zoë` == 1", 20, name.to_string()),
        ("shop:* sample by tag.12 1/10", 8, name.to_string()),
        ("shop:* where context.vpid == 1", 14, other("context.vpid")),
        ("shop:* where pid == 1", 14, other("pid")),
        ("shop:* sample by context.tag 1/10", 8, other("context.tag")),
    ] {
        let error = RuleText::parse(text).and_then(|rule| rule.to_rule()).expect_err(text);
        assert_eq!((error.column, error.what), (column, what), "{text}");
    }
}

/// Clauses come in any order.
#[test]
fn clauses_have_no_order() {
    let clauses = ["level<=WARNING", "where n > 3 and (level == 4 or sample)", "sample by user 1/10"];
    let parsed = |order: [usize; 3]| {
        let text = format!("shop:* {}", order.map(|at| clauses[at]).join(" "));
        RuleText::parse(&text).and_then(|rule| rule.to_rule()).unwrap_or_else(|error| panic!("{text}: {error}"))
    };
    let first = parsed([0, 1, 2]);
    assert!(first.levels.is_some() && first.sample.is_some() && first.condition.tests.len() == 3);
    for order in [[0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]] {
        assert_eq!(parsed(order), first, "{order:?}");
    }
}

#[test]
fn errors_in_rules_have_their_position_in_the_whole_text() {
    let pattern = "expected a pattern of event classes, such as `shop:*`";
    let exclusion = "an exclusion has no condition, no sample and no tail; write the condition with the pattern that it excludes \
                     from, and `not`";
    let clause =
        || "expected `where CONDITION`, `level<=LEVEL`, `sample 1/N` or `tail 10s by FIELD keep CONDITION`".to_string();
    let comparison = "expected a comparison (`==` `!=` `<` `<=` `>` `>=` `~`)";
    for (text, line, column, what) in [
        ("", 1, 1, pattern.to_string()),
        ("  ", 1, 3, pattern.to_string()),
        ("!", 1, 2, pattern.to_string()),
        ("! shop:*", 1, 2, pattern.to_string()),
        ("where n > 3", 1, 1, pattern.to_string()),
        ("shop:* when n > 3", 1, 8, clause()),
        ("shop:* n > 3", 1, 8, clause()),
        ("shop:* wheren > 3", 1, 8, clause()),
        ("shop:* levels<=3", 1, 8, clause()),
        ("größe:*  , shop:*", 1, 10, clause()),
        ("!shop:* where n > 3", 1, 9, exclusion.to_string()),
        ("!shop:* shop:*", 1, 9, exclusion.to_string()),
        ("!shop:* level<=3 sample 1/10", 1, 18, exclusion.to_string()),
        ("shop:* where", 1, 13, "expected a field or a value, the filter ends".to_string()),
        ("shop:* where ", 1, 14, "expected a field or a value, the filter ends".to_string()),
        ("shop:* where n = 3", 1, 16, format!("{comparison}, found `=`, which is written `==`")),
        ("shop:*\n  where n >", 2, 12, "expected a field or a value, the filter ends".to_string()),
        ("größe:* where größe > 3x", 1, 24, "`x` is no unit; there are K M G T ns us µs ms s m h d".to_string()),
    ] {
        let error = RuleText::parse(text).expect_err(text);
        assert_eq!((error.line, error.column, error.what), (line, column, what), "{text}");
    }
    let shown = |text: &str| RuleText::parse(text).unwrap_err().to_string();
    assert_eq!(
        shown("shop:* when n > 3"),
        "line 1, column 8: expected `where CONDITION`, `level<=LEVEL`, `sample 1/N` or `tail 10s by FIELD keep CONDITION`\n  shop:* when n > 3\n         ^"
    );
    assert_eq!(shown("!"), format!("line 1, column 2: {pattern}\n  !\n   ^"));
    assert_eq!(
        shown("shop:*\n where n > \"x"),
        "line 2, column 12: this text does not end: `\"` is missing\n   where n > \"x\n             ^"
    );
    let long = format!("shop:* where {}", "a or ".repeat(20_000));
    let error = RuleText::parse(&long).unwrap_err();
    assert_eq!((error.column, error.what.as_str()), (13, "the filter is longer than 65536 bytes"));
}

#[test]
fn later_errors_have_their_position_in_the_whole_text() {
    let filter = RuleText::parse("shop:* where a == 1 and byts > \"x\"").unwrap().filter.unwrap();
    let error = filter.unknown(1, ["path", "bytes"]);
    assert_eq!((error.column, error.what.as_str()), (25, "no event has byts; bytes is the nearest"));
    let error = filter.mismatch(|_| vec![Kind::Number]).unwrap();
    assert_eq!((error.column, error.what.as_str()), (30, "the left side is a number, the right side is text"));
    assert_eq!(error.excerpt, "shop:* where a == 1 and byts > \"x\"");
}

#[test]
fn conditions_have_limits() {
    let condition = |expression: String| Filter::parse(&expression).unwrap().condition();
    let terms = |count: usize, term: &dyn Fn(usize) -> String| (0..count).map(term).collect::<Vec<_>>().join(" or ");
    let comparisons = |count| terms(count, &|number| format!("n == {number}"));
    let names = |count| terms(count, &|number| format!("n{number}"));
    let parts = |count: usize| format!("a == 1 and {}[7] > 0", vec!["a"; count - 1].join("."));
    for (expression, what) in [
        (comparisons(TEST_COUNT_MAX + 1), "a rule has at most 256 comparisons"),
        (names(NAME_COUNT_MAX + 1), "a rule has at most 64 names"),
        (parts(PART_COUNT_MAX + 1), "a name in a rule has at most 8 parts"),
    ] {
        let error = condition(expression.clone()).unwrap_err();
        assert_eq!((error.line, error.column, error.what.as_str()), (1, 1, what));
        let error = RuleText::parse(&format!("shop:* where {expression}")).unwrap().to_rule().unwrap_err();
        assert_eq!((error.line, error.column, error.what.as_str()), (1, 1, what));
        assert!(error.excerpt.starts_with("shop:* where "));
    }
    for expression in [comparisons(TEST_COUNT_MAX), names(NAME_COUNT_MAX), parts(PART_COUNT_MAX)] {
        let rule = RuleText::parse(&format!("shop:* where {expression}")).unwrap().to_rule().unwrap();
        assert_eq!(from_bytes(&to_bytes(std::slice::from_ref(&rule))), Some(vec![rule]));
    }
    // The last test is one that a byte can name.
    let last = condition(comparisons(TEST_COUNT_MAX)).unwrap();
    assert_eq!(last.tests[TEST_COUNT_MAX - 2].failed, Next::Test(u8::MAX));
    assert!(last.holds(&mut Event(&[Some(Value::Integer(255))])));
    assert!(!last.holds(&mut Event(&[Some(Value::Integer(256))])));
}

#[test]
fn each_comparison_is_one_test() {
    let filter = Filter::parse("not (not bytes > 4K and path ~ \"/tmp/*\") and bytes").unwrap();
    let bytes = || Operand::Name(0);
    let large = Question::Compare(bytes(), Operator::Greater, Operand::Literal(Literal::Integer(4096)));
    let temporary = Question::Matches(Operand::Name(1), b"/tmp/*".into());
    let tests = vec![
        // Is it true that `bytes > 4K`, or false that the path matches?
        Test { question: large, wanted: true, passed: Next::Test(2), failed: Next::Test(1) },
        Test { question: temporary, wanted: false, passed: Next::Test(2), failed: Next::Reject },
        Test { question: Question::IsTrue(bytes()), wanted: true, passed: Next::Accept, failed: Next::Reject },
    ];
    assert_eq!(filter.condition().unwrap(), Condition { tests, names: vec![parse_name("bytes"), parse_name("path")] });
}

#[test]
fn what_is_the_same_for_all_events_has_no_comparison() {
    for (text, expected) in [
        ("true", Condition::default()),
        ("n or 1 < 2", Condition::default()),
        ("false", Condition::never()),
        ("n and not true", Condition::never()),
        // Unknown.
        ("1 == \"1\"", Condition::never()),
        ("not 1 == \"1\"", Condition::never()),
    ] {
        assert_eq!(Filter::parse(text).unwrap().condition().unwrap(), expected, "{text}");
    }
}

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

/// Values of an event by the index of their names.
struct Event<'e>(&'e [Option<Value<'static>>]);

impl<'a> Fields<'a> for Event<'_> {
    fn value(&mut self, name: usize) -> Option<Value<'a>> {
        self.0[name].clone()
    }

    fn integer(&mut self, name: usize) -> Option<i128> {
        match &self.0[name] {
            Some(Value::Integer(integer)) => Some(*integer),
            _ => None,
        }
    }
}

fn values() -> impl Strategy<Value = Option<Value<'static>>> {
    let wholes: Vec<i128> =
        vec![0, 1, -1, 2, 4096, 1 << 53, (1 << 53) + 1, i64::MIN.into(), i64::MAX.into(), u64::MAX.into()];
    let floats: Vec<f64> =
        vec![0.0, -0.0, 1.0, 1.5, -0.5, 1e300, (1u64 << 53) as f64, f64::NAN, f64::INFINITY, f64::NEG_INFINITY];
    let texts = vec!["", "ON", "ACTIVE", "a", "lib.so", "größe"];
    let text = |text: Vec<u8>| Some(Value::Text(text.into()));
    prop_oneof![
        Just(None::<Value<'static>>),
        proptest::sample::select(wholes).prop_map(|whole| Some(Value::Integer(whole))),
        any::<i64>().prop_map(|whole| Some(Value::Integer(whole.into()))),
        any::<u64>().prop_map(|whole| Some(Value::Integer(whole.into()))),
        proptest::sample::select(floats).prop_map(|float| Some(Value::Float(float))),
        any::<u64>().prop_map(|bits| Some(Value::Float(f64::from_bits(bits)))),
        proptest::sample::select(texts).prop_map(move |known| text(known.into())),
        proptest::collection::vec(any::<u8>(), 0..6).prop_map(text),
        any::<bool>().prop_map(|boolean| Some(Value::Boolean(boolean))),
        (-1..3i128).prop_map(|number| Some(Value::Enumeration(number, &Switch))),
    ]
}

const NAMES: [&str; 5] = ["a", "b.c", "d[0]", "`odd name`", "tag.user"];

const CONSTANTS: [&str; 20] = [
    "0",
    "1",
    "-1",
    "4K",
    "9007199254740993",
    "9223372036854775807",
    "-9223372036854775808",
    "18446744073709551615",
    "18446744073709551616",
    "1.5",
    "-0.5",
    "1e300",
    "9007199254740992.0",
    "\"\"",
    "\"ON\"",
    "\"ACTIVE\"",
    "\"a\"",
    "\"a\\xFFb\"",
    "true",
    "false",
];

const PATTERNS: [&str; 6] = ["*", "", "?", "A*E", "*.so", "gr\\xc3\\xb6*"];

/// Generates texts of expressions.
fn expressions() -> impl Strategy<Value = String> {
    let name = || proptest::sample::select(&NAMES[..]);
    let pattern = proptest::sample::select(&PATTERNS[..]);
    let side = || prop_oneof![2 => name(), 1 => proptest::sample::select(&CONSTANTS[..])];
    let operator = proptest::sample::select(vec!["==", "!=", "<", "<=", ">", ">="]);
    let leaf = prop_oneof![
        4 => (side(), operator, side()).prop_map(|(left, operator, right)| format!("{left} {operator} {right}")),
        2 => (side(), pattern).prop_map(|(side, pattern)| format!("{side} ~ \"{pattern}\"")),
        2 => name().prop_map(String::from),
        1 => any::<bool>().prop_map(|boolean| boolean.to_string()),
    ];
    leaf.prop_recursive(5, 40, 3, |inner| {
        prop_oneof![
            1 => inner.clone().prop_map(|inner| format!("not ({inner})")),
            2 => (any::<bool>(), proptest::collection::vec(inner, 2..4)).prop_map(|(is_and, terms)| {
                let terms: Vec<String> = terms.iter().map(|term| format!("({term})")).collect();
                terms.join(if is_and { " and " } else { " or " })
            }),
        ]
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2_000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn conditions_hold_for_the_events_that_filters_select(
        text in expressions(),
        events in proptest::collection::vec(proptest::array::uniform5(values()), 1..8),
    ) {
        let filter = Filter::parse(&text).unwrap_or_else(|error| panic!("{error}"));
        let test = filter.compile(&vec![Binding::Field(Kind::Any); filter.names().len()]);
        let rule = match RuleText::parse(&format!("shop:* where {text}")).unwrap().to_rule() {
            Err(error) if error.what.starts_with("the texts of tags have no order") => return Ok(()),
            rule => rule.unwrap(),
        };
        prop_assert_eq!(&filter.condition().unwrap(), &rule.condition);
        let decoded = from_bytes(&to_bytes(std::slice::from_ref(&rule))).unwrap();
        prop_assert_eq!(&decoded, &vec![rule]);
        for values in &events {
            let selected = test.wants(&mut Event(values));
            prop_assert_eq!(decoded[0].condition.holds(&mut Event(values)), selected, "{} of {:?}", text, values);
        }
    }

    #[test]
    fn any_text_is_a_rule_or_refused(
        text in "[!a-z0-9:* \"~=<>()]{0,12}( level ?(<=|==)[a-z0-9]{0,7})?( where )?[a-z0-9 \"~=<>!&|().`]{0,20}",
    ) {
        match RuleText::parse(&text) {
            Ok(rule) => {
                prop_assert!(!rule.pattern.is_empty());
                prop_assert!(!rule.is_exclusion || rule.filter.is_none());
            }
            Err(error) => prop_assert!(!error.to_string().is_empty() && error.column <= text.chars().count() + 1),
        }
    }
}
