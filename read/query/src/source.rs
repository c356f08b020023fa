//! The source of queries: traces, or a store of traces.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;

use anyhow::{Result, bail};
use datafusion::catalog::TableProvider;
use datafusion::execution::context::SessionContext;
use tokio::runtime::Runtime;

use crate::facts::{self, Facts};
use crate::pairs::{PairsFunction, PairsTable};
use crate::push;
use crate::scan::EventsTable;
use crate::store::{Stored, StoredPairs};
use crate::traces::Traces;

/// The source of queries. It is never closed, so that scans on all threads can borrow it.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Source {
    Traces(&'static Traces),
    Store(&'static Stored),
}

impl Source {
    /// Whether a word names a store.
    pub(crate) fn is_store(place: &str) -> bool {
        dormouse_store::is_store(place)
    }

    /// Opens a store, or traces.
    ///
    /// # Errors
    /// The store, or one of the traces, cannot be opened.
    pub(crate) fn open(paths: &[PathBuf], clocks: Option<&std::path::Path>, runtime: &Runtime) -> Result<Source> {
        let is_store = |path: &PathBuf| path.to_str().is_some_and(Source::is_store);
        match paths {
            [path] if is_store(path) => {
                if clocks.is_some() {
                    bail!(
                        "--clocks corrects only the times of traces; those of a store were corrected when it was written"
                    );
                }
                let place = path.to_str().unwrap_or_default();
                Ok(Source::Store(Box::leak(Box::new(runtime.block_on(Stored::open(place))?))))
            }
            paths if paths.iter().any(is_store) => {
                bail!("a query reads one store, or traces; name one store, or only traces")
            }
            paths => Ok(Source::Traces(Traces::open(paths, clocks)?)),
        }
    }

    /// Returns the names of all tables, first those that every source has.
    pub(crate) fn names(self) -> Vec<String> {
        let own = ["events", "pairs"].into_iter().chain(facts::TABLES.iter().map(|(name, ..)| *name));
        let classes = match self {
            Source::Traces(traces) => push::class_names(traces),
            Source::Store(store) => store.classes().map(String::from).collect(),
        };
        own.map(String::from).chain(classes).collect()
    }

    /// Returns the table with this name, which must be one of [`Source::names`].
    pub(crate) fn table(self, name: &str) -> datafusion::error::Result<Arc<dyn TableProvider>> {
        Ok(match (self, name) {
            (Source::Store(store), _) => store.table(name)?,
            (Source::Traces(traces), "events") => Arc::new(EventsTable::of_all(traces)?),
            (Source::Traces(traces), "pairs") => Arc::new(PairsTable::of_names(traces)),
            (Source::Traces(traces), _) => match facts::TABLES.iter().find(|(of, ..)| *of == name) {
                Some((.., make)) => Arc::new(Facts::new(traces, *make)),
                None => Arc::new(EventsTable::of_class(traces, name)?),
            },
        })
    }

    /// Registers the functions and object stores that queries of this source use.
    pub(crate) fn register(self, context: &SessionContext) {
        match self {
            Source::Traces(traces) => context.register_udtf("pairs", Arc::new(PairsFunction(traces))),
            Source::Store(store) => {
                store.register(context);
                context.register_udtf("pairs", Arc::new(StoredPairs(store)));
            }
        }
    }

    /// Returns the names of columns, for completion.
    pub(crate) fn columns(self) -> Vec<String> {
        match self {
            Source::Traces(traces) => {
                let classes = dormouse_columns::classes(traces.files.traces());
                classes.iter().flat_map(|class| &class.fields).map(|field| field.name().clone()).collect()
            }
            Source::Store(store) => store.columns(),
        }
    }

    /// Returns how pairs were found, since the last call, one line for each name.
    pub(crate) fn take_notes(self) -> BTreeSet<String> {
        match self {
            Source::Traces(traces) => traces.take_notes(),
            // In a store, the query says how.
            Source::Store(_) => BTreeSet::new(),
        }
    }

    /// Returns the damage and omissions since the last call, one line each, and whether events were lost.
    pub(crate) fn take_damage(self) -> (BTreeSet<String>, bool) {
        match self {
            Source::Traces(traces) => {
                let (mut lines, has_lost) = traces.take_damage();
                lines.extend(traces.files.left_out.iter().map(ToString::to_string));
                (lines, has_lost)
            }
            Source::Store(store) => (store.take_damage(), false),
        }
    }

    pub(crate) fn is_a_store(self) -> bool {
        matches!(self, Source::Store(_))
    }

    /// Returns the word for the source in messages.
    pub(crate) fn noun(self) -> &'static str {
        match self {
            Source::Traces(_) => "trace",
            Source::Store(_) => "store",
        }
    }
}
