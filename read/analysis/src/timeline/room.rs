//! Memory limits for tracks and open slices.

/// Remaining memory. The code that takes memory gives it back.
#[derive(Debug, Clone, Copy)]
pub(super) struct Room {
    left_bytes: usize,
    /// Bytes that were taken beyond the limit: the size of some data is known only after it was allocated.
    beyond_bytes: usize,
}

impl Room {
    pub(super) fn new(bytes: usize) -> Room {
        Room { left_bytes: bytes, beyond_bytes: 0 }
    }

    /// Takes memory; returns false if there is not enough.
    #[inline]
    pub(super) fn take(&mut self, bytes: usize) -> bool {
        let has_room = self.left_bytes >= bytes;
        self.left_bytes -= if has_room { bytes } else { 0 };
        has_room
    }

    /// Takes memory that is already in use, beyond the limit if necessary.
    #[inline]
    pub(super) fn force(&mut self, bytes: usize) {
        self.beyond_bytes += bytes.saturating_sub(self.left_bytes);
        self.left_bytes = self.left_bytes.saturating_sub(bytes);
    }

    #[inline]
    pub(super) fn give(&mut self, bytes: usize) {
        let back = bytes.min(self.beyond_bytes);
        self.beyond_bytes -= back;
        self.left_bytes += bytes - back;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn returned_memory_can_be_used_again() {
        let mut room = Room::new(10);
        assert!(room.take(6) && !room.take(5) && room.take(4) && !room.take(1));
        room.force(7);
        room.give(8);
        assert!(room.take(1) && !room.take(1));
        room.give(9);
        assert!(room.take(9) && !room.take(1));
    }
}
