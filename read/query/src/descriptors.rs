//! The window function `descriptor_path`: the path of a process's file descriptor, row by row.
//!
//! Its arguments describe a call, in this order. Each may be null, and a number below 0 is not a descriptor.
//!
//! ```text
//!   descriptor_path(first, last, fd, oldfd, path) over (partition by pid order by time)
//!     first, last    descriptors that no longer have a path
//!     fd, oldfd      `fd` has the path that `oldfd` had before
//!     fd, path       `fd` has this path
//! ```
//! Three arguments more follow processes that fork, so that rows of all processes are in one partition:
//!
//! ```text
//!   descriptor_path(first, last, fd, oldfd, path, pid, number, parent) over (order by time)
//!     pid              process of the row
//!     number           `pid` is about to fork for the time with this number
//!     number, parent   `pid` begins as the child of that fork, with the paths that `parent` had
//! ```
//! Its value is the path of `fd` after the call, or null if the path is not known. A process begins with `standard input`,
//! `standard output` and `standard error` as the paths of its descriptors 0, 1 and 2.

use std::collections::{BTreeMap, HashMap};
use std::ops::Range;
use std::sync::Arc;

use datafusion::arrow::array::cast::AsArray;
use datafusion::arrow::array::types::Int64Type;
use datafusion::arrow::array::{Array, ArrayRef};
use datafusion::arrow::datatypes::{DataType, Field, FieldRef};
use datafusion::common::ScalarValue;
use datafusion::error::Result;
use datafusion::logical_expr::function::{PartitionEvaluatorArgs, WindowUDFFieldArgs};
use datafusion::logical_expr::{PartitionEvaluator, Signature, TypeSignature, Volatility, WindowUDF, WindowUDFImpl};

/// Returns the window function `descriptor_path`.
pub(crate) fn descriptor_path() -> WindowUDF {
    let calls = [vec![DataType::Int64; 4], vec![DataType::Utf8]].concat();
    let forks = [calls.clone(), vec![DataType::Int64; 3]].concat();
    let types = vec![TypeSignature::Exact(calls), TypeSignature::Exact(forks)];
    WindowUDF::new_from_impl(DescriptorPath { signature: Signature::one_of(types, Volatility::Immutable) })
}

#[derive(Debug, PartialEq, Eq, Hash)]
struct DescriptorPath {
    signature: Signature,
}

impl WindowUDFImpl for DescriptorPath {
    fn name(&self) -> &str {
        "descriptor_path"
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn partition_evaluator(&self, _: PartitionEvaluatorArgs) -> Result<Box<dyn PartitionEvaluator>> {
        Ok(Box::new(Processes::default()))
    }

    fn field(&self, of: WindowUDFFieldArgs) -> Result<FieldRef> {
        Ok(Arc::new(Field::new(of.name(), DataType::Utf8, true)))
    }
}

/// The paths of one process's descriptors.
#[derive(Debug, Default)]
struct Paths(BTreeMap<i64, String>);

/// Effect of a call on descriptors.
#[derive(Debug, Clone, Copy, Default)]
struct Call<'a> {
    closed: Option<(i64, i64)>,
    fd: Option<i64>,
    oldfd: Option<i64>,
    path: Option<&'a str>,
}

/// What the first descriptors of a process are by convention (stdin(3)), by number.
const STANDARD: [&str; 3] = ["standard input", "standard output", "standard error"];

impl Paths {
    /// Returns the paths of a process that has made no call yet.
    fn at_start() -> Paths {
        Paths((0..).zip(STANDARD.map(String::from)).collect())
    }

    /// Applies a call, and returns the path of `fd` after it.
    fn after(&mut self, call: Call<'_>) -> Option<&str> {
        let copied = call.oldfd.map(|oldfd| self.0.get(&oldfd).cloned());
        if let Some((first, last)) = call.closed {
            let closed: Vec<i64> =
                if first <= last { self.0.range(first..=last).map(|(fd, _)| *fd).collect() } else { Vec::new() };
            closed.iter().for_each(|fd| drop(self.0.remove(fd)));
        }
        let fd = call.fd.filter(|fd| *fd >= 0)?;
        match call.path.map(|path| Some(path.to_string())).or(copied) {
            Some(Some(path)) => drop(self.0.insert(fd, path)),
            Some(None) => drop(self.0.remove(&fd)),
            None => {}
        }
        self.0.get(&fd).map(String::as_str)
    }
}

/// Process and number of a fork.
type Fork = (Option<i64>, i64);

/// The paths of the descriptors of processes.
#[derive(Debug, Default)]
struct Processes {
    paths: HashMap<Option<i64>, Paths>,
    /// Paths of processes that forked, for children that have not begun. A fork that failed leaves some.
    forks: HashMap<Fork, Paths>,
}

