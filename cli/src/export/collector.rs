//! Spans to a collector of OpenTelemetry: OTLP over HTTP, protobuf.
//!
//! ```text
//!   exporter ─▶ pipe ─▶ whole messages, as many as a request holds ─▶ POST ─▶ 200: taken, perhaps not all of it
//!                                                                             429, 502, 503, 504: again, later
//!                                                                             others: the end
//! ```
//! An export is a row of messages, each of which is a request's by itself, so that it can be cut between any two of them.
//!
//! # Source
//! "OpenTelemetry Protocol Specification", OTLP/HTTP: path, statuses that are tried again, `Retry-After`, partial success.

use std::fs::File;
use std::io::{BufRead, BufReader, ErrorKind, Read};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::{Context, anyhow, bail};
use dormouse_terminal::Output;
use serde_json::{Value, json};

/// Bytes of a request, one message excepted that is longer. Collectors take 20 MiB, what stands before them often less.
const REQUEST_BYTES: usize = 2 << 20;
/// What is longer is no message of an export.
const MESSAGE_BYTES_MAX: u64 = 1 << 30;
/// Of an answer.
const ANSWER_BYTES_MAX: u64 = 64 << 10;
const CONNECT_PATIENCE: Duration = Duration::from_secs(5);
const ANSWER_PATIENCE: Duration = Duration::from_secs(60);
/// Seconds before a request is sent again, and at most where the collector says how many.
const WAITS_S: [u64; 4] = [1, 2, 4, 8];
const WAIT_S_MAX: u64 = 30;
/// The key of the messages: field 1, which has a length.
const RESOURCE_SPANS: u64 = (1 << 3) | 2;

/// What a collector has taken.
#[derive(Debug, Default)]
pub(super) struct Sent {
    requests: u64,
    pub(super) rejected_spans: u64,
    /// Why it has rejected some, or what else it had to say.
    pub(super) message: String,
}

impl Sent {
    pub(super) fn json(&self) -> Value {
        json!({ "requests": self.requests, "rejected_spans": self.rejected_spans, "message": self.message })
    }
}

/// A collector that spans go to.
pub(super) struct Collector {
    output: Output,
    sending: JoinHandle<anyhow::Result<Sent>>,
}

impl Collector {
    /// Of an address; `None` if it is a file's name.
    ///
    /// # Errors
    /// It is one that is not spoken to.
    pub(super) fn of(path: &Path) -> anyhow::Result<Option<Collector>> {
        let Some(url) = path.to_str() else { return Ok(None) };
        if url.starts_with("https://") {
            bail!(
                "{url}: spans are sent by http alone, to a collector that is near; or write a file by -o, and send it by curl"
            );
        }
        let Some(rest) = url.strip_prefix("http://") else { return Ok(None) };
        // A base alone has the path that the specification gives to traces.
        let url = match rest.split_once('/') {
            None => format!("{url}/v1/traces"),
            Some((_, "")) => format!("{url}v1/traces"),
            Some(_) => url.to_owned(),
        };
        let (reader, writer) = std::io::pipe().context("cannot make a pipe")?;
        let output = Output::to_file(File::from(OwnedFd::from(writer)), url.clone());
        // It sleeps where a collector asks to be left alone, four times at most and never longer than `WAIT_S_MAX`, see `post`.
        let sending = std::thread::Builder::new().spawn(move || send(&url, reader, std::thread::sleep))?;
        Ok(Some(Collector { output, sending }))
    }

    /// Where spans are written to.
    pub(super) fn output(&mut self) -> &mut Output {
        &mut self.output
    }

    /// Gives the bytes of all spans, and what came of them.
    ///
    /// # Errors
    /// It could not be reached, or does not take them.
    pub(super) fn finish(self) -> anyhow::Result<(u64, Sent)> {
        let written_bytes = self.output.written_bytes();
        let written = self.output.finish();
        let sent = self.sending.join().map_err(|_| anyhow!("sending has failed"))??;
        written.map(|()| (written_bytes, sent))
    }
}

/// Sends what comes, with pauses before what is sent again. When it ends, nothing more can be written to the pipe.
fn send(url: &str, pipe: impl Read, mut pause: impl FnMut(Duration)) -> anyhow::Result<Sent> {
    let config = ureq::Agent::config_builder()
        .http_status_as_error(false)
        .proxy(None)
        .timeout_connect(Some(CONNECT_PATIENCE))
        .timeout_global(Some(ANSWER_PATIENCE));
    let agent = config.build().into();
    let (mut pipe, mut body, mut sent) = (BufReader::new(pipe), Vec::new(), Sent::default());
    loop {
        let begin = body.len();
        let is_there = read_message(&mut pipe, &mut body).context("cannot read spans")?;
        let is_full = body.len() > REQUEST_BYTES;
        if begin > 0 && (is_full || !is_there) {
            let rest = body.split_off(begin);
            post(&agent, url, &body, &mut sent, &mut pause).with_context(|| match sent.requests {
                0 => format!("cannot send spans to {url}"),
                count => format!("cannot send spans to {url}, which took {count} requests before"),
            })?;
            body = rest;
        }
        if !is_there {
            return Ok(sent);
        }
    }
}

