//! The extension module of the Python package `dormouse`: traces as Arrow columns and as Python objects.
//!
//! ```text
//!   Python: open ─▶ Trace ─▶ events() ─▶ Table ─▶ __arrow_c_stream__ ─▶ pandas, Polars, DuckDB, pyarrow
//!                                         │  each reading
//!                                         ▼
//!                       thread: TraceFiles ─▶ Batches ─▶ channel of 2 batches ─▶ Reader (a RecordBatchReader)
//! ```
//! Each reading has its own thread, which borrows the trace, decodes while Python runs, and does not need Python's
//! lock. Dropping the reader closes the channel, and the thread ends at its next batch. If the thread ends without a
//! final message, the reader returns an error, never a short table. The module has no unsafe code: the structures of
//! the C interface come from Arrow, and the capsules from PyO3.
#![forbid(unsafe_code)]

mod objects;
mod reading;
mod table;
mod time;
mod trace;

use pyo3::exceptions::PyException;
use pyo3::prelude::*;
use pyo3::{create_exception, wrap_pyfunction};

create_exception!(dormouse, Error, PyException, "What all errors of this package are.");
create_exception!(dormouse, TraceError, Error, "The trace cannot be read, or is damaged where `strict` was asked for.");
create_exception!(dormouse, RequestError, Error, "There is no such event class or column, or a time is none.");

#[pymodule]
fn _dormouse(module: &Bound<'_, PyModule>) -> PyResult<()> {
    let py = module.py();
    module.add("Error", py.get_type::<Error>())?;
    module.add("TraceError", py.get_type::<TraceError>())?;
    module.add("RequestError", py.get_type::<RequestError>())?;
    module.add_class::<trace::Trace>()?;
    module.add_class::<trace::EventClass>()?;
    module.add_class::<trace::Losses>()?;
    module.add_class::<trace::Process>()?;
    module.add_class::<table::Table>()?;
    module.add_class::<table::Rows>()?;
    module.add_function(wrap_pyfunction!(trace::open, module)?)?;
    Ok(())
}
