//! Signals: the trace at hand is given up at its next batch.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use anyhow::Result;
use dormouse_store::Watch;
use tokio::runtime::Handle;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch::{Receiver, channel};

/// What an interrupted command exits with, as a shell shows it.
const INTERRUPTED: u8 = 130;
const TERMINATED: u8 = 143;

/// How long a server may keep the end waiting; what is half put is no part of the store.
const PATIENCE: Duration = Duration::from_secs(5);

/// The exit code that a signal asks for, when one has come.
#[derive(Debug)]
pub(crate) struct Signals(Receiver<Option<u8>>);

impl Signals {
    /// Takes them from now on. `is_end`: SIGTERM is the proper end.
    pub(crate) fn taken(runtime: &Handle, watch: &Arc<Watch>, is_end: bool) -> Result<Signals> {
        let _in_runtime = runtime.enter();
        let (mut interrupt, mut terminate) = (signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?);
        let (told, receiver) = channel(None);
        let watch = Arc::clone(watch);
        runtime.spawn(async move {
            let code = tokio::select! {
                _ = interrupt.recv() => INTERRUPTED,
                _ = terminate.recv() => if is_end { 0 } else { TERMINATED },
            };
            let _ = told.send(Some(code));
            // Nothing else is handed over by it.
            watch.is_over.store(true, Ordering::Relaxed);
            // The program ends by itself before, unless a server keeps it waiting: then it ends here.
            tokio::time::sleep(PATIENCE).await;
            std::process::exit(code.into());
        });
        Ok(Signals(receiver))
    }

    /// Waits for one.
    pub(crate) async fn code(&mut self) -> u8 {
        match self.0.wait_for(Option::is_some).await {
            Ok(code) => code.unwrap_or(INTERRUPTED),
            // Who tells is there as long as the program.
            Err(_) => std::future::pending().await,
        }
    }
}
