"""Writes a CTF 1.8 trace with babeltrace2's own writer.

The writer cannot write all fields at once, so each run takes the fields whose names begin with one of the given words.

Usage: write.py DIRECTORY FREQUENCY WORD...
"""

import struct
import sys

import bt2


def structure(tc, *members):
    field_class = tc.create_structure_field_class()
    for name, member in members:
        field_class.append_member(name, member)
    return field_class


class Wanted:
    """A structure to which only the wanted members are added."""

    def __init__(self, field_class):
        self.field_class = field_class

    def append_member(self, name, member):
        if any(name.startswith(word) for word in sys.argv[3:]):
            self.field_class.append_member(name, member)


class Fields:
    """Fields by name. Reading a missing field returns an empty set of fields, and setting one has no effect."""

    def __init__(self, fields=None):
        object.__setattr__(self, "fields", fields if fields is not None else {})

    def __getitem__(self, name):
        return self.fields[name] if name in self.fields else Fields()

    def __setitem__(self, name, value):
        if name in self.fields:
            self.fields[name] = value

    def __getattr__(self, name):
        return Fields()

    def __setattr__(self, name, value):
        pass


class Events(bt2._UserMessageIterator):
    def __init__(self, config, port):
        trace_class, streams = port.user_data
        self._messages = []
        for index, (stream, event_classes) in enumerate(streams):
            self._messages.append(self._create_stream_beginning_message(stream))
            for number in range(3):
                clock = 1_000_000 * index + 1_000 * number
                packet = None
                if stream.cls.supports_packets:
                    packet = stream.create_packet()
                    if packet.context_field is not None:
                        packet.context_field["cpu_id"] = index
                        packet.context_field["note"] = "packet %d" % number
                    args = {"default_clock_snapshot": clock} if stream.cls.packets_have_beginning_default_clock_snapshot else {}
                    self._messages.append(self._create_packet_beginning_message(packet, **args))
                for step in range(4):
                    event_class, fill = event_classes[step % len(event_classes)]
                    args = {"default_clock_snapshot": clock + 10 * step} if stream.cls.default_clock_class else {}
                    message = self._create_event_message(event_class, packet or stream, **args)
                    fill(message.event, 4 * number + step)
                    self._messages.append(message)
                if packet is not None:
                    args = {"default_clock_snapshot": clock + 100} if stream.cls.packets_have_end_default_clock_snapshot else {}
                    self._messages.append(self._create_packet_end_message(packet, **args))
            self._messages.append(self._create_stream_end_message(stream))
        self._messages.reverse()

    def __next__(self):
        if not self._messages:
            raise StopIteration
        return self._messages.pop()


