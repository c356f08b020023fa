//! A traced program that enters a sandbox and emits events there: `e2e-box SANDBOX EVENTS`.

mod sandbox;

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let events: u64 = arguments[1].parse().expect("a number");
    if let Err(text) = sandbox::enter(&arguments[0]) {
        eprintln!("cannot enter: {text}");
        std::process::exit(sandbox::CANNOT_ENTER);
    }
    sandbox::work(|| (0..events).for_each(|number| dormouse::event!(e2e.boxed, number)));
}
