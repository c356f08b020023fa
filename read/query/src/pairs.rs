//! The table `pairs`, whose begins and ends are found by the names of classes; and `pairs('BEGIN', 'END', 'KEY')`, in
//! which the query names them.

use std::sync::atomic::Ordering;
use std::sync::{Arc, OnceLock};

use async_trait::async_trait;
use datafusion::arrow::array::RecordBatch;
use datafusion::arrow::datatypes::SchemaRef;
use datafusion::catalog::{Session, TableFunctionArgs, TableFunctionImpl, TableProvider};
use datafusion::common::ScalarValue;
use datafusion::error::{DataFusionError, Result};
use datafusion::logical_expr::{Expr, TableType};
use datafusion::physical_plan::ExecutionPlan;
use dormouse_abi::class::matches;
use dormouse_analysis::timeline::{FoundKey, GivenPair};
use dormouse_ctf::ClassRef;
use dormouse_store::Error;
use dormouse_store::pairs::{Group, Rule, of_names, schema, survey};

use crate::leaf::{Leaf, Work};
use crate::traces::Traces;

/// The table `pairs`.
#[derive(Debug)]
pub(crate) struct PairsTable {
    traces: &'static Traces,
    groups: Vec<Group>,
    /// The pair that the query names.
    given: Option<GivenPair>,
    schema: SchemaRef,
}

fn plan(error: Error) -> DataFusionError {
    DataFusionError::Plan(error.0)
}

/// An error of finding the pairs, or of the consumer of their batches.
struct Wrong(DataFusionError);

impl From<Error> for Wrong {
    fn from(error: Error) -> Wrong {
        Wrong(plan(error))
    }
}

impl PairsTable {
    /// Returns the table of pairs found by the names of classes.
    pub(crate) fn of_names(traces: &'static Traces) -> PairsTable {
        PairsTable { traces, groups: of_names(&traces.files), given: None, schema: schema() }
    }

    /// Returns the table of pairs of the given classes.
    fn of(traces: &'static Traces, begin: String, end: String, key: Vec<String>) -> Result<PairsTable> {
        let classes: Vec<ClassRef<'_>> = traces.files.traces().flat_map(ClassRef::all).collect();
        for pattern in [&begin, &end] {
            if !classes.iter().any(|class| matches(pattern, &class.class.full_name)) {
                let names = crate::push::class_names(traces);
                let near = crate::fault::nearest(pattern, names.iter().map(String::as_str));
                return Err(DataFusionError::Plan(format!("pairs: no event class matches '{pattern}'{near}")));
            }
        }
        let name = format!("{begin}..{end}");
        let given = Some(GivenPair { name: name.clone(), begin: begin.clone(), end: end.clone() });
        let rule = Rule { name, begins: vec![begin], ends: vec![end], only: None, is_wait: false };
        // As in `stats --latency`: threads belong to one trace, other keys do not.
        let trace_count = traces.files.traces().count();
        let of_traces: Vec<Option<usize>> =
            if key.is_empty() { (0..trace_count).map(Some).collect() } else { vec![None] };
        let group = |trace| Group { trace, key: key.clone(), rules: vec![rule.clone()] };
        let groups = of_traces.into_iter().map(group).collect();
        let table = PairsTable { traces, groups, given, schema: schema() };
        for group in &table.groups {
            group.layout(&traces.files, false).map_err(plan)?;
        }
        Ok(table)
    }
}

#[async_trait]
impl TableProvider for PairsTable {
    fn schema(&self) -> SchemaRef {
        Arc::clone(&self.schema)
    }

    fn table_type(&self) -> TableType {
        TableType::View
    }

    async fn scan(
        &self,
        _: &dyn Session,
        projection: Option<&Vec<usize>>,
        _: &[Expr],
        _: Option<usize>,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        let all: Vec<usize> = (0..self.schema.fields().len()).collect();
        let projection = projection.unwrap_or(&all).clone();
        let schema = Arc::new(self.schema.project(&projection)?);
        let about =
            format!("TraceExec: pairs of {} names", self.groups.iter().map(|group| group.rules.len()).sum::<usize>());
        let (groups, given) = (self.groups.clone(), self.given.clone());
        let work = PairWork { traces: self.traces, groups, given, found: OnceLock::new(), projection };
        Ok(Arc::new(Leaf::new(about, schema, self.groups.len().max(1), Arc::new(work))))
    }
}

