//! `dormouse rule`.

use std::io::Write;
use std::path::Path;

use clap::Args;
use dormouse_abi::message::{ProgramToTool, RulesState, ToolToProgram};
use dormouse_ctf::Metadata;
use dormouse_owner::RuleSet;
use dormouse_terminal::{Output, say};
use dormouse_tools::{Program, SessionSocket, ask_for_rules, ask_for_status};
use serde_json::json;

use crate::patterns::{GivenRules, KnownClass, known, names_of, say_unmatched};
use crate::program::explained;
use crate::programs::session_of;

/// Show which events a live session records, or change that
///
/// The new rules replace all that the session has. Programs that listen follow them at once, the others when they next load a library, fork or
/// join. The trace says from when on which rules were in force.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  dormouse rule                                      show the rules of the only live session
  dormouse rule server 'http:* where bytes > 64K'    large requests only
  dormouse rule server 'http:* where status >= 500' 'http:* sample 1/100'
  dormouse rule 1234 'http:*' 'db:query where rows > 1000 or failed' '!http:ping'
  dormouse rule trace '*'                            all events, in the session that is recorded into the directory trace

An event is recorded if one of the PATTERNs matches its name, the condition after it is true (if there is one), and no `!PATTERN` matches its name. If all \
rules are `!PATTERN`, all other events are recorded. After a PATTERN, in any order:
  where bytes > 64K               a condition
  level<=WARNING                  events of this level and more important ones; level==DEBUG is this level; an event without a level does not match
  sample 1/100                    one event in a hundred, by chance
  sample by user 1/100            all events of one in a hundred users, the same ones in all programs and on all machines
  sample 50/s                     at most 50 a second of each event class in each process, and 50 at the start
  tail 10s by id keep status >= 500
                                  events with status >= 500, and all with the same id up to 10 s before or after; not in overwrite mode
A condition compares the event's fields:
  bytes > 64K and not ok          == != < <= > >=, and, or, not, parentheses
  path ~ \"/tmp/*\"                 a pattern; `*` and `?` are wildcards
  took >= 1.5ms                   a field in nanoseconds
  state == \"READY\"                a label of an enumeration
If an event lacks a field, a comparison with it is neither true nor false, and alone does not select the event.

Exit code: 0; 2 if there is no such session, a rule is wrong or needs a field that no matching event has (then nothing is changed), or a program that \
listens did not answer.")]
pub(crate) struct Rule {
    /// Process id or name of a program in the session, process id of the session's owner, the session's socket, or the directory of its trace
    /// [default: the only live session]
    #[arg(value_name = "PID|NAME|SESSION")]
    target: Option<String>,
    /// The new rules: PATTERN, and `where EXPR`, `level<=LEVEL`, `sample 1/N` or `tail …` after it, or `!PATTERN`; none: show the present ones
    #[arg(value_name = "RULE")]
    rules: Vec<String>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

impl Rule {
    pub(crate) fn run(self, out: &mut Output) -> anyhow::Result<u8> {
        let session = session_of(self.target.as_deref())?;
        if self.rules.is_empty() {
            let state = ask_for_rules(&session, None)?;
            if self.json {
                out.json(&state_json(&session, &state))?;
            } else {
                state.rules.iter().try_for_each(|rule| writeln!(out, "{rule}"))?;
            }
            return Ok(0);
        }
        let given = GivenRules::parse(&self.rules)?;
        RuleSet::parse(&self.rules)?;
        let classes = announced(&session);
        given.check(&classes)?;
        if !classes.is_empty() {
            say_unmatched(&given.patterns(), &names_of(&classes), " of this session's programs");
        }
        let state = ask_for_rules(&session, Some(&self.rules))?;
        let failed = have_all_follow(&state);
        let state = ask_for_rules(&session, None)?;
        if self.json {
            out.json(&state_json(&session, &state))?;
        } else {
            writeln!(out, "{}", following_text(&state, failed))?;
        }
        Ok(if failed == 0 { 0 } else { 2 })
    }
}

/// Returns the classes that programs have announced to a session, as its trace declares them; none if the trace cannot
/// be read.
fn announced(session: &SessionSocket) -> Vec<KnownClass> {
    let read = || {
        let status = ask_for_status(session).ok()?;
        let bytes = std::fs::read(Path::new(&status.dir).join("metadata")).ok()?;
        Metadata::decode(&bytes).ok()
    };
    let Some(metadata) = read() else { return Vec::new() };
    metadata.classes.events().filter_map(|class| class.decl.as_deref()).map(known).collect()
}

/// Asks the programs that listen, and do not follow the session's rules yet, to follow them. Returns the number of
/// those that do not do so, and prints why.
fn have_all_follow(state: &RulesState) -> usize {
    let mut failed = 0;
    for pid in state.processes.iter().filter(|(pid, follows)| *pid != 0 && !follows).map(|(pid, _)| *pid) {
        // A program that does not listen is not called.
        let Some(program) = Program::listening(pid) else { continue };
        if let Err(error) = have_follow(&program) {
            say(format_args!("{error:#}"));
            failed += 1;
        }
    }
    failed
}

fn have_follow(program: &Program) -> anyhow::Result<()> {
    for answer in program.ask(&ToolToProgram::FollowRules).map_err(explained)? {
        if !matches!(answer, ProgramToTool::Changed { .. }) {
            return Err(program.refusal(answer).into());
        }
    }
    Ok(())
}

/// Returns the number of programs in a session, and of those among them that follow its rules.
fn counts(state: &RulesState) -> (usize, usize) {
    (state.processes.len(), state.processes.iter().filter(|(_, follows)| *follows).count())
}

fn state_json(session: &SessionSocket, state: &RulesState) -> serde_json::Value {
    let (programs, following) = counts(state);
    json!({
        "session": session.path(),
        "rules": state.rules,
        "programs": programs,
        "programs_following": following,
    })
}

/// Returns a text that says how many programs follow the rules. `failed`: number of those that listen and did not do
/// what they were asked.
fn following_text(state: &RulesState, failed: usize) -> String {
    let (programs, following) = counts(state);
    let mut text = match following {
        1 => "1 program follows".to_string(),
        count => format!("{count} programs follow"),
    };
    match (programs - following).saturating_sub(failed) {
        0 => {}
        1 => text += "; 1 does not listen and follows when it next loads a library, forks or joins",
        count => text += &format!("; {count} do not listen and follow when they next load a library, fork or join"),
    }
    if failed > 0 {
        text += &format!("; {failed} listen{} and did not do what was asked", if failed == 1 { "s" } else { "" });
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_that_follow_are_counted() {
        let text = |following: usize, others: usize, failed: usize| {
            let processes = [vec![(7, true); following], vec![(8, false); others]].concat();
            following_text(&RulesState { rules: Vec::new(), processes }, failed)
        };
        assert_eq!(text(0, 0, 0), "0 programs follow");
        assert_eq!(text(1, 0, 0), "1 program follows");
        let one = "3 programs follow; 1 does not listen and follows when it next loads a library, forks or joins";
        assert_eq!(text(3, 1, 0), one);
        assert_eq!(text(3, 2, 1), format!("{one}; 1 listens and did not do what was asked"));
        let two = "2 programs follow; 2 do not listen and follow when they next load a library, fork or join";
        assert_eq!(text(2, 2, 0), two);
    }
}
