//! Named queries.
//!
//! Each is an SQL file. Its first lines are comments: `-- about` describes the query, `-- rows: N` says how many rows are
//! shown, and `-- needs: TABLE` names a table that the trace must have. Text in `/*+ … */` is used only for a store: process ids are unique on one host, and
//! a store has several.

use crate::fault;

/// A named query.
#[derive(Debug)]
pub(crate) struct Named {
    pub name: &'static str,
    pub sql: &'static str,
}

macro_rules! named {
    ($($name:literal)*) => {
        /// All named queries, in alphabetical order.
        pub(crate) const ALL: &[Named] = &[$(Named { name: $name, sql: include_str!(concat!("named/", $name, ".sql")) }),*];
    };
}

named! { "alloc-leaks" "alloc-sizes" "busiest" "classes-by-second" "io-by-file" "latency" "mutex-contention" "mutex-waits" "rwlock-waits" "slowest" "threads" "time-by-file" }

/// Returns the most similar name, as the end of a sentence, and the command that lists all names.
pub(crate) fn nearest(name: &str) -> String {
    let names: Vec<&str> = ALL.iter().map(|named| named.name).collect();
    let meant = fault::meant(name, &names).map(|best| format!("; did you mean {best}?")).unwrap_or(";".into());
    format!("{meant} `dormouse query --named` lists all {}", names.len())
}

impl Named {
    pub(crate) fn find(name: &str) -> Option<&'static Named> {
        ALL.iter().find(|named| named.name == name)
    }

    /// Returns the query's text for traces, or for a store.
    pub(crate) fn text(&self, is_store: bool) -> String {
        if is_store { self.sql.replace("/*+", "").replace("*/", "") } else { self.sql.into() }
    }

    /// Returns the description, one line.
    pub(crate) fn about(&self) -> &'static str {
        self.sql.lines().next().and_then(|line| line.strip_prefix("-- ")).unwrap_or_default()
    }

    /// Returns the text for people. It does not begin with hyphens, so that it can be an argument.
    pub(crate) fn shown(&self) -> String {
        let about = self.about();
        self.sql.replacen(&format!("-- {about}"), &format!("/* {about} */"), 1)
    }

    /// Returns how many rows are shown unless the user gives a number; `None` for all.
    pub(crate) fn rows_max(&self) -> Option<usize> {
        self.sql.lines().find_map(|line| line.strip_prefix("-- rows: "))?.parse().ok()
    }

    /// Returns the first table that the query needs and that is absent.
    pub(crate) fn lacks(&self, tables: &[String]) -> Option<&'static str> {
        let needs = self.sql.lines().filter_map(|line| line.strip_prefix("-- needs: "));
        needs.into_iter().find(|table| !tables.iter().any(|there| there == table))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn named_queries_have_descriptions_and_are_sorted() {
        for named in ALL {
            assert!(named.about().len() > 10, "{}", named.name);
            assert!(named.sql.contains("select"), "{}", named.name);
            assert!(!named.shown().starts_with('-'), "{}", named.name);
            // Rows that a query leaves out itself would not be counted.
            let is_cut = named.sql.contains("\nlimit ");
            assert!(!is_cut || named.about().contains("ten"), "{}", named.name);
            assert_eq!(named.sql.contains("-- rows:"), named.rows_max().is_some(), "{}", named.name);
        }
        assert!(ALL.is_sorted_by_key(|named| named.name));
    }
}
