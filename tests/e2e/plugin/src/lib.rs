//! A shared library with a tracer of its own, for a program that already has one.

/// Emits an event with this number and a text.
#[unsafe(no_mangle)]
pub extern "C" fn dormouse_e2e_plugin_emit(number: u64) {
    let text = "from the plugin";
    dormouse::event!(plugin.step, number, text);
}

dormouse::imv::imv! {
    static DEPTH: u32 = 9;
    static TWIN: i32 = 2;
}
dormouse::imv::tunable!(DEPTH, "plugin.depth", "how deep");
dormouse::imv::tunable!(TWIN, "e2e.twin", "of the plugin");

/// Returns the value that the plugin reads.
#[unsafe(no_mangle)]
pub extern "C" fn dormouse_e2e_plugin_depth() -> u32 {
    dormouse::imv::imv_read!(DEPTH)
}
