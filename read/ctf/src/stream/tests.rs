use super::records::RECORD_SIZE_BYTES_MAX;
use super::*;
use crate::Value;
use crate::metadata::Metadata;
use crate::plan::FieldError;
use crate::testing::TraceBuilder;
use dormouse_abi::class::{FieldType, Kind};
use dormouse_abi::page::*;
use dormouse_abi::record::RecordKind;
use dormouse_format::PacketHeader;

/// Returns three packets of 4096 bytes with five events each.
fn stream() -> (Metadata, Vec<u8>) {
    let mut trace = TraceBuilder::new();
    let class = trace.class("p", "e", &[("n", FieldType::scalar(Kind::U32)), ("s", FieldType::scalar(Kind::Str))]);
    let stream = trace.stream(0);
    for n in 0..15u32 {
        trace.event(stream, 100 + u64::from(n), 1, 2, class, &[Value::U32(n), Value::Str(b"abc")]);
        if n % 5 == 4 {
            trace.packet(stream, 4096, 0);
        }
    }
    let trace = trace.finish();
    (trace.parse(), trace.streams.into_iter().next_back().unwrap())
}

const RECORD_SIZE_BYTES: usize = 16 + 4 + 4;

/// Returns the numbers of the events, and the notices.
fn read(metadata: &Metadata, bytes: &[u8]) -> (Vec<u32>, Vec<String>) {
    let (mut numbers, mut notices) = (vec![], vec![]);
    for item in StreamReader::new(metadata, 0, bytes) {
        match item {
            Ok(event) => match event.fields().next() {
                Some((_, Value::U32(number))) => numbers.push(number),
                other => panic!("{other:?}"),
            },
            Err(notice) => notices.push(notice.to_string()),
        }
    }
    (numbers, notices)
}

#[test]
fn a_truncated_stream_gives_its_complete_events_and_a_notice() {
    let (metadata, bytes) = stream();
    assert_eq!(read(&metadata, &bytes), ((0..15).collect(), vec![]));
    let cut = |len: usize| read(&metadata, &bytes[..len]);
    assert_eq!(cut(0), (vec![], vec![]));
    assert_eq!(cut(8192), ((0..10).collect(), vec![]));
    assert_eq!(
        cut(8192 + 12),
        ((0..10).collect(), vec!["packet 2 at byte 8192 is cut off: 12 of 80 bytes".to_string()])
    );
    let two = 8192 + 80 + 2 * RECORD_SIZE_BYTES;
    for (len, count) in [(two - 1, 11), (two, 12), (two + 1, 12), (two + 8, 12), (two + 20, 12), (8192 + 4095, 15)] {
        let notice = format!("packet 2 at byte 8192 is cut off: {} of 4096 bytes", len - 8192);
        assert_eq!(cut(len), ((0..count).collect(), vec![notice]), "{len}");
    }
}

