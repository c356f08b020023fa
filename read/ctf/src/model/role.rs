//! What a number says to whoever reads packets and records.

/// What a number says to whoever reads packets and records.
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
    /// Of an event's class.
    ClassId,
}

/// Any of them together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Roles(u16);

impl Roles {
    /// None.
    pub const NONE: Roles = Roles(0);

    /// Those and this one.
    pub const fn with(self, role: Role) -> Roles {
        Roles(self.0 | 1 << role as u16)
    }

    /// Whether this one is among them.
    #[inline(always)]
    pub const fn has(self, role: Role) -> bool {
        self.0 & 1 << role as u16 != 0
    }

    /// Whether there are none but these.
    pub const fn is_within(self, others: Roles) -> bool {
        self.0 & !others.0 == 0
    }
}
