//! Times that do not fit 64 bits of nanoseconds since 1970, and the extreme ones that do.

use dormouse_ctf::{IntervalCounts, StreamReader, Trace};
use dormouse_traces::BitWriter;

use super::is_reference;
use super::made::{INTEGERS, MAGIC, printed_alike};

fn metadata(clock: &str, times: &str) -> String {
    format!(
        "/* CTF 1.8 */\n{INTEGERS} trace {{ major = 1; minor = 8; byte_order = le; packet.header := struct {{ uint32_t magic; }}; }};
        clock {{ name = far; {clock} }};
        typealias integer {{ size = 64; align = 8; map = clock.far.value; }} := time;
        stream {{ packet.context := struct {{ uint64_t packet_size; uint64_t content_size; {times} }};
            event.header := struct {{ time timestamp; }}; }};
        event {{ name = e; fields := struct {{ uint8_t n; }}; }};"
    )
}

/// Returns packets with events at these times. `has_begin` says whether packets have a begin time.
fn stream(packets: &[&[u64]], has_begin: bool) -> Vec<u8> {
    let mut bytes = Vec::new();
    for times in packets {
        let size_bytes = 20 + 8 * u64::from(has_begin) + 9 * times.len() as u64;
        let mut writer = BitWriter::new(false);
        writer.number(32, MAGIC).number(64, 8 * size_bytes).number(64, 8 * size_bytes);
        if has_begin {
            writer.number(64, times[0]);
        }
        for (index, time) in times.iter().enumerate() {
            writer.number(64, *time).number(8, index as u64);
        }
        bytes.extend(writer.finish(size_bytes as usize));
    }
    bytes
}

/// Returns the times of the events and the notices. Checks that each way of reading finds as many events.
fn read(clock: &str, packets: &[&[u64]], has_begin: bool) -> (Vec<i64>, Vec<String>) {
    let metadata = metadata(clock, if has_begin { "time timestamp_begin;" } else { "" });
    let bytes = stream(packets, has_begin);
    let trace = Trace::decode(metadata.as_bytes()).unwrap_or_else(|error| panic!("{error}"));
    let (mut times, mut said) = (Vec::new(), Vec::new());
    for item in StreamReader::new(&trace, 0, &bytes) {
        match item {
            Ok(event) => times.push(event.time_ns.expect("the stream has a clock")),
            Err(notice) => said.push(notice.to_string()),
        }
    }
    for length_ns in [None, Some(1_000), Some(i64::MAX)] {
        let (mut counts, mut told) = (IntervalCounts::new(length_ns), 0);
        StreamReader::new(&trace, 0, &bytes).count_intervals(&mut counts, |_| told += 1);
        let counted: u64 = counts.take().map(|(_, _, count)| count).sum();
        assert_eq!((counted, told), (times.len() as u64, said.len()), "{length_ns:?}");
    }
    (times, said)
}

const SECOND: u64 = 1_000_000_000;
/// The last second of which a part fits: 2262-04-11 23:47:16.
const LAST_SECOND: u64 = i64::MAX as u64 / SECOND;
const LAST_REST: u64 = i64::MAX as u64 % SECOND;

#[test]
fn a_clock_that_begins_too_late_is_reported_once_and_gives_no_times() {
    for has_begin in [true, false] {
        for (offset_s, hz) in [(10_000_000_000u64, SECOND), (LAST_SECOND + 1, 1_000_000), (i64::MAX as u64, 1)] {
            let clock = format!("freq = {hz}; offset_s = {offset_s};");
            let (times, said) = read(&clock, &[&[0, 7_000, 14_000], &[20_000, 30_000]], has_begin);
            assert_eq!(times, [0; 0]);
            let [said] = said.as_slice() else { panic!("{said:?}") };
            let cause =
                format!("by the clock `far`, whose offset is {offset_s} s, is outside of the years 1678 to 2262");
            assert!(said.contains(&cause), "{said}");
        }
    }
}

#[test]
fn events_up_to_the_last_time_that_fits_are_read() {
    if !is_reference() {
        return;
    }
    let last = [LAST_REST - 2, LAST_REST - 1, LAST_REST];
    let clock = format!("freq = {SECOND}; offset_s = {LAST_SECOND};");
    for (has_begin, times) in [(true, "time timestamp_begin;"), (false, "")] {
        // babeltrace2 does not read times in the last minute.
        let before = metadata(&format!("freq = {SECOND}; offset_s = {};", LAST_SECOND - 100), times);
        let Some(said) = printed_alike(&before, &[stream(&[&last], has_begin)]) else { return };
        assert_eq!(said, [""; 0]);
        let (read_ns, said) =
            read(&clock, &[&last, &[LAST_REST, LAST_REST + 1, LAST_REST + 2], &[LAST_REST + 9]], has_begin);
        assert_eq!(read_ns, [i64::MAX - 2, i64::MAX - 1, i64::MAX, i64::MAX]);
        assert_eq!(said.len(), 2, "{said:?}");
        assert!(said.iter().all(|said| said.contains("the clock `far`")), "{said:?}");
    }
}

#[test]
fn ticks_beyond_what_nanoseconds_count_do_not_become_earlier_times() {
    // Seconds since 1970 minus ten thousand million. The range of these ticks does not fit 64 bits of nanoseconds.
    let clock = "freq = 1; offset_s = -10000000000;";
    let (times, said) = read(clock, &[&[10_000_000_000, 10_000_002_048, 30_000_000_000, 30_000_000_001]], true);
    assert_eq!(times, [0, 2_048_000_000_000]);
    assert_eq!(said.len(), 1, "{said:?}");
}

#[test]
fn times_too_early_are_reported_and_later_ones_read() {
    let first = i64::MIN.unsigned_abs();
    let clock = format!("freq = {SECOND}; offset_s = -10000000000;");
    let begin = 10_000_000_000 * SECOND - first;
    for has_begin in [true, false] {
        let (times, said) = read(&clock, &[&[begin - 5, begin - 2], &[begin, begin + 1, begin + first]], has_begin);
        assert_eq!(times, [i64::MIN, i64::MIN + 1, 0]);
        assert_eq!(said.len(), 1, "{said:?}");
        assert!(said[0].contains("the clock `far`, whose offset is -10000000000 s"), "{said:?}");
    }
}

#[test]
fn texts_of_metadata_have_escapes_of_three_digits() {
    if !is_reference() {
        return;
    }
    // If the digits exceed a byte, the low bits count.
    for (name, expected) in [
        ("\\x0231", "#1"),
        ("\\x023", "#"),
        ("a\\x2Fz", "a/z"),
        ("\\x1414", "A4"),
        ("\\1011", "A1"),
        ("\\5012", "A2"),
        ("\\43z", "#z"),
    ] {
        let metadata = metadata("freq = 1000;", "").replace("name = e;", &format!("name = \"{name}\";"));
        let trace = Trace::decode(metadata.as_bytes()).unwrap_or_else(|error| panic!("{error}"));
        let bytes = stream(&[&[1]], false);
        let read: Vec<_> =
            StreamReader::new(&trace, 0, &bytes).map(|item| item.unwrap().class.full_name.clone()).collect();
        assert_eq!(read, [expected], "{name}");
        let Some(said) = printed_alike(&metadata, &[bytes]) else { return };
        assert_eq!(said, [""; 0], "{name}");
    }
}
