//! Requests and responses of HTTP/1.1, one per connection, limited to what a page needs.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

/// Maximum size of a request's line and headers.
const HEAD_BYTES_MAX: usize = 8 << 10;
const HEADERS_MAX: usize = 64;
/// Time within which a request must arrive.
const REQUEST_PATIENCE: Duration = Duration::from_secs(5);
/// Time after which a response that makes no progress is abandoned: the client is gone.
const ANSWER_PATIENCE: Duration = Duration::from_secs(20);

/// A request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Request {
    /// Path and query.
    pub target: String,
}

/// A response.
#[derive(Debug)]
pub(super) struct Answer {
    pub status: &'static str,
    pub kind: &'static str,
    /// Content policy, for a page.
    pub policy: Option<String>,
    pub location: Option<String>,
    pub body: Vec<u8>,
}

impl Answer {
    pub(super) fn refused(status: &'static str, why: &str) -> Answer {
        let body = format!("{why}\n").into_bytes();
        Answer { status, kind: "text/plain; charset=utf-8", policy: None, location: None, body }
    }

    pub(super) fn bytes(body: Vec<u8>) -> Answer {
        Answer { status: "200 OK", kind: "application/octet-stream", policy: None, location: None, body }
    }

    /// Returns the header. It forbids caches, framing, and access by other pages.
    fn head(&self) -> String {
        let policy = self.policy.as_deref().unwrap_or("default-src 'none'");
        let mut head = format!(
            "HTTP/1.1 {}\r\nContent-Type: {}\r\nContent-Length: {}\r\nConnection: close\r\nCache-Control: no-store\r\n\
             Content-Security-Policy: {policy}; frame-ancestors 'none'\r\nX-Content-Type-Options: nosniff\r\n\
             X-Frame-Options: DENY\r\nReferrer-Policy: no-referrer\r\nCross-Origin-Resource-Policy: same-origin\r\n\
             Cross-Origin-Opener-Policy: same-origin\r\n",
            self.status,
            self.kind,
            self.body.len()
        );
        if self.status.starts_with("405") {
            head.push_str("Allow: GET\r\n");
        }
        self.location.iter().for_each(|location| head.push_str(&format!("Location: {location}\r\n")));
        head + "\r\n"
    }
}

/// Parses a request. `port`: the server's port.
///
/// # Errors
/// The response that rejects the request.
pub(super) fn parse(head: &[u8], port: u16) -> Result<Request, Answer> {
    let mut headers = [httparse::EMPTY_HEADER; HEADERS_MAX];
    let mut request = httparse::Request::new(&mut headers);
    let is_whole = request.parse(head).is_ok_and(|status| status.is_complete());
    let (true, Some(method), Some(target)) = (is_whole, request.method, request.path) else {
        return Err(Answer::refused("400 Bad Request", "this is no request"));
    };
    if method != "GET" {
        return Err(Answer::refused("405 Method Not Allowed", "nothing but GET is answered"));
    }
    let values = |name: &str| {
        let of_name = request.headers.iter().filter(|header| header.name.eq_ignore_ascii_case(name));
        of_name.map(|header| header.value).collect::<Vec<_>>()
    };
    // Against DNS rebinding: a foreign page whose name resolves to this machine sends its own name as host.
    let hosts = [format!("127.0.0.1:{port}"), format!("localhost:{port}")];
    let is_ours = |value: &[u8], prefix: &str| {
        hosts.iter().any(|host| value.strip_prefix(prefix.as_bytes()).is_some_and(|rest| rest == host.as_bytes()))
    };
    let host = values("host");
    if host.len() != 1 || !is_ours(host[0], "") {
        return Err(Answer::refused("403 Forbidden", "this is not asked for by its own name"));
    }
    let is_elsewhere = values("origin").iter().any(|origin| !is_ours(origin, "http://"))
        || values("sec-fetch-site").iter().any(|site| !matches!(*site, b"same-origin" | b"none"));
    if is_elsewhere {
        return Err(Answer::refused("403 Forbidden", "a page of elsewhere gets nothing"));
    }
    if !values("content-length").is_empty() || !values("transfer-encoding").is_empty() {
        return Err(Answer::refused("400 Bad Request", "a request has no body here"));
    }
    Ok(Request { target: target.into() })
}

