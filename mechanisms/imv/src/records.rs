//! The records of tunables that objects contain.

use core::ffi::CStr;

use dormouse_abi::site::{TunableRecord, TunableType};
use dormouse_abi::tunable::is_tunable_name;

use crate::site::OBJECT_COUNT_MAX;

/// The record tables of the registered objects.
pub(crate) struct RecordTables {
    /// Start and size in bytes of each table.
    tables: [(*const TunableRecord, usize); OBJECT_COUNT_MAX],
    count: usize,
}

impl RecordTables {
    pub(crate) const NONE: RecordTables = RecordTables { tables: [(core::ptr::null(), 0); OBJECT_COUNT_MAX], count: 0 };

    /// Adds the table of an object, unless it is already there. False: there is no room.
    ///
    /// # Safety
    /// The table contains records, which do not change until [`RecordTables::remove`]; nor does the data to which they
    /// point.
    pub(crate) unsafe fn add(&mut self, start: *const TunableRecord, size_bytes: usize) -> bool {
        if self.tables[..self.count].iter().any(|(known, _)| *known == start) {
            return true;
        }
        let Some(table) = self.tables.get_mut(self.count) else { return false };
        *table = (start, size_bytes);
        self.count += 1;
        true
    }

    /// Removes the table that starts at `start`, if there is one.
    pub(crate) fn remove(&mut self, start: *const TunableRecord) {
        let Some(index) = self.tables[..self.count].iter().position(|(known, _)| *known == start) else { return };
        // Keeps the order of registration, which is the one that people see.
        self.tables.copy_within(index + 1..self.count, index);
        self.count -= 1;
    }

    /// Returns every record that this version understands. The references are valid while the lock is held.
    pub(crate) fn records(&self) -> impl Iterator<Item = &'static TunableRecord> + Clone {
        self.tables[..self.count].iter().flat_map(|(start, size_bytes)| records_between(*start, *size_bytes))
    }

    /// Returns these records without repetitions: one for each name of a variable.
    pub(crate) fn tunables(&self) -> impl Iterator<Item = &'static TunableRecord> + Clone {
        let is_same = |one: &TunableRecord, other: &TunableRecord| {
            one.variable == other.variable && name_of(one) == name_of(other)
        };
        self.records().enumerate().filter_map(move |(index, record)| {
            (!self.records().take(index).any(|former| is_same(former, record))).then_some(record)
        })
    }
}

/// Returns the records of a table. A compiler may have put padding between them, which is zero; a name is never null.
fn records_between(
    start: *const TunableRecord,
    size_bytes: usize,
) -> impl Iterator<Item = &'static TunableRecord> + Clone {
    let mut offset_bytes = 0;
    core::iter::from_fn(move || {
        while size_bytes - offset_bytes >= size_of::<TunableRecord>() {
            let record = start.wrapping_byte_add(offset_bytes);
            // SAFETY: `add`'s caller guarantees that the table is readable and aligned like its records.
            let word = unsafe { record.cast::<*const core::ffi::c_char>().read() };
            if word.is_null() {
                offset_bytes += align_of::<TunableRecord>();
                continue;
            }
            offset_bytes += size_of::<TunableRecord>();
            // SAFETY: `add`'s caller guarantees that the table contains records, which do not change.
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

/// Returns the record's name, without the NUL.
pub(crate) fn name_of(record: &TunableRecord) -> &'static [u8] {
    // SAFETY: `add`'s caller guarantees that the name is NUL-terminated and stays loaded.
    unsafe { CStr::from_ptr(record.name) }.to_bytes()
}
