use dormouse_abi::class::{FieldType, Kind};
use dormouse_ctf::Value;
use dormouse_traces::TraceBuilder;
fn main() {
    let args: Vec<String> = std::env::args().collect();
    let (dir, kind, count): (_, _, u64) = (&args[1], args[2].as_str(), args[3].parse().unwrap());
    let mut b = TraceBuilder::new();
    let s = FieldType::scalar;
    let fields = [("id", s(Kind::U64)), ("path", s(Kind::Str)), ("status", s(Kind::I32))];
    let req = ["request_begin", "request_end"].map(|n| b.class("http", n, &fields));
    let q = ["query_begin", "query_end"].map(|n| b.class("db", n, &[("rows", s(Kind::U32))]));
    let tick = b.class("app", "tick", &[("seq", s(Kind::U64)), ("value", s(Kind::U64))]);
    let many: Vec<[u16; 2]> = (0..if kind == "overlap" { 2 } else { 0 })
        .map(|i| ["begin", "end"].map(|e| b.class("o", &format!("s{i}_{e}"), &[])))
        .collect();
    let streams: Vec<usize> = (0..4).map(|c| b.stream(c)).collect();
    let mut t = 1000;
    let paths: [&[u8]; 3] = [b"/index.html", b"/api/v1/items/42", b"/static/app.js"];
    for i in 0..count {
        t += 100;
        let st = streams[(i / 64 % 4) as usize];
        let tid = 100 + (i / 64 % 4) as u32;
        let f = [Value::U64(i / 4), Value::Str(paths[(i % 3) as usize]), Value::I32(200)];
        match kind {
            "plain" => b.event(st, t, 100, tid, tick, &[Value::U64(i), Value::U64(i * 7)]),
            "wide" => b.event(st, t, 100, tid, req[0], &f),
            "deep" => {
                let e = if i < count / 2 { 0 } else { 1 };
                b.event(streams[0], t, 100, 100, q[e], &[Value::U32(i as u32)])
            }
            "overlap" => {
                let at = i % 8000;
                let (n, e) = match at / 2000 {
                    0 => (0, 0),
                    1 => (1, 0),
                    2 => (0, 1),
                    _ => (1, 1),
                };
                b.event(streams[0], t, 100, 100, many[n][e], &[])
            }
            _ => match i % 4 {
                0 => b.event(st, t, 100, tid, req[0], &f),
                1 => b.event(st, t, 100, tid, q[0], &[Value::U32(i as u32)]),
                2 => b.event(st, t, 100, tid, q[1], &[Value::U32(i as u32)]),
                _ => b.event(st, t, 100, tid, req[1], &f),
            },
        }
        if i % 256 == 255 {
            b.packet(st, 0, 0);
        }
    }
    std::fs::create_dir_all(dir).unwrap();
    b.finish().write(dir.as_ref());
}
