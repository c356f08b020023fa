//! The pages of a channel: free, the last page of a buffer, closed in a buffer, or taken by a reader.
//!
//! ```text
//!             draw                close                 take
//!     FREE ─────────▶ OPEN ─────────────▶ CLOSED ─────────────────▶ TAKEN (a reader's)
//!      ▲   next state        state closed │          taken + 1        │ give back
//!      └──────────────────────────────────┼───────────────────────────┘
//!                                         └─▶ OPEN of any buffer: overwritten
//! ```
//! Each arrow is one compare-and-swap. A thread that is killed between two of them leaves at most one page in no list.

use core::iter;

use crate::atomic::{AtomicU64, Ordering};
use crate::frame::{Census, Frames};
use crate::layout::{
    self, BUFFER_KEPT, BUFFER_OVERWRITTEN, BUFFER_STATE, BUFFER_TAKEN, BUFFER_WORDS, BUFFERS, HEADER_FREE, State,
    distance,
};
use crate::{Channel, Mode, TakeError, Writers};

/// A page that its holder has taken out of its buffer.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Taken {
    pub(crate) number: u64,
    pub(crate) page: u32,
    /// Number of words in which records were reserved.
    pub(crate) end: usize,
    pub(crate) census: Census,
}

impl Channel {
    /// Returns a word of a buffer. The buffer exists.
    #[inline]
    pub(crate) fn buffer_word(&self, buffer: u32, word: usize) -> &AtomicU64 {
        &self.words()[BUFFERS + buffer as usize * BUFFER_WORDS + word]
    }

    fn slot(&self, buffer: u32, number: u64) -> &AtomicU64 {
        let slot = number as usize & (self.geometry.slot_count - 1);
        &self.words()[self.geometry.slots + buffer as usize * self.geometry.slot_count + slot]
    }

    /// Returns the first words of a page. Fewer, if the numbers are not those of a page; only a word that was overwritten
    /// by a stray pointer has such numbers.
    fn page_words(&self, page: u32, count: usize) -> &[AtomicU64] {
        let first = self.geometry.pages + page as usize * self.geometry.page_words;
        let words = self.words().get(first..).unwrap_or_default();
        &words[..count.min(self.geometry.page_words).min(words.len())]
    }

