//! A shared library with gates and a registry of its own.

use dormouse_imv::{StaticKey, disable, enable, key_sites, static_branch};

static KEY: StaticKey = StaticKey::new();

/// Runs the gate.
#[unsafe(no_mangle)]
pub extern "C" fn plugin_gate() -> bool {
    static_branch!(KEY)
}

/// Enables or disables the key and returns whether that worked.
#[unsafe(no_mangle)]
pub extern "C" fn plugin_set(enabled: bool) -> bool {
    if enabled { enable(&KEY) } else { disable(&KEY) }.is_ok()
}

/// Returns the number of sites that are in the state that the key requires, or -1 if some are not.
#[unsafe(no_mangle)]
pub extern "C" fn plugin_sites_patched() -> i32 {
    match key_sites(&KEY) {
        Ok(count) if count.patched == count.sites => count.sites as i32,
        _ => -1,
    }
}
