//! Tables, which start a new reading for each consumer.

use std::sync::{Arc, Mutex, PoisonError};

use arrow_array::RecordBatch;
use arrow_array::ffi_stream::FFI_ArrowArrayStream;
use arrow_schema::SchemaRef;
use arrow_schema::ffi::FFI_ArrowSchema;
use dormouse_reader::TraceFiles;
use pyo3::prelude::*;
use pyo3::types::{PyCapsule, PyDict, PyString};

use crate::objects::value;
use crate::reading::{self, Query, Reader, Warnings};
use crate::{RequestError, TraceError};

/// Rows of a trace: events, or pairs of events. Nothing is read until the rows are requested; each request starts a new
/// reading.
///
/// pandas, Polars, DuckDB and pyarrow take the table through the Arrow C stream interface, without copying:
/// `polars.DataFrame(table)`, `pandas.DataFrame.from_arrow(table)`, `pyarrow.table(table)`, `duckdb.sql("from table")`.
/// Iterating over the table yields a dict for each row.
#[pyclass(frozen, module = "dormouse")]
pub(crate) struct Table {
    files: Arc<TraceFiles>,
    query: Query,
    schema: SchemaRef,
    is_strict: bool,
    warnings: Warnings,
}

impl Table {
    pub(crate) fn new(files: Arc<TraceFiles>, query: Query, is_strict: bool) -> PyResult<Table> {
        let schema = query.schema(&files).map_err(|error| RequestError::new_err(error.to_string()))?;
        Ok(Table { files, query, schema, is_strict, warnings: Warnings::default() })
    }

    fn start(&self) -> PyResult<Reader> {
        let (files, warnings) = (Arc::clone(&self.files), Arc::clone(&self.warnings));
        let reader = reading::start(files, self.query.clone(), Arc::clone(&self.schema), self.is_strict, warnings);
        reader.map_err(|error| TraceError::new_err(format!("cannot start a thread that reads: {error}")))
    }
}

#[pymethods]
impl Table {
    /// Names of the columns, in their order.
    #[getter]
    fn columns(&self) -> Vec<String> {
        self.schema.fields().iter().map(|field| field.name().clone()).collect()
    }

    /// Arrow types of the columns, by name.
    #[getter]
    fn types<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let types = PyDict::new(py);
        for field in self.schema.fields() {
            types.set_item(field.name(), field.data_type().to_string())?;
        }
        Ok(types)
    }

    /// Problems that the last complete reading found in the trace, a line each: damaged packets, files that were left
    /// out, events without their counterpart. Empty before. Rows that can be read are returned nevertheless, unless
    /// `strict` is true.
    #[getter]
    fn warnings(&self) -> Vec<String> {
        self.warnings.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The columns, for the Arrow C data interface.
    fn __arrow_c_schema__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyCapsule>> {
        let schema = FFI_ArrowSchema::try_from(self.schema.as_ref());
        let schema = schema.map_err(|error| TraceError::new_err(error.to_string()))?;
        PyCapsule::new_with_value(py, schema, c"arrow_schema")
    }

    /// Starts a reading and returns its batches through the Arrow C stream interface. Other schemas are not supported.
    #[pyo3(signature = (requested_schema=None))]
    fn __arrow_c_stream__<'py>(
        &self,
        py: Python<'py>,
        requested_schema: Option<Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyCapsule>> {
        // The interface lets a producer that cannot convert return its own schema.
        drop(requested_schema);
        let stream = FFI_ArrowArrayStream::new(Box::new(self.start()?));
        PyCapsule::new_with_value(py, stream, c"arrow_array_stream")
    }

    /// Starts a reading and yields each row as a dict, without null columns. Times are int, nanoseconds since 1970 UTC.
    fn __iter__(&self, py: Python<'_>) -> PyResult<Rows> {
        let names = self.schema.fields().iter().map(|field| PyString::intern(py, field.name()).unbind()).collect();
        Ok(Rows { names, state: Mutex::new(State { reader: self.start()?, batch: None, row: 0 }) })
    }

    fn __repr__(&self) -> String {
        format!("<dormouse.Table of {}>", self.columns().join(", "))
    }
}

/// Iterator over the rows of a table.
#[pyclass(frozen, module = "dormouse")]
pub(crate) struct Rows {
    names: Vec<Py<PyString>>,
    state: Mutex<State>,
}

struct State {
    reader: Reader,
    batch: Option<RecordBatch>,
    row: usize,
}

impl State {
    /// Returns the batch and the index of the next row.
    fn next(&mut self) -> Result<Option<(RecordBatch, usize)>, arrow_schema::ArrowError> {
        loop {
            if let Some(batch) = &self.batch
                && self.row < batch.num_rows()
            {
                self.row += 1;
                return Ok(Some((batch.clone(), self.row - 1)));
            }
            self.row = 0;
            self.batch = self.reader.next().transpose()?;
            if self.batch.is_none() {
                return Ok(None);
            }
        }
    }
}

#[pymethods]
impl Rows {
    fn __iter__(this: Py<Rows>) -> Py<Rows> {
        this
    }

    fn __next__<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyDict>>> {
        // Detached, because another thread may hold the lock while it waits for a batch.
        let next = py.detach(|| self.state.lock().unwrap_or_else(PoisonError::into_inner).next());
        let next = next.map_err(|error| TraceError::new_err(error.to_string()))?;
        let Some((batch, row)) = next else { return Ok(None) };
        let dict = PyDict::new(py);
        for (name, column) in self.names.iter().zip(batch.columns()) {
            if let Some(value) = value(py, column, row)? {
                dict.set_item(name, value)?;
            }
        }
        Ok(Some(dict))
    }
}
