//! Call trees, and the time that slices take without those nested in them.

use std::collections::HashMap;

use dormouse_analysis::QuickMap;

use crate::bins::Node;

/// Maximum number of nodes in call trees.
const NODES_MAX: usize = 20_000;

/// An open slice.
#[derive(Debug)]
struct Open {
    id: u64,
    node: Option<u32>,
    /// Time of the slices nested in it that have ended, in nanoseconds.
    nested: u64,
}

/// Call trees of all tracks.
#[derive(Debug, Default)]
pub(super) struct Trees {
    pub(super) nodes: Vec<Node>,
    numbers: HashMap<(u32, u32), u32>,
    /// Number of slices for which there was no node.
    pub(super) left_out: u64,
    /// Open slices by track, the outermost first.
    open: QuickMap<u32, Vec<Open>>,
}

impl Trees {
    /// Adds the begin of a slice on a track.
    pub(super) fn begin(&mut self, track: u32, id: u64, name: u32) {
        let parent = self.open.get(&track).and_then(|open| open.last()).map_or(Some(0), |open| Some(open.node? + 1));
        let node = parent.and_then(|parent| self.node(parent, name));
        self.open.entry(track).or_default().push(Open { id, node, nested: 0 });
    }

    fn node(&mut self, parent: u32, name: u32) -> Option<u32> {
        if let Some(number) = self.numbers.get(&(parent, name)) {
            return Some(*number);
        }
        if self.nodes.len() >= NODES_MAX {
            return None;
        }
        let number = self.nodes.len() as u32;
        self.nodes.push((parent, name, 0, 0, 0));
        self.numbers.insert((parent, name), number);
        Some(number)
    }

    /// Adds the end of a slice. Returns its time without nested slices in nanoseconds, or `None` if it has not begun.
    pub(super) fn end(&mut self, track: u32, id: u64, duration: u64) -> Option<u64> {
        let open = self.open.get_mut(&track)?;
        let at = open.iter().rposition(|open| open.id == id)?;
        let Open { node, nested, .. } = open.remove(at);
        // Its time counts for the open slice directly around it, not for a slice that has already ended.
        if let Some(around) = at.checked_sub(1).and_then(|at| open.get_mut(at)) {
            around.nested = around.nested.saturating_add(duration);
        }
        let own = duration.saturating_sub(nested);
        match node {
            Some(node) => {
                let (_, _, count, total, own_of_node) = &mut self.nodes[node as usize];
                *count += 1;
                *total += u128::from(duration);
                *own_of_node += u128::from(own);
            }
            None => self.left_out += 1,
        }
        Some(own)
    }
}