struct PairWork {
    traces: &'static Traces,
    groups: Vec<Group>,
    given: Option<GivenPair>,
    /// Keys of pairs that are not matched by thread, once a partition has looked for them.
    found: OnceLock<std::result::Result<Vec<FoundKey>, String>>,
    projection: Vec<usize>,
}

impl PairWork {
    /// Returns the keys of pairs that are not matched by thread. The first call reads the traces.
    fn found(&self) -> Result<&[FoundKey]> {
        let found = self.found.get_or_init(|| {
            let found = survey(&self.traces.files, &self.groups, self.given.clone()).map_err(|Error(text)| text)?;
            for found in &found {
                // Pairs that nothing identifies can be wrong.
                let say = if found.fields.is_empty() { Traces::warn } else { Traces::say_later };
                say(self.traces, found.text());
            }
            Ok(found)
        });
        found.as_deref().map_err(|text| DataFusionError::Plan(text.clone()))
    }
}

impl Work for PairWork {
    fn run(&self, partition: usize, _: usize, give: &mut dyn FnMut(RecordBatch) -> bool) -> Result<()> {
        let Some(group) = self.groups.get(partition) else { return Ok(()) };
        let files = &self.traces.files;
        let streams = files.readers().enumerate().filter(|(_, (trace, _))| group.trace.is_none_or(|of| of == *trace));
        let size_bytes: u64 = streams.map(|(stream, _)| files.stream_size_bytes(stream)).sum();
        self.traces.all_bytes.fetch_add(size_bytes, Ordering::Relaxed);
        let (mut across_losses, mut not_followed) = (0, 0);
        for group in group.clone().by_found(self.found()?) {
            let done = group.run(files, &self.projection, |found| Ok(give(found))).map_err(|Wrong(error)| error)?;
            let Some((unpaired, damage)) = done else { return Ok(()) };
            self.traces.note(&damage);
            across_losses += unpaired.across_losses;
            not_followed += unpaired.not_followed;
        }
        self.traces.read_bytes.fetch_add(size_bytes, Ordering::Relaxed);
        for (count, what) in [
            (across_losses, "pairs are left out: events may have been lost between begin and end"),
            (not_followed, "begins are left out: too many were open at once"),
        ] {
            if count > 0 {
                self.traces.warn(format!("{count} {what}"));
            }
        }
        Ok(())
    }
}

/// The table function `pairs('BEGIN', 'END', 'KEY')`.
#[derive(Debug)]
pub(crate) struct PairsFunction(pub &'static Traces);

impl TableFunctionImpl for PairsFunction {
    fn call_with_args(&self, args: TableFunctionArgs<'_, '_>) -> Result<Arc<dyn TableProvider>> {
        let Asked { begin, end, key } = Asked::of(args.exprs())?;
        Ok(Arc::new(PairsTable::of(self.0, begin, end, key)?))
    }
}

/// Arguments of `pairs(…)`.
#[derive(Debug)]
pub(crate) struct Asked {
    pub begin: String,
    pub end: String,
    /// Names of fields. If empty, pairs are matched by thread.
    pub key: Vec<String>,
}

impl Asked {
    /// Parses the arguments.
    pub(crate) fn of(arguments: &[Expr]) -> Result<Asked> {
        let text = |expr: &Expr| match expr {
            Expr::Literal(ScalarValue::Utf8(Some(text)) | ScalarValue::Utf8View(Some(text)), _) => Ok(text.clone()),
            other => Err(DataFusionError::Plan(format!("pairs: arguments are texts in single quotes, not {other}"))),
        };
        let texts = arguments.iter().map(text).collect::<Result<Vec<_>>>()?;
        match texts.as_slice() {
            [begin, end] => Ok(Asked { begin: begin.clone(), end: end.clone(), key: Vec::new() }),
            [begin, end, key] => {
                let key = key.split(',').map(|name| name.trim().to_string()).collect();
                Ok(Asked { begin: begin.clone(), end: end.clone(), key })
            }
            _ => Err(DataFusionError::Plan("pairs takes ('BEGIN', 'END') or ('BEGIN', 'END', 'KEY,KEY')".into())),
        }
    }
}
