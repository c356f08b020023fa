//! A headless Chromium, in which tests look at pages. It is controlled by the DevTools protocol over two pipes: no
//! port, no crate.
//!
//! Messages are JSON, each ended by a zero byte; Chromium reads them at descriptor 3 and writes them at 4.
//! See <https://chromedevtools.github.io/devtools-protocol/>.

use std::io::{BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::{Lack, skip};

/// How long to wait before an expected condition counts as never met.
const PATIENCE: Duration = Duration::from_secs(300);

/// Returns the browser's program; otherwise skips the calling test.
pub fn program() -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let names = ["chromium", "chromium-browser", "google-chrome"];
    let places = names.iter().flat_map(|name| std::env::split_paths(&path).map(move |dir| dir.join(name)));
    let found = places.into_iter().find(|place| place.is_file());
    if found.is_none() {
        skip(Lack::program("chromium"));
    }
    found
}

/// A browser with one page, and a directory of its own.
#[derive(Debug)]
pub struct Browser {
    child: Child,
    messages: Receiver<Value>,
    events: Vec<Value>,
    last_id: u64,
    session: Option<String>,
    dir: tempfile::TempDir,
}

impl Browser {
    /// Starts the browser.
    ///
    /// # Panics
    /// If it does not start.
    pub fn start(program: &Path) -> Browser {
        let dir = tempfile::tempdir().expect("a directory for the browser");
        // The sandbox needs rights that root drops and containers lack; only the tests' own pages are opened.
        let child = Command::new("sh")
            .args(["-c", "exec \"$0\" \"$@\" 3<&0 4>&1 0</dev/null 1>/dev/null 2>\"$HOME/errors\""])
            .arg(program)
            .args(["--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--remote-debugging-pipe"])
            .args([
                "--no-first-run",
                "--disable-background-networking",
                "--disable-component-update",
                "--disable-sync",
                "--disable-quic",
            ])
            .args(["--hide-scrollbars", "--force-color-profile=srgb"])
            .arg(format!("--user-data-dir={}", dir.path().join("profile").display()))
            .env("HOME", dir.path())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("a shell starts");
        let mut browser = Browser { messages: channel().1, child, events: Vec::new(), last_id: 0, session: None, dir };
        let output = browser.child.stdout.take().expect("its output is a pipe");
        browser.messages = messages(output);
        let target = browser.call("Target.createTarget", json!({ "url": "about:blank" }));
        let attached =
            browser.call("Target.attachToTarget", json!({ "targetId": target["targetId"], "flatten": true }));
        browser.session = Some(attached["sessionId"].as_str().expect("a session").into());
        for domain in ["Page", "Runtime", "Log", "Network"] {
            browser.call(&format!("{domain}.enable"), json!({}));
        }
        browser
    }

    /// Calls a method, and returns its result.
    pub fn call(&mut self, method: &str, parameters: Value) -> Value {
        self.last_id += 1;
        let id = self.last_id;
        let mut message = json!({ "id": id, "method": method, "params": parameters });
        if let Some(session) = &self.session {
            message["sessionId"] = json!(session);
        }
        let input = self.child.stdin.as_mut().expect("its input is a pipe");
        let sent = input.write_all(format!("{message}\0").as_bytes()).and_then(|()| input.flush());
        sent.unwrap_or_else(|error| panic!("{method}: {error}; {}", self.errors()));
        let deadline = Instant::now() + PATIENCE;
        loop {
            let message = self.receive(method, deadline);
            if message["id"] == id {
                assert!(message["error"].is_null(), "{method}: {}", message["error"]);
                return message["result"].clone();
            }
            self.events.push(message);
        }
    }

    fn receive(&self, what: &str, deadline: Instant) -> Value {
        let left = deadline.saturating_duration_since(Instant::now());
        self.messages.recv_timeout(left).unwrap_or_else(|error| panic!("{what}: {error}; {}", self.errors()))
    }

    fn errors(&self) -> String {
        std::fs::read_to_string(self.dir.path().join("errors")).unwrap_or_default()
    }

    /// Opens a file and waits until it is loaded.
    pub fn open(&mut self, file: &Path) {
        self.open_url(&format!("file://{}", file.display()));
    }

    /// Opens an address and waits until it is loaded.
    pub fn open_url(&mut self, url: &str) {
        self.loads(|browser| {
            let result = browser.call("Page.navigate", json!({ "url": url }));
            assert!(result["errorText"].is_null(), "{result}");
        });
    }

    /// Calls a function that makes a page load, and waits until it is loaded.
    pub fn loads(&mut self, act: impl FnOnce(&mut Browser)) {
        let is_load = |event: &Value| event["method"] == "Page.loadEventFired";
        self.events.retain(|event| !is_load(event));
        act(self);
        let deadline = Instant::now() + PATIENCE;
        while !self.events.iter().any(is_load) {
            let event = self.receive("load", deadline);
            self.events.push(event);
        }
    }

