//! A reading: a thread that decodes, and the reader that receives its batches.

use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};

use arrow_array::{RecordBatch, RecordBatchReader};
use arrow_schema::{ArrowError, SchemaRef};
use dormouse_columns::{Batches, Damage, Layout, PairRequest, Pairs, Request, RequestError, pair_schema};
use dormouse_reader::{Ahead, TraceFiles};

/// The events or pairs to read.
#[derive(Debug, Clone)]
pub(crate) enum Query {
    Events(Request),
    Pairs(PairRequest),
}

/// Warnings of the last reading that reached its end, one line each.
pub(crate) type Warnings = Arc<Mutex<Vec<String>>>;

/// Number of batches that may wait for the reader.
const AHEAD_COUNT: usize = 2;

enum Message {
    Batch(RecordBatch),
    Failed(ArrowError),
    End,
}

/// The receiving end of a reading.
pub(crate) struct Reader {
    schema: SchemaRef,
    messages: Receiver<Message>,
    is_over: bool,
}

impl Query {
    fn request(&self) -> Request {
        match self {
            Query::Events(request) => request.clone(),
            Query::Pairs(pairs) => pairs.events(),
        }
    }

    /// Returns the columns.
    pub(crate) fn schema(&self, files: &TraceFiles) -> Result<SchemaRef, RequestError> {
        let traces: Vec<_> = files.traces().collect();
        let layout = Layout::new(&traces, &self.request())?;
        Ok(match self {
            Query::Events(_) => layout.schema(),
            Query::Pairs(_) => pair_schema(),
        })
    }
}

/// Starts a reading.
///
/// # Errors
/// The thread cannot be started.
pub(crate) fn start(
    files: Arc<TraceFiles>,
    query: Query,
    schema: SchemaRef,
    is_strict: bool,
    warnings: Warnings,
) -> std::io::Result<Reader> {
    let (sender, messages) = sync_channel(AHEAD_COUNT);
    let read = move || {
        let last = match read(&files, &query, is_strict, &warnings, &sender) {
            Ok(()) => Message::End,
            Err(error) => Message::Failed(error),
        };
        // The reader may have been dropped.
        let _ = sender.send(last);
    };
    std::thread::Builder::new().name("dormouse-read".into()).spawn(read)?;
    Ok(Reader { schema, messages, is_over: false })
}

fn read(
    files: &TraceFiles,
    query: &Query,
    is_strict: bool,
    warnings: &Warnings,
    sender: &SyncSender<Message>,
) -> Result<(), ArrowError> {
    let traces: Vec<_> = files.traces().collect();
    let layout = Layout::new(&traces, &query.request()).map_err(|error| ArrowError::ExternalError(error.into()))?;
    std::thread::scope(|scope| {
        let streams = files.chosen(scope, layout.times(), |trace| Some(layout.choice(trace)));
        let batches = Batches::of(&layout, streams);
        read_batches(files, query, batches, is_strict, warnings, sender)
    })
}

fn read_batches(
    files: &TraceFiles,
    query: &Query,
    mut batches: Batches<'_, '_, Ahead<'_, '_>>,
    is_strict: bool,
    warnings: &Warnings,
    sender: &SyncSender<Message>,
) -> Result<(), ArrowError> {
    let mut pairs = match query {
        Query::Events(_) => None,
        Query::Pairs(request) => Some(Pairs::new(request.clone())),
    };
    for batch in &mut batches {
        let batch = match &mut pairs {
            None => batch?,
            Some(pairs) => pairs.batch(&batch?)?,
        };
        if sender.send(Message::Batch(batch)).is_err() {
            // The reader was dropped.
            return Ok(());
        }
    }
    let mut lines: Vec<String> = files.left_out.clone();
    lines.extend(damage(files, batches.damage()));
    if let Some(pairs) = &pairs {
        let counts = [
            (pairs.unmatched, "events end what had not begun"),
            (pairs.open_count() as u64, "events begin what does not end"),
            (pairs.dropped, "events begin something while a million others are open, and are left out"),
        ];
        lines.extend(counts.iter().filter(|(count, _)| *count > 0).map(|(count, what)| format!("{count} {what}")));
    }
    *warnings.lock().unwrap_or_else(PoisonError::into_inner) = lines;
    if is_strict && batches.damage().count > 0 {
        let text = damage(files, batches.damage()).into_iter().take(3).collect::<Vec<_>>().join("; ");
        return Err(ArrowError::ParseError(format!("the trace is damaged: {text}")));
    }
    Ok(())
}

fn damage(files: &TraceFiles, damage: &Damage) -> Vec<String> {
    let names: Vec<&str> = files.names().collect();
    let line = |notice: &dormouse_ctf::Notice| {
        format!("{}: {notice}", names.get(notice.stream).copied().unwrap_or("a stream"))
    };
    let mut lines: Vec<String> = damage.notices.iter().map(line).collect();
    let more = damage.count - lines.len() as u64;
    lines.extend((more > 0).then(|| format!("{more} more places are damaged")));
    lines
}

impl Iterator for Reader {
    type Item = Result<RecordBatch, ArrowError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.is_over {
            return None;
        }
        match self.messages.recv() {
            Ok(Message::Batch(batch)) => return Some(Ok(batch)),
            Ok(Message::End) => self.is_over = true,
            Ok(Message::Failed(error)) => {
                self.is_over = true;
                return Some(Err(error));
            }
            Err(_) => {
                self.is_over = true;
                let text = "reading has ended before the end of the trace; this is a defect of dormouse";
                return Some(Err(ArrowError::ExternalError(text.into())));
            }
        }
        None
    }
}

impl RecordBatchReader for Reader {
    fn schema(&self) -> SchemaRef {
        Arc::clone(&self.schema)
    }
}
