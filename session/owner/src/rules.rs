//! The rules of a session: which events of which classes are recorded.
//!
//! ```text
//!   texts that a user gives ──▶ RuleSet::parse ──▶ rules, for programs      ──▶ the register
//!   ('http:* where bytes > 4K')        │           their texts, for people  ──▶ the register, the state stream
//!                                      └─▶ a line that says what is wrong, and nothing has changed
//! ```

use dormouse_abi::rule::{ALL, RULE_COUNT_MAX, RULES_SIZE_BYTES_MAX, Rule, Sample, to_bytes};
use dormouse_abi::tag::TagNames;
use dormouse_abi::text::is_printable;
use dormouse_filter::RuleText;

use crate::error::Error;

/// Rules that a session can have.
#[derive(Debug, Clone)]
pub struct RuleSet {
    rules: Vec<Rule>,
    parsed: Vec<RuleText>,
    /// The texts of the rules, one a line.
    text: String,
}

impl RuleSet {
    /// Parses the texts of rules. If there are only exclusions, or no rules, `*` is added: all other classes.
    ///
    /// # Errors
    /// A text is not a rule, with a line that shows where; or there are more rules, or larger ones, than a session has
    /// room for.
    pub fn parse(texts: &[String]) -> Result<RuleSet, Error> {
        let mut texts: Vec<&str> = texts.iter().map(|text| text.trim()).collect();
        let parsed = texts.iter().map(|text| parse_one(text)).collect::<Result<Vec<(RuleText, Rule)>, Error>>()?;
        let (parsed, mut rules): (Vec<RuleText>, Vec<Rule>) = parsed.into_iter().unzip();
        if rules.iter().all(|rule| rule.is_exclusion) {
            texts.insert(0, ALL);
            rules.insert(0, Rule::all(ALL));
        }
        if rules.len() > RULE_COUNT_MAX {
            let text = format!(
                "there are {} rules, and a session has at most {RULE_COUNT_MAX}; join patterns by `*`, or conditions by `or`",
                rules.len()
            );
            return Err(text.into());
        }
        let text = texts.join("\n");
        let size_bytes = to_bytes(&rules).len().max(text.len());
        if size_bytes > RULES_SIZE_BYTES_MAX {
            let text = format!(
                "the rules have {size_bytes} bytes, and a session has room for {RULES_SIZE_BYTES_MAX}; join some by `*`, or leave some out"
            );
            return Err(text.into());
        }
        Ok(RuleSet { rules, parsed, text })
    }

    /// Returns the rules.
    pub fn rules(&self) -> &[Rule] {
        &self.rules
    }

    /// Returns the texts of the rules, one a line.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// Checks the tails of rules against the session, whose owner decides by what has been recorded.
    ///
    /// # Errors
    /// The session has tails, and is in overwrite mode, where its owner does not see events before they are overwritten.
    /// Or a rule asks for a tag that the session does not record, or has a rate, which is one for each process.
    pub(crate) fn check_tails(&self, is_overwrite: bool, tags: &TagNames) -> Result<(), Error> {
        if self.parsed.iter().all(|rule| rule.tail.is_none()) {
            return Ok(());
        }
        if is_overwrite {
            let text = "a rule with a tail needs --mode discard: in overwrite mode, events are overwritten before it is \
                        known which ones the tail keeps";
            return Err(text.to_string().into());
        }
        for rule in &self.parsed {
            let is_recorded = |tag: &str| tags.iter().any(|recorded| recorded == tag);
            if let Some(tag) = rule.tags().filter_map(|name| name.tag()).find(|tag| !is_recorded(tag)) {
                return Err(rule.tag_not_recorded(tag).to_string().into());
            }
            if matches!(rule.sample, Some(Sample::PerSecond(_))) {
                return Err(rule.rate_beside_tail().to_string().into());
            }
        }
        Ok(())
    }

    /// Whether all events of all classes are recorded.
    pub fn is_all(&self) -> bool {
        self.text == ALL
    }
}

