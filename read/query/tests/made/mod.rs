//! Traces for the tests.

// Each test program uses only a part of this module.
#![allow(dead_code)]

use std::path::Path;

use dormouse_abi::class::{FieldType, Kind};
use dormouse_ctf::{StateRecord, Value};
use dormouse_traces::TraceBuilder;

/// Number of requests: 4,000 of two processes on two CPUs, each with its response 100 to 1,099 ns later.
pub const REQUESTS: u64 = 4000;

/// Returns the latency of a request, in nanoseconds.
pub fn latency_ns(id: u64) -> u64 {
    100 + id * 7919 % 1000
}

/// Writes a trace of `REQUESTS` requests with their responses.
pub fn write_http(dir: &Path) {
    write_requests(dir, REQUESTS);
}

/// Writes a trace of `count` requests with their responses.
pub fn write_requests(dir: &Path, count: u64) {
    let mut builder = TraceBuilder::new();
    let (id, path) = (("id", FieldType::scalar(Kind::U64)), ("path", FieldType::scalar(Kind::Str)));
    let numbers = ("numbers", FieldType { kind: Kind::U8, sequence: true });
    let begin = builder.class("http", "begin", &[id, path, ("bytes", FieldType::scalar(Kind::I32)), numbers]);
    let end = builder.class("http", "end", &[id, ("share", FieldType::scalar(Kind::F64))]);
    for (process, vpid, name) in [(1, 12, "web"), (2, 13, "cache")] {
        let program = "/bin/x";
        builder.state(0, &StateRecord::Process { process, pid: vpid, vpid, name, program, command_line: "" });
    }
    let streams = [builder.stream(0), builder.stream(1)];
    for id in 0..count {
        let cpu = (id % 2) as usize;
        let (pid, tid, at) = (12 + cpu as u32, 20 + cpu as u32, 10_000 * id);
        let path = format!("/{}", id % 10);
        let list = [1, 2, 3];
        let values = [
            Value::U64(id),
            Value::Str(path.as_bytes()),
            Value::I32(id as i32 - 10),
            Value::Sequence(dormouse_ctf::Sequence::new(Kind::U8, &list).unwrap()),
        ];
        builder.event(streams[cpu], at, pid, tid, begin, &values);
        builder.event(streams[cpu], at + latency_ns(id), pid, tid, end, &[Value::U64(id), Value::F64(0.5)]);
    }
    builder.finish().closed().write(dir);
}

/// Declares the classes of calls that copy and close descriptors, and of the other calls that open them: `fclose`,
/// `dup`, `close_range`, `pipe`, `fopen`, `freopen`, `socket`, `socketpair`, `accept`.
pub fn descriptor_classes(builder: &mut TraceBuilder) -> [u16; 9] {
    let field = |name: &'static str, kind| (name, FieldType::scalar(kind));
    let number = |name: &'static str| field(name, Kind::I32);
    let (path, fd, oldfd, result) = (field("path", Kind::Str), number("fd"), number("oldfd"), number("result"));
    let kind = [number("domain"), number("kind"), number("protocol")];
    let range = [field("first", Kind::U32), field("last", Kind::U32), number("flags"), result];
    [
        builder.class("libc", "fclose", &[fd, result]),
        builder.class("libc", "dup", &[oldfd, fd]),
        builder.class("libc", "close_range", &range),
        builder.class("libc", "pipe", &[number("read_fd"), number("write_fd"), number("flags"), result]),
        builder.class("libc", "fopen", &[path, fd]),
        builder.class("libc", "freopen", &[path, oldfd, fd]),
        builder.class("libc", "socket", &[&kind[..], &[fd]].concat()),
        builder.class("libc", "socketpair", &[&kind[..], &[fd, number("other_fd"), result]].concat()),
        builder.class("libc", "accept", &[number("sockfd"), number("flags"), fd]),
    ]
}

/// Declares the classes of forks: the event of the parent, and that of the child.
pub fn fork_classes(builder: &mut TraceBuilder) -> [u16; 2] {
    let [parent, number] =
        [("parent", Kind::I32), ("number", Kind::U32)].map(|(name, kind)| (name, FieldType::scalar(kind)));
    [builder.class("libc", "fork_begin", &[number]), builder.class("libc", "fork_child", &[parent, number])]
}

