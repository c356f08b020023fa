//! What operators see and set in a program that runs.

use dormouse_abi::wire::{Message, TunableChange, TunableStatus, Tunables};

use crate::program::{Program, ProgramError};

/// Names in an error message; more are left to `dormouse imv list`.
const NAME_COUNT_MAX: usize = 8;

/// Why tunables cannot be listed or set. Each says what to do.
#[derive(Debug, thiserror::Error)]
pub enum TunableError {
    /// The program cannot be reached.
    #[error(transparent)]
    Program(#[from] ProgramError),
    /// The program does not do it. None was set.
    #[error("process {pid}: {text}")]
    Refused {
        /// The process.
        pid: u32,
        /// Its own words.
        text: String,
    },
    /// It has no such tunable.
    #[error("process {pid} has no tunable `{}`; {has}", name.escape_debug())]
    Unknown {
        /// The process.
        pid: u32,
        /// What was to be set.
        name: String,
        /// What there is instead.
        has: String,
    },
    /// Several objects have one of that name.
    #[error("process {pid} has several variables called `{name}`, in {objects}; rename all but one of them")]
    Ambiguous {
        /// The process.
        pid: u32,
        /// The name.
        name: String,
        /// The files of the objects.
        objects: String,
    },
    /// They belong to tracers of their own, so that they cannot be set together.
    #[error(
        "`{first}` and `{other}` of process {pid} lie in libraries with a tracer of their own each; set them one after the other"
    )]
    Apart {
        /// The process.
        pid: u32,
        /// A name of the first one.
        first: String,
        /// A name of another.
        other: String,
    },
    /// The answer is of another version.
    #[error("process {0} answered something else; are it and dormouse of the same version?")]
    Version(u32),
}

impl Program {
    /// The tunables of each tracer in the process, by name, then in the order of their objects.
    ///
    /// # Errors
    /// See [`TunableError`].
    pub fn tunables(&self) -> Result<Vec<Tunables>, TunableError> {
        let answers = self.ask(&Message::ListTunables)?.into_iter();
        answers
            .map(|answer| match answer {
                Message::Tunables { mut tracer } => {
                    tracer.tunables.sort_by(|a, b| a.name.cmp(&b.name));
                    Ok(tracer)
                }
                other => Err(self.refusal(other)),
            })
            .collect()
    }

    /// Sets tunables, given as name and text: all of them or none, with one synchronisation of the program's CPUs. What was
    /// changed, in the order of `values`.
    ///
    /// # Errors
    /// See [`TunableError`]; nothing was set then, unless the program did not answer.
    pub fn set_tunables(&self, values: &[(String, String)]) -> Result<Vec<TunableChange>, TunableError> {
        let tracers = self.tunables()?;
        let mut chosen: Option<(usize, &str)> = None;
        for (name, _) in values {
            let index = self.tracer_of(&tracers, name)?;
            let (first, first_name) = *chosen.get_or_insert((index, name));
            if index != first {
                let (first, other) = (first_name.into(), name.clone());
                return Err(TunableError::Apart { pid: self.pid, first, other });
            }
        }
        let Some((index, _)) = chosen else { return Ok(Vec::new()) };
        match self.ask_one(index, &Message::SetTunables { values: values.to_vec() })? {
            Message::TunablesSet { changes } => Ok(changes),
            other => Err(self.refusal(other)),
        }
    }

    /// Which tracer knows a name.
    fn tracer_of(&self, tracers: &[Tunables], name: &str) -> Result<usize, TunableError> {
        let named: Vec<(usize, &TunableStatus)> = tracers
            .iter()
            .enumerate()
            .flat_map(|(index, tracer)| tracer.tunables.iter().map(move |tunable| (index, tunable)))
            .filter(|(_, tunable)| tunable.name == name)
            .collect();
        match *named.as_slice() {
            [] => Err(TunableError::Unknown { pid: self.pid, name: name.into(), has: has(tracers) }),
            [(index, _)] => Ok(index),
            [..] => {
                let objects: Vec<&str> = named.iter().map(|(_, tunable)| tunable.object.as_str()).collect();
                let objects = objects.join(" and ");
                Err(TunableError::Ambiguous { pid: self.pid, name: name.into(), objects })
            }
        }
    }

    fn refusal(&self, answer: Message) -> TunableError {
        match answer {
            // What a program says to a question that it cannot read.
            Message::Error { text } if text == dormouse_abi::wire::Malformed.to_string() => {
                TunableError::Version(self.pid)
            }
            Message::Error { text } => TunableError::Refused { pid: self.pid, text },
            _ => TunableError::Version(self.pid),
        }
    }
}

/// The names that exist, so that a wrong one can be mended.
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
