//! Conversion of Python times.

use pyo3::prelude::*;
use pyo3::types::PyString;

use crate::RequestError;

/// Returns nanoseconds since 1970 UTC. The value is an int in this unit, text with a date, a time and a zone (ISO
/// 8601), or a `datetime` (also `pandas.Timestamp`) with a zone.
pub(crate) fn time_ns(name: &str, value: Option<&Bound<'_, PyAny>>) -> PyResult<Option<i64>> {
    let Some(value) = value else { return Ok(None) };
    if let Ok(ns) = value.extract::<i64>() {
        return Ok(Some(ns));
    }
    let py = value.py();
    let error = |why: String| RequestError::new_err(format!("{name}: {why}"));
    let datetime = py.import("datetime")?;
    let class = datetime.getattr("datetime")?;
    let time = if value.is_instance_of::<PyString>() {
        class.call_method1("fromisoformat", (value,)).map_err(|cause| error(cause.value(py).to_string()))?
    } else {
        value.clone()
    };
    if !time.is_instance(&class)? {
        return Err(error(format!(
            "a time is an int (nanoseconds since 1970 UTC), a datetime, or its text, not {}",
            time.get_type().name()?
        )));
    }
    if time.getattr("tzinfo")?.is_none() {
        return Err(error("this time has no zone: `+00:00` behind it, or tzinfo=timezone.utc, makes it UTC".into()));
    }
    let epoch = class.call_method1("fromtimestamp", (0, datetime.getattr("timezone")?.getattr("utc")?))?;
    let since = time.call_method1("__sub__", (epoch,))?;
    let part = |name: &str| since.getattr(name)?.extract::<i64>();
    let seconds = 86_400 * part("days")? + part("seconds")?;
    // `pandas.Timestamp` has nanoseconds in addition to the microseconds of a datetime.
    let rest_ns = time.getattr("nanosecond").and_then(|rest| rest.extract::<i64>()).unwrap_or(0);
    let rest_ns = 1000 * part("microseconds")? + rest_ns;
    let ns = seconds.checked_mul(1_000_000_000).and_then(|ns| ns.checked_add(rest_ns));
    ns.map(Some).ok_or_else(|| error("is beyond the years 1678 to 2262".into()))
}
