//! What an object is on a list by.

use core::ptr::null_mut;
use core::sync::atomic::AtomicPtr;

/// The link of an object that can be on a list: its first field, as a rule. Zeroes are a node on no list.
#[repr(C)]
#[derive(Debug, Default)]
pub struct Node {
    /// Null at the end of a list, and on none.
    pub(crate) next: AtomicPtr<Node>,
}

impl Node {
    /// A node on no list.
    pub const fn new() -> Node {
        Node { next: AtomicPtr::new(null_mut()) }
    }
}
