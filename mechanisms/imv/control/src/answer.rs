//! Tunables for tools, which list and set them. `dormouse-imv` keeps their registry; this module converts its answers
//! to messages.

use core::ops::Range;

use dormouse_abi::message::{ProgramToTool, ToolToProgram, TunableChange, TunableStatus, Tunables};
use dormouse_abi::tunable::{TUNABLE_DESCRIPTION_LEN_MAX, TunableRange, TunableValue};
use dormouse_imv::{Assignment, SiteCount, set_tunables, visit_segment, visit_tunables};

/// Copy of the tunables that [`visit_tunables`] shows, in memory allocated before: nothing may be allocated under the
/// registry's lock.
#[derive(Default)]
struct Snapshot {
    text: Vec<u8>,
    rows: Vec<Row>,
}

struct Row {
    name: Range<usize>,
    description: Range<usize>,
    value: TunableValue,
    range: TunableRange,
    sites: SiteCount,
    address: usize,
}

impl Snapshot {
    fn take() -> Result<Snapshot, dormouse_imv::Error> {
        let mut snapshot = Snapshot::default();
        loop {
            let (mut text_len, mut row_count) = (0, 0);
            let Snapshot { text, rows } = &mut snapshot;
            text.clear();
            rows.clear();
            visit_tunables(|tunable| {
                let description = tunable.description.to_bytes();
                let description = &description[..description.len().min(TUNABLE_DESCRIPTION_LEN_MAX)];
                text_len += tunable.name.len() + description.len();
                row_count += 1;
                if text_len <= text.capacity() && row_count <= rows.capacity() {
                    let mut put = |bytes: &[u8]| {
                        text.extend_from_slice(bytes);
                        text.len() - bytes.len()..text.len()
                    };
                    let (name, description) = (put(tunable.name.as_bytes()), put(description));
                    let dormouse_imv::Tunable { value, range, sites, address, .. } = tunable;
                    rows.push(Row { name, description, value, range, sites, address });
                }
            })?;
            if rows.len() == row_count {
                return Ok(snapshot);
            }
            text.reserve(text_len);
            rows.reserve(row_count);
        }
    }

    fn statuses(&self) -> Vec<TunableStatus> {
        let status = |row: &Row| TunableStatus {
            name: line(&self.text[row.name.clone()]),
            description: line(&self.text[row.description.clone()]),
            object: object_of(row.address),
            value: row.value,
            range: row.range,
            site_count: row.sites.sites as u32,
            patched_count: row.sites.patched as u32,
        };
        self.rows.iter().map(status).collect()
    }
}

/// Converts an object's text to one line of UTF-8. The text may have been cut within a character.
fn line(bytes: &[u8]) -> String {
    let text = String::from_utf8_lossy(bytes);
    text.chars().map(|char| if char.is_control() { ' ' } else { char }).collect()
}

/// Returns the path of the file that contains an address; empty if the loader knows none.
fn object_of(address: usize) -> String {
    // Copied while the loader holds its lock, because unloading the object frees the name. Linux has no longer paths.
    let mut name = [0; libc::PATH_MAX as usize];
    let mut found = None;
    visit_segment(address, |segment| {
        let text = segment.object.to_bytes();
        let len = text.len().min(name.len());
        name[..len].copy_from_slice(&text[..len]);
        found = Some(len);
    });
    match found {
        // The loader has no name for the program itself.
        Some(0) => std::env::current_exe().map(|path| line(path.as_os_str().as_encoded_bytes())).unwrap_or_default(),
        Some(len) => line(&name[..len]),
        None => String::new(),
    }
}

/// Returns the answer of a program without a tracer: it has no event classes, and is in no session.
pub fn answer(question: ToolToProgram) -> ProgramToTool {
    match question {
        ToolToProgram::ListTunables => list(),
        ToolToProgram::SetTunables { values } => set(&values),
        ToolToProgram::List => {
            ProgramToTool::Classes { sessions: Vec::new(), classes: Vec::new(), patching: patching() }
        }
        ToolToProgram::Arm { .. }
        | ToolToProgram::Disarm { .. }
        | ToolToProgram::Attach { .. }
        | ToolToProgram::Detach { .. }
        | ToolToProgram::FollowRules => {
            ProgramToTool::Changed { matched: 0, changed: 0, armed: 0, sessions: Vec::new() }
        }
        ToolToProgram::ReadMemory { .. } => ProgramToTool::Error { text: "the program has no tracer".into() },
    }
}

/// Describes, for people, how sites are patched, or why they are not.
pub fn patching() -> String {
    match dormouse_imv::status() {
        Ok(status) => {
            let count = status.count;
            format!(
                "{} of {} sites patched by {} ({})",
                count.patched,
                count.sites,
                status.writer.name(),
                status.reason
            )
        }
        Err(error) => error.to_string(),
    }
}

/// Answers [`ToolToProgram::ListTunables`].
pub fn list() -> ProgramToTool {
    match dormouse_imv::status().and_then(|status| Ok((status, Snapshot::take()?))) {
        Ok((status, snapshot)) => ProgramToTool::Tunables {
            tracer: Tunables {
                writer: status.writer.name().into(),
                reason: status.reason.into(),
                site_count: status.count.sites as u32,
                patched_count: status.count.patched as u32,
                tunables: snapshot.statuses(),
            },
        },
        Err(error) => ProgramToTool::Error { text: error.to_string() },
    }
}

/// Answers [`ToolToProgram::SetTunables`].
pub fn set(values: &[(String, String)]) -> ProgramToTool {
    let mut assignments: Vec<Assignment<'_>> = values.iter().map(|(name, text)| Assignment::new(name, text)).collect();
    match set_tunables(&mut assignments) {
        Ok(()) => {
            let change = |((name, _), assignment): (&(String, String), &Assignment<'_>)| {
                let (former, value) = assignment.outcome()?;
                Some(TunableChange { name: name.clone(), former, value })
            };
            ProgramToTool::TunablesSet { changes: values.iter().zip(&assignments).filter_map(change).collect() }
        }
        Err(error) => ProgramToTool::Error { text: format!("{error}; nothing was set") },
    }
}
