//! Event classes and tracepoints that a program's file contains, found without running it.
//!
//! ```text
//!   section dormouse_events   key - .   describe - .             one record for each class, perhaps repeated
//!                               │         │ 0: a class of C
//!     C     key ─▶ enabled  id  description: types, level, names   bytes without addresses (abi: CClass)
//!     Rust  key ─▶ enabled  id  … provider  name  fields  level    texts, by relocated addresses (abi: rust_event)
//!           describe ─▶ lea rax, [types, labels]; ret            x86-64
//!                       adrp x0, …; add x0, x0, …; ret           AArch64; elsewhere the types are not known
//!   section dormouse_sites    site - .   kind   key - .   target - .
//! ```
//! The file may contain anything: an offset that leads elsewhere is an error, and nothing that is found is executed.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::fs::File;
use std::path::{Path, PathBuf};

use crate::error::Error;
use dormouse_abi::class::{
    Announcement, CClass, CLASS_ID_NONE, ClassDecl, FIELD_COUNT_MAX, FieldType, LABEL_COUNT_MAX, LABELLED, Label,
    Labels, Level, NAME_LEN_MAX, is_labelled, is_name, rust_event,
};
use dormouse_abi::site::{
    EVENTS_SECTION, EventRecord, SITE_BRANCH, SITE_FORM_MASK, SITE_INDIRECT, SITES_SECTION, SiteRecord,
};

use crate::elf::{self, Elf, Image, Section, u32_at, u64_at};
use crate::executable::{Command, interpreter};

/// An event class in a program's file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileClass {
    /// Names, and types as far as the file shows them.
    pub decl: ClassDecl<Option<FieldType>>,
    /// Number of its tracepoints in the file.
    pub site_count: u32,
}

/// Maximum number of bytes of a C class's description.
const DESCRIPTION_BYTES_MAX: u64 = (2 + FIELD_COUNT_MAX + (2 + FIELD_COUNT_MAX) * (NAME_LEN_MAX + 1)) as u64;

/// Maximum number of bytes of the labels of a C class that are read; the C headers' macros take 256 labels a field.
const LABEL_BYTES_MAX: u64 = 1 << 20;

/// Prefix of the identifier of a Rust name that is a keyword.
const RAW: &str = "r#";

/// Returns the event classes in a file, sorted by name; none if it has no tracepoints. Classes that no trace can hold are
/// left out.
///
/// # Errors
/// One line that says why the file cannot be read as a program with tracepoints.
pub fn classes_of_file(path: &Path) -> Result<Vec<FileClass>, Error> {
    let failed = |why: &str| Error::from(format!("cannot list the events of {}: {why}", path.display()));
    // FIFOs and devices are not opened.
    if !std::fs::metadata(path).map_err(|error| failed(&error.to_string()))?.is_file() {
        return Err(failed("it is not a regular file"));
    }
    let file = File::open(path).map_err(|error| failed(&error.to_string()))?;
    if let Some(interpreter) = interpreter(&file) {
        let interpreter = interpreter.display();
        return Err(failed(&format!("it is a script of {interpreter}; list that, or the libraries that it loads")));
    }
    let elf = Elf::of(&file).ok_or_else(|| failed("it is no program and no library (ELF)"))?;
    if let Some(machine) = elf.other_machine() {
        return Err(failed(&format!("it is for another machine ({machine})")));
    }
    let sections = elf.sections().ok_or_else(|| failed("its section headers lead outside of the file"))?;
    if sections.is_empty() {
        return Err(failed("its section headers were removed"));
    }
    let damaged = || failed("its tracepoints are damaged, or of another version of Dormouse");
    let mut classes = read(&elf, &sections).ok_or_else(damaged)?;
    classes.sort_by(|a, b| a.decl.cmp(&b.decl));
    classes.dedup();
    Ok(classes)
}

/// Returns the file that a command executes, for a script that of its interpreter, and the event classes in it. `None` if
/// there are none, or the file cannot be listed.
pub fn classes_of_command(program: &OsStr) -> Option<(PathBuf, Vec<FileClass>)> {
    let path = Command::find(program)?.path;
    let classes = classes_of_file(&path).ok().filter(|classes| !classes.is_empty())?;
    Some((path, classes))
}

