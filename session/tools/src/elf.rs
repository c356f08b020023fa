//! The parts of an ELF file that say what is in it without running it: segments, sections and the values that the loader
//! would write (System V ABI, chapters 4 and 5).
//!
//! The file may belong to any user: each table and each text that is read has a bounded size.

use std::collections::HashMap;
use std::fs::File;
use std::os::unix::fs::FileExt;

/// Maximum number of bytes read of a table or a name.
const TABLE_BYTES_MAX: u64 = 8 << 20;

/// Types of segments and sections.
const PT_LOAD: u32 = 1;
const PT_INTERP: u32 = 3;
const SHT_RELA: u32 = 4;

/// This program's machine (`EM_X86_64` and others), and the type of its relocation that adds the object's base to an address
/// (`R_X86_64_RELATIVE` and others).
pub(crate) const OWN_MACHINE: u16 = OWN.0;
const RELATIVE: u64 = OWN.1;
const OWN: (u16, u64) = if cfg!(target_arch = "aarch64") {
    (183, 1027)
} else if cfg!(target_arch = "riscv64") {
    (243, 3)
} else if cfg!(target_arch = "s390x") {
    (22, 12)
} else {
    (62, 8)
};

/// Byte orders, `EI_DATA`.
const LITTLE: u8 = 1;
const BIG: u8 = 2;
pub(crate) const OWN_ORDER: u8 = if cfg!(target_endian = "big") { BIG } else { LITTLE };

/// An ELF file of any class and machine.
#[derive(Debug)]
pub(crate) struct Elf<'f> {
    file: &'f File,
    header: [u8; 64],
}

/// A segment.
#[derive(Debug, Clone, Copy)]
struct Segment {
    kind: u32,
    offset: u64,
    address: u64,
    file_size_bytes: u64,
}

/// A section of a 64-bit file.
#[derive(Debug, Clone)]
pub(crate) struct Section {
    name: Vec<u8>,
    kind: u32,
    /// Address at which it is loaded, before the object's base is added.
    pub(crate) address: u64,
    offset: u64,
    size_bytes: u64,
}

impl<'f> Elf<'f> {
    /// Reads the header. `None` if it is not an ELF file.
    pub(crate) fn of(file: &'f File) -> Option<Elf<'f>> {
        let mut header = [0; 64];
        file.read_exact_at(&mut header, 0).ok()?;
        header.starts_with(b"\x7fELF").then_some(Elf { file, header })
    }

    /// Returns the name of its machine, if that is not the machine of this program.
    pub(crate) fn other_machine(&self) -> Option<String> {
        let (is_64, order, machine) = (self.header[4] == 2, self.header[5], [self.header[18], self.header[19]]);
        let machine = if order == BIG { u16::from_be_bytes(machine) } else { u16::from_le_bytes(machine) };
        (!is_64 || order != OWN_ORDER || machine != OWN_MACHINE).then(|| match (machine, is_64) {
            (3, _) => "32-bit x86".into(),
            (22, true) => "s390x".into(),
            (40, _) => "32-bit Arm".into(),
            (62, _) => "x86-64".into(),
            (183, _) => "aarch64".into(),
            (243, true) => "riscv64".into(),
            (other, _) => format!("number {other}"),
        })
    }

    fn segments(&self) -> Option<Vec<Segment>> {
        let (count, size) = (u64::from(u16_at(&self.header, 56)), u16_at(&self.header, 54));
        let headers = self.table(u64_at(&self.header, 32), count * u64::from(size))?;
        let segment = |bytes: &[u8]| Segment {
            kind: u32_at(bytes, 0),
            offset: u64_at(bytes, 8),
            address: u64_at(bytes, 16),
            file_size_bytes: u64_at(bytes, 32),
        };
        Some(headers.chunks_exact(usize::from(size).max(56)).map(segment).collect())
    }

    /// Returns the name of the dynamic loader.
    pub(crate) fn loader(&self) -> Option<Vec<u8>> {
        let interp = self.segments()?.into_iter().find(|segment| segment.kind == PT_INTERP)?;
        self.table(interp.offset, interp.file_size_bytes.min(4096))
    }

    /// Returns the sections; none if their headers were removed. `None` if the headers point outside of the file.
    pub(crate) fn sections(&self) -> Option<Vec<Section>> {
        let header = &self.header;
        let (start, entry_size) = (u64_at(header, 40), usize::from(u16_at(header, 58)).max(64));
        if start == 0 {
            return Some(Vec::new());
        }
        let mut count = u64::from(u16_at(header, 60));
        let mut names_index = u64::from(u16_at(header, 62));
        if count == 0 || names_index == 0xffff {
            // The first section header holds the actual numbers.
            let first = self.table(start, 64)?;
            count = if count == 0 { u64_at(&first, 32) } else { count };
            names_index = if names_index == 0xffff { u64::from(u32_at(&first, 40)) } else { names_index };
        }
        let sections = self.table(start, count.checked_mul(entry_size as u64)?)?;
        let names = sections.chunks_exact(entry_size).nth(usize::try_from(names_index).ok()?)?;
        let names = self.table(u64_at(names, 24), u64_at(names, 32))?;
        let section = |bytes: &[u8]| {
            let name = names.get(u32_at(bytes, 0) as usize..)?.split(|byte| *byte == 0).next()?;
            Some(Section {
                name: name.to_vec(),
                kind: u32_at(bytes, 4),
                address: u64_at(bytes, 16),
                offset: u64_at(bytes, 24),
                size_bytes: u64_at(bytes, 32),
            })
        };
        Some(sections.chunks_exact(entry_size).filter_map(section).collect())
    }

    /// Returns a section's bytes.
    pub(crate) fn content(&self, section: &Section) -> Option<Vec<u8>> {
        self.table(section.offset, section.size_bytes)
    }

    /// Reads bytes of the file, at most [`TABLE_BYTES_MAX`].
    fn table(&self, offset: u64, len: u64) -> Option<Vec<u8>> {
        let mut bytes = vec![0; usize::try_from(len).ok().filter(|_| len <= TABLE_BYTES_MAX)?];
        self.file.read_exact_at(&mut bytes, offset).ok()?;
        Some(bytes)
    }
}

/// Finds the section of this name.
pub(crate) fn find<'s>(sections: &'s [Section], name: &[u8]) -> Option<&'s Section> {
    sections.iter().find(|section| section.name == name)
}

