"""Reads a request to a collector of OpenTelemetry by its own definitions, and prints its spans as JSON."""

import json
import sys

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span

request = ExportTraceServiceRequest()
request.ParseFromString(open(sys.argv[1], "rb").read())


def value(any_value):
    kind = any_value.WhichOneof("value")
    if kind == "array_value":
        return [value(element) for element in any_value.array_value.values]
    if kind == "kvlist_value":
        return attributes(any_value.kvlist_value.values)
    if kind == "bytes_value":
        return any_value.bytes_value.hex()
    return getattr(any_value, kind) if kind else None


def attributes(pairs):
    assert all(pair.key for pair in pairs)
    return {pair.key: value(pair.value) for pair in pairs}


spans = []
for resource_spans in request.resource_spans:
    resource = attributes(resource_spans.resource.attributes)
    assert resource["service.name"]
    for scope_spans in resource_spans.scope_spans:
        assert scope_spans.scope.name == "dormouse"
        for span in scope_spans.spans:
            assert len(span.trace_id) == 16 and any(span.trace_id)
            assert len(span.span_id) == 8 and any(span.span_id)
            assert len(span.parent_span_id) in (0, 8)
            assert span.kind == Span.SPAN_KIND_INTERNAL and span.name
            assert span.end_time_unix_nano >= span.start_time_unix_nano
            spans.append(
                dict(
                    resource=resource,
                    trace=span.trace_id.hex(),
                    id=span.span_id.hex(),
                    parent=span.parent_span_id.hex(),
                    name=span.name,
                    begin=span.start_time_unix_nano,
                    end=span.end_time_unix_nano,
                    attributes=attributes(span.attributes),
                    events=[[event.name, event.time_unix_nano, attributes(event.attributes)] for event in span.events],
                    dropped=[span.dropped_attributes_count, span.dropped_events_count],
                )
            )
json.dump(spans, sys.stdout)