/// Appends the next message with its key; false at the end.
fn read_message(pipe: &mut impl BufRead, body: &mut Vec<u8>) -> std::io::Result<bool> {
    let Some(key) = read_number(pipe, body)? else { return Ok(false) };
    let len = read_number(pipe, body)?.filter(|len| key == RESOURCE_SPANS && *len <= MESSAGE_BYTES_MAX);
    let len = len.ok_or(ErrorKind::InvalidData)?;
    let read = pipe.take(len).read_to_end(body)?;
    if read as u64 == len { Ok(true) } else { Err(ErrorKind::UnexpectedEof.into()) }
}

/// A number of seven bits a byte, the lowest ones first, which is appended as it is; `None` at the end.
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

/// Sends a request, again where that may help.
fn post(
    agent: &ureq::Agent,
    url: &str,
    body: &[u8],
    sent: &mut Sent,
    pause: &mut impl FnMut(Duration),
) -> anyhow::Result<()> {
    let mut waits = WAITS_S.iter();
    loop {
        let request = agent.post(url).content_type(PROTOBUF);
        let mut answer = request.send(body).map_err(|error| anyhow!("{error}; {REMEDY}"))?;
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
            // The collector has more than it can do, and asks to be left alone for so long. It ends with the last of the waits, none of which is longer than
            // `WAIT_S_MAX`.
            (429 | 502 | 503 | 504, Some(next)) => pause(Duration::from_secs(wait.unwrap_or(*next).min(WAIT_S_MAX))),
            (429 | 502 | 503 | 504, None) => {
                bail!("it answers {status}{}, {} times; try again later", why(), WAITS_S.len() + 1)
            }
            // Collectors alone answer so.
            _ if is_protobuf => bail!("it answers {status}{}; the collector's log says more", why()),
            _ => bail!("it answers {status}{}; {REMEDY}", why()),
        }
    }
}

const PROTOBUF: &str = "application/x-protobuf";
const REMEDY: &str = "is a collector there that takes OTLP over HTTP? It has port 4318, and 4317 for gRPC";

/// What an `ExportTraceServiceResponse` says: its field 1 has how many spans were rejected (1), and why (2).
fn note_partial(answer: &[u8], sent: &mut Sent) {
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

/// What a collector says of an error: field 2 of a `google.rpc.Status`.
fn status_message(answer: &[u8]) -> String {
    let mut message = String::new();
    each_field(answer, |number, _, text| {
        if number == 2 {
            message = String::from_utf8_lossy(text).into_owned();
        }
    });
    message
}

/// Shows the fields of a message, as far as it can be read: number, value or length, bytes.
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

    /// Sends one message to a collector that answers as often as it is asked: status and headers, body. Gives the pauses, and what came of it.
    fn send_to(answers: &[(&str, &str)]) -> (Vec<u64>, anyhow::Result<Sent>) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let url = format!("http://{address}/v1/traces");
        let message = [RESOURCE_SPANS as u8, 3, 1, 2, 3];
        let (mut pauses, mut sent) = (Vec::new(), None);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                sent = Some(send(&url, &message[..], |pause| pauses.push(pause.as_secs())));
                // It is not to be waited for where it has given up too early.
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

    fn error(sent: &anyhow::Result<Sent>) -> String {
        format!("{:#}", sent.as_ref().unwrap_err())
    }

    #[test]
    fn it_waits_as_long_as_the_collector_says() {
        let (pauses, sent) = send_to(&[
            ("429 Too Many Requests\r\nRetry-After: 7", ""),
            ("503 Service Unavailable\r\nRetry-After: 86400", ""),
            ("502 Bad Gateway", ""),
            // A date is no number of seconds.
            ("504 Gateway Timeout\r\nRetry-After: Fri, 27 Nov 2026 16:00:00 GMT", ""),
            ("200 OK", ""),
        ]);
        assert_eq!(pauses, [7, WAIT_S_MAX, WAITS_S[2], WAITS_S[3]]);
        assert_eq!(sent.unwrap().requests, 1);
    }

    #[test]
    fn it_gives_up_after_the_fifth_time() {
        let busy = "503 Service Unavailable\r\nContent-Type: application/x-protobuf";
        let (pauses, sent) = send_to(&[(busy, "\x08\x0E\x12\x08too much"); 5]);
        assert_eq!(pauses, WAITS_S);
        let error = error(&sent);
        assert!(error.ends_with("it answers 503 Service Unavailable (too much), 5 times; try again later"), "{error}");
    }

    #[test]
    fn an_error_says_what_the_collector_says() {
        let refused = ("400 Bad Request\r\nContent-Type: application/x-protobuf", "\x08\x03\x12\x09too large");
        let (pauses, sent) = send_to(&[refused]);
        assert_eq!(pauses, [0; 0]);
        let error = error(&sent);
        assert!(error.ends_with("it answers 400 Bad Request (too large); the collector's log says more"), "{error}");
    }
}