impl Processes {
    /// Applies a row, and returns the path of `fd` after it. `number` and `parent`: those of a fork.
    fn after(&mut self, pid: Option<i64>, number: Option<i64>, parent: Option<i64>, call: Call<'_>) -> Option<&str> {
        if let (Some(number), Some(_)) = (number, parent)
            && let Some(inherited) = self.forks.remove(&(parent, number))
        {
            self.paths.insert(pid, inherited);
        }
        let paths = self.paths.entry(pid).or_insert_with(Paths::at_start);
        if let (Some(number), None) = (number, parent) {
            self.forks.insert((pid, number), Paths(paths.0.clone()));
        }
        paths.after(call)
    }
}

impl PartitionEvaluator for Processes {
    fn evaluate(&mut self, values: &[ArrayRef], range: &Range<usize>) -> Result<ScalarValue> {
        // DataFusion evaluates the rows in order.
        let row = range.start;
        let number = |index: usize| {
            let column = values.get(index)?.as_primitive::<Int64Type>();
            column.is_valid(row).then(|| column.value(row))
        };
        let paths = values[4].as_string::<i32>();
        let call = Call {
            closed: number(0).zip(number(1)),
            fd: number(2),
            oldfd: number(3),
            path: paths.is_valid(row).then(|| paths.value(row)),
        };
        let path = self.after(number(5), number(6), number(7), call);
        Ok(ScalarValue::Utf8(path.map(String::from)))
    }

    fn supports_bounded_execution(&self) -> bool {
        true
    }

    fn is_causal(&self) -> bool {
        true
    }
}

#[cfg(test)]
mod tests {
    use std::hash::{BuildHasher, RandomState};

    use super::*;

    /// Compares with an array that has an element for each descriptor.
    #[test]
    fn paths_follow_descriptors() {
        let seed = RandomState::new().hash_one(0) | 1;
        println!("seed {seed}");
        let mut random = seed;
        let mut below = |count: usize| {
            // xorshift64: Marsaglia, "Xorshift RNGs", 2003.
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            (random >> 16) as usize % count
        };
        let (mut paths, mut table) = (Paths::default(), vec![None::<String>; 12]);
        for step in 0..20_000 {
            let (one, other) = (below(12), below(12));
            let path = format!("/{step}");
            let call = match below(4) {
                0 => {
                    table[one] = Some(path.clone());
                    Call { fd: Some(one as i64), path: Some(&path), ..Call::default() }
                }
                1 => {
                    table[other] = table[one].clone();
                    Call { fd: Some(other as i64), oldfd: Some(one as i64), ..Call::default() }
                }
                2 => {
                    (one..=other).for_each(|fd| table[fd] = None);
                    Call { closed: Some((one as i64, other as i64)), fd: Some(one as i64), ..Call::default() }
                }
                _ => Call { fd: Some(other as i64), ..Call::default() },
            };
            let fd = call.fd.unwrap() as usize;
            assert_eq!(paths.after(call), table[fd].as_deref(), "step {step}: {call:?}");
        }
        // Standard streams keep their names in copies, until they are closed.
        let mut paths = Paths::at_start();
        let output = |fd| Call { fd: Some(fd), ..Call::default() };
        for (fd, name) in (0..).zip(STANDARD) {
            assert_eq!(paths.after(output(fd)), Some(name));
        }
        assert_eq!(paths.after(output(3)), None);
        assert_eq!(paths.after(Call { oldfd: Some(1), ..output(5) }), Some("standard output"));
        paths.after(Call { closed: Some((1, 1)), ..Call::default() });
        assert_eq!(paths.after(output(5)), Some("standard output"));
        assert_eq!(paths.after(output(1)), None);
        // A failed call.
        assert_eq!(paths.after(Call { fd: Some(-2), path: Some("/x"), ..Call::default() }), None);
    }

    /// A child has the paths that its parent had when it forked, whatever the parent does before the child's first row.
    #[test]
    fn a_child_begins_with_the_paths_of_its_parent() {
        let mut processes = Processes::default();
        let (parent, child, other) = (Some(7), Some(8), Some(9));
        let opened = |path| Call { fd: Some(4), path: Some(path), ..Call::default() };
        let used = Call { fd: Some(4), ..Call::default() };
        processes.after(parent, None, None, opened("/a"));
        processes.after(parent, Some(1), None, Call::default());
        processes.after(parent, None, None, opened("/b"));
        processes.after(parent, Some(2), None, Call::default());
        processes.after(child, Some(1), parent, Call::default());
        assert_eq!(processes.after(child, None, None, used), Some("/a"));
        processes.after(child, None, None, opened("/c"));
        assert_eq!(processes.after(parent, None, None, used), Some("/b"));
        processes.after(other, Some(2), parent, Call::default());
        assert_eq!(processes.after(other, None, None, used), Some("/b"));
        // A fork that is not in the trace.
        processes.after(Some(10), Some(3), parent, Call::default());
        assert_eq!(processes.after(Some(10), None, None, used), None);
        assert!(processes.forks.is_empty());
    }
}
