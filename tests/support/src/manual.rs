//! Programs in manual pages.

use std::path::Path;

/// Returns the programs in a manual page, by the file name in the comment before each.
///
/// # Panics
/// If the page cannot be read, or such a comment has no block of code below it.
pub fn examples(page: &Path) -> Vec<(String, String)> {
    let text = std::fs::read_to_string(page).unwrap();
    let program = |part: &str| {
        let (file, rest) = part.split_once("\n.EX\n").expect("a block of code below the comment");
        let (code, _) = rest.split_once("\n.EE").expect("an end of the block");
        (file.to_string(), code.replace("\\e", "\\").replace("\\-", "-") + "\n")
    };
    text.split(".\\\" program ").skip(1).map(program).collect()
}
