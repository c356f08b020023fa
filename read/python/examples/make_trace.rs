//! Writes a trace for measurements: `make_trace DIR COUNT` writes COUNT events of ten classes in turn, on two CPUs.

use std::path::Path;

use dormouse_abi::class::{FieldType, Kind};
use dormouse_ctf::Value;
use dormouse_traces::TraceBuilder;

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    let [_, dir, count] = arguments.as_slice() else { panic!("make_trace DIR COUNT") };
    let count: u64 = count.parse().expect("a number of events");
    let mut builder = TraceBuilder::new();
    let fields = [
        ("id", FieldType::scalar(Kind::U64)),
        ("bytes", FieldType::scalar(Kind::U32)),
        ("ratio", FieldType::scalar(Kind::F64)),
        ("path", FieldType::scalar(Kind::Str)),
    ];
    let classes: Vec<u16> = (0..10).map(|number| builder.class("made", &format!("class_{number}"), &fields)).collect();
    let streams = [builder.stream(0), builder.stream(1)];
    for number in 0..count {
        let stream = streams[(number / 100 % 2) as usize];
        let class = classes[(number % 10) as usize];
        let path = format!("/srv/www/{}", number % 1000);
        let values =
            [Value::U64(number), Value::U32(number as u32 % 4096), Value::F64(0.5), Value::Str(path.as_bytes())];
        builder.event(stream, 1000 * number, 12, 13 + number as u32 % 4, class, &values);
        if number % 2000 == 1999 {
            streams.iter().for_each(|stream| builder.packet(*stream, 0, 0));
        }
    }
    let trace = builder.finish();
    let write = |name: &str, bytes: &[u8]| std::fs::write(Path::new(dir).join(name), bytes).expect("can be written");
    std::fs::create_dir_all(dir).expect("the directory can be made");
    write("metadata", trace.metadata.as_bytes());
    for (name, bytes) in ["state", "cpu_0", "cpu_1"].iter().zip(&trace.streams) {
        write(name, bytes);
    }
}