#[test]
fn damage_costs_one_packet_and_is_reported_with_its_position() {
    let (metadata, bytes) = stream();
    let with = |offset: usize, patch: &[u8]| {
        let mut bytes = bytes.clone();
        bytes[offset..offset + patch.len()].copy_from_slice(patch);
        read(&metadata, &bytes)
    };
    let without = |range: std::ops::Range<u32>| (0..15).filter(|n| !range.contains(n)).collect::<Vec<_>>();
    let second = 4096 + 80 + RECORD_SIZE_BYTES;
    let at = "packet 1 at byte 4096";
    for (offset, patch, numbers, notice) in [
        (
            second,
            &[9u8][..],
            without(6..10),
            "is damaged at its byte 104: a record has the class id 9, which the metadata do not declare",
        ),
        (second + 2, &[0], without(6..10), "is damaged at its byte 104: a record is younger than the packet's end"),
        (4096, &[0], without(5..10), "does not start with the magic of CTF but with 0xc1fc1f00"),
        (
            4096 + OFFSET_UUID,
            &[0],
            without(5..10),
            "belongs to another trace: its uuid is not that of the metadata; it is left out",
        ),
        (
            4096 + OFFSET_STREAM_ID,
            &[2],
            without(5..10),
            "has the stream id 2, which the metadata do not declare; it is left out",
        ),
        (
            4096 + OFFSET_STREAM_ID,
            &[1],
            without(5..10),
            "belongs to another stream: its stream_id is not that of the packet before; it is left out",
        ),
        (
            4096 + OFFSET_CPU_ID,
            &[1],
            without(5..10),
            "belongs to another stream: its cpu_id is not that of the packet before; it is left out",
        ),
        (
            4096 + OFFSET_CONTENT_SIZE,
            &[1],
            without(5..10),
            "has a size of 1537 bits, which is no whole number of bytes",
        ),
        (4096 + OFFSET_TIMESTAMP_END, &[0], without(5..10), "ends before it begins"),
        (4096 + OFFSET_TIMESTAMP_BEGIN, &[0], without(0..0), "begins before the packet in front of it ends"),
    ] {
        // The patch must change the bytes, or the test would prove nothing.
        assert_ne!(&bytes[offset..offset + patch.len()], patch);
        let (found, notices) = with(offset, patch);
        assert_eq!(notices.first(), Some(&format!("{at} {notice}")), "{notices:?}");
        assert_eq!(found, numbers, "{notice}");
    }
    let (numbers, notices) = with(4096 + OFFSET_SEQ, &[4]);
    assert_eq!(numbers.len(), 15);
    assert_eq!(
        notices,
        [
            format!("{at} has number 4 where 1 was expected"),
            "packet 2 at byte 8192 has number 2 where 5 was expected".into()
        ]
    );
    let (numbers, notices) = with(4096 + OFFSET_DISCARDED, &[3]);
    assert_eq!(numbers.len(), 15);
    assert_eq!(
        notices,
        [
            format!("{at} tells of 3 discarded events"),
            "packet 2 at byte 8192 counts fewer discarded events than the packet before".into()
        ]
    );
}

#[test]
fn foreign_packets_are_reported_once_and_left_out() {
    let (metadata, bytes) = stream();
    let mut odd = bytes.clone();
    for packet in [0, 1] {
        odd[4096 * packet + OFFSET_UUID] ^= 1;
    }
    odd[4096 * 2 + OFFSET_UUID] = odd[OFFSET_UUID];
    let foreign = "belongs to another trace: its uuid is not that of the metadata; it is left out";
    let all = format!("packet 0 at byte 0 {foreign}, and so are 2 behind it");
    assert_eq!(read(&metadata, &odd), (vec![], vec![all]));
    odd[4096 * 2..].copy_from_slice(&bytes[4096 * 2..]);
    let two = format!("packet 0 at byte 0 {foreign}, and so are 1 behind it");
    assert_eq!(read(&metadata, &odd), ((10..15).collect(), vec![two.clone()]));
    // A packet that is foreign for another reason, and one without a valid header, get notices of their own.
    odd[4096 * 2 + OFFSET_STREAM_ID] = 2;
    let other = "packet 2 at byte 8192 has the stream id 2, which the metadata do not declare; it is left out";
    assert_eq!(read(&metadata, &odd), (vec![], vec![two.clone(), other.into()]));
    odd[4096 * 2] = 0;
    let none = "packet 2 at byte 8192 does not start with the magic of CTF but with 0xc1fc1f00";
    assert_eq!(read(&metadata, &odd), (vec![], vec![two, none.into()]));
    // The packet's size leads out of the stream.
    let mut odd = bytes.clone();
    odd[4096 + OFFSET_UUID] ^= 1;
    odd[4096 + OFFSET_PACKET_SIZE + 4] = 1;
    let at = format!("packet 1 at byte 4096 {foreign}");
    assert_eq!(read(&metadata, &odd), ((0..5).collect(), vec![at]));
}

