//! A shared library that carries a tracer of its own into a program that has one already.

/// Emits an event with this number and a text.
#[unsafe(no_mangle)]
pub extern "C" fn dormouse_e2e_plugin_emit(number: u64) {
    let text = "from the plugin";
    dormouse::event!(plugin.step, number, text);
}
