//! Streams that somebody still writes: read as far as they are there, and later from there on.

use super::notice::Problem;
use super::{Opened, Source, StreamReader};
use crate::totals::StreamTotals;

/// How far a stream has been read.
#[derive(Debug, Clone)]
pub struct Position {
    next: (u64, u64),
    time: u64,
    last: Option<Opened>,
    size_bytes_last: u64,
    discarded_most: Option<u64>,
    totals: StreamTotals,
    is_over: bool,
}

impl Position {
    /// As [`StreamTotals::events_discarded`].
    pub fn events_discarded(&self) -> u64 {
        self.totals.events_discarded
    }

    /// Whether nothing that comes later is read: it is damaged there, or behind the time that is asked for.
    pub fn is_over(&self) -> bool {
        self.is_over
    }
}

impl<'a, S: Source> StreamReader<'a, S> {
    /// Ends before the first packet that is not whole within so many bytes: it is still being written.
    #[must_use]
    pub fn growing(mut self, size_bytes: u64) -> StreamReader<'a, S> {
        self.end = self.end.min(size_bytes);
        self.growing = Some(self.end);
        self
    }

    /// How far it has been read, when it has come to its end.
    pub fn position(&self) -> Position {
        Position {
            next: self.next,
            time: self.time,
            last: self.last,
            size_bytes_last: self.size_bytes_last,
            discarded_most: self.discarded_most,
            totals: self.totals,
            is_over: self.end < self.growing.unwrap_or(self.source.size_bytes()),
        }
    }

    /// Goes on where another reader of the same stream has come to.
    #[must_use]
    pub fn resumed(mut self, position: &Position) -> StreamReader<'a, S> {
        let Position { next, time, last, size_bytes_last, discarded_most, totals, is_over } = position.clone();
        self = StreamReader { next, time, last, size_bytes_last, discarded_most, totals, ..self };
        if is_over {
            self.end = 0;
        }
        self
    }

    pub(super) fn is_whole_here(&mut self) -> bool {
        match self.next_header().and_then(|(_, start)| self.sizes(&start)) {
            Ok((_, packet_size_bytes)) => packet_size_bytes <= self.end - self.next.0,
            Err(Problem::CutOff { .. }) => false,
            // What is wrong is told when it is opened.
            Err(_) => true,
        }
    }
}
