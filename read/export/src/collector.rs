//! Sends spans to an OpenTelemetry collector: OTLP over HTTP, protobuf.
//!
//! ```text
//!   exporter ─▶ pipe ─▶ whole messages, as many as a request holds ─▶ POST ─▶ 200: accepted, perhaps in part
//!                                                                             429, 502, 503, 504: retry later
//!                                                                             others: error
//! ```
//! An export is a sequence of messages. Each is a valid request by itself, so an export can be split between any two.
//!
//! # Source
//! "OpenTelemetry Protocol Specification", OTLP/HTTP: path, retryable statuses, `Retry-After`, partial success.

use std::io::{BufRead, BufReader, ErrorKind, PipeWriter, Read};
use std::thread::JoinHandle;
use std::time::Duration;

use serde::Serialize;

/// Maximum size of a request, in bytes, unless a single message is longer. Collectors accept 20 MiB, proxies in front
/// of them often less.
const REQUEST_BYTES: usize = 2 << 20;
/// Maximum size of a message, in bytes. Longer input is not a message of an export.
const MESSAGE_BYTES_MAX: u64 = 1 << 30;
/// Maximum size of an answer, in bytes.
const ANSWER_BYTES_MAX: u64 = 64 << 10;
const CONNECT_PATIENCE: Duration = Duration::from_secs(5);
const ANSWER_PATIENCE: Duration = Duration::from_secs(60);
/// Waits before each retry of a request, in seconds. `WAIT_S_MAX` bounds the wait that a collector asks for.
const WAITS_S: [u64; 4] = [1, 2, 4, 8];
const WAIT_S_MAX: u64 = 30;
/// Protobuf key of the messages: field 1, length-delimited.
const RESOURCE_SPANS: u64 = (1 << 3) | 2;

/// The collector's answers to all requests.
#[derive(Debug, Default, Serialize)]
pub struct CollectorAnswers {
    /// Number of requests that the collector has accepted.
    pub requests: u64,
    /// Number of spans in them that it has rejected.
    pub rejected_spans: u64,
    /// Why spans were rejected, or another message of the collector.
    pub message: String,
}

/// A thread that sends spans to a collector.
pub struct Collector {
    sending: JoinHandle<Result<CollectorAnswers, String>>,
}

impl Collector {
    /// Returns the address that spans are sent to, if `output` names a collector.
    ///
    /// # Errors
    /// It is an address that spans cannot be sent to.
    pub fn url(output: &str) -> Result<Option<String>, String> {
        if output.starts_with("https://") {
            return Err(format!(
                "{output}: spans are sent by http alone, to a collector that is near; or write a file by -o, and send it by curl"
            ));
        }
        let Some(rest) = output.strip_prefix("http://") else { return Ok(None) };
        // A base URL without a path gets the path that the specification defines for traces.
        Ok(Some(match rest.split_once('/') {
            None => format!("{output}/v1/traces"),
            Some((_, "")) => format!("{output}v1/traces"),
            Some(_) => output.to_owned(),
        }))
    }

    /// Starts the thread. Returns it with the pipe that spans are written to, as [`crate::Format::Otlp`] has them.
    ///
    /// # Errors
    /// There is no pipe or no thread for it.
    pub fn start(url: String) -> std::io::Result<(Collector, PipeWriter)> {
        let (reader, writer) = std::io::pipe()?;
        // The thread sleeps before it retries a request: at most four times, none longer than `WAIT_S_MAX`; see `post`.
        let sending = std::thread::Builder::new().spawn(move || send(&url, reader, std::thread::sleep))?;
        Ok((Collector { sending }, writer))
    }

    /// Waits until all spans are sent. The pipe must be closed. Returns the collector's answers.
    ///
    /// # Errors
    /// The collector could not be reached, or does not accept the spans.
    pub fn finish(self) -> Result<CollectorAnswers, String> {
        self.sending.join().map_err(|_| "sending has failed".to_owned())?
    }
}