/// Returns the number of tracepoints in an object; `None` if it has no section of events, or not a valid one.
pub(crate) fn tracepoint_count(file: &File) -> Option<u64> {
    let elf = Elf::of(file).filter(|elf| elf.other_machine().is_none())?;
    let sections = elf.sections()?;
    let keys: BTreeSet<u64> = event_records(&elf, &sections)?.into_iter().map(|(key, _)| key).collect();
    let counts = site_counts(&elf, &sections)?;
    Some(counts.into_iter().filter(|(key, _)| keys.contains(key)).map(|(_, count)| u64::from(count)).sum())
}

/// Returns the address of each event record's key and of its function, or 0.
fn event_records(elf: &Elf<'_>, sections: &[Section]) -> Option<Vec<(u64, u64)>> {
    let section = elf::find(sections, EVENTS_SECTION.as_bytes())?;
    let records = elf.content(section)?;
    let (records, _) = records.as_chunks::<{ size_of::<EventRecord>() }>();
    let addresses = (section.address..).step_by(size_of::<EventRecord>());
    let target = |record: &[u8], address: u64, offset: usize| match u64_at(record, offset) {
        0 => 0,
        distance => address.wrapping_add(offset as u64).wrapping_add(distance),
    };
    let record = |(record, address): (&[u8; size_of::<EventRecord>()], u64)| {
        let field = |offset| target(record, address, offset);
        (field(std::mem::offset_of!(EventRecord, key)), field(std::mem::offset_of!(EventRecord, describe)))
    };
    Some(records.iter().zip(addresses).map(record).collect())
}

/// Returns the number of branches for each key in the same object.
fn site_counts(elf: &Elf<'_>, sections: &[Section]) -> Option<BTreeMap<u64, u32>> {
    let mut counts = BTreeMap::new();
    let Some(section) = elf::find(sections, SITES_SECTION.as_bytes()) else { return Some(counts) };
    let records = elf.content(section)?;
    let addresses = (section.address..).step_by(size_of::<SiteRecord>());
    for (record, address) in records.as_chunks::<{ size_of::<SiteRecord>() }>().0.iter().zip(addresses) {
        let kind = u32_at(record, std::mem::offset_of!(SiteRecord, kind));
        if kind & SITE_FORM_MASK == SITE_BRANCH && kind & SITE_INDIRECT == 0 {
            let offset = std::mem::offset_of!(SiteRecord, key);
            let distance = i64::from(u32_at(record, offset).cast_signed());
            *counts.entry(address.wrapping_add(offset as u64).wrapping_add_signed(distance)).or_insert(0) += 1;
        }
    }
    Some(counts)
}

/// Reads all classes. `None` if an address leads to something else.
fn read(elf: &Elf<'_>, sections: &[Section]) -> Option<Vec<FileClass>> {
    if elf::find(sections, EVENTS_SECTION.as_bytes()).is_none() {
        return Some(Vec::new());
    }
    let image = Image::of(elf, sections)?;
    let counts = site_counts(elf, sections)?;
    let records: BTreeSet<(u64, u64)> = event_records(elf, sections)?.into_iter().collect();
    let class = |(key, describe): (u64, u64)| {
        // No program has run: no class is enabled or in a session.
        let start = image.bytes(key, 8).filter(|start| start.len() == 8)?;
        if (u32_at(&start, 0), u32_at(&start, 4)) != (0, CLASS_ID_NONE) {
            return None;
        }
        let decl = if describe == 0 { c_class(&image, key)? } else { rust_class(&image, key, describe)? };
        Some(decl.map(|decl| FileClass { decl, site_count: counts.get(&key).copied().unwrap_or(0) }))
    };
    Some(records.into_iter().map(class).collect::<Option<Vec<_>>>()?.into_iter().flatten().collect())
}

/// Names and types of a class, or `None` if no trace can hold it.
type Found = Option<ClassDecl<Option<FieldType>>>;