fn parse_one(text: &str) -> Result<(RuleText, Rule), Error> {
    if !text.chars().all(is_printable) {
        let text = format!(
            "the rule `{}` has characters that cannot be printed; write a rule in one line, with \\n, \\t or \\x1b in quoted text",
            text.escape_default()
        );
        return Err(text.into());
    }
    let parsed = RuleText::parse(text).map_err(|error| error.to_string())?;
    let rule = parsed.to_rule().map_err(|error| error.to_string())?;
    Ok((parsed, rule))
}

#[cfg(test)]
mod tests {
    use dormouse_abi::class::Level;
    use dormouse_abi::rule::LevelBound;

    use super::*;

    fn parse(texts: &[&str]) -> Result<RuleSet, String> {
        let texts: Vec<String> = texts.iter().map(|text| text.to_string()).collect();
        RuleSet::parse(&texts).map_err(String::from)
    }

    #[test]
    fn rules_are_parsed_and_their_texts_kept() {
        let set = parse(&["http:* where bytes > 4K", " db:query ", "!http:ping"]).unwrap();
        assert_eq!(set.text(), "http:* where bytes > 4K\ndb:query\n!http:ping");
        let told = |rule: &Rule| (rule.pattern.clone(), rule.is_exclusion, rule.condition.tests.len());
        let rules: Vec<(String, bool, usize)> = set.rules().iter().map(told).collect();
        assert_eq!(rules, [("http:*".into(), false, 1), ("db:query".into(), false, 0), ("http:ping".into(), true, 0)]);
        assert!(!set.is_all() && parse(&["*"]).unwrap().is_all());
    }

    #[test]
    fn exclusions_alone_leave_all_other_classes() {
        let set = parse(&["!libc:free", "!libc:malloc"]).unwrap();
        assert_eq!(set.text(), "*\n!libc:free\n!libc:malloc");
        assert_eq!(set.rules()[0], parse(&["*"]).unwrap().rules()[0]);
        assert!(parse(&[]).unwrap().is_all());
    }

    #[test]
    fn rules_may_have_a_bound_on_levels() {
        let set = parse(&["http:* level<=warn where bytes > 4K", "!http:* level==DEBUG"]).unwrap();
        let levels = [LevelBound::AtMost(Level::Warning), LevelBound::Only(Level::Debug)];
        assert_eq!(set.rules().iter().map(|rule| rule.levels).collect::<Vec<_>>(), levels.map(Some));
        let error = parse(&["http:* level<=LOUD"]).unwrap_err();
        assert!(error.contains("there is no level LOUD; there are EMERG, ") && error.contains('^'), "{error}");
    }

    #[test]
    fn wrong_rules_are_refused_with_the_place() {
        let error = parse(&["db:query", "http:* where bytes >"]).unwrap_err();
        assert!(error.contains("column") && error.contains("bytes >") && error.contains('^'), "{error}");
        let error = parse(&["http:* where path == \"a\nb\""]).unwrap_err();
        assert!(error.contains("cannot be printed") && error.lines().count() == 1, "{error}");
    }

    #[test]
    fn more_rules_than_a_session_has_room_for_are_refused() {
        let many = |count: usize, text: &str| RuleSet::parse(&vec![text.to_string(); count]).map_err(String::from);
        assert_eq!(many(RULE_COUNT_MAX, "a:b").unwrap().rules().len(), RULE_COUNT_MAX);
        let error = many(RULE_COUNT_MAX + 1, "a:b").unwrap_err();
        assert!(error.contains("there are 65 rules") && error.contains("at most 64"), "{error}");
        // With the rule `*` that is added, there is one too many.
        assert!(many(RULE_COUNT_MAX, "!a:b").unwrap_err().contains("there are 65 rules"));
        let long = format!("a:b where path == \"{}\"", "x".repeat(1_000));
        let error = many(RULE_COUNT_MAX, &long).unwrap_err();
        assert!(error.contains(&format!("room for {RULES_SIZE_BYTES_MAX}")), "{error}");
    }
}
