"""Tests of the package, run by python.rs: it says where the package and the traces are, and which classes of tests can run."""

import gc
import os
import threading
import unittest
from datetime import datetime, timedelta, timezone

import dormouse

TRACES = os.environ["DORMOUSE_TEST_TRACES"]
BEGIN_NS = 1_700_000_000 * 10**9
FIELDS = ["id", "path", "is_tls"]


def trace(name="trace"):
    return dormouse.open(os.path.join(TRACES, name))


class Objects(unittest.TestCase):
    def test_events_are_dicts_in_the_order_of_time(self):
        rows = list(trace().events("http:*"))
        self.assertEqual(len(rows), 2000)
        self.assertEqual(
            rows[0],
            {"time": BEGIN_NS, "cpu": 0, "pid": 12, "tid": 13, "event": "http:request", "id": 0, "path": "/0", "is_tls": False},
        )
        self.assertEqual(
            rows[3],
            {"time": BEGIN_NS + 1500, "cpu": 1, "pid": 12, "tid": 14, "event": "http:response", "id": 1, "seconds": 1.0, "body": b"\xff\0"},
        )
        times = [row["time"] for row in rows]
        self.assertEqual(times, sorted(times))

    def test_classes_have_names_and_types(self):
        found = {one.name: one.fields for one in trace().classes}
        self.assertEqual(found["http:request"], {"id": "UInt64", "path": "Utf8", "is_tls": "Boolean"})
        self.assertEqual(list(found["http:response"]), ["id", "seconds", "body"])

    def test_columns_are_those_that_are_asked_for(self):
        table = trace().events("http:request", columns=["id", "time"])
        self.assertEqual(table.columns, ["id", "time"])
        self.assertEqual(list(table)[7], {"id": 7, "time": BEGIN_NS + 7000})
        self.assertEqual(trace().events("http:request").columns, ["time", "cpu", "pid", "tid", "event", *FIELDS])
        self.assertEqual(trace().events("http:request", text="bytes", columns="path").types, {"path": "Binary"})

    def test_fields_within_others_are_columns_by_their_names(self):
        table = trace("parts").events(columns=["a[2]", "at.x", "at"])
        self.assertEqual(table.types, {"a[2]": "UInt8", "at.x": "UInt8", "at": table.types["at"]})
        first, second = {"a[2]": 5, "at.x": 1, "at": {"x": 1, "y": 2}}, {"a[2]": 10, "at.x": 6, "at": {"x": 6, "y": 7}}
        self.assertEqual(list(table), [first, second])
        self.assertEqual(list(trace("parts").events(columns="at.x", where="a[2] > 5")), [{"at.x": 6}])
        # Fields that the requests lack are null, so they are not in their rows.
        rows = list(trace().events("http:*", columns=["body[0]", "context.vtid", "fields.is_tls"]))
        self.assertEqual(rows[:2], [{"context.vtid": 13, "fields.is_tls": False}, {"body[0]": 255, "context.vtid": 13}])
        pairs = list(trace().pairs("http:request", "http:response", key="fields.id"))
        self.assertEqual(pairs, list(trace().pairs("http:request", "http:response", key="id")))
        for name in ["at.z", "a[3]", "at[0]", "at.x.y"]:
            with self.assertRaisesRegex(dormouse.RequestError, "there is no column"):
                trace("parts").events(columns=name)

    def test_times_are_ints_datetimes_and_texts(self):
        since = datetime.fromtimestamp(BEGIN_NS // 10**9, timezone.utc) + timedelta(microseconds=10)
        for form in [BEGIN_NS + 10_000, since, since.isoformat(), since.astimezone(timezone(timedelta(hours=2)))]:
            rows = list(trace().events("http:request", since=form, until=BEGIN_NS + 12_000))
            self.assertEqual([row["id"] for row in rows], [10, 11])

    def test_conditions(self):
        rows = list(trace().events("http:request", where='id >= 10 and id < 14 and process == "server"'))
        self.assertEqual([row["id"] for row in rows], [10, 11, 12, 13])
        rows = list(trace().events(where=["is_tls", "id < 4"], columns="id"))
        self.assertEqual([row["id"] for row in rows], [1, 3])
        pairs = trace().pairs("http:request", "http:response", key="id", where="id == 7")
        self.assertEqual([row["key"] for row in pairs], ["7"])
        with self.assertRaisesRegex(dormouse.RequestError, "no event has idd; id is the nearest"):
            trace().events(where="idd == 1")

    def test_pairs(self):
        pairs = trace().pairs("http:request", "http:response", key="id")
        rows = list(pairs)
        self.assertEqual(len(rows), 1000)
        self.assertEqual(
            rows[1],
            {"begin": BEGIN_NS + 1000, "end": BEGIN_NS + 1500, "duration": 500, "cpu": 1, "pid": 12, "tid": 14, "key": "1"},
        )
        self.assertEqual(pairs.warnings, [])

    def test_losses_and_processes(self):
        losses = trace().losses
        self.assertEqual((losses.count, losses.by_class), (3, {"http:request": 3}))
        (process,) = trace().processes
        self.assertEqual((process.pid, process.name, process.program, process.events), (12, "server", "/usr/bin/server", 2000))

    def test_each_look_reads_anew_and_may_be_left(self):
        table = trace().events("http:request")
        for _ in range(50):
            self.assertEqual(next(iter(table))["id"], 0)
        capsules = [table.__arrow_c_stream__() for _ in range(20)]
        del capsules
        gc.collect()
        self.assertEqual(len(list(table)), 1000)

    def test_threads_share_a_trace(self):
        one, counts = trace(), []
        rows = iter(one.events())
        take = lambda: counts.append(sum(1 for _ in rows))
        threads = [threading.Thread(target=take) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(sum(counts), len(list(one.events())))


class Ctf2(unittest.TestCase):
    def test_its_kinds_are_objects(self):
        rows = [{name: row.get(name) for name in ["flag", "number", "raw", "name"]} for row in trace("ctf2").events()]
        first = {"flag": True, "number": {"value": 7}, "raw": b"\1\2\3", "name": "h\u00e9"}
        second = {"flag": False, "number": None, "raw": b"\4\5\6", "name": "ho"}
        self.assertEqual(rows, [first, second])


class Lttng(unittest.TestCase):
    def test_its_trace_has_what_the_program_has_written(self):
        rows = list(trace("lttng").events("mine:ev", where='process == "program"'))
        self.assertEqual([(row["i"], row["d"], row["s"]) for row in rows], [(i, 1.5 * i, 'he"llo') for i in range(20)])
        self.assertEqual([len(row["seq"]) for row in rows[:4]], [0, 1, 2, 3])
        self.assertEqual([row["col"] for row in rows[:3]], ["RED", "BLUE", "MANY"])
        small = trace("lttng").events("mine:small", columns="i")
        self.assertEqual([row["i"] for row in small], [-i for i in range(20)])


class Errors(unittest.TestCase):
    def raises(self, kind, pattern, call, *arguments, **named):
        with self.assertRaisesRegex(kind, pattern):
            call(*arguments, **named)

    def test_what_is_not_there_is_named(self):
        self.raises(dormouse.TraceError, "there is no trace in", dormouse.open, os.path.join(TRACES, "none"))
        events = trace().events
        self.raises(dormouse.RequestError, "no event class matches `q:\\*`; there are .*http:request", events, "q:*")
        self.raises(dormouse.RequestError, "no column `x`; there are time, .*path", events, "http:request", columns=["x"])
        self.raises(dormouse.RequestError, "since: this time has no zone", events, since="2026-11-26T10:00:00")
        self.raises(dormouse.RequestError, "until: ", events, until="yesterday")
        self.raises(dormouse.RequestError, "not float", events, since=1.5)
        self.raises(dormouse.RequestError, "beyond the years", events, since="9999-01-01T00:00:00+00:00")
        self.raises(dormouse.RequestError, "no event class", trace().pairs, "http:request", "http:none")
        self.assertTrue(issubclass(dormouse.RequestError, dormouse.Error))

    def test_damage_is_a_warning_or_where_asked_for_an_error(self):
        table = trace("damaged").events("http:*")
        self.assertEqual(len(list(table)), 1999)
        self.assertRegex("".join(table.warnings), "cpu_1: .*cut off")
        strict = trace("damaged").events("http:*", strict=True)
        self.raises(dormouse.TraceError, "damaged: cpu_1", list, strict)
        self.assertEqual(len(list(trace().events("http:*", strict=True))), 2000)

    def test_no_bytes_are_a_panic(self):
        """Each byte of a stream is changed, in turn; what is read is some rows or an exception of ours."""
        import random
        import shutil
        import tempfile

        draw = random.Random(27)
        with tempfile.TemporaryDirectory() as directory:
            copy = os.path.join(directory, "trace")
            shutil.copytree(os.path.join(TRACES, "trace"), copy)
            for name in ["cpu_0", "metadata"]:
                path = os.path.join(copy, name)
                with open(path, "rb") as file:
                    whole = file.read()
                for _ in range(150):
                    bytes_ = bytearray(whole)
                    for _ in range(draw.randrange(1, 4)):
                        bytes_[draw.randrange(len(bytes_) if name == "metadata" else 4096)] = draw.randrange(256)
                    with open(path, "wb") as file:
                        file.write(bytes_)
                    try:
                        for row in dormouse.open(copy).events():
                            self.assertIn("event", row)
                    except dormouse.Error as error:
                        self.assertTrue(str(error))
                        self.assertNotIn("defect of dormouse", str(error))
                with open(path, "wb") as file:
                    file.write(whole)


class Pyarrow(unittest.TestCase):
    def test_table(self):
        import pyarrow

        table = pyarrow.table(trace().events("http:request"))
        self.assertEqual(table.num_rows, 1000)
        self.assertEqual(table.schema.field("time").type, pyarrow.timestamp("ns", "UTC"))
        self.assertEqual(table.column("id").to_pylist(), list(range(1000)))
        self.assertEqual(table.column("event").to_pylist()[0], "http:request")
        table.validate(full=True)
        self.assertEqual(pyarrow.schema(trace().events("http:request")), table.schema)

    def test_an_error_arrives(self):
        import pyarrow

        with self.assertRaisesRegex(pyarrow.ArrowInvalid, "damaged: cpu_1") as _:
            pyarrow.table(trace("damaged").events("http:*", strict=True))


class Pandas(unittest.TestCase):
    def test_frame(self):
        import pandas
        import pyarrow

        frame = pyarrow.table(trace().events("http:request", columns=["time", "id", "event"])).to_pandas()
        self.assertEqual(str(frame["time"].dtype), "datetime64[ns, UTC]")
        self.assertEqual(frame["id"].sum(), 499500)
        self.assertEqual(frame["event"].cat.categories.tolist(), ["http:request"])
        since = frame["time"][998]
        self.assertEqual(len(list(trace().events("http:request", since=since))), 2)
        pairs = pyarrow.table(trace().pairs("http:request", "http:response")).to_pandas()
        self.assertEqual(pairs["duration"].max(), pandas.Timedelta(500, "ns"))


class Polars(unittest.TestCase):
    def test_frame(self):
        import polars

        frame = polars.DataFrame(trace().events("http:*"))
        self.assertEqual(frame.height, 2000)
        self.assertEqual(frame["time"].dtype, polars.Datetime("ns", "UTC"))
        self.assertEqual(frame["path"].null_count(), 1000)
        self.assertEqual(frame["event"].cast(polars.String).value_counts()["count"].to_list(), [1000, 1000])


class Duckdb(unittest.TestCase):
    def test_query(self):
        import duckdb

        requests = trace().events("http:request", columns=["cpu", "id"])
        found = duckdb.sql("select cpu, count(*), sum(id) from requests group by cpu order by cpu").fetchall()
        self.assertEqual(found, [(0, 500, 249500), (1, 500, 250000)])


if __name__ == "__main__":
    unittest.main()
