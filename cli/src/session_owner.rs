//! `dormouse session-owner`: the process that `dormouse record` starts to own its session, and restarts if it dies.

use std::ffi::OsString;

use clap::Args;
use dormouse_owner::{Inheritance, own};

use crate::recorded::Terminal;

/// Own a session; `dormouse record` starts this process by itself
#[derive(Debug, Args)]
pub(crate) struct SessionOwner {
    /// Descriptor of the file that says what is inherited; then the directory of the trace, for people who list processes
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    arguments: Vec<OsString>,
}

impl SessionOwner {
    pub(crate) fn run(self) -> anyhow::Result<u8> {
        Ok(own(Inheritance::from_arguments(&self.arguments)?, &Terminal)?)
    }
}