/// An object as it would be in memory before its program runs, without the object's base.
#[derive(Debug)]
pub(crate) struct Image<'e, 'f> {
    elf: &'e Elf<'f>,
    loaded: Vec<Segment>,
    /// Values that the loader writes, by address.
    relocated: HashMap<u64, u64>,
}

impl<'e, 'f> Image<'e, 'f> {
    pub(crate) fn of(elf: &'e Elf<'f>, sections: &[Section]) -> Option<Image<'e, 'f>> {
        let loaded = elf.segments()?.into_iter().filter(|segment| segment.kind == PT_LOAD).collect();
        let mut relocated = HashMap::new();
        for section in sections.iter().filter(|section| section.kind == SHT_RELA && section.address != 0) {
            let entries = elf.content(section)?;
            // Fields: address, type in the lower half of a word, addend. Packed relocations (RELR) stand in place.
            let relative = entries.as_chunks::<24>().0.iter().filter(|entry| u64_at(*entry, 8) == RELATIVE);
            relocated.extend(relative.map(|entry| (u64_at(entry, 0), u64_at(entry, 16))));
        }
        Some(Image { elf, loaded, relocated })
    }

    /// Reads bytes at an address, `len_max` or as many as the file has of the segment.
    pub(crate) fn bytes(&self, address: u64, len_max: u64) -> Option<Vec<u8>> {
        let is_in = |segment: &&Segment| address.wrapping_sub(segment.address) < segment.file_size_bytes;
        let segment = self.loaded.iter().find(is_in)?;
        let offset = address.wrapping_sub(segment.address);
        self.elf.table(segment.offset.checked_add(offset)?, len_max.min(segment.file_size_bytes - offset))
    }

    /// Reads a word; an address in it is relative to the object's base.
    pub(crate) fn word(&self, address: u64) -> Option<u64> {
        let in_place = || Some(u64_at(self.bytes(address, 8)?.first_chunk::<8>()?, 0));
        self.relocated.get(&address).copied().or_else(in_place)
    }
}

/// Returns a number in this machine's byte order at an offset at which there must be one.
fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_ne_bytes([bytes[at], bytes[at + 1]])
}

pub(crate) fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_ne_bytes(std::array::from_fn(|index| bytes[at + index]))
}

pub(crate) fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_ne_bytes(std::array::from_fn(|index| bytes[at + index]))
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    #[test]
    fn files_of_other_machines_are_told_apart_by_class_order_and_machine() {
        let own = File::open("/proc/self/exe").unwrap();
        assert_eq!(Elf::of(&own).unwrap().other_machine(), None);
        let files = [
            (1, LITTLE, 3_u16, "32-bit x86"),
            (1, LITTLE, 40, "32-bit Arm"),
            (2, LITTLE, 62, "x86-64"),
            (2, LITTLE, 183, "aarch64"),
            (2, LITTLE, 243, "riscv64"),
            (2, BIG, 22, "s390x"),
            (2, BIG, 21, "number 21"),
        ];
        for (class, order, machine, name) in files {
            let mut header = [0; 64];
            header[..6].copy_from_slice(&[0x7f, b'E', b'L', b'F', class, order]);
            header[18..20].copy_from_slice(&if order == BIG { machine.to_be_bytes() } else { machine.to_le_bytes() });
            let mut file = tempfile::tempfile().unwrap();
            file.write_all(&header).unwrap();
            let is_own = (class, order, machine) == (2, OWN_ORDER, OWN_MACHINE);
            let told = Elf::of(&file).unwrap().other_machine();
            assert_eq!(told.as_deref(), (!is_own).then_some(name), "{machine}");
        }
    }
}
