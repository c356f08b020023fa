"""Traces of the Common Trace Format as Arrow columns and as Python objects.

    import dormouse, polars
    trace = dormouse.open("out/")
    requests = trace.events("http:request", columns=["time", "tid", "id"])
    polars.DataFrame(requests)

Times are nanoseconds since 1970 UTC.
"""

from ._dormouse import (
    Error,
    EventClass,
    Losses,
    Process,
    RequestError,
    Rows,
    Table,
    Trace,
    TraceError,
    open,
)

__all__ = [
    "Error",
    "EventClass",
    "Losses",
    "Process",
    "RequestError",
    "Rows",
    "Table",
    "Trace",
    "TraceError",
    "open",
]
