//! The link of an object that is on a list.

use core::ptr::null_mut;
use core::sync::atomic::AtomicPtr;

/// The link of an object that can be on a list: usually its first field. A zeroed node is on no list.
#[repr(C)]
#[derive(Debug, Default)]
pub struct Node {
    /// Next node; null at the end of a list, and in a node that is on no list.
    pub(crate) next: AtomicPtr<Node>,
}

impl Node {
    /// Returns a node that is on no list.
    pub const fn new() -> Node {
        Node { next: AtomicPtr::new(null_mut()) }
    }
}
