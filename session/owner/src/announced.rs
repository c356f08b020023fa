//! Checks what programs have entered in the session's register about themselves and their classes.

use std::collections::BTreeSet;

use dormouse_abi::class::{Announcement, ClassDecl, Label};
use dormouse_abi::register::{Register, TAG_TEXT_COUNT};
use dormouse_abi::tag::{TAG_TEXT_SIZE_BYTES_MAX, text_value};
use dormouse_abi::text::{printable, shown};
use dormouse_format::{Refusal, Tag};

/// Returns a refusal. A program's texts are made printable; the reason is already.
pub(crate) fn refusal_of(class: &str, program: &str, reason: &str) -> Refusal {
    Refusal { name: shown(class), program: shown(program), reason: reason.into() }
}

/// Returns the entered class with this id, if a trace can contain it, or its refusal; `None` if nothing is entered, or
/// not yet.
pub(crate) fn class_of(
    register: &Register,
    id: u16,
    program_of: impl Fn(u16) -> String,
) -> Option<Result<ClassDecl, Refusal>> {
    let class = register.class(id)?;
    let announced = Announcement::from_text(&class.text);
    let refused = |name: &str, reason: &str| refusal_of(name, &program_of(class.process), reason);
    Some(match &announced {
        Some(announced) => announced.check().map_err(|reason| refused(&announced.full_name(), &reason)),
        None => Err(refused("(a class)", "what it says of itself cannot be read")),
    })
}

/// Adds the texts that programs have given tags. Returns how many there are in the register.
pub(crate) fn name_texts(tags: &mut [Tag], register: &Register) -> usize {
    let number_of = |label: &Label| format!("\0{}", label.bits);
    let mut known = BTreeSet::new();
    let mut label_count = 0;
    for (index, label) in
        tags.iter().enumerate().flat_map(|(index, tag)| tag.texts.iter().map(move |text| (index, text)))
    {
        known.extend([(index, label.name.clone()), (index, number_of(label))]);
        label_count += 1;
    }
    let texts = register.tag_texts();
    for (name, text) in &texts {
        // Programs may have overwritten texts that are known.
        if label_count > TAG_TEXT_COUNT {
            break;
        }
        let Some(index) = tags.iter().position(|tag| tag.name == *name) else { continue };
        let label = Label {
            name: printable(&String::from_utf8_lossy(&text[..text.len().min(TAG_TEXT_SIZE_BYTES_MAX)])),
            bits: text_value(text).cast_signed(),
        };
        // A metadata text has a number once, and a text once.
        let is_new = !label.name.is_empty()
            && known.insert((index, label.name.clone()))
            && known.insert((index, number_of(&label)));
        if is_new {
            let texts = &mut tags[index].texts;
            if texts.is_empty() {
                // The number that stands for no tag.
                texts.push(Label { name: String::new(), bits: 0 });
            }
            texts.push(label);
            label_count += 1;
        }
    }
    texts.len()
}

/// Returns the program that a process says it is.
pub(crate) fn program_of(register: &Register, number: u16) -> String {
    let known = register.process(number).map(|process| printable(&process.program));
    known.filter(|program| !program.is_empty()).unwrap_or_else(|| "an unknown program".into())
}
