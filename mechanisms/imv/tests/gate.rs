//! The bytes of a gate in the binary.
#![cfg(all(any(target_arch = "x86_64", target_arch = "aarch64"), target_os = "linux", not(feature = "generic")))]

mod sites;

use dormouse_imv::{
    CodeWriter, StaticKey, disable, enable, key_sites, static_branch, static_branch_likely, status, visit_key_sites,
};
use sites::{is_jump, is_nop};

fn bytes_of(key: &StaticKey) -> Vec<Vec<u8>> {
    let mut all = Vec::new();
    visit_key_sites(key, |_, bytes| all.push(bytes.to_vec())).unwrap();
    all
}

#[test]
fn the_constructor_makes_sites_dormant() {
    static KEY: StaticKey = StaticKey::new();
    #[inline(never)]
    fn gate() -> bool {
        static_branch!(KEY)
    }
    let dormant = bytes_of(&KEY);
    assert!(!dormant.is_empty());
    assert!(dormant.iter().all(|bytes| is_nop(bytes)));
    assert!(!gate());
    let status = status().unwrap();
    assert_eq!(status.writer, CodeWriter::Mprotect, "{}", status.reason);
}

#[test]
fn a_gate_can_be_armed_and_disarmed_repeatedly() {
    static KEY: StaticKey = StaticKey::new();
    #[inline(never)]
    fn gate() -> bool {
        static_branch!(KEY)
    }
    let dormant = bytes_of(&KEY);
    assert!(!gate());
    enable(&KEY).unwrap();
    let armed = bytes_of(&KEY);
    assert!(gate());
    disable(&KEY).unwrap();
    assert_eq!(bytes_of(&KEY), dormant);
    assert!(!gate());
    assert_eq!(armed.len(), dormant.len());
    for (armed, dormant) in armed.iter().zip(&dormant) {
        assert!(is_jump(armed) && is_nop(dormant));
    }
    enable(&KEY).unwrap();
    assert_eq!(bytes_of(&KEY), armed, "the distance is the same again");
    disable(&KEY).unwrap();
}

#[test]
fn a_likely_gate_is_a_nop_while_it_is_enabled() {
    static KEY: StaticKey = StaticKey::new();
    #[inline(never)]
    fn gate() -> bool {
        static_branch_likely!(KEY)
    }
    let dormant = bytes_of(&KEY);
    assert!(!gate());
    for _ in 0..3 {
        enable(&KEY).unwrap();
        assert!(gate());
        assert!(!dormant.is_empty() && bytes_of(&KEY).iter().all(|bytes| is_nop(bytes)));
        disable(&KEY).unwrap();
        assert!(!gate());
        assert!(bytes_of(&KEY) == dormant && dormant.iter().all(|bytes| is_jump(bytes)));
    }
    let count = key_sites(&KEY).unwrap();
    assert_eq!(count.patched, count.sites);
}

#[test]
fn a_key_that_starts_enabled_is_jump() {
    static KEY: StaticKey = StaticKey::new_enabled();
    let gate = || static_branch!(KEY);
    assert!(gate());
    let count = key_sites(&KEY).unwrap();
    assert!(count.sites > 0 && count.patched == count.sites);
    disable(&KEY).unwrap();
    assert!(!gate());
    assert!(bytes_of(&KEY).iter().all(|bytes| is_nop(bytes)));
}
