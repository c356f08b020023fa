//! Signals: SIGINT and SIGTERM cancel the current trace at its next batch.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use anyhow::Result;
use dormouse_store::Watch;
use tokio::runtime::Handle;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch::{Receiver, channel};

/// Exit codes of a command that SIGINT or SIGTERM has ended, as a shell reports them.
const INTERRUPTED: u8 = 130;
const TERMINATED: u8 = 143;

/// Maximum time from a signal to the end of the program, however slow the server is. A partly put trace is not part of
/// the store.
const PATIENCE: Duration = Duration::from_secs(5);

/// Receiver of the exit code that the first signal demands.
#[derive(Debug)]
pub(crate) struct Signals(Receiver<Option<u8>>);

impl Signals {
    /// Handles SIGINT and SIGTERM from now on. `is_end`: SIGTERM is the regular end, with exit code 0.
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
            // Relaxed: the flag publishes no other data.
            watch.is_over.store(true, Ordering::Relaxed);
            // The program usually ends by itself before this. If a server delays it, it ends here.
            tokio::time::sleep(PATIENCE).await;
            std::process::exit(code.into());
        });
        Ok(Signals(receiver))
    }

    /// Waits for a signal and returns the exit code.
    pub(crate) async fn code(&mut self) -> u8 {
        match self.0.wait_for(Option::is_some).await {
            Ok(code) => code.unwrap_or(INTERRUPTED),
            // The sender belongs to the task above, which runs until the program exits.
            Err(_) => std::future::pending().await,
        }
    }
}