/// Reads a request's line and headers; `None` if they do not arrive in time.
pub(super) fn receive(stream: &mut TcpStream) -> Option<Vec<u8>> {
    let deadline = Instant::now() + REQUEST_PATIENCE;
    let mut head = Vec::new();
    let mut bytes = [0; 1024];
    loop {
        let left = deadline.checked_duration_since(Instant::now()).filter(|left| !left.is_zero())?;
        stream.set_read_timeout(Some(left)).ok()?;
        match stream.read(&mut bytes) {
            Ok(0) | Err(_) => return None,
            Ok(count) => head.extend(&bytes[..count]),
        }
        if head.windows(4).any(|end| end == b"\r\n\r\n") || head.len() > HEAD_BYTES_MAX {
            return Some(head);
        }
    }
}

/// Writes a response.
pub(super) fn answer(stream: &mut TcpStream, answer: &Answer) -> std::io::Result<()> {
    stream.set_write_timeout(Some(ANSWER_PATIENCE))?;
    stream.write_all(answer.head().as_bytes())?;
    stream.write_all(&answer.body)?;
    stream.shutdown(std::net::Shutdown::Write)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status(head: &str) -> &'static str {
        parse(head.as_bytes(), 7000).map_or_else(|answer| &answer.status[..3], |_| "200")
    }

    #[test]
    fn only_requests_of_the_page_are_accepted() {
        for (head, expected) in [
            ("GET /a HTTP/1.1\r\nHost: 127.0.0.1:7000\r\n\r\n", "200"),
            ("GET /a HTTP/1.1\r\nhost: localhost:7000\r\nSec-Fetch-Site: same-origin\r\n\r\n", "200"),
            ("GET /a HTTP/1.1\r\nHost: localhost:7000\r\nOrigin: http://localhost:7000\r\n\r\n", "200"),
            ("POST /a HTTP/1.1\r\nHost: 127.0.0.1:7000\r\n\r\n", "405"),
            ("HEAD /a HTTP/1.1\r\nHost: 127.0.0.1:7000\r\n\r\n", "405"),
            ("OPTIONS * HTTP/1.1\r\nHost: 127.0.0.1:7000\r\n\r\n", "405"),
            ("GET /a HTTP/1.1\r\n\r\n", "403"),
            ("GET /a HTTP/1.1\r\nHost: evil.example:7000\r\n\r\n", "403"),
            ("GET /a HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n", "403"),
            ("GET /a HTTP/1.1\r\nHost: 127.0.0.1:7000\r\nHost: evil.example\r\n\r\n", "403"),
            ("GET /a HTTP/1.1\r\nHost: 127.0.0.1:7000\r\nOrigin: http://evil.example\r\n\r\n", "403"),
            ("GET /a HTTP/1.1\r\nHost: 127.0.0.1:7000\r\nOrigin: null\r\n\r\n", "403"),
            ("GET /a HTTP/1.1\r\nHost: 127.0.0.1:7000\r\nSec-Fetch-Site: cross-site\r\n\r\n", "403"),
            ("GET /a HTTP/1.1\r\nHost: 127.0.0.1:7000\r\nContent-Length: 5\r\n\r\nhello", "400"),
            ("GET /a HTTP/1.1\r\nHost: 127.0.0.1:7000\r\nTransfer-Encoding: chunked\r\n\r\n", "400"),
            ("GET /a HTTP/1.1\r\nHost: 127.0.0.1:7000\r\n", "400"),
            ("GET\r\n\r\n", "400"),
            ("\u{0}\u{1}\r\n\r\n", "400"),
        ] {
            assert_eq!(status(head), expected, "{head:?}");
        }
        let many = format!("GET /a HTTP/1.1\r\nHost: 127.0.0.1:7000\r\n{}\r\n", "x: y\r\n".repeat(HEADERS_MAX));
        assert_eq!(status(&many), "400");
    }
}