/// Sends the messages from the pipe, with pauses before retries. When it returns, the pipe is closed for writing.
fn send(url: &str, pipe: impl Read, mut pause: impl FnMut(Duration)) -> Result<CollectorAnswers, String> {
    let config = ureq::Agent::config_builder()
        .http_status_as_error(false)
        .proxy(None)
        .timeout_connect(Some(CONNECT_PATIENCE))
        .timeout_global(Some(ANSWER_PATIENCE));
    let agent = config.build().into();
    let (mut pipe, mut body, mut sent) = (BufReader::new(pipe), Vec::new(), CollectorAnswers::default());
    loop {
        let begin = body.len();
        let is_there = read_message(&mut pipe, &mut body).map_err(|error| format!("cannot read spans: {error}"))?;
        let is_full = body.len() > REQUEST_BYTES;
        if begin > 0 && (is_full || !is_there) {
            let rest = body.split_off(begin);
            post(&agent, url, &body, &mut sent, &mut pause).map_err(|why| match sent.requests {
                0 => format!("cannot send spans to {url}: {why}"),
                count => format!("cannot send spans to {url}, which took {count} requests before: {why}"),
            })?;
            body = rest;
        }
        if !is_there {
            return Ok(sent);
        }
    }
}

/// Appends the next message with its key to `body`; false at the end of the pipe.
fn read_message(pipe: &mut impl BufRead, body: &mut Vec<u8>) -> std::io::Result<bool> {
    let Some(key) = read_number(pipe, body)? else { return Ok(false) };
    let len = read_number(pipe, body)?.filter(|len| key == RESOURCE_SPANS && *len <= MESSAGE_BYTES_MAX);
    let len = len.ok_or(ErrorKind::InvalidData)?;
    let read = pipe.take(len).read_to_end(body)?;
    if read as u64 == len { Ok(true) } else { Err(ErrorKind::UnexpectedEof.into()) }
}

/// Reads a protobuf varint (seven bits a byte, lowest bits first), and appends its bytes; `None` at the end.
fn read_number(from: &mut impl BufRead, bytes: &mut Vec<u8>) -> std::io::Result<Option<u64>> {
    let mut number = 0;
    for shift in (0..64).step_by(7) {
        let Some(byte) = from.bytes().next().transpose()? else {
            return if shift == 0 { Ok(None) } else { Err(ErrorKind::UnexpectedEof.into()) };
        };
        bytes.push(byte);
        number |= u64::from(byte & 0x7F) << shift;
        if byte < 0x80 {
            return Ok(Some(number));
        }
    }
    Err(ErrorKind::InvalidData.into())
}

/// Sends a request, and retries it on a retryable status.
fn post(
    agent: &ureq::Agent,
    url: &str,
    body: &[u8],
    sent: &mut CollectorAnswers,
    pause: &mut impl FnMut(Duration),
) -> Result<(), String> {
    let mut waits = WAITS_S.iter();
    loop {
        let request = agent.post(url).content_type(PROTOBUF);
        let mut answer = request.send(body).map_err(|error| format!("{error}; {REMEDY}"))?;
        let status = answer.status();
        let wait = answer.headers().get("retry-after").and_then(|wait| wait.to_str().ok()?.parse::<u64>().ok());
        let is_protobuf = answer.body().mime_type() == Some(PROTOBUF);
        let text = answer.body_mut().with_config().limit(ANSWER_BYTES_MAX).read_to_vec().unwrap_or_default();
        let why = || {
            let text = if is_protobuf { status_message(&text) } else { String::from_utf8_lossy(&text).into_owned() };
            let line = text.lines().next().filter(|line| !line.trim().is_empty() && line.len() <= 200);
            line.map(|line| format!(" ({line})")).unwrap_or_default()
        };
        match (status.as_u16(), waits.next()) {
            (200, _) => {
                sent.requests += 1;
                note_partial(&text, sent);
                return Ok(());
            }
            // The collector is overloaded, and may say how long to wait. Retries end after the last of `WAITS_S`. No
            // wait is longer than `WAIT_S_MAX`.
            (429 | 502 | 503 | 504, Some(next)) => pause(Duration::from_secs(wait.unwrap_or(*next).min(WAIT_S_MAX))),
            (429 | 502 | 503 | 504, None) => {
                return Err(format!("it answers {status}{}, {} times; try again later", why(), WAITS_S.len() + 1));
            }
            // Only a collector answers in protobuf.
            _ if is_protobuf => return Err(format!("it answers {status}{}; the collector's log says more", why())),
            _ => return Err(format!("it answers {status}{}; {REMEDY}", why())),
        }
    }
}

const PROTOBUF: &str = "application/x-protobuf";
const REMEDY: &str = "is a collector there that takes OTLP over HTTP? It has port 4318, and 4317 for gRPC";