fn c_class(image: &Image<'_, '_>, key: u64) -> Option<Found> {
    let address = key.wrapping_add(size_of::<CClass>() as u64);
    let mut description = image.bytes(address, DESCRIPTION_BYTES_MAX)?;
    let types = |description: &[u8]| Some(description.get(1..1 + usize::from(*description.first()?))?.to_vec());
    let types = types(&description)?;
    if types.iter().any(|byte| is_labelled(*byte)) {
        description = image.bytes(address, DESCRIPTION_BYTES_MAX + LABEL_BYTES_MAX)?;
    }
    let (level, mut rest) = description.get(1 + types.len()..)?.split_first()?;
    let level = Level::of_byte(*level)?;
    let mut text = || {
        let (text, after) = rest.split_at_checked(rest.iter().position(|byte| *byte == 0)?)?;
        rest = &after[1..];
        Some(String::from_utf8_lossy(text).into_owned())
    };
    let (provider, name) = (text()?, text()?);
    let type_byte = |byte: u8| if is_labelled(byte) { byte & !LABELLED } else { byte };
    let fields = types.iter().map(|byte| Some((text()?, type_byte(*byte)))).collect::<Option<_>>()?;
    let mut labels = Labels::new();
    for (index, _) in types.iter().enumerate().filter(|(_, byte)| is_labelled(**byte)) {
        let of_field: &mut Vec<Label> = labels.entry(index).or_default();
        loop {
            let label = text()?;
            // A label may be qualified, as in C++.
            match label.rsplit("::").next() {
                Some(name) if !name.is_empty() => of_field.push(Label { name: name.into(), bits: 0 }),
                _ => break,
            }
        }
    }
    if !labels.is_empty() {
        let mut bits = rest.strip_prefix(&[0])?.chunks_exact(8);
        for label in labels.values_mut().flatten() {
            label.bits = u64_at(bits.next()?, 0).cast_signed();
        }
    }
    let fit = Announcement { provider, name, fields, labels, level }.check().ok();
    Some(fit.map(|ClassDecl { provider, name, fields, labels, level }| {
        let fields = fields.into_iter().map(|(name, field_type)| (name, Some(field_type))).collect();
        ClassDecl { provider, name, fields, labels, level }
    }))
}

fn rust_class(image: &Image<'_, '_>, key: u64, describe: u64) -> Option<Found> {
    let slice = |at: u64| Some((image.word(at)?, image.word(at.wrapping_add(8))?));
    let text = |at: u64| {
        let (address, len) = slice(at).filter(|(_, len)| *len <= (NAME_LEN_MAX + RAW.len()) as u64)?;
        let bytes = image.bytes(address, len).filter(|bytes| bytes.len() as u64 == len)?;
        let text = String::from_utf8(bytes).ok()?;
        let name = text.strip_prefix(RAW).unwrap_or(&text);
        // The macro accepts no other names.
        is_name(name).then(|| name.to_string())
    };
    let member = |offset: usize| key.wrapping_add(offset as u64);
    let (names, count) = slice(member(rust_event::FIELDS_OFFSET))?;
    let names = (0..count.min(FIELD_COUNT_MAX as u64))
        .map(|index| text(names.wrapping_add(index * rust_event::SLICE_SIZE_BYTES as u64)))
        .collect::<Option<Vec<String>>>()
        .filter(|names| names.len() as u64 == count)?;
    let description = description_of(image, describe, names.len());
    let types = description.and_then(|at| types_of(image, at, names.len())).unwrap_or_else(|| vec![None; names.len()]);
    let labels = description.map_or(Some(Labels::new()), |at| labels_of(image, at, &text))?;
    let (provider, name) = (text(member(rust_event::PROVIDER_OFFSET))?, text(member(rust_event::NAME_OFFSET))?);
    let fields = names.into_iter().zip(types).collect();
    // The key of a program of an older version ends before the level, and most data behind it are no level.
    let level = image.word(member(rust_event::LEVEL_OFFSET)).and_then(|word| Level::of_byte(u8::try_from(word).ok()?)?);
    Some(Some(ClassDecl { provider, name, fields, labels, level }))
}

/// Returns the address of the description that a class's function returns. `None` if the function does not just return an
/// address, or not that of the description of so many fields.
fn description_of(image: &Image<'_, '_>, describe: u64, count: usize) -> Option<u64> {
    let description = returned_address(&image.bytes(describe, CODE_BYTES)?, describe)?;
    let is_it = image.word(description.wrapping_add(rust_event::COUNT_OFFSET as u64))? == count as u64;
    is_it.then_some(description)
}

/// Returns the types of a description.
fn types_of(image: &Image<'_, '_>, description: u64, count: usize) -> Option<Vec<Option<FieldType>>> {
    let types = image.bytes(description, count as u64).filter(|types| types.len() == count)?;
    types.into_iter().map(|byte| Some(Some(FieldType::from_u8(byte)?))).collect()
}

