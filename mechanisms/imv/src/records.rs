//! The records that objects leave of their tunables.

use core::ffi::CStr;

use dormouse_abi::site::{TunableRecord, TunableType};
use dormouse_abi::tunable::is_tunable_name;

use crate::site::OBJECT_COUNT_MAX;

/// The record tables of the objects that have been registered.
pub(crate) struct RecordTables {
    /// Start and size in bytes.
    tables: [(*const TunableRecord, usize); OBJECT_COUNT_MAX],
    count: usize,
}

impl RecordTables {
    pub(crate) const NONE: RecordTables = RecordTables { tables: [(core::ptr::null(), 0); OBJECT_COUNT_MAX], count: 0 };

    /// Adds the table of an object, unless it is there. False: there is no room.
    ///
    /// # Safety
    /// It holds records, which with what they point to stay as they are until [`RecordTables::remove`].
    pub(crate) unsafe fn add(&mut self, start: *const TunableRecord, size_bytes: usize) -> bool {
        if self.tables[..self.count].iter().any(|(known, _)| *known == start) {
            return true;
        }
        let Some(table) = self.tables.get_mut(self.count) else { return false };
        *table = (start, size_bytes);
        self.count += 1;
        true
    }

    /// Forgets the table that starts there, if there is one.
    pub(crate) fn remove(&mut self, start: *const TunableRecord) {
        let Some(index) = self.tables[..self.count].iter().position(|(known, _)| *known == start) else { return };
        // In the order in which they came, which is the one that people see.
        self.tables.copy_within(index + 1..self.count, index);
        self.count -= 1;
    }

    /// Every record that this version understands. The references are good while the lock is held.
    pub(crate) fn records(&self) -> impl Iterator<Item = &'static TunableRecord> + Clone {
        self.tables[..self.count].iter().flat_map(|(start, size_bytes)| records_between(*start, *size_bytes))
    }

    /// The same, less repetitions: one name for one variable.
    pub(crate) fn tunables(&self) -> impl Iterator<Item = &'static TunableRecord> + Clone {
        let is_same = |one: &TunableRecord, other: &TunableRecord| {
            one.variable == other.variable && name_of(one) == name_of(other)
        };
        self.records().enumerate().filter_map(move |(index, record)| {
            (!self.records().take(index).any(|former| is_same(former, record))).then_some(record)
        })
    }
}

/// The records of a table. A compiler may have put padding between them, which is zero; a name never is.
fn records_between(
    start: *const TunableRecord,
    size_bytes: usize,
) -> impl Iterator<Item = &'static TunableRecord> + Clone {
    let mut offset_bytes = 0;
    core::iter::from_fn(move || {
        while size_bytes - offset_bytes >= size_of::<TunableRecord>() {
            let record = start.wrapping_byte_add(offset_bytes);
            // SAFETY: whoever registered the table vouched that it is readable and aligned as its records are.
            let word = unsafe { record.cast::<*const core::ffi::c_char>().read() };
            if word.is_null() {
                offset_bytes += align_of::<TunableRecord>();
                continue;
            }
            offset_bytes += size_of::<TunableRecord>();
            // SAFETY: and that it holds records, which nobody changes.
            let record = unsafe { &*record };
            if is_understood(record) {
                return Some(record);
            }
        }
        None
    })
}

fn is_understood(record: &TunableRecord) -> bool {
    let is_whole = |value_type: TunableType| record.variable.addr().is_multiple_of(value_type.size_bytes());
    record.reserved == 0
        && !record.variable.is_null()
        && TunableType::from_number(record.value_type).is_some_and(is_whole)
        && is_tunable_name(name_of(record))
}

/// Its name, without the NUL.
pub(crate) fn name_of(record: &TunableRecord) -> &'static [u8] {
    // SAFETY: whoever registered the record vouched that its name is terminated and stays loaded.
    unsafe { CStr::from_ptr(record.name) }.to_bytes()
}