    /// Sets the size of the window in CSS pixels, and the system's preferred colour scheme.
    pub fn emulate(&mut self, width: u32, height: u32, scheme: &str) {
        let size = json!({ "width": width, "height": height, "deviceScaleFactor": 1, "mobile": false });
        self.call("Emulation.setDeviceMetricsOverride", size);
        let feature = json!({ "name": "prefers-color-scheme", "value": scheme });
        self.call("Emulation.setEmulatedMedia", json!({ "features": [feature] }));
    }

    /// Returns the value of an expression; for a promise, its result.
    pub fn evaluate(&mut self, expression: &str) -> Value {
        let parameters = json!({ "expression": expression, "returnByValue": true, "awaitPromise": true });
        let result = self.call("Runtime.evaluate", parameters);
        assert!(result["exceptionDetails"].is_null(), "{expression}: {}", result["exceptionDetails"]);
        result["result"]["value"].clone()
    }

    /// Waits until an expression is true.
    pub fn wait(&mut self, expression: &str) {
        let look = format!("const look = () => (({expression}) ? resolve(true) : setTimeout(look, 20)); look();");
        let limit = PATIENCE.as_millis() - 10_000;
        let promise = format!("new Promise((resolve) => {{ {look} setTimeout(() => resolve(false), {limit}); }})");
        assert_eq!(self.evaluate(&promise), true, "never true: {expression}");
    }

    /// Presses a key, named like `KeyboardEvent.key`.
    pub fn press(&mut self, key: &str) {
        let text = if key.chars().count() == 1 { key } else { "" };
        let kind = if text.is_empty() { "rawKeyDown" } else { "keyDown" };
        // Keys that close dialogs or submit forms are recognised by their codes.
        let code = match key {
            "Escape" => 27,
            "Enter" => 13,
            _ => 0,
        };
        let event =
            |kind: &str, text: &str| json!({ "type": kind, "key": key, "text": text, "windowsVirtualKeyCode": code });
        self.call("Input.dispatchKeyEvent", event(kind, text));
        self.call("Input.dispatchKeyEvent", event("keyUp", ""));
    }

    /// Sends a mouse event at a position: `mousePressed`, `mouseReleased`, `mouseMoved`.
    pub fn mouse(&mut self, what: &str, x: f64, y: f64) {
        let (button, buttons) = if what == "mouseMoved" { ("none", 0) } else { ("left", 1) };
        let event = json!({ "type": what, "x": x, "y": y, "button": button, "buttons": buttons, "clickCount": 1 });
        self.call("Input.dispatchMouseEvent", event);
    }

    /// Clicks at a position.
    pub fn click(&mut self, x: f64, y: f64) {
        for what in ["mouseMoved", "mousePressed", "mouseReleased"] {
            self.mouse(what, x, y);
        }
    }

    /// Turns the mouse wheel.
    pub fn wheel(&mut self, x: f64, y: f64, by: f64) {
        let event = json!({ "type": "mouseWheel", "x": x, "y": y, "deltaX": 0, "deltaY": by });
        self.call("Input.dispatchMouseEvent", event);
    }

    /// Returns a picture of the window in base64: `png` or `webp`.
    pub fn picture(&mut self, format: &str) -> String {
        let shown = self.call("Page.captureScreenshot", json!({ "format": format }));
        shown["data"].as_str().unwrap_or_default().into()
    }

    /// Returns exceptions, errors on the console, and the browser's errors about the page (its policy, failed loads)
    /// since the last call.
    pub fn script_errors(&mut self) -> Vec<String> {
        self.evaluate("0");
        let is_error = |event: &&Value| match event["method"].as_str() {
            Some("Runtime.exceptionThrown") => true,
            Some("Runtime.consoleAPICalled") => ["error", "assert"].iter().any(|kind| event["params"]["type"] == *kind),
            Some("Log.entryAdded") => event["params"]["entry"]["level"] == "error",
            _ => false,
        };
        let errors = self.events.iter().filter(is_error).map(|event| event["params"].to_string()).collect();
        self.events.retain(|event| !is_error(&event));
        errors
    }

    /// Returns all addresses that the page has requested.
    pub fn requests(&self) -> Vec<String> {
        let requests = self.events.iter().filter(|event| event["method"] == "Network.requestWillBeSent");
        requests.map(|event| event["params"]["request"]["url"].as_str().unwrap_or_default().into()).collect()
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        // The browser ends when the pipe is closed; one that hangs is killed.
        drop(self.child.stdin.take());
        let deadline = Instant::now() + Duration::from_secs(10);
        while Instant::now() < deadline {
            if !matches!(self.child.try_wait(), Ok(None)) {
                return;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn messages(output: impl Read + Send + 'static) -> Receiver<Value> {
    let (sender, receiver) = channel();
    std::thread::spawn(move || {
        let mut output = BufReader::new(output);
        let mut message = Vec::new();
        while output.read_until(0, &mut message).is_ok_and(|length| length > 0) {
            message.pop();
            let parsed = serde_json::from_slice(&message).ok();
            if parsed.is_some_and(|message| sender.send(message).is_err()) {
                break;
            }
            message.clear();
        }
    });
    receiver
}
