//! Roles of numbers in packets and records.

/// Role of a number in packets and records: how a reader uses its value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Role {
    Magic,
    StreamId,
    StreamInstanceId,
    CpuId,
    TimestampBegin,
    TimestampEnd,
    ContentSize,
    PacketSize,
    PacketSeqNum,
    EventsDiscarded,
    /// Id of an event's class.
    ClassId,
}

/// A set of roles.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Roles(u16);

impl Roles {
    /// The empty set.
    pub const NONE: Roles = Roles(0);

    /// Returns this set with `role` added.
    pub const fn with(self, role: Role) -> Roles {
        Roles(self.0 | 1 << role as u16)
    }

    /// Whether the set contains `role`.
    #[inline(always)]
    pub const fn has(self, role: Role) -> bool {
        self.0 & 1 << role as u16 != 0
    }

    /// Whether all roles of this set are in `others`.
    pub const fn is_within(self, others: Roles) -> bool {
        self.0 & !others.0 == 0
    }
}
