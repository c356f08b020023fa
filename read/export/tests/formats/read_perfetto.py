"""Reads a trace of Perfetto by its own definitions, and prints what a timeline of it has, as JSON.

Slices are put together as the trace processor does it: an end closes what has begun last on its track.
"""

import json
import sys

from perfetto.protos.perfetto.trace import perfetto_trace_pb2 as proto

trace = proto.Trace()
trace.ParseFromString(open(sys.argv[1], "rb").read())

names, categories, annotations = {}, {}, {}
tracks, open_slices, slices, instants, counters, flows = {}, {}, [], [], [], {}
is_cleared = False
clocks = None


def value(annotation):
    if annotation.dict_entries:
        return {name(entry): value(entry) for entry in annotation.dict_entries}
    if annotation.array_values:
        return [value(element) for element in annotation.array_values]
    kind = annotation.WhichOneof("value")
    return [kind.removesuffix("_value"), getattr(annotation, kind)] if kind else None


def name(annotation):
    return annotations[annotation.name_iid] if annotation.name_iid else annotation.name


def args(event):
    return {name(annotation): value(annotation) for annotation in event.debug_annotations}


def label(track):
    descriptor = tracks[track]
    kind = descriptor.WhichOneof("static_or_dynamic_name")
    if descriptor.HasField("process"):
        return f"{descriptor.process.process_name} ({descriptor.process.pid})"
    if descriptor.HasField("thread"):
        assert tracks[descriptor.parent_uuid].process.pid == descriptor.thread.pid
        return f"{label(descriptor.parent_uuid)}/{descriptor.thread.tid}"
    parent = f"{label(descriptor.parent_uuid)}/" if descriptor.parent_uuid else ""
    return parent + getattr(descriptor, kind)


for packet in trace.packet:
    assert packet.trusted_packet_sequence_id == 1
    if packet.sequence_flags & proto.TracePacket.SEQ_INCREMENTAL_STATE_CLEARED:
        is_cleared = True
        assert packet.trace_packet_defaults.timestamp_clock_id == proto.BUILTIN_CLOCK_REALTIME
    if packet.HasField("clock_snapshot"):
        clocks = {clock.clock_id: clock.timestamp for clock in packet.clock_snapshot.clocks}
        assert packet.clock_snapshot.primary_trace_clock == proto.BUILTIN_CLOCK_REALTIME
    if packet.HasField("interned_data"):
        data = packet.interned_data
        for known, new in [
            (names, data.event_names),
            (categories, data.event_categories),
            (annotations, data.debug_annotation_names),
        ]:
            for entry in new:
                assert entry.iid and entry.iid not in known
                known[entry.iid] = entry.name
    if packet.HasField("track_descriptor"):
        descriptor = packet.track_descriptor
        assert descriptor.uuid and (not descriptor.parent_uuid or descriptor.parent_uuid in tracks)
        tracks[descriptor.uuid] = descriptor
    if not packet.HasField("track_event"):
        continue
    assert is_cleared and packet.sequence_flags & proto.TracePacket.SEQ_NEEDS_INCREMENTAL_STATE
    event, ns = packet.track_event, packet.timestamp
    assert event.track_uuid in tracks
    called = names[event.name_iid] if event.name_iid else event.name
    category = [categories[iid] for iid in event.category_iids]
    stack = open_slices.setdefault(event.track_uuid, [])
    if event.type == proto.TrackEvent.TYPE_SLICE_BEGIN:
        piece = dict(track=event.track_uuid, name=called, category=category, begin=ns, depth=len(stack), args=args(event))
        slices.append(piece)
        stack.append(piece)
    elif event.type == proto.TrackEvent.TYPE_SLICE_END:
        piece = stack.pop()
        assert ns >= piece["begin"]
        piece["end"] = ns
        piece["args"].update(args(event))
    elif event.type == proto.TrackEvent.TYPE_INSTANT:
        instants.append(dict(track=event.track_uuid, name=called, ns=ns, args=args(event)))
        for flow in [*event.flow_ids, *event.terminating_flow_ids]:
            flows.setdefault(flow, []).append(event.track_uuid)
    elif event.type == proto.TrackEvent.TYPE_COUNTER:
        assert tracks[event.track_uuid].HasField("counter")
        kind = event.WhichOneof("counter_value_field")
        counters.append(dict(track=event.track_uuid, ns=ns, value=getattr(event, kind)))
    else:
        raise ValueError(event.type)

assert is_cleared and clocks
for item in [*slices, *instants, *counters]:
    item["track"] = label(item["track"])
# An arrow has two ends.
flows = [[label(track) for track in ends] for ends in flows.values() if len(ends) > 1]
json.dump(dict(clocks=clocks, slices=slices, instants=instants, counters=counters, flows=flows), sys.stdout)
