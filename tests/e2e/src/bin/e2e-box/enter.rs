//! A program without tracepoints that enters a sandbox, and makes calls of libc there or executes another program:
//! `e2e-box-enter SANDBOX calls CALLS`, `e2e-box-enter SANDBOX exec CMD…`.

mod sandbox;

fn main() {
    let arguments: Vec<std::ffi::OsString> = std::env::args_os().skip(1).collect();
    let text = |index: usize| arguments[index].to_str().expect("a text");
    let cannot = |text: String| {
        eprintln!("cannot enter: {text}");
        std::process::exit(sandbox::CANNOT_ENTER);
    };
    if let Err(error) = sandbox::enter(text(0)) {
        cannot(error);
    }
    if text(1) == "exec" {
        cannot(sandbox::execute(&arguments[2..]));
    }
    let calls: u64 = text(2).parse().expect("a number");
    let call = |_| {
        // SAFETY: write(2) reads no bytes, because the length is 0.
        let _ = unsafe { libc::write(1, [0_u8].as_ptr().cast(), 0) };
    };
    sandbox::work(|_| (0..calls).for_each(call));
}