/// Returns the labels of a description. `text`: reads the text whose address and length are at an address.
fn labels_of(image: &Image<'_, '_>, description: u64, text: &dyn Fn(u64) -> Option<String>) -> Option<Labels> {
    let word = |at: u64, offset: usize| image.word(at.wrapping_add(offset as u64));
    let [index, list, before] = rust_event::ENUMERATION_OFFSETS;
    let (mut labels, mut of_field) = (Labels::new(), word(description, rust_event::LABELLED_OFFSET)?);
    while of_field != 0 {
        let (first, count) = (word(of_field, list)?, word(of_field, list + 8)?);
        if count > LABEL_COUNT_MAX as u64 {
            return None;
        }
        let label =
            |at: u64| Some(Label { name: text(at)?, bits: word(at, rust_event::SLICE_SIZE_BYTES)?.cast_signed() });
        let all = (0..count).map(|at| label(first.wrapping_add(at * rust_event::LABEL_SIZE_BYTES as u64)));
        let at = word(of_field, index)? as usize;
        // Each is of another field, so the list of them ends.
        if at >= FIELD_COUNT_MAX || labels.insert(at, all.collect::<Option<_>>()?).is_some() {
            return None;
        }
        of_field = word(of_field, before)?;
    }
    Some(labels)
}

/// Number of bytes of code that are inspected.
const CODE_BYTES: u64 = 40;

/// Returns the address that a function at `address` returns, if it does nothing else.
fn returned_address(code: &[u8], address: u64) -> Option<u64> {
    if cfg!(target_arch = "x86_64") {
        returned_on_x86_64(code, address)
    } else if cfg!(target_arch = "aarch64") {
        returned_on_aarch64(code, address)
    } else {
        None
    }
}

/// Instructions of AArch64 that leave `x0` and `x8` as they are: `nop`, `bti c`, `paciasp`, `autiasp`, and those that make
/// and leave a frame.
const AARCH64_NEUTRAL: [u32; 7] =
    [0xD503_201F, 0xD503_245F, 0xD503_233F, 0xD503_23BF, 0xA9BF_7BFD, 0x9100_03FD, 0xA8C1_7BFD];
/// `ret`, `retaa`.
const AARCH64_RETURNS: [u32; 2] = [0xD65F_03C0, 0xD65F_0BFF];

/// Returns the address that a function of AArch64 at `address` returns, if it does nothing else: `adrp r, page;
/// add x0, r, offset` or `adr x0, address`, then `ret`; before, after and between them any of [`AARCH64_NEUTRAL`].
fn returned_on_aarch64(code: &[u8], address: u64) -> Option<u64> {
    // The register with a page's address, and that address.
    let mut page = None;
    let mut returned = None;
    for (at, code) in (address..).step_by(4).zip(code.as_chunks::<4>().0) {
        let code = u32::from_le_bytes(*code);
        let (target, source) = (code & 31, code >> 5 & 31);
        // A signed number of 21 bits, the lower two of which are apart.
        let distance = i64::from((code << 8).cast_signed() >> 13 << 2) | i64::from(code >> 29 & 3);
        if AARCH64_NEUTRAL.contains(&code) {
            continue;
        }
        if code & 0x9F00_0000 == 0x9000_0000 {
            page = Some((target, (at & !0xFFF).wrapping_add_signed(distance << 12)));
        } else if code & 0x9F00_001F == 0x1000_0000 {
            returned = Some(at.wrapping_add_signed(distance));
        } else if code & 0xFFC0_001F == 0x9100_0000 {
            let (_, page) = page.filter(|(register, _)| *register == source)?;
            returned = Some(page.wrapping_add(u64::from(code >> 10 & 0xFFF)));
        } else {
            return returned.filter(|_| AARCH64_RETURNS.contains(&code));
        }
    }
    None
}

/// Returns the address that a function of x86-64 at `address` returns, if it does nothing else:
/// `[endbr64] [push rbp; mov rbp, rsp] lea rax, [rip + distance] [pop rbp] ret`, or, in a program with a fixed address,
/// `mov eax, address` in place of `lea`.
fn returned_on_x86_64(code: &[u8], address: u64) -> Option<u64> {
    let rest = code.strip_prefix(b"\xF3\x0F\x1E\xFA").unwrap_or(code);
    let framed = rest.strip_prefix(b"\x55\x48\x89\xE5");
    let rest = framed.unwrap_or(rest);
    let relative = rest.strip_prefix(b"\x48\x8D\x05");
    let (number, rest) = relative.or_else(|| rest.strip_prefix(b"\xB8"))?.split_first_chunk::<4>()?;
    let end = if framed.is_some() { &b"\x5D\xC3"[..] } else { b"\xC3" };
    let next = address.wrapping_add((code.len() - rest.len()) as u64);
    let returned = match relative {
        Some(_) => next.wrapping_add_signed(i32::from_le_bytes(*number).into()),
        None => u32::from_le_bytes(*number).into(),
    };
    rest.starts_with(end).then_some(returned)
}