/// A source that returns no more bytes than requested, and keeps only those of the last request.
#[derive(Debug)]
struct Stingy<'a> {
    bytes: &'a [u8],
    /// Size when the stream was opened.
    size_bytes: u64,
    window: std::ops::Range<usize>,
}

impl Source for Stingy<'_> {
    fn size_bytes(&self) -> u64 {
        self.size_bytes
    }
    fn fetch(&mut self, offset: u64, size_bytes_min: usize) -> std::io::Result<&[u8]> {
        let (begin, end) = (offset as usize, offset as usize + size_bytes_min);
        self.window = begin.min(self.bytes.len())..end.min(self.bytes.len());
        Ok(&self.bytes[self.window.clone()])
    }
    fn fetched(&self, offset: u64) -> &[u8] {
        &self.bytes[offset as usize..self.window.end]
    }
}

fn read_stingily(metadata: &Metadata, bytes: &[u8], size_bytes: u64) -> (Vec<u32>, Vec<String>) {
    let (mut numbers, mut notices) = (vec![], vec![]);
    let source = Stingy { bytes, size_bytes, window: 0..0 };
    let mut merge = crate::Merge::new([StreamReader::of_source(metadata, 0, source)]);
    while let Some(item) = merge.next_event() {
        match item.map(|event| event.fields().next()) {
            Ok(Some((_, Value::U32(number)))) => numbers.push(number),
            Ok(other) => panic!("{other:?}"),
            Err(notice) => notices.push(notice.to_string()),
        }
    }
    (numbers, notices)
}

#[test]
fn reading_in_windows_gives_the_same_events() {
    let (metadata, bytes) = stream();
    for len in 0..bytes.len() {
        assert_eq!(read_stingily(&metadata, &bytes[..len], len as u64), read(&metadata, &bytes[..len]), "{len}");
    }
    let mut random = 1u64;
    for _ in 0..2000 {
        let mut odd = bytes.clone();
        for _ in 0..3 {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            // Random bytes are written only where headers and records are.
            let (packet, offset) =
                ((random >> 33) as usize % 3, (random >> 40) as usize % (80 + 5 * RECORD_SIZE_BYTES));
            odd[4096 * packet + offset] = (random >> 56) as u8;
        }
        assert_eq!(read_stingily(&metadata, &odd, odd.len() as u64), read(&metadata, &odd));
    }
}

#[test]
fn a_stream_truncated_while_read_gives_its_events_and_a_notice() {
    let (metadata, bytes) = stream();
    let shortened = |len: usize| read_stingily(&metadata, &bytes[..len], bytes.len() as u64);
    let notice = |at: &str, len: usize| {
        vec![format!("{at} cannot be read: the file was shortened from 12288 to {len} bytes meanwhile")]
    };
    assert_eq!(shortened(0), (vec![], notice("packet 0 at byte 0", 0)));
    assert_eq!(shortened(4096), ((0..5).collect(), notice("packet 1 at byte 4096", 4096)));
    let len = 4096 + 80 + 2 * RECORD_SIZE_BYTES + 1;
    assert_eq!(shortened(len), ((0..7).collect(), notice("packet 1 at byte 4096", len)));
    // Only padding is missing.
    assert_eq!(shortened(8192 + 80 + 5 * RECORD_SIZE_BYTES), ((0..15).collect(), vec![]));
}

/// A file of 2^40 bytes, most of them zeroes in a hole.
struct Sparse {
    head: Vec<u8>,
    bytes: Vec<u8>,
    offset: u64,
}

impl Source for Sparse {
    fn size_bytes(&self) -> u64 {
        1 << 40
    }
    fn fetch(&mut self, offset: u64, size_bytes_min: usize) -> std::io::Result<&[u8]> {
        assert!(size_bytes_min <= 2 * RECORD_SIZE_BYTES_MAX);
        self.bytes = self.head.get(offset as usize..).unwrap_or_default().to_vec();
        self.bytes.resize(size_bytes_min.max(4096), 0);
        self.offset = offset;
        Ok(&self.bytes)
    }
    fn fetched(&self, offset: u64) -> &[u8] {
        &self.bytes[(offset - self.offset) as usize..]
    }
}

