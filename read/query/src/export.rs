//! Exports traces as a Parquet store in a directory, or their events as Arrow files, for other programs.
//!
//! Everything is written to a temporary directory next to DIR, which is renamed to DIR when it is complete.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use anyhow::{Context, Result, anyhow, bail};
use dormouse_reader::TraceFiles;
use dormouse_store::{Format, Options, Store, Watch, put};
use dormouse_terminal::say;
use tokio::runtime::Handle;
use tokio::signal::unix::{SignalKind, signal};

use crate::progress;
use crate::run::{INTERRUPTED, TERMINATED};
use crate::traces::open;

/// Counts of an export.
#[derive(Debug, Default)]
struct Written {
    events: u64,
    files: usize,
    is_damaged: bool,
}

/// Writes traces to DIR, which must be absent or empty, and returns the exit code.
///
/// # Errors
/// The traces cannot be read, DIR exists and is not empty, or something cannot be written.
pub(crate) fn export(
    paths: &[PathBuf],
    clocks: Option<&Path>,
    dir: &Path,
    format: Format,
    memory_bytes: usize,
) -> Result<u8> {
    if paths.iter().filter_map(|path| path.to_str()).any(dormouse_store::is_store) {
        bail!("--export needs traces; this is already a store");
    }
    if dir.read_dir().is_ok_and(|mut entries| entries.next().is_some()) || dir.is_file() {
        bail!("{} is not empty; name a new directory", dir.display());
    }
    let files = open(paths, clocks)?;
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().context("cannot start threads")?;
    let watch = Arc::new(Watch::default());
    let options = Options { format, memory_bytes, host: None };
    let written = runtime.block_on(async {
        let (mut interrupt, mut terminate) = (signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?);
        let (dir, told, handle) = (dir.to_owned(), Arc::clone(&watch), Handle::current());
        let mut work = tokio::task::spawn_blocking(move || write(files, &dir, &handle, &options, &told));
        let position = || (watch.done.load(Ordering::Relaxed), watch.all.load(Ordering::Relaxed));
        let code = tokio::select! {
            done = progress::of(position, "{bar:40} {human_pos} of {human_len} events", &mut work) => return done?.map(Ok),
            _ = interrupt.recv() => INTERRUPTED,
            _ = terminate.recv() => TERMINATED,
        };
        // The work stops, and removes its partial directory.
        watch.is_over.store(true, Ordering::Relaxed);
        let _ = work.await;
        anyhow::Ok(Err(code))
    })?;
    match written {
        Ok(written) => {
            say(format_args!("wrote {} events to {} files", written.events, written.files));
            Ok(written.is_damaged.into())
        }
        Err(code) => Ok(code),
    }
}

fn write(files: TraceFiles, dir: &Path, runtime: &Handle, options: &Options, watch: &Watch) -> Result<Written> {
    let failed = || format!("cannot write to {}", dir.display());
    let parent = dir.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let prefix = format!(".{}.partial-", dir.file_name().unwrap_or_default().to_string_lossy());
    let mut partial = tempfile::Builder::new().prefix(&prefix).tempdir_in(parent).with_context(failed)?;
    let place = partial.path().to_str().with_context(|| format!("{} is no text", dir.display()))?;
    let store = Store::open(place)?.without_sync();
    files.left_out.iter().for_each(|line| say(format_args!("warning: {line}")));
    let mut written = Written { is_damaged: !files.left_out.is_empty(), ..Written::default() };
    let mut has_lost = false;
    for files in files.each() {
        let name =
            files.names().next().and_then(|name| name.rsplit_once('/')).map_or_else(String::new, |(dir, _)| dir.into());
        let told = |error: dormouse_store::Error| anyhow!("{}", error.0.replace(place, &dir.display().to_string()));
        let put = put(&store, runtime, &files, &name, options, watch).map_err(told)?;
        if !put.is_new {
            say(format_args!("warning: {name} is the same trace as another, and is written only once"));
            written.is_damaged = true;
            continue;
        }
        put.warnings.iter().for_each(|line| say(format_args!("warning: {line}")));
        written.is_damaged |= !put.warnings.is_empty();
        has_lost |= put.has_lost;
        written.events += put.manifest.events;
        written.files += put.manifest.files.len();
    }
    if has_lost {
        say("events were lost while this trace was recorded; `select * from losses` lists the losses");
    }
    // An existing empty directory is replaced.
    let _ = std::fs::remove_dir(dir);
    std::fs::rename(partial.path(), dir).with_context(failed)?;
    // The directory is renamed: do not remove it.
    partial.disable_cleanup(true);
    Ok(written)
}
