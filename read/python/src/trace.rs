//! Traces and their metadata.

use std::path::PathBuf;
use std::sync::{Arc, OnceLock};

use dormouse_columns::{PairRequest, Request, classes};
use dormouse_ctf::Stats;
use dormouse_reader::TraceFiles;
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::TraceError;
use crate::reading::Query;
use crate::table::Table;
use crate::time::time_ns;

/// Open the trace in a directory, or all traces in the directories below it.
///
/// Only metadata is read; events are read on request. Raises TraceError if there is no trace, or its metadata cannot be
/// read.
#[pyfunction]
pub(crate) fn open(py: Python<'_>, path: PathBuf) -> PyResult<Trace> {
    let files = py.detach(|| TraceFiles::open(&path)).map_err(|error| TraceError::new_err(error.to_string()))?;
    Ok(Trace { path, files: Arc::new(files), stats: OnceLock::new() })
}

/// A trace of Dormouse, LTTng, barectf, babeltrace2 or another tracer that writes the Common Trace Format, or several
/// traces in one directory.
#[pyclass(frozen, module = "dormouse")]
pub(crate) struct Trace {
    path: PathBuf,
    files: Arc<TraceFiles>,
    stats: OnceLock<Stats>,
}

/// An event class.
#[pyclass(frozen, get_all, module = "dormouse")]
pub(crate) struct EventClass {
    /// Full name, `provider:name`.
    name: String,
    /// Arrow types of the fields, by the names of their columns.
    fields: Py<PyDict>,
}

/// Events that are missing from the trace.
#[pyclass(frozen, get_all, module = "dormouse")]
pub(crate) struct Losses {
    /// Number of events that are known to be lost.
    count: u64,
    /// Counted losses whose class is known, by class.
    by_class: Py<PyDict>,
    /// Possible losses that were not counted: (cause, number of times). Empty: no other events are lost.
    possible: Vec<(String, u64)>,
    /// Problems of the trace, a line each: streams that are missing or damaged.
    warnings: Vec<String>,
}

/// A process.
#[pyclass(frozen, get_all, module = "dormouse")]
pub(crate) struct Process {
    /// Its id in its own pid namespace.
    pid: u32,
    /// Its name; empty if the trace does not have it.
    name: String,
    /// Path of its executable; empty if the trace does not have it.
    program: String,
    /// Number of its events; None if event records do not identify their process.
    events: Option<u64>,
}

#[pymethods]
impl EventClass {
    fn __repr__(&self, py: Python<'_>) -> PyResult<String> {
        Ok(format!("<dormouse.EventClass {} {}>", self.name, self.fields.bind(py).repr()?))
    }
}

#[pymethods]
impl Losses {
    fn __repr__(&self) -> String {
        let Losses { count, possible, warnings, .. } = self;
        format!("<dormouse.Losses count={count} possible={} warnings={}>", possible.len(), warnings.len())
    }
}

#[pymethods]
impl Process {
    fn __repr__(&self) -> String {
        let Process { pid, name, program, .. } = self;
        format!("<dormouse.Process {pid} {name:?} {program:?}>")
    }
}

/// One name or several.
#[derive(FromPyObject)]
pub(crate) enum Names {
    One(String),
    Several(Vec<String>),
}

impl Names {
    fn into_vec(self) -> Vec<String> {
        match self {
            Names::One(name) => vec![name],
            Names::Several(names) => names,
        }
    }
}

impl Trace {
    /// Returns statistics of the whole trace, which is read once.
    fn stats(&self, py: Python<'_>) -> &Stats {
        py.detach(|| self.stats.get_or_init(|| self.files.stats()))
    }
}

// Keyword arguments of Python are arguments of the functions.
#[allow(clippy::too_many_arguments)]
#[pymethods]
impl Trace {
    /// The event classes by name, with their fields.
    #[getter]
    fn classes(&self, py: Python<'_>) -> PyResult<Vec<EventClass>> {
        let found = py.detach(|| classes(self.files.traces()));
        let class = |class: dormouse_columns::ClassColumns| {
            let fields = PyDict::new(py);
            for field in &class.fields {
                fields.set_item(field.name(), field.data_type().to_string())?;
            }
            Ok(EventClass { name: class.name, fields: fields.unbind() })
        };
        found.into_iter().map(class).collect()
    }

