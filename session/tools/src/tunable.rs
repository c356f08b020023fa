//! Tunables, which operators see and set in a running program.

use dormouse_abi::message::{ProgramToTool, ToolToProgram, TunableChange, TunableStatus, Tunables};

use crate::program::Program;
use crate::reason::ProgramError;

/// Maximum number of names in an error message; for more, it refers to `dormouse imv list`.
const NAME_COUNT_MAX: usize = 8;

impl Program {
    /// Returns the tunables of each tracer in the process, by name, then in the order of their objects.
    ///
    /// # Errors
    /// The reason.
    pub fn tunables(&self) -> Result<Vec<Tunables>, ProgramError> {
        let answers = self.ask(&ToolToProgram::ListTunables)?.into_iter();
        answers
            .map(|answer| match answer {
                ProgramToTool::Tunables { mut tracer } => {
                    tracer.tunables.sort_by(|a, b| a.name.cmp(&b.name));
                    Ok(tracer)
                }
                other => Err(self.refusal(other).into()),
            })
            .collect()
    }

    /// Sets tunables, given as name and text, all or none, with one synchronisation of the program's CPUs. Returns what
    /// was changed, in the order of `values`.
    ///
    /// # Errors
    /// The reason; nothing was set then, unless the program did not answer.
    pub fn set_tunables(&self, values: &[(String, String)]) -> Result<Vec<TunableChange>, ProgramError> {
        let tracers = self.tunables()?;
        let mut chosen: Option<(usize, &str)> = None;
        for (name, _) in values {
            let index = self.tracer_of(&tracers, name)?;
            let (first, first_name) = *chosen.get_or_insert((index, name));
            if index != first {
                let text = format!(
                    "`{first_name}` and `{name}` of process {} lie in libraries with a tracer of their own each; set them one after the other",
                    self.pid
                );
                return Err(text.into());
            }
        }
        let Some((index, _)) = chosen else { return Ok(Vec::new()) };
        match self.ask_one(index, &ToolToProgram::SetTunables { values: values.to_vec() })? {
            ProgramToTool::TunablesSet { changes } => Ok(changes),
            other => Err(self.refusal(other).into()),
        }
    }

    /// Returns the index of the tracer that knows a name.
    fn tracer_of(&self, tracers: &[Tunables], name: &str) -> Result<usize, ProgramError> {
        let named: Vec<(usize, &TunableStatus)> = tracers
            .iter()
            .enumerate()
            .flat_map(|(index, tracer)| tracer.tunables.iter().map(move |tunable| (index, tunable)))
            .filter(|(_, tunable)| tunable.name == name)
            .collect();
        match *named.as_slice() {
            [] => {
                let (name, has) = (name.escape_debug(), has(tracers));
                Err(format!("process {} has no tunable `{name}`; {has}", self.pid).into())
            }
            [(index, _)] => Ok(index),
            [..] => {
                let objects: Vec<&str> = named.iter().map(|(_, tunable)| tunable.object.as_str()).collect();
                let objects = objects.join(" and ");
                let pid = self.pid;
                let text = format!(
                    "process {pid} has several variables called `{name}`, in {objects}; rename all but one of them"
                );
                Err(text.into())
            }
        }
    }
}

/// Returns a text with the names that exist, so that a wrong one can be corrected.
fn has(tracers: &[Tunables]) -> String {
    let mut names: Vec<&str> =
        tracers.iter().flat_map(|tracer| &tracer.tunables).map(|tunable| tunable.name.as_str()).collect();
    names.sort();
    names.dedup();
    match names.len() {
        0 => "it exports none: see `tunable!` and DORMOUSE_TUNABLE".into(),
        1..=NAME_COUNT_MAX => format!("it has {}", names.join(", ")),
        count => format!("`dormouse imv list` shows the {count} that it has"),
    }
}
