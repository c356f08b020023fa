"""What it takes to read all events of a trace of make_trace: `measure.py DIR dormouse` to pandas, `measure.py DIR bt2` to a list of tuples."""

import sys
import time


def by_dormouse(path):
    import dormouse
    import pandas  # noqa: F401
    import pyarrow

    def read():
        return pyarrow.table(dormouse.open(path).events("made:*")).to_pandas()

    return read


def by_bt2(path):
    import bt2

    def row(message):
        event = message.event
        context, fields = event.common_context_field, event.payload_field
        return (
            message.default_clock_snapshot.ns_from_origin,
            int(event.packet.context_field["cpu_id"]),
            int(context["vpid"]),
            int(context["vtid"]),
            event.name,
            int(fields["id"]),
            int(fields["bytes"]),
            float(fields["ratio"]),
            str(fields["path"]),
        )

    def read():
        messages = bt2.TraceCollectionMessageIterator(path)
        return [row(message) for message in messages if type(message) is bt2._EventMessageConst]

    return read


read = {"dormouse": by_dormouse, "bt2": by_bt2}[sys.argv[2]](sys.argv[1])
elapsed, cpu = time.perf_counter(), time.process_time()
count = len(read())
print(f"{count} events: {time.process_time() - cpu:.2f} s of CPU time, {time.perf_counter() - elapsed:.2f} s elapsed")