#[cfg(test)]
mod tests {
    use dormouse_abi::class::Kind;

    use super::*;
    use crate::elf::{OWN_MACHINE, OWN_ORDER};

    #[test]
    fn only_a_function_that_returns_an_address_is_understood() {
        assert_eq!(returned_on_x86_64(b"\x48\x8D\x05\x10\0\0\0\xC3\xCC", 1000), Some(1000 + 7 + 16));
        assert_eq!(returned_on_x86_64(b"\x48\x8D\x05\xFF\xFF\xFF\xFF\xC3", 0), Some(6));
        assert_eq!(returned_on_x86_64(b"\xB8\x78\x56\x34\x12\xC3", 1000), Some(0x1234_5678));
        assert_eq!(returned_on_x86_64(b"\xF3\x0F\x1E\xFA\x55\x48\x89\xE5\x48\x8D\x05\x01\0\0\0\x5D\xC3", 0), Some(16));
        // Another register, a frame that is not left, a call, and nothing at all.
        for code in [
            &b"\x48\x8D\x0D\x10\0\0\0\xC3"[..],
            b"\x55\x48\x89\xE5\x48\x8D\x05\x01\0\0\0\xC3",
            b"\xE8\0\0\0\0\xC3",
            b"",
        ] {
            assert_eq!(returned_on_x86_64(code, 0), None);
        }
    }

    #[test]
    fn the_same_is_understood_on_aarch64() {
        let returned = |code: &[u32], address| {
            let code: Vec<u8> = code.iter().flat_map(|code| code.to_le_bytes()).collect();
            returned_on_aarch64(&code, address)
        };
        // adrp x0, +1 page; add x0, x0, 0x123; ret
        assert_eq!(returned(&[0xB000_0000, 0x9104_8C00, 0xD65F_03C0], 0x5678), Some(0x6123));
        // adrp x8, -1 page; add x0, x8, 16; ret, in a frame with authentication.
        let framed = [
            0xD503_245F,
            0xD503_233F,
            0xA9BF_7BFD,
            0x9100_03FD,
            0xF0FF_FFE8,
            0x9100_4100,
            0xA8C1_7BFD,
            0xD503_23BF,
            0xD65F_03C0,
        ];
        assert_eq!(returned(&framed, 0x5678), Some(0x4010));
        // As a linker may shorten it: nop; adr x0, -8 bytes (and one more); ret
        assert_eq!(returned(&[0xD503_201F, 0x10FF_FFC0, 0xD65F_03C0], 0x1000), Some(0xFFC));
        assert_eq!(returned(&[0xD503_201F, 0x3000_0000, 0xD65F_03C0], 0x1000), Some(0x1005));
        for code in [
            // Another register is added to, a load, a call, another target, no return, and nothing at all.
            &[0xB000_0001, 0x9104_8C00, 0xD65F_03C0][..],
            &[0xB000_0000, 0xF940_0000, 0xD65F_03C0],
            &[0x9400_0000, 0xD65F_03C0],
            &[0xB000_0000, 0x9104_8C01, 0xD65F_03C0],
            &[0xB000_0000, 0x9104_8C00],
            &[],
        ] {
            assert_eq!(returned(code, 0), None, "{code:x?}");
        }
    }

    #[test]
    fn a_file_that_cannot_be_listed_says_why() {
        let place = tempfile::tempdir().unwrap();
        let of = |bytes: &[u8]| {
            let path = place.path().join("file");
            std::fs::write(&path, bytes).unwrap();
            classes_of_file(&path).map_err(|error| error.to_string())
        };
        let own = std::fs::read("/proc/self/exe").unwrap();
        assert_eq!(of(&own), Ok(Vec::new()));
        let mut removed = own.clone();
        removed[40..48].fill(0);
        let mut foreign = own.clone();
        foreign[4] = 1;
        let cases = [
            (&b"text"[..], "no program and no library"),
            (b"#!/usr/bin/python3 -u\n", "a script of /usr/bin/python3"),
            (&own[..4096], "lead outside of the file"),
            (&removed, "were removed"),
            (&foreign, "another machine"),
        ];
        for (bytes, told) in cases {
            let error = of(bytes).unwrap_err();
            assert!(error.contains(told), "{error}");
        }
        for path in ["/dev/null", "/", "/nowhere"] {
            assert!(classes_of_file(Path::new(path)).is_err(), "{path}");
        }
    }

