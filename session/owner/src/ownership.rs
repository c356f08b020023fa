//! The life of an owner's process: it takes the session up, owns it until its end, and concludes the recording. The
//! caller prints.

use std::fs::{File, OpenOptions};
use std::io::{Seek, Write};
use std::path::Path;

use dormouse_control::raise_descriptor_limit;
use dormouse_tools::Unjoined;

use crate::error::Error;
use crate::inheritance::{Inheritance, Recording};
use crate::summary::Summary;
use crate::supervised::{Ending, SupervisedOwner};

/// Exit code if there was nothing to run or record.
const EXIT_NOTHING: u8 = 2;

/// Exit code of an option that asks for it, if events were lost or may have been.
pub const EXIT_LOSS: u8 = 3;

/// What has been recorded, at the end.
#[derive(Debug)]
pub struct Recorded<'a> {
    /// What was asked for.
    pub recording: &'a Recording,
    /// Directory of the trace.
    pub dir: &'a Path,
    /// Results of the session.
    pub summary: &'a Summary,
    /// Names, `provider:name`, of the classes that programs have announced, sorted.
    pub class_names: &'a [String],
}

/// Reports to the user what an owner's process finds.
pub trait Report {
    /// Reports that a process that was attached has ended.
    fn program_ended(&self, pid: u32);
    /// Reports the recording when it is complete.
    fn recorded(&self, recorded: &Recorded<'_>);
    /// Reports that the file of the summary cannot be written.
    fn failed(&self, error: &Error);
    /// Returns a sentence that says why a program has not joined, for the file of the summary.
    fn reason(&self, unjoined: &Unjoined) -> String;
}

/// Owns the session that this process has inherited until it ends. Returns the exit code.
///
/// # Errors
/// The process cannot detach from the terminal.
pub fn own(inheritance: Inheritance, report: &impl Report) -> Result<u8, Error> {
    raise_descriptor_limit();
    let (recording, dir) = (inheritance.recording().clone(), inheritance.dir().to_owned());
    // Errors are sent to the supervisor, whose process reports them.
    let Ok(mut owner) = SupervisedOwner::take_up(inheritance) else { return Ok(EXIT_NOTHING) };
    let is_attached = !recording.attached.is_empty();
    if is_attached {
        let Ok((attached, joined)) = owner.attach(&recording.attached) else { return Ok(EXIT_NOTHING) };
        owner = attached;
        if recording.is_background {
            detach_from_terminal()?;
        }
        owner.tell_armed(joined);
    }
    let ending = owner.wait(is_attached);
    if ending == Ending::Deserted && !recording.is_background {
        recording.attached.iter().for_each(|pid| report.program_ended(*pid));
    }
    let (session, summary_file, tell_done) = owner.into_parts();
    let class_names = session.class_names();
    let summary = session.finish();
    let recorded = Recorded { recording: &recording, dir: &dir, summary: &summary, class_names: &class_names };
    if !recording.is_background {
        report.recorded(&recorded);
    }
    let code = match ending {
        Ending::Asked(code) => code,
        Ending::Deserted => 0,
    };
    let code = if code == 0 && recording.fails_on_loss && summary.losses.is_any() { EXIT_LOSS } else { code };
    let written = summary_file.map_or(Ok(()), |file| write_summary(&recorded, file, code, report));
    // An error is reported here: another owner could not write the summary either.
    let code = written.map_or_else(
        |error| {
            report.failed(&error);
            2
        },
        |()| code,
    );
    tell_done(code);
    Ok(code)
}

/// Writes the summary to a file for other programs, as JSON.
fn write_summary(recorded: &Recorded<'_>, mut file: File, code: u8, report: &impl Report) -> Result<(), Error> {
    let Recorded { summary, dir, .. } = recorded;
    let failed = |error: &dyn std::fmt::Display| format!("cannot write the file of --summary: {error}");
    // An earlier owner may have been killed while it wrote. On a pipe this fails, which does not matter.
    let _ = file.set_len(0).and_then(|()| file.rewind());
    let mut json = serde_json::to_value(summary).map_err(|error| failed(&error))?;
    json["dir"] = dir.to_string_lossy().into();
    json["lost"] = summary.losses.lost().into();
    json["is_lost_exact"] = summary.losses.is_exact().into();
    json["exit_code"] = code.into();
    for (index, unjoined) in summary.unjoined.iter().enumerate() {
        json["unjoined"][index]["reason"] = report.reason(unjoined).into();
    }
    let text = serde_json::to_string_pretty(&json).map_err(|error| failed(&error))?;
    Ok(writeln!(file, "{text}").map_err(|error| failed(&error))?)
}

/// Detaches the process from the terminal: it gets a terminal session of its own, and `/dev/null` as standard streams.
///
/// # Errors
/// `/dev/null` cannot be opened.
pub fn detach_from_terminal() -> Result<(), Error> {
    let failed = |error| format!("cannot open /dev/null: {error}");
    // This fails only for a group leader, and a newly started child is not one.
    let _ = rustix::process::setsid();
    let null = OpenOptions::new().read(true).write(true).open("/dev/null").map_err(failed)?;
    let failed = |error| format!("cannot detach from the terminal: {error}");
    rustix::stdio::dup2_stdin(&null).map_err(failed)?;
    rustix::stdio::dup2_stdout(&null).map_err(failed)?;
    Ok(rustix::stdio::dup2_stderr(&null).map_err(failed)?)
}