#[test]
fn a_record_larger_than_memory_counts_as_damaged() {
    let mut trace = TraceBuilder::new();
    let class = trace.class("p", "e", &[("n", FieldType::sequence(Kind::U64))]);
    let stream = trace.stream(0);
    trace.event(stream, 0, 1, 2, class, &[Value::Sequence(crate::Sequence::new(Kind::U64, &[]).unwrap())]);
    let trace = trace.finish();
    let metadata = trace.parse();
    let mut head = trace.streams.into_iter().next_back().unwrap();
    for offset in [OFFSET_CONTENT_SIZE, OFFSET_PACKET_SIZE] {
        head[offset..offset + 8].copy_from_slice(&(8u64 << 40).to_le_bytes());
    }
    head[80 + 16..].fill(0xFF);
    let mut reader = StreamReader::of_source(&metadata, 0, Sparse { head, bytes: vec![], offset: 0 });
    let problem = reader.advance().unwrap().unwrap_err().problem;
    let error = RecordError::Field(0, FieldError::Count(u32::MAX.into()));
    assert_eq!(problem, Problem::Record { record_offset_bytes: 80, error });
    assert!(reader.advance().is_none());
}

#[test]
fn counting_needs_no_header() {
    let (metadata, mut bytes) = stream();
    let content = 80 + 5 * RECORD_SIZE_BYTES;
    bytes[..80].fill(0xff);
    let count = |size| count_records(&bytes[..4096], size, &metadata.classes);
    assert_eq!(count(content), Ok(5));
    assert_eq!(count(80), Ok(0));
    assert_eq!(count(0), Ok(0));
    assert_eq!(count(content - 1), Err((content - RECORD_SIZE_BYTES, RecordError::Field(1, FieldError::Unterminated))));
    assert_eq!(count(content - 5), Err((content - RECORD_SIZE_BYTES, RecordError::Field(0, FieldError::Cut))));
    assert_eq!(count(content + 1), Err((content, RecordError::HeaderCut)));
}

/// If neither size leads to a header, nothing more is read. Plausible sizes alone do not make a header.
#[test]
fn after_a_damaged_header_reading_continues_only_at_a_header() {
    let (metadata, bytes) = stream();
    let first = |bytes: &[u8]| {
        let (numbers, notices) = read(&metadata, bytes);
        (numbers, notices.len())
    };
    let mut odd = bytes.clone();
    odd[4096] = 0;
    // The size of the previous packet leads to the next one.
    odd[4096 + OFFSET_PACKET_SIZE..][..8].fill(0xFF);
    odd[4096 + OFFSET_CONTENT_SIZE..][..8].fill(0xFF);
    assert_eq!(first(&odd), ((0..5).chain(10..15).collect(), 2));
    // The next packet is damaged as well.
    odd[8192] = 0;
    assert_eq!(first(&odd), ((0..5).collect(), 1));
    odd[8192] = bytes[8192];
    odd[8192 + OFFSET_UUID] ^= 1;
    assert_eq!(first(&odd), ((0..5).collect(), 1));
    // The first packet of the stream is damaged; its own size leads to the next one.
    let mut odd = bytes.clone();
    odd[1] ^= 1;
    assert_eq!(first(&odd), ((5..15).collect(), 1));
}

