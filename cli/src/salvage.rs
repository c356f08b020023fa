//! `dormouse salvage`.

use std::io::Write;
use std::path::PathBuf;

use anyhow::Context;
use clap::Args;
use dormouse_abi::text::printable;
use dormouse_owner::{EXIT_LOSS, salvage};
use dormouse_terminal::Output;

/// Make a valid trace from the remains of a session whose `dormouse record` was killed
///
/// A recorder that is killed (kill -9, the OOM killer) leaves a directory with the events that were written to disk, perhaps with an
/// incomplete packet at the end. The other events are in the session's memory. Programs that are alive still map this memory; with
/// `dormouse record --buffers` it is a file, which remains after the programs have ended. Salvage combines both into a new trace,
/// and does not change the old directory.
#[derive(Debug, Args)]
#[command(after_help = "\
What is recovered:
  programs alive                 every event that was committed
  programs dead, --buffers FILE  the same, from FILE
  programs dead, no --buffers    what was written to disk; in overwrite mode that is nothing
Events that were lost while the session ran stay lost, and are counted. A damaged packet, or its damaged end, is left out; the event \
`dormouse:salvage` in the trace records that, `dormouse view` shows it, and `dormouse stats` warns.

Programs that are alive continue to write into the killed session until its memory is full or, in overwrite mode, without end. \
`dormouse disarm PID '*'` stops a program; the session can be salvaged again afterwards. `dormouse arm` makes the program join a new \
session; the old memory is then lost.

Examples:
  dormouse salvage trace                          into trace-salvaged
  dormouse salvage trace -o rescued --json
  dormouse record --buffers /dev/shm -o trace -- ./server
                                                  events survive recorder and server

Exit code: 0 if every committed event was recovered; 1 if some were not (the trace is valid, and says what is missing); \
with --fail-on-loss, 3 instead of 0 or 1 if events were lost, or may have been; \
2 if there was nothing to salvage, the session is live, or the new trace cannot be written.")]
pub(crate) struct Salvage {
    /// Directory that the session was recorded into
    #[arg(value_name = "TRACE")]
    dir: PathBuf,
    /// Directory of the new trace, new or empty [default: TRACE-salvaged]
    #[arg(short, long, value_name = "DIR")]
    output: Option<PathBuf>,
    /// Remove the file of the session's memory (see `dormouse record --buffers`) if everything was recovered
    #[arg(long)]
    remove_buffers: bool,
    /// Exit with 3 if events were lost, or may have been
    #[arg(long)]
    fail_on_loss: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

impl Salvage {
    pub(crate) fn run(self, out: &mut Output) -> anyhow::Result<u8> {
        let output = match self.output {
            Some(output) => output,
            None => {
                let name = self.dir.file_name().context("name the directory of the new trace with -o")?;
                let mut name = name.to_owned();
                name.push("-salvaged");
                self.dir.with_file_name(name)
            }
        };
        let mut salvage = salvage(&self.dir, &output)?;
        let is_whole = salvage.missing.is_empty();
        if self.remove_buffers && is_whole {
            salvage.remove_buffers()?;
        }
        let code = match is_whole {
            _ if self.fail_on_loss && salvage.losses.is_any() => EXIT_LOSS,
            true => 0,
            false => 1,
        };
        if self.json {
            let mut json = serde_json::to_value(&salvage)?;
            json["is_whole"] = is_whole.into();
            json["lost"] = salvage.losses.lost().into();
            json["is_lost_exact"] = salvage.losses.is_exact().into();
            out.json(&json)?;
            return Ok(code);
        }
        let (events, losses, disk, memory) =
            (salvage.events, &salvage.losses, salvage.packets_from_disk, salvage.packets_from_memory);
        writeln!(
            out,
            "{events} events, {losses}: {disk} packets from disk, {memory} from memory ({}); look at them with \
             `dormouse view {}`",
            salvage.memory,
            output.display()
        )?;
        if let Some(recorder) = salvage.recorder {
            writeln!(
                out,
                "the session was owned by `dormouse record`, process {recorder}, and its owner; both are dead"
            )?;
        }
        if salvage.pages_missed > 0 {
            writeln!(out, "{} older pages were overwritten meanwhile", salvage.pages_missed)?;
        }
        for line in &salvage.missing {
            writeln!(out, "missing: {}", printable(line))?;
        }
        for pid in &salvage.writers {
            writeln!(out, "process {pid} still writes into the killed session; `dormouse disarm {pid} '*'` stops it")?;
        }
        if let Some(path) = salvage.buffers {
            writeln!(
                out,
                "the session's memory is still in {}; remove the file when you no longer need it",
                path.display()
            )?;
        }
        Ok(code)
    }
}