@bt2.plugin_component_class
class Source(bt2._UserSourceComponent, message_iterator_class=Events):
    def __init__(self, config, params, obj):
        trace_class = self._create_trace_class()
        clock = self._create_clock_class(name="ticks", frequency=int(params["frequency"]), offset=bt2.ClockClassOffset(1_700_000_000, 17))
        streams = [self.all_fields(trace_class, clock), self.plain(trace_class, clock)]
        trace = trace_class(environment={"hostname": "there", "procname": "a \"b\"", "vpid": 77, "other": "x"})
        streams = [(trace.create_stream(stream_class), events) for stream_class, events in streams]
        self._add_output_port("out", (trace_class, streams))

    def all_fields(self, tc, clock):
        context = structure(tc, ("cpu_id", tc.create_unsigned_integer_field_class(32)), ("note", tc.create_string_field_class()))
        common = structure(tc, ("pid", tc.create_signed_integer_field_class(17)), ("comm", tc.create_string_field_class()))
        sc = tc.create_stream_class(
            default_clock_class=clock, supports_packets=True, packet_context_field_class=context,
            packets_have_beginning_default_clock_snapshot=True, packets_have_end_default_clock_snapshot=True,
            event_common_context_field_class=common)
        payload = Wanted(tc.create_structure_field_class())
        widths = (1, 3, 7, 8, 13, 16, 27, 32, 33, 57, 63, 64)
        for width in widths:
            payload.append_member("u%d" % width, tc.create_unsigned_integer_field_class(width))
            payload.append_member("i%d" % width, tc.create_signed_integer_field_class(width))
        bases = {2: bt2.IntegerDisplayBase.BINARY, 8: bt2.IntegerDisplayBase.OCTAL, 16: bt2.IntegerDisplayBase.HEXADECIMAL}
        for base, display in bases.items():
            for width in (5, 8, 31, 64):
                payload.append_member("ub%d_%d" % (base, width), tc.create_unsigned_integer_field_class(width, preferred_display_base=display))
                payload.append_member("ib%d_%d" % (base, width), tc.create_signed_integer_field_class(width, preferred_display_base=display))
        payload.append_member("f32", tc.create_single_precision_real_field_class())
        payload.append_member("f64", tc.create_double_precision_real_field_class())
        payload.append_member("text", tc.create_string_field_class())
        ue = tc.create_unsigned_enumeration_field_class(9)
        ue.add_mapping("ONE", bt2.UnsignedIntegerRangeSet([(1, 1)]))
        ue.add_mapping("SOME", bt2.UnsignedIntegerRangeSet([(2, 5), (7, 9)]))
        ue.add_mapping("FEW", bt2.UnsignedIntegerRangeSet([(4, 6)]))
        ie = tc.create_signed_enumeration_field_class(64)
        ie.add_mapping("a \"minus\"", bt2.SignedIntegerRangeSet([(-(1 << 63), -1)]))
        ie.add_mapping("zero", bt2.SignedIntegerRangeSet([(0, 0)]))
        payload.append_member("ue", ue)
        payload.append_member("ie", ie)
        inner = structure(tc, ("x", tc.create_unsigned_integer_field_class(4)), ("y", tc.create_string_field_class()))
        payload.append_member("inner", inner)
        payload.append_member("none", tc.create_structure_field_class())
        payload.append_member("fixed", tc.create_static_array_field_class(tc.create_unsigned_integer_field_class(11), 3))
        payload.append_member("nothing", tc.create_static_array_field_class(tc.create_unsigned_integer_field_class(11), 0))
        length = tc.create_unsigned_integer_field_class(16)
        payload.append_member("len", length)
        payload.append_member("counted", tc.create_dynamic_array_field_class(tc.create_string_field_class(), length))
        payload.append_member("free", tc.create_dynamic_array_field_class(tc.create_signed_integer_field_class(8)))
        pairs = tc.create_dynamic_array_field_class(structure(tc, ("a", tc.create_unsigned_integer_field_class(3)), ("b", tc.create_double_precision_real_field_class())))
        payload.append_member("pairs", pairs)
        tag = tc.create_unsigned_enumeration_field_class(8)
        tag.add_mapping("number", bt2.UnsignedIntegerRangeSet([(0, 0)]))
        tag.add_mapping("string", bt2.UnsignedIntegerRangeSet([(1, 1)]))
        tag.add_mapping("struct", bt2.UnsignedIntegerRangeSet([(2, 3)]))
        payload.append_member("tag", tag)
        variant = tc.create_variant_field_class(selector_fc=tag)
        variant.append_option("number", tc.create_signed_integer_field_class(32), bt2.UnsignedIntegerRangeSet([(0, 0)]))
        variant.append_option("string", tc.create_string_field_class(), bt2.UnsignedIntegerRangeSet([(1, 1)]))
        variant.append_option("struct", structure(tc, ("z", tc.create_unsigned_integer_field_class(2))),
                              bt2.UnsignedIntegerRangeSet([(2, 3)]))
        payload.append_member("variant", variant)
        own = structure(tc, ("depth", tc.create_unsigned_integer_field_class(6)))
        ec = sc.create_event_class(name="all:fields", payload_field_class=payload.field_class, specific_context_field_class=own, log_level=bt2.EventClassLogLevel.WARNING)

        def fill(event, n):
            event.common_context_field["pid"] = -n
            event.common_context_field["comm"] = "c%d" % n
            event.specific_context_field["depth"] = n
            p = Fields(event.payload_field)
            pattern = (0x9E3779B97F4A7C15 * (n + 1)) & ((1 << 64) - 1)
            for width in widths:
                p["u%d" % width] = pattern >> (64 - width)
                p["i%d" % width] = (pattern >> (64 - width)) - (1 << (width - 1))
            for base in bases:
                for width in (5, 8, 31, 64):
                    p["ub%d_%d" % (base, width)] = pattern >> (64 - width)
                    p["ib%d_%d" % (base, width)] = (pattern >> (64 - width)) - (1 << (width - 1))
            p["f32"] = struct.unpack("f", struct.pack("f", 1.1 * n - 3))[0]
            p["f64"] = 10.0 ** (3 * n - 9) / 3
            p["text"] = "t\t\"%d\" ü?" % n
            p["ue"] = n
            p["ie"] = n % 3 - 1
            p["inner"]["x"] = n
            p["inner"]["y"] = "y" * n
            p["fixed"] = [n, 2 * n, 3 * n]
            p["nothing"] = []
            p["len"] = n % 4
            p["counted"].length = n % 4
            for i in range(n % 4):
                p["counted"][i] = "s%d" % i
            p["free"].length = n % 3
            for i in range(n % 3):
                p["free"][i] = -i
            p["pairs"].length = n % 3
            for i in range(n % 3):
                p["pairs"][i]["a"] = i
                p["pairs"][i]["b"] = i / 3
            p["tag"] = n % 4
            p["variant"].selected_option_index = min(n % 4, 2)
            value = [-n, "v%d" % n, None][min(n % 4, 2)]
            if value is None:
                p["variant"].selected_option["z"] = n % 4
            else:
                p["variant"].selected_option.value = value

        return sc, [(ec, fill)]

    def plain(self, tc, clock):
        sc = tc.create_stream_class(default_clock_class=clock, supports_packets=True)
        payload = structure(tc, ("n", tc.create_unsigned_integer_field_class(32)))
        one = sc.create_event_class(name="one", payload_field_class=payload)
        none = sc.create_event_class(name="no fields")

        def fill(event, n):
            event.payload_field["n"] = n

        return sc, [(one, fill), (none, lambda event, n: None)]


def main():
    graph = bt2.Graph()
    frequency = int(sys.argv[2])
    source = graph.add_component(Source, "source", {"frequency": frequency})
    writer = bt2.find_plugin("ctf").sink_component_classes["fs"]
    sink = graph.add_component(writer, "sink", {"path": sys.argv[1], "assume-single-trace": True, "quiet": True})
    graph.connect_ports(source.output_ports["out"], sink.input_ports["in"])
    graph.run()


main()
