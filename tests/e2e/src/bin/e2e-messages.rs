//! Two hosts that send messages to each other: `e2e-messages SOCKET ask COUNT` and `e2e-messages SOCKET answer`.
//!
//! Each question and each answer has its own number, which both ends record.

use std::io::{Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::time::Duration;

fn send(stream: &mut UnixStream, id: u64) {
    dormouse::event!(msg.sent, id);
    stream.write_all(&id.to_le_bytes()).expect("the other end reads");
}

fn receive(stream: &mut UnixStream) -> Option<u64> {
    let mut bytes = [0; 8];
    stream.read_exact(&mut bytes).ok()?;
    let id = u64::from_le_bytes(bytes);
    dormouse::event!(msg.received, id);
    Some(id)
}

fn connect(path: &Path) -> UnixStream {
    loop {
        match UnixStream::connect(path) {
            Ok(stream) => return stream,
            // The other end is not there yet. No event signals that it listens, so this polls; the test has a watchdog.
            Err(_) => std::thread::sleep(Duration::from_millis(1)),
        }
    }
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let path = Path::new(&arguments[0]);
    match arguments[1].as_str() {
        "ask" => {
            let count: u64 = arguments[2].parse().expect("a number");
            let mut stream = connect(path);
            for number in 0..count {
                send(&mut stream, 2 * number);
                assert_eq!(receive(&mut stream), Some(2 * number + 1));
            }
        }
        "answer" => {
            let listener = UnixListener::bind(path).expect("the socket is free");
            let (mut stream, _) = listener.accept().expect("somebody asks");
            while let Some(id) = receive(&mut stream) {
                send(&mut stream, id + 1);
            }
        }
        other => panic!("no mode `{other}`"),
    }
}