/// Notes the partial success in an `ExportTraceServiceResponse`: its field 1 has the number of rejected spans (1), and
/// the reason (2).
fn note_partial(answer: &[u8], sent: &mut CollectorAnswers) {
    each_field(answer, |number, _, partial| {
        if number == 1 {
            each_field(partial, |number, value, text| match number {
                1 => sent.rejected_spans += value,
                2 => sent.message = String::from_utf8_lossy(text).into_owned(),
                _ => {}
            });
        }
    });
}

/// Returns the collector's error message: field 2 of a `google.rpc.Status`.
fn status_message(answer: &[u8]) -> String {
    let mut message = String::new();
    each_field(answer, |number, _, text| {
        if number == 2 {
            message = String::from_utf8_lossy(text).into_owned();
        }
    });
    message
}

/// Calls `see` for each field of a message, as far as it can be read: number, value or length, bytes.
fn each_field(mut message: &[u8], mut see: impl FnMut(u64, u64, &[u8])) -> Option<()> {
    let number = |message: &mut &[u8]| read_number(message, &mut Vec::new()).ok().flatten();
    while let Some(key) = number(&mut message) {
        let value = if matches!(key & 7, 0 | 2) { number(&mut message)? } else { 0 };
        let size_bytes = match key & 7 {
            0 => 0,
            1 => 8,
            2 => usize::try_from(value).ok()?,
            5 => 4,
            _ => return None,
        };
        let (bytes, rest) = message.split_at_checked(size_bytes)?;
        see(key >> 3, value, bytes);
        message = rest;
    }
    Some(())
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::net::{TcpListener, TcpStream};

    use super::*;

    /// Sends one message to a collector that gives `answers` in turn: status and headers, body. Returns the pauses, in
    /// seconds, and the result.
    fn send_to(answers: &[(&str, &str)]) -> (Vec<u64>, Result<CollectorAnswers, String>) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let url = format!("http://{address}/v1/traces");
        let message = [RESOURCE_SPANS as u8, 3, 1, 2, 3];
        let (mut pauses, mut sent) = (Vec::new(), None);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                sent = Some(send(&url, &message[..], |pause| pauses.push(pause.as_secs())));
                // If the sender gives up too early, this lets the listener's `accept` return.
                drop(TcpStream::connect(address));
            });
            for (head, body) in answers {
                let mut stream = BufReader::new(listener.accept().unwrap().0);
                let mut asked = String::new();
                while !asked.ends_with("\r\n\r\n") && stream.read_line(&mut asked).unwrap() > 0 {}
                let mut bytes = [0; 5];
                stream.read_exact(&mut bytes).unwrap();
                assert_eq!(bytes, message);
                let close = format!("Connection: close\r\nContent-Length: {}", body.len());
                write!(stream.get_mut(), "HTTP/1.1 {head}\r\n{close}\r\n\r\n{body}").unwrap();
            }
        });
        (pauses, sent.unwrap())
    }

    #[test]
    fn retries_wait_as_long_as_the_collector_says() {
        let (pauses, sent) = send_to(&[
            ("429 Too Many Requests\r\nRetry-After: 7", ""),
            ("503 Service Unavailable\r\nRetry-After: 86400", ""),
            ("502 Bad Gateway", ""),
            // A date is not a number of seconds, so it is ignored.
            ("504 Gateway Timeout\r\nRetry-After: Fri, 27 Nov 2026 16:00:00 GMT", ""),
            ("200 OK", ""),
        ]);
        assert_eq!(pauses, [7, WAIT_S_MAX, WAITS_S[2], WAITS_S[3]]);
        assert_eq!(sent.unwrap().requests, 1);
    }

    #[test]
    fn sending_gives_up_after_five_attempts() {
        let busy = "503 Service Unavailable\r\nContent-Type: application/x-protobuf";
        let (pauses, sent) = send_to(&[(busy, "\x08\x0E\x12\x08too much"); 5]);
        assert_eq!(pauses, WAITS_S);
        let error = sent.unwrap_err();
        assert!(error.ends_with("it answers 503 Service Unavailable (too much), 5 times; try again later"), "{error}");
    }

    #[test]
    fn errors_include_the_collectors_message() {
        let refused = ("400 Bad Request\r\nContent-Type: application/x-protobuf", "\x08\x03\x12\x09too large");
        let (pauses, sent) = send_to(&[refused]);
        assert_eq!(pauses, [0; 0]);
        let error = sent.unwrap_err();
        assert!(error.ends_with("it answers 400 Bad Request (too large); the collector's log says more"), "{error}");
    }
}