#[test]
fn counting_by_class_agrees_with_reading() {
    let mut trace = TraceBuilder::new();
    let classes = [
        trace.class("p", "fixed", &[("n", FieldType::scalar(Kind::U32))]),
        trace.class("p", "text", &[("s", FieldType::scalar(Kind::Str))]),
    ];
    let stream = trace.stream(0);
    let mut random = 1u64;
    for time in 0..2000 {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let text = vec![b'x'; (random >> 56) as usize];
        match random >> 40 & 1 {
            0 => trace.event(stream, time, 1, 2, classes[0], &[Value::U32(time as u32)]),
            _ => trace.event(stream, time, 1, 2, classes[1], &[Value::Str(&text)]),
        }
        if random >> 32 & 0x3F == 0 {
            trace.packet(stream, 4096, 0);
        }
    }
    let trace = trace.finish();
    let (metadata, bytes) = (trace.parse(), trace.streams.last().unwrap());
    for damage in 0..200usize {
        let mut odd = bytes.clone();
        if damage > 0 {
            let at = damage * 7919 % odd.len();
            odd[at] ^= 0x55;
        }
        let (mut expected, mut notices) = (std::collections::BTreeMap::<u64, u64>::new(), Vec::new());
        // Intervals of the whole trace, of about a packet, and of an event.
        let mut by_interval =
            [None, Some(100), Some(1)].map(|length_ns| (length_ns, std::collections::BTreeMap::new()));
        for item in StreamReader::new(&metadata, 0, &odd) {
            match item {
                Ok(event) => {
                    *expected.entry(event.class.id).or_default() += 1;
                    for (length_ns, counts) in &mut by_interval {
                        let begin = length_ns.zip(event.time_ns).map(|(length_ns, ns)| ns - ns.rem_euclid(length_ns));
                        *counts.entry((begin, event.class.id)).or_insert(0) += 1;
                    }
                }
                Err(notice) => notices.push(notice),
            }
        }
        for (length_ns, expected) in by_interval {
            let (mut counts, mut told) = (IntervalCounts::new(length_ns), Vec::new());
            StreamReader::new(&metadata, 0, &odd).count_intervals(&mut counts, |notice| told.push(notice));
            assert_eq!(counts.len(), expected.len(), "{damage}");
            let found = counts.take().map(|(begin, class, count)| ((begin, class.id), count));
            assert_eq!((found.collect(), &told), (expected, &notices), "{damage} {length_ns:?}");
            assert!(counts.is_empty());
        }
        let (mut counts, mut told) = (ClassCounts::default(), Vec::new());
        let mut reader = StreamReader::new(&metadata, 0, &odd);
        reader.count_classes(&mut counts, |notice| told.push(notice));
        let found: std::collections::BTreeMap<u64, u64> =
            counts.iter().map(|(class, count)| (class.id, count)).collect();
        assert_eq!((&found, &told), (&expected, &notices), "{damage}");
        assert_eq!(reader.totals().map(|totals| totals.events), Some(counts.iter().map(|(_, count)| count).sum()));
        // The parts in order give the same result.
        for part_bytes in [1, 3 * 4096] {
            let (mut counts, mut said, mut events) = (ClassCounts::default(), Vec::new(), 0);
            let mut whole = StreamReader::new(&metadata, 0, &odd);
            let mut last = None;
            while let Some(mut part) = whole.cut(part_bytes, odd.as_slice()) {
                part.count_classes(&mut counts, |notice| said.push(notice));
                events += part.totals().map_or(0, |totals| totals.events);
                last = part.totals().or(last);
            }
            let found = counts.iter().map(|(class, count)| (class.id, count)).collect();
            assert_eq!((&found, &said), (&expected, &told), "{damage}");
            let expected = reader.totals().map(|totals| (totals.events, totals.packets, totals.events_discarded));
            assert_eq!(last.map(|totals| (events, totals.packets, totals.events_discarded)), expected, "{damage}");
        }
        let source = Stingy { bytes: &odd, size_bytes: odd.len() as u64, window: 0..0 };
        let mut stingily = ClassCounts::default();
        StreamReader::of_source(&metadata, 0, source).count_classes(&mut stingily, |_| {});
        assert!(
            counts
                .iter()
                .map(|(class, count)| (class.id, count))
                .eq(stingily.iter().map(|(class, count)| (class.id, count)))
        );
    }
}