    /// Events in order of time, as a table with a row for each.
    ///
    /// `events`: name of a class, or a pattern with `*` and `?`, or several; None: all. `columns`: columns to read, or
    /// names of nested fields (`at.x`, `a[2]`); None: all columns. Only these are decoded. `where`: condition on the
    /// events, such as `bytes > 4096 and process == "nginx"`; several must all be true. `since`, `until`: first time,
    /// and first time after the range; int (nanoseconds since 1970 UTC), datetime with zone, or ISO 8601 text with
    /// zone. `text`: "str" replaces invalid UTF-8 by U+FFFD, "bytes" returns text as bytes. `strict`: reading raises
    /// TraceError at its end if something was damaged.
    ///
    /// Columns: time (timestamp[ns, UTC]), cpu, pid, tid (uint32), event (dictionary), then the fields.
    ///
    /// Raises RequestError if no class or column matches; the message lists the known ones.
    #[pyo3(signature = (events=None, *, columns=None, r#where=None, since=None, until=None, text="str", strict=false))]
    fn events(
        &self,
        py: Python<'_>,
        events: Option<Names>,
        columns: Option<Names>,
        r#where: Option<Names>,
        since: Option<Bound<'_, PyAny>>,
        until: Option<Bound<'_, PyAny>>,
        text: &str,
        strict: bool,
    ) -> PyResult<Table> {
        let is_text_binary = match text {
            "str" => false,
            "bytes" => true,
            _ => return Err(crate::RequestError::new_err(format!("text is \"str\" or \"bytes\", not {text:?}"))),
        };
        let request = Request {
            events: events.map(Names::into_vec).unwrap_or_default(),
            columns: columns.map(Names::into_vec),
            since_ns: time_ns("since", since.as_ref())?,
            until_ns: time_ns("until", until.as_ref())?,
            conditions: r#where.map(Names::into_vec).unwrap_or_default(),
            is_text_binary,
            ..Request::default()
        };
        py.detach(|| Table::new(Arc::clone(&self.files), Query::Events(request), strict))
    }

    /// Pairs of an event of `begin` and the following event of `end` with the same `key` (names of columns; None: pid
    /// and tid), as a table with a row for each, in order of their ends. An end belongs to the latest open begin.
    ///
    /// Columns: begin, end (timestamp[ns, UTC]), duration (duration[ns]), cpu, pid, tid (of the begin), key (text).
    ///
    /// Raises RequestError as events() does. The table's `warnings` count events without a counterpart.
    #[pyo3(signature = (begin, end, *, key=None, r#where=None, since=None, until=None, strict=false))]
    fn pairs(
        &self,
        py: Python<'_>,
        begin: String,
        end: String,
        key: Option<Names>,
        r#where: Option<Names>,
        since: Option<Bound<'_, PyAny>>,
        until: Option<Bound<'_, PyAny>>,
        strict: bool,
    ) -> PyResult<Table> {
        let (since_ns, until_ns) = (time_ns("since", since.as_ref())?, time_ns("until", until.as_ref())?);
        let key = key.map(Names::into_vec).unwrap_or_default();
        let conditions = r#where.map(Names::into_vec).unwrap_or_default();
        let request = PairRequest { begin, end, key, since_ns, until_ns, conditions };
        py.detach(|| Table::new(Arc::clone(&self.files), Query::Pairs(request), strict))
    }

    /// Events that are missing from the trace. The first access reads the whole trace.
    #[getter]
    fn losses(&self, py: Python<'_>) -> PyResult<Losses> {
        let stats = self.stats(py);
        let by_class = PyDict::new(py);
        for lost in &stats.lost_by_class {
            by_class.set_item(&lost.name, lost.count)?;
        }
        Ok(Losses {
            count: stats.events_lost,
            by_class: by_class.unbind(),
            possible: stats.loss_possible.iter().map(|loss| (loss.cause.clone(), loss.count)).collect(),
            warnings: stats.warnings.clone(),
        })
    }

    /// The processes, the busiest first. The first access reads the whole trace. Empty if events do not identify their
    /// process.
    #[getter]
    fn processes(&self, py: Python<'_>) -> Vec<Process> {
        let process = |process: &dormouse_ctf::stats::ProcessStats| Process {
            pid: process.vpid,
            name: process.name.clone(),
            program: process.program.clone(),
            events: process.count,
        };
        self.stats(py).processes.iter().map(process).collect()
    }

    fn __repr__(&self) -> String {
        format!("<dormouse.Trace {}>", self.path.display())
    }
}