    pub(crate) fn frames(&self, page: u32, end: usize, at: usize) -> Frames<'_> {
        Frames { words: self.page_words(page, end), at }
    }

    /// Makes room for a record after the buffer's state was `seen`: closes the page if it is open, and opens another.
    /// False if there is no page to open. Lock-free: fails to change the state only if another thread has.
    #[cold]
    pub(crate) fn switch(&self, buffer: u32, seen: State) -> bool {
        let closed = seen.closed();
        if seen.is_open() && !self.close(buffer, seen) {
            return true;
        }
        self.publish(buffer, closed);
        let Some(page) = self.draw(buffer) else { return false };
        let state = self.buffer_word(buffer, BUFFER_STATE);
        // (C) Release pairs with (D): the page is zero, and the closed page is in its slot.
        if state.compare_exchange(closed.0, closed.next(page).0, Ordering::Release, Ordering::Relaxed).is_err() {
            self.push(page);
        }
        true
    }

    /// Closes the page that is open in this state. False if the state is another one.
    fn close(&self, buffer: u32, seen: State) -> bool {
        let state = self.buffer_word(buffer, BUFFER_STATE);
        // Release and Acquire continue what (C) and (D) hand over.
        state.compare_exchange(seen.0, seen.closed().0, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }

    /// Stores a closed page in its slot, unless another thread has. The value is the same whoever stores it.
    fn publish(&self, buffer: u32, closed: State) {
        if closed.0 == 0 {
            return;
        }
        let slot = self.slot(buffer, closed.number());
        // (F) pairs with (E): a thread that opens the next page passes on what another has published.
        let old = State(slot.load(Ordering::Acquire));
        let ahead = distance(old.number(), closed.number());
        let is_older = old.0 == 0 || (ahead > 0 && ahead < 1 << (layout::NUMBER_BITS - 1));
        if is_older {
            // (E) Release pairs with (F). A failure means that another thread has stored this page or a later one.
            let _ = slot.compare_exchange(old.0, closed.0, Ordering::AcqRel, Ordering::Acquire);
        }
    }

    /// Closes the buffer's page, so that a reader may take it. False if there is no open page with records.
    pub(crate) fn flush_buffer(&self, buffer: u32) -> bool {
        loop {
            // (D) pairs with (C).
            let seen = State(self.buffer_word(buffer, BUFFER_STATE).load(Ordering::Acquire));
            if !seen.is_open() || seen.offset() == 0 {
                return false;
            }
            if self.close(buffer, seen) {
                self.publish(buffer, seen.closed());
                return true;
            }
        }
    }

    /// Takes the buffer's oldest closed page. Lock-free: repeats only if another thread has taken one.
    pub(crate) fn take_page(&self, buffer: u32, writers: Writers) -> Result<Taken, TakeError> {
        let taken = self.buffer_word(buffer, BUFFER_TAKEN);
        loop {
            // (J) pairs with (I): the state is at least as new as the count.
            let before = taken.load(Ordering::Acquire);
            // (D) pairs with (C).
            let state = State(self.buffer_word(buffer, BUFFER_STATE).load(Ordering::Acquire));
            let closed_count = distance(before, state.closed_number());
            if closed_count == 0 {
                return Err(TakeError::Empty);
            }
            let number = before.wrapping_add(1);
            let is_last = closed_count == 1 && !state.is_open();
            // (F) pairs with (E).
            let closed = if is_last { state } else { State(self.slot(buffer, number).load(Ordering::Acquire)) };
            let is_current = distance(number, closed.number()) == 0;
            let census = Census::of(self.frames(closed.page(), closed.offset(), 0));
            // While the count is the same, the page is in the buffer, and what was counted is in it: its records can only
            // have become complete.
            if is_current && census.unfinished > 0 && writers == Writers::Running {
                if taken.load(Ordering::Acquire) == before {
                    return Err(TakeError::Busy);
                }
                continue;
            }
            if is_current
                // (I) Release pairs with (J).
                && taken.compare_exchange(before, number, Ordering::AcqRel, Ordering::Relaxed).is_ok()
            {
                return Ok(Taken { number, page: closed.page(), end: closed.offset(), census });
            }
            if !is_current && taken.load(Ordering::Acquire) == before {
                // A slot that a stray pointer has overwritten: the page is lost, and the buffer goes on with the next.
                let _ = taken.compare_exchange(before, number, Ordering::AcqRel, Ordering::Relaxed);
            }
        }
    }

    /// Returns the number of closed pages of a buffer, at about this moment.
    fn closed_count(&self, buffer: u32) -> u64 {
        // (J) pairs with (I).
        let taken = self.buffer_word(buffer, BUFFER_TAKEN).load(Ordering::Acquire);
        let state = State(self.buffer_word(buffer, BUFFER_STATE).load(Ordering::Relaxed));
        distance(taken, state.closed_number()).min(u64::from(self.geometry.page_count))
    }

    /// Draws a page of zeroes for a buffer.
    fn draw(&self, buffer: u32) -> Option<u32> {
        self.pop(&self.words()[HEADER_FREE]).or_else(|| match self.geometry.mode {
            Mode::Discard => self.pop(self.buffer_word(buffer, BUFFER_KEPT)),
            Mode::Overwrite => self.overwrite(buffer),
        })
    }

    /// Takes the oldest page of the buffer that has the most closed pages or, if writers are still at work in it, of
    /// another buffer.
    fn overwrite(&self, buffer: u32) -> Option<u32> {
        let count = self.geometry.buffer_count;
        let others = || (0..count).map(|distance| (buffer + distance) % count);
        let own = self.closed_count(buffer);
        // A buffer that has more than half of the pages has the most, and need not read the others' words.
        let most = if 2 * own > u64::from(self.geometry.page_count) {
            buffer
        } else {
            // `max_by_key` returns the last of equals, which here is the buffer itself.
            others().skip(1).chain([buffer]).max_by_key(|&other| self.closed_count(other))?
        };
        iter::once(most).chain(others()).find_map(|victim| {
            let taken = self.take_page(victim, Writers::Running).ok()?;
            self.buffer_word(victim, BUFFER_OVERWRITTEN).fetch_add(taken.census.records, Ordering::Relaxed);
            self.clear(taken.page, taken.end);
            Some(taken.page)
        })
    }

    fn clear(&self, page: u32, end: usize) {
        for word in self.page_words(page, end) {
            // Relaxed: (C) or (G) publishes the page.
            word.store(0, Ordering::Relaxed);
        }
    }

    /// Makes a taken page free.
    pub(crate) fn free(&self, page: u32, end: usize) {
        self.clear(page, end);
        self.push(page);
    }

    /// Returns the stack that a page belongs to, and its link to the page that follows it there. `None` for a number that
    /// is not a page.
    fn stack_of(&self, page: u32) -> Option<(&AtomicU64, &AtomicU64)> {
        let Self { geometry, .. } = self;
        if page >= geometry.page_count {
            return None;
        }
        let keeper = page.checked_div(geometry.kept_page_count).filter(|&buffer| buffer < geometry.buffer_count);
        let stack = match keeper {
            Some(buffer) => self.buffer_word(buffer, BUFFER_KEPT),
            None => &self.words()[HEADER_FREE],
        };
        Some((stack, self.words().get(geometry.links + page as usize)?))
    }

    /// Pushes a page of zeroes on its stack, whose word has the number of changes in the upper half, and in the lower one
    /// the first page's number plus one.
    pub(crate) fn push(&self, page: u32) {
        let Some((stack, link)) = self.stack_of(page) else { return };
        // Relaxed: the exchange compares the word, and publishes the page.
        let mut seen = stack.load(Ordering::Relaxed);
        loop {
            link.store(u64::from(seen as u32), Ordering::Relaxed);
            // (G) Release pairs with (H): the page is zero, and has its link.
            match stack.compare_exchange(seen, changed(seen, page + 1), Ordering::Release, Ordering::Relaxed) {
                Ok(_) => return,
                Err(other) => seen = other,
            }
        }
    }

    fn pop(&self, stack: &AtomicU64) -> Option<u32> {
        // (H) Acquire pairs with (G).
        let mut seen = stack.load(Ordering::Acquire);
        loop {
            let Some(page) = (seen as u32).checked_sub(1) else {
                // A load may return a word from before another thread's push. An exchange does not.
                match stack.compare_exchange(seen, seen, Ordering::Acquire, Ordering::Acquire) {
                    Ok(_) => return None,
                    Err(other) => seen = other,
                }
                continue;
            };
            // If the page was popped in the meantime, its link may be old: then the stack has changed.
            let next = self.stack_of(page)?.1.load(Ordering::Relaxed);
            match stack.compare_exchange(seen, changed(seen, next as u32), Ordering::Acquire, Ordering::Acquire) {
                Ok(_) => return Some(page),
                Err(other) => seen = other,
            }
        }
    }
}

/// Returns the word of a stack after one more change.
fn changed(word: u64, first: u32) -> u64 {
    (word >> 32).wrapping_add(1) << 32 | u64::from(first)
}