#[test]
fn only_events_of_the_requested_time_are_given() {
    let (metadata, bytes) = stream();
    let begin_ns = StreamReader::new(&metadata, 0, &bytes).next().unwrap().unwrap().time_ns.unwrap() - 100;
    for since in 90..120 {
        for until in since..125 {
            let reader = StreamReader::new(&metadata, 0, &bytes).within(begin_ns + since, begin_ns + until - 1);
            let found: Vec<i64> = reader.map(|item| item.unwrap().time_ns.unwrap() - begin_ns).collect();
            let expected: Vec<i64> = (100..115).filter(|time| (since..until).contains(time)).collect();
            assert_eq!(found, expected, "{since}..{until}");
        }
    }
    // Packets outside the time are not read, so damage in them is not reported.
    let mut odd = bytes.clone();
    odd[80] = 9;
    odd[8192 + 80] = 9;
    let second = || StreamReader::new(&metadata, 0, &odd).within(begin_ns + 105, begin_ns + 109);
    assert_eq!(second().filter(Result::is_ok).count(), 5);
    assert!(second().all(|item| item.is_ok()));
}

/// A packet context counter of this size with these values, one for each packet. Returns the number of lost events or
/// packets, and the number of notices.
fn counted(counter: &str, size_bits: u64, counts: &[u64]) -> (u64, usize) {
    let metadata = format!(
        "/* CTF 1.8 */ trace {{ major = 1; minor = 8; byte_order = le; }};
        stream {{ packet.context := struct {{ integer {{ size = 32; align = 8; }} packet_size;
            integer {{ size = {size_bits}; align = 8; }} {counter}; }};
            event.header := struct {{ integer {{ size = 8; align = 8; }} id; }}; }};
        event {{ name = a; id = 0; }};"
    );
    let trace = crate::Trace::decode(metadata.as_bytes()).unwrap();
    let mut bytes = Vec::new();
    for count in counts {
        bytes.extend((40 + size_bits as u32).to_le_bytes());
        bytes.extend(&count.to_le_bytes()[..size_bits as usize / 8]);
        bytes.push(0);
    }
    let mut reader = StreamReader::new(&trace, 0, &bytes);
    let notices = reader.by_ref().filter_map(Result::err).count();
    (reader.totals().unwrap().events_discarded, notices)
}

#[test]
fn a_decreasing_loss_counter_counts_no_losses() {
    let discarded = |size_bits, counts: &[u64]| counted("events_discarded", size_bits, counts);
    for size_bits in [16, 32, 64] {
        assert_eq!(discarded(size_bits, &[5, 5, 9, 3]), (4, 1), "{size_bits}");
        assert_eq!(discarded(size_bits, &[0, 9, 3, 8, 12]), (12, 2), "{size_bits}");
    }
    // A counter of few bits wraps to 0.
    assert_eq!(discarded(16, &[0xfff0, 0xffff, 4]), (20, 2));
}

#[test]
fn a_narrow_packet_number_wraps_to_0() {
    for (size_bits, last) in [(8, u64::from(u8::MAX)), (16, u64::from(u16::MAX)), (64, u64::MAX)] {
        let gaps = |counts: &[u64]| counted("packet_seq_num", size_bits, counts);
        assert_eq!(gaps(&[last - 1, last, 0, 1]), (0, 0), "{size_bits}");
        assert_eq!(gaps(&[last - 1, last, 1]), (0, 1), "{size_bits}");
    }
}

#[test]
fn a_seek_is_refused_unless_the_packet_matches_the_index() {
    let (metadata, bytes) = stream();
    let reader = || StreamReader::new(&metadata, 0, &bytes);
    let second = PacketHeader::decode(&bytes[4096..]).unwrap();
    let span = PacketSpan {
        offset_bytes: 4096,
        packet_size_bits: 8 * second.packet_size_bytes,
        content_size_bits: 8 * second.content_size_bytes,
        timestamp_begin: second.timestamp_begin,
        timestamp_end: second.timestamp_end,
        events_discarded: 0,
    };
    let mut there = reader();
    assert!(there.seek(1, &span));
    assert_eq!(there.filter(Result::is_ok).count(), 10);
    for wrong in [
        PacketSpan { offset_bytes: 4095, ..span },
        PacketSpan { offset_bytes: 1 << 40, ..span },
        PacketSpan { offset_bytes: 8192, ..span },
        PacketSpan { timestamp_end: 1, ..span },
        PacketSpan { events_discarded: 1, ..span },
    ] {
        let mut nowhere = reader();
        assert!(!nowhere.seek(1, &wrong));
        assert_eq!(nowhere.filter(Result::is_ok).count(), 15);
    }
}