/// Writes a trace of libc calls: two blocks are not freed; two threads wait for a mutex and a
/// read-write lock; one file is read and
/// another written.
pub fn write_libc(dir: &Path) {
    let mut builder = TraceBuilder::new();
    let field = |name: &'static str, kind| (name, FieldType::scalar(kind));
    let (ptr, size, result) = (field("ptr", Kind::U64), field("size", Kind::U64), field("result", Kind::I64));
    let (fd, mutex) = (field("fd", Kind::I32), field("mutex", Kind::U64));
    let (path, flags, mode) = (field("path", Kind::Str), field("flags", Kind::I32), field("mode", Kind::U32));
    let malloc = builder.class("libc", "malloc", &[size, ptr]);
    builder.class("libc", "calloc", &[field("count", Kind::U64), size, ptr]);
    let realloc = builder.class("libc", "realloc", &[field("old", Kind::U64), size, ptr]);
    let free = builder.class("libc", "free", &[ptr]);
    let lock = builder.class("libc", "mutex_lock", &[mutex, result]);
    let wait = builder.class("libc", "mutex_lock_begin", &[mutex, field("owner", Kind::I32)]);
    let unlock = builder.class("libc", "mutex_unlock", &[mutex]);
    let (rwlock, writer) = (field("rwlock", Kind::U64), field("writer", Kind::I32));
    let [read_lock, write_lock] =
        ["rwlock_rdlock", "rwlock_wrlock"].map(|name| builder.class("libc", name, &[rwlock, result]));
    let [read_wait, write_wait] =
        ["rwlock_rdlock_begin", "rwlock_wrlock_begin"].map(|name| builder.class("libc", name, &[rwlock, writer]));
    let rwlock_unlock = builder.class("libc", "rwlock_unlock", &[rwlock]);
    let open = builder.class("libc", "open", &[path, flags, mode, fd]);
    builder.class("libc", "openat", &[field("dirfd", Kind::I32), path, flags, mode, fd]);
    let transfer = [fd, field("buf", Kind::U64), field("count", Kind::U64), result, field("duration_ns", Kind::U64)];
    let read = builder.class("libc", "read", &transfer);
    let write = builder.class("libc", "write", &transfer);
    let close = builder.class("libc", "close", &[fd, result]);
    descriptor_classes(&mut builder);
    fork_classes(&mut builder);
    let (name, program) = ("launcher", "/bin/app");
    builder.state(0, &StateRecord::Process { process: 1, pid: 7, vpid: 7, name, program, command_line: "" });
    let stream = builder.stream(0);
    let mut at = 0;
    let mut event = |tid: u32, class: u16, values: &[Value<'_>]| {
        at += 1000;
        builder.event(stream, at, 7, tid, class, values);
    };
    for (size, ptr) in [(100, 0x10), (200, 0x20), (100, 0x30), (64, 0x40)] {
        event(8, malloc, &[Value::U64(size), Value::U64(ptr)]);
    }
    event(8, free, &[Value::U64(0x20)]);
    // The address is allocated again, and the new block is freed.
    event(8, malloc, &[Value::U64(50), Value::U64(0x20)]);
    event(8, free, &[Value::U64(0x20)]);
    event(8, realloc, &[Value::U64(0x40), Value::U64(4096), Value::U64(0x50)]);
    event(8, free, &[Value::U64(0x50)]);
    let (mutex, rwlock, done) = (Value::U64(0xabc), Value::U64(0xeee), Value::I64(0));
    event(8, lock, &[mutex, done]);
    event(9, wait, &[mutex, Value::I32(8)]);
    event(8, unlock, &[mutex]);
    event(9, lock, &[mutex, done]);
    event(8, wait, &[mutex, Value::I32(9)]);
    event(9, unlock, &[mutex]);
    event(8, lock, &[mutex, done]);
    event(8, unlock, &[mutex]);
    event(8, write_lock, &[rwlock, done]);
    event(9, read_wait, &[rwlock, Value::I32(8)]);
    event(8, rwlock_unlock, &[rwlock]);
    event(9, read_lock, &[rwlock, done]);
    event(8, write_wait, &[rwlock, Value::I32(0)]);
    event(9, rwlock_unlock, &[rwlock]);
    event(8, write_lock, &[rwlock, done]);
    event(8, rwlock_unlock, &[rwlock]);
    // A failed lock: no thread holds the mutex.
    event(8, lock, &[Value::U64(0xdef), Value::I64(-16)]);
    let opened = |path: &'static str, fd| [Value::Str(path.as_bytes()), Value::I32(0), Value::U32(0), Value::I32(fd)];
    event(8, open, &opened("/etc/a", 3));
    event(8, open, &opened("/etc/none", -2));
    let moved = |fd, result: i64| {
        let duration_ns = Value::U64(result.unsigned_abs() * 10);
        [Value::I32(fd), Value::U64(0), Value::U64(4096), Value::I64(result), duration_ns]
    };
    event(8, read, &moved(3, 1000));
    event(9, read, &moved(3, 24));
    event(8, read, &moved(3, -11));
    event(8, close, &[Value::I32(3), Value::I64(0)]);
    event(8, open, &opened("/tmp/b", 3));
    event(8, write, &moved(3, 500));
    event(8, close, &[Value::I32(3), Value::I64(0)]);
    event(8, write, &moved(1, 7));
    // All rows have the last name.
    builder.state(1_000_000, &StateRecord::ThreadName { process: 1, vtid: 9, name: "worker" });
    builder.state(1_000_000, &StateRecord::ProcessName { process: 1, name: "app" });
    builder.finish().closed().write(dir);
}
