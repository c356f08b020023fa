//! The memory of this process's session, by which tests look at it and spoil it.

use dormouse_abi::environment::{ENV_MEMORY, ENV_SESSION, sessions};
use dormouse_relay::Memory;

/// Returns the memory of the innermost session that this process is in. It stays mapped until the process leaves.
///
/// # Panics
/// If there is none.
pub fn innermost() -> Memory {
    let [sockets, memories] = [ENV_SESSION, ENV_MEMORY].map(|name| std::env::var(name).unwrap_or_default());
    let innermost = sessions(&sockets, &memories).next().and_then(|(_, memory)| memory);
    let (_, uuid) = innermost.expect("the process is in a session");
    let maps = std::fs::read_to_string("/proc/self/maps").expect("a process has maps");
    let memory = |line: &str| {
        let range = line.split_whitespace().next().and_then(|range| range.split_once('-')).expect("a range");
        let address = |text| usize::from_str_radix(text, 16).expect("an address");
        let (start, end) = (address(range.0), address(range.1));
        // SAFETY: the memory is mapped at this address, and this process does not leave the session before it ends.
        let memory = unsafe { Memory::from_raw(std::ptr::with_exposed_provenance_mut(start), end - start) };
        memory.expect("the memory of a session")
    };
    let mut memories = maps.lines().filter(|line| line.contains("dormouse-session")).map(memory);
    memories.find(|memory| memory.uuid() == uuid).expect("the memory is mapped")
}