/// A stream that grows byte by byte is read exactly once, however much is added between two reads.
#[test]
fn a_growing_stream_is_continued_at_the_last_position() {
    let (metadata, bytes) = stream();
    let whole: Vec<_> = StreamReader::new(&metadata, 0, &bytes).map(|item| item.unwrap().timestamp).collect();
    for step in [1, 100, 4095, 4096, 5000, bytes.len()] {
        let (mut found, mut position) = (Vec::new(), None);
        for end in (0..bytes.len()).step_by(step).chain([bytes.len()]) {
            let reader = StreamReader::new(&metadata, 0, &bytes[..end]).growing(u64::MAX);
            let mut reader = match &position {
                Some(position) => reader.resumed(position),
                None => reader,
            };
            found.extend(reader.by_ref().map(|item| item.unwrap().timestamp));
            position = Some(reader.position());
        }
        assert_eq!(found, whole, "{step}");
    }
    // Damage is reported once, and nothing after it is read.
    let mut damaged = bytes.clone();
    damaged[4096] ^= 1;
    let mut reader = StreamReader::new(&metadata, 0, &damaged[..4096 + 100]).growing(u64::MAX);
    assert_eq!(reader.by_ref().filter(Result::is_err).count(), 1);
    let position = reader.position();
    assert!(position.is_over());
    assert_eq!(StreamReader::new(&metadata, 0, &damaged).growing(u64::MAX).resumed(&position).count(), 0);
}

/// A reader that resumes at an event that was not taken returns it again, and reports each packet's header once.
#[test]
fn a_stream_is_continued_at_an_event_that_was_not_taken() {
    for kind in [RecordKind::Ids, RecordKind::Compact] {
        let mut trace = TraceBuilder::of_records(kind);
        let class = trace.class("p", "e", &[("n", FieldType::scalar(Kind::U64))]);
        let stream = trace.stream(3);
        for number in 0..20u64 {
            // Compact records have the low 24 bits of the time.
            trace.event(stream, number << 22, 1, 2, class, &[Value::U64(number)]);
            if number % 6 == 5 {
                trace.packet(stream, 0, 2);
            }
        }
        let trace = trace.finish();
        let (metadata, bytes) = (trace.parse(), &trace.streams[stream]);
        let shown = |item: Result<Event<'_>, Notice>| match item {
            Ok(event) => format!("{} {} {:?}", event.timestamp, event.cpu_id, event.fields().collect::<Vec<_>>()),
            Err(notice) => notice.to_string(),
        };
        let whole: Vec<_> = StreamReader::new(&metadata, 0, bytes).map(shown).collect();
        assert_eq!(whole.len(), 20 + 3);
        for step in 1..8 {
            let (mut found, mut position) = (Vec::new(), None);
            loop {
                let reader = StreamReader::new(&metadata, 0, bytes).growing(u64::MAX);
                let mut reader = match &position {
                    Some(position) => reader.resumed(position),
                    None => reader,
                };
                found.extend(reader.by_ref().take(step).map(shown));
                // Reads up to an event, which is not taken.
                let mut ahead = reader.next();
                while let Some(Err(notice)) = ahead {
                    found.push(notice.to_string());
                    ahead = reader.next();
                }
                let is_over = ahead.is_none();
                position = Some(reader.position());
                if is_over {
                    break;
                }
            }
            assert_eq!(found, whole, "{kind:?}, {step}");
        }
    }
}
