//! Conversion of column values to Python objects.

use arrow_array::cast::AsArray;
use arrow_array::types::*;
use arrow_array::{Array, ArrayRef, BooleanArray};
use arrow_schema::{DataType, TimeUnit};
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyBytes, PyDict, PyFloat, PyInt, PyList, PyString};

use crate::TraceError;

/// Returns the value in a row, or `None` if it is null.
pub(crate) fn value<'py>(py: Python<'py>, array: &ArrayRef, row: usize) -> PyResult<Option<Bound<'py, PyAny>>> {
    if array.is_null(row) {
        return Ok(None);
    }
    macro_rules! number {
        ($type:ty, $object:ty) => {
            <$object>::new(py, array.as_primitive::<$type>().value(row)).into_any()
        };
    }
    Ok(Some(match array.data_type() {
        DataType::Int8 => number!(Int8Type, PyInt),
        DataType::Int16 => number!(Int16Type, PyInt),
        DataType::Int32 => number!(Int32Type, PyInt),
        DataType::Int64 => number!(Int64Type, PyInt),
        DataType::UInt8 => number!(UInt8Type, PyInt),
        DataType::UInt16 => number!(UInt16Type, PyInt),
        DataType::UInt32 => number!(UInt32Type, PyInt),
        DataType::UInt64 => number!(UInt64Type, PyInt),
        DataType::Timestamp(TimeUnit::Nanosecond, _) => number!(TimestampNanosecondType, PyInt),
        DataType::Duration(TimeUnit::Nanosecond) => number!(DurationNanosecondType, PyInt),
        DataType::Float32 => PyFloat::new(py, array.as_primitive::<Float32Type>().value(row).into()).into_any(),
        DataType::Float64 => PyFloat::new(py, array.as_primitive::<Float64Type>().value(row)).into_any(),
        DataType::Boolean => boolean(py, array.as_boolean(), row),
        DataType::Utf8 => PyString::new(py, array.as_string::<i32>().value(row)).into_any(),
        DataType::Binary => PyBytes::new(py, array.as_binary::<i32>().value(row)).into_any(),
        DataType::Dictionary(..) => {
            let dictionary = array.as_dictionary::<Int32Type>();
            let names = dictionary.values().as_string::<i32>();
            PyString::new(py, names.value(dictionary.keys().value(row) as usize)).into_any()
        }
        DataType::List(_) => {
            let elements = array.as_list::<i32>().value(row);
            let list = PyList::empty(py);
            for index in 0..elements.len() {
                list.append(value(py, &elements, index)?)?;
            }
            list.into_any()
        }
        DataType::Struct(fields) => {
            let (dict, columns) = (PyDict::new(py), array.as_struct().columns());
            for (field, column) in fields.iter().zip(columns) {
                if let Some(value) = value(py, column, row)? {
                    dict.set_item(field.name(), value)?;
                }
            }
            dict.into_any()
        }
        other => return Err(TraceError::new_err(format!("a column of {other} cannot be shown"))),
    }))
}

fn boolean<'py>(py: Python<'py>, array: &BooleanArray, row: usize) -> Bound<'py, PyAny> {
    PyBool::new(py, array.value(row)).to_owned().into_any()
}
