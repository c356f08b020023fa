//! Events that are kept in blocks are printed like those that are read.

use dormouse_abi::class::{FieldType, Kind};

use dormouse_ctf::Value;
use dormouse_ctf::stream::Block;
use dormouse_print::{Buffer, ClockFormat, Formatter};
use dormouse_traces::TraceBuilder;

#[test]
fn kept_events_are_shown_as_those_that_are_read() {
    let mut trace = TraceBuilder::new();
    let scalar = FieldType::scalar;
    let fields =
        [("n", scalar(Kind::I64)), ("s", scalar(Kind::Str)), ("f", scalar(Kind::F64)), ("b", scalar(Kind::Bool))];
    let classes = [trace.class("p", "all", &fields), trace.class("p", "none", &[])];
    let streams = [trace.stream(0), trace.stream(1), trace.stream(2)];
    for time in 0..500u64 {
        let stream = streams[(time / 3 % 3) as usize];
        let text = [&b"plain"[..], b"qu\"ote\n", b"", &[b'x'; 100]][time as usize % 4];
        let values = [Value::I64(-(time as i64)), Value::Str(text), Value::F64(0.5), Value::Bool(1)];
        let values = if time % 5 == 0 { &values[..0] } else { &values[..] };
        trace.event(stream, time * time * 10_000_000, 1, 2, classes[usize::from(values.is_empty())], values);
        if time % 50 == 0 {
            trace.packet(stream, 4096, 0);
        }
    }
    let trace = trace.finish();
    let metadata = trace.parse();
    for format in [ClockFormat::TimeOfDay, ClockFormat::Since(1_700_000_000_000_000_001)] {
        let (mut one, mut other) = (Formatter::new(format, |_| 0), Formatter::new(format, |_| 0));
        let (mut expected, mut text) = (Vec::new(), Buffer::default());
        trace.readers(&metadata).for_each(|item| one.event(&item.unwrap(), &mut expected));
        let (mut merge, mut block, mut last_ns) = (trace.readers(&metadata), Block::default(), None);
        let (mut alone, mut alone_ns, mut lines) = (Block::default(), None, Buffer::default());
        let mut is_over = false;
        while !is_over {
            is_over = merge.next_event().is_none();
            if !is_over {
                merge.keep(&mut block);
                // A formatter that has seen no other event.
                merge.keep(&mut alone);
                Formatter::new(format, |_| 0).block(&alone, alone_ns, &mut lines);
                alone_ns = alone.last_ns();
                alone.clear();
            }
            if is_over || block.len() == 7 {
                other.block(&block, last_ns, &mut text);
                last_ns = block.last_ns();
                block.clear();
            }
        }
        assert_eq!(String::from_utf8_lossy(text.as_bytes()), String::from_utf8_lossy(&expected));
        assert_eq!(String::from_utf8_lossy(lines.as_bytes()), String::from_utf8_lossy(&expected));
    }
}
