//! `dormouse session-owner`: the process that `dormouse record` starts to own its session, and restarts if it dies.

use std::ffi::OsString;

use clap::Args;
use dormouse_owner::Inheritance;

use crate::record::Record;

/// Own a session; `dormouse record` starts this process by itself
#[derive(Debug, Args)]
pub(crate) struct SessionOwner {
    /// The inherited descriptors, then the arguments of `dormouse` with which the session was started
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    arguments: Vec<OsString>,
}

impl SessionOwner {
    /// Owns the inherited session. `parse` turns the original arguments of `dormouse` into the recording's options.
    pub(crate) fn run(self, parse: impl FnOnce(Vec<OsString>) -> anyhow::Result<Record>) -> anyhow::Result<u8> {
        let count = Inheritance::ARGUMENT_COUNT.min(self.arguments.len());
        let (inherited, given) = self.arguments.split_at(count);
        let inheritance = Inheritance::from_arguments(inherited)?;
        parse([OsString::from("dormouse")].iter().chain(given).cloned().collect())?.own(inheritance)
    }
}