    /// Returns an object with the class `p:e` of C, which has two tracepoints. All of it is loaded at its offsets.
    fn object() -> Vec<u8> {
        let [events, sites, class, names, headers, len] = [0x100, 0x110, 0x140, 0x180, 0x200, 0x300_usize];
        let mut bytes = vec![0; len];
        let mut put = |at: usize, part: &[u8]| bytes[at..at + part.len()].copy_from_slice(part);
        put(0, &[0x7f, b'E', b'L', b'F', 2, OWN_ORDER]);
        put(18, &OWN_MACHINE.to_ne_bytes());
        for (at, number) in [(32, 64), (40, headers as u64)] {
            put(at, &number.to_ne_bytes());
        }
        for (at, number) in [(54, 56_u16), (56, 1), (58, 64), (60, 4), (62, 3)] {
            put(at, &number.to_ne_bytes());
        }
        // The segment: its type, offset, address and size.
        put(64, &1_u32.to_ne_bytes());
        put(64 + 32, &(len as u64).to_ne_bytes());
        put(events, &((class - events) as u64).to_ne_bytes());
        for site in [sites, sites + 16] {
            put(site + 8, &((class - site - 8) as u32).to_ne_bytes());
        }
        put(class + 4, &CLASS_ID_NONE.to_ne_bytes());
        let types = [Kind::U64 as u8, Kind::Str as u8, Kind::I8 as u8 | LABELLED];
        let names_and_labels = b"p\0e\0n\0text\0s\0UP\0ns::DOWN\0\0\0";
        put(class + 8, &[&[3][..], &types, &[Level::byte_of(Some(Level::Info))], names_and_labels].concat());
        put(class + 8 + 32, &[1_i64.to_ne_bytes(), (-2_i64).to_ne_bytes()].concat());
        put(names, b"\0dormouse_events\0dormouse_sites\0names\0");
        let sections = [(1_u32, events, 16_usize), (17, sites, 32), (32, names, 38)];
        for (index, (name, at, size)) in sections.into_iter().enumerate() {
            let header = headers + (index + 1) * 64;
            put(header, &name.to_ne_bytes());
            put(header + 4, &1_u32.to_ne_bytes());
            for (field, number) in [(16, at), (24, at), (32, size)] {
                put(header + field, &(number as u64).to_ne_bytes());
            }
        }
        bytes
    }

    #[test]
    fn a_class_is_read_and_damage_is_survived() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("object");
        let of = |bytes: &[u8]| {
            std::fs::write(&path, bytes).unwrap();
            (classes_of_file(&path).map_err(|error| error.to_string()), tracepoint_count(&File::open(&path).unwrap()))
        };
        let whole = object();
        let field = |name: &str, kind| (name.to_string(), Some(FieldType::scalar(kind)));
        let fields = vec![field("n", Kind::U64), field("text", Kind::Str), field("s", Kind::I8)];
        let labels = [("UP", 1), ("DOWN", -2)].map(|(name, bits)| Label { name: name.into(), bits });
        let labels = Labels::from([(2, labels.into())]);
        let level = Some(Level::Info);
        let decl = ClassDecl { provider: "p".into(), name: "e".into(), fields, labels, level };
        assert_eq!(of(&whole), (Ok(vec![FileClass { decl: decl.clone(), site_count: 2 }]), Some(2)));
        // The level is behind the count and three types.
        let with_level = |byte: u8| {
            let mut changed = whole.clone();
            changed[0x140 + 8 + 4] = byte;
            of(&changed).0
        };
        assert_eq!(with_level(0), Ok(vec![FileClass { decl: ClassDecl { level: None, ..decl }, site_count: 2 }]));
        assert!(with_level(16).unwrap_err().contains("of another version of Dormouse"));
        // A key that leads into the header, and one that leads nowhere.
        for distance in [-0x100_i64, 0x10_0000] {
            let mut damaged = whole.clone();
            damaged[0x100..0x108].copy_from_slice(&distance.to_ne_bytes());
            assert!(of(&damaged).0.unwrap_err().contains("damaged"));
        }
        for at in 0..whole.len() {
            for byte in [0, 1, 0x7f, 0xff] {
                let mut damaged = whole.clone();
                damaged[at] = byte;
                let _ = of(&damaged);
            }
        }
    }
}
