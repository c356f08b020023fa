//! A traced program that enters a sandbox and emits events there: `e2e-box SANDBOX EVENTS [stop | stop-listen]`.
//!
//! With `stop` it first stops listening; with `stop-listen` it listens again after entering. At a byte `p` it only
//! passes a tracepoint.

mod sandbox;

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let events: u64 = arguments[1].parse().expect("a number");
    let word = arguments.get(2).map(String::as_str);
    if word.is_some() {
        dormouse::stop_listening().expect("it stops");
    }
    if let Err(text) = sandbox::enter(&arguments[0]) {
        eprintln!("cannot enter: {text}");
        std::process::exit(sandbox::CANNOT_ENTER);
    }
    if word == Some("stop-listen") {
        // A sandbox may forbid it; the tool then reports that.
        let _ = dormouse::listen();
    }
    sandbox::work(|byte| match byte {
        b'p' => dormouse::event!(e2e.passed),
        _ => (0..events).for_each(|number| dormouse::event!(e2e.boxed, number)),
    });
}
