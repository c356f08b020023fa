//! The tables of traces, by name, and the context in which a query is run.

use std::collections::HashMap;
use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use async_trait::async_trait;
use datafusion::catalog::{CatalogProvider, MemoryCatalogProvider, SchemaProvider, TableProvider};
use datafusion::error::Result;
use datafusion::execution::context::{SQLOptions, SessionConfig, SessionContext};
use datafusion::execution::disk_manager::{DiskManagerBuilder, DiskManagerMode};
use datafusion::execution::memory_pool::{FairSpillPool, TrackConsumersPool};
use datafusion::execution::runtime_env::RuntimeEnvBuilder;

use crate::facts::{self, Facts};
use crate::functions;
use crate::pairs::{PairsFunction, PairsTable};
use crate::push;
use crate::scan::EventsTable;
use crate::traces::{CATALOG, SCHEMA, Traces};

/// What a query may use.
#[derive(Debug, Clone)]
pub(crate) struct Limits {
    pub memory_bytes: usize,
    pub threads: usize,
    /// Where what is too large for the memory goes.
    pub temporary: PathBuf,
}

/// The tables. One of a class is made when it is asked for: there can be tens of thousands of classes.
#[derive(Debug)]
struct Tables {
    traces: &'static Traces,
    names: Vec<String>,
    made: Mutex<HashMap<String, Arc<dyn TableProvider>>>,
}

/// The names of all tables: those that every trace has first.
pub(crate) fn names(traces: &'static Traces) -> Vec<String> {
    let own = ["events", "pairs"].into_iter().chain(facts::TABLES.iter().map(|(name, ..)| *name));
    own.map(String::from).chain(push::class_names(traces)).collect()
}

impl Tables {
    fn make(&self, name: &str) -> Result<Option<Arc<dyn TableProvider>>> {
        Ok(Some(match name {
            "events" => Arc::new(EventsTable::of_all(self.traces)?),
            "pairs" => Arc::new(PairsTable::of_names(self.traces)),
            _ => match facts::TABLES.iter().find(|(of, ..)| *of == name) {
                Some((.., make)) => Arc::new(Facts::new(self.traces, *make)),
                None if self.names.iter().any(|known| known == name) => {
                    Arc::new(EventsTable::of_class(self.traces, name)?)
                }
                None => return Ok(None),
            },
        }))
    }
}

#[async_trait]
impl SchemaProvider for Tables {
    fn table_names(&self) -> Vec<String> {
        self.names.clone()
    }

    async fn table(&self, name: &str) -> Result<Option<Arc<dyn TableProvider>>> {
        let mut made = self.made.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(table) = made.get(name) {
            return Ok(Some(Arc::clone(table)));
        }
        let table = self.make(name)?;
        made.extend(table.iter().map(|table| (name.to_string(), Arc::clone(table))));
        Ok(table)
    }

    fn table_exist(&self, name: &str) -> bool {
        self.names.iter().any(|known| known == name)
    }
}

/// A context in which queries read these traces.
///
/// # Errors
/// The directory for temporary files cannot be used.
pub(crate) fn context(traces: &'static Traces, limits: &Limits) -> Result<SessionContext> {
    let mut config = SessionConfig::new()
        .with_target_partitions(limits.threads)
        .with_information_schema(true)
        .with_default_catalog_and_schema(CATALOG, SCHEMA)
        .with_create_default_catalog_and_schema(false);
    let options = config.options_mut();
    options.sql_parser.collect_spans = true;
    // Of a small limit something is left for the rows that are sorted.
    options.execution.sort_spill_reservation_bytes = (limits.memory_bytes / 16).min(10 << 20);
    let shown = NonZeroUsize::new(3).unwrap_or(NonZeroUsize::MIN);
    let pool = TrackConsumersPool::new(FairSpillPool::new(limits.memory_bytes), shown);
    let disk = DiskManagerBuilder::default().with_mode(DiskManagerMode::Directories(vec![limits.temporary.clone()]));
    let runtime =
        RuntimeEnvBuilder::new().with_memory_pool(Arc::new(pool)).with_disk_manager_builder(disk).build_arc()?;
    let context = SessionContext::new_with_config_rt(config, runtime);
    let tables = Tables { traces, names: names(traces), made: Mutex::default() };
    let catalog = MemoryCatalogProvider::new();
    catalog.register_schema(SCHEMA, Arc::new(tables))?;
    context.register_catalog(CATALOG, Arc::new(catalog));
    functions::register(&context);
    context.register_udtf("pairs", Arc::new(PairsFunction(traces)));
    Ok(context)
}

/// A trace is read, and nothing else: no file is read or written by a query.
pub(crate) fn options() -> SQLOptions {
    SQLOptions::new().with_allow_ddl(false).with_allow_dml(false).with_allow_statements(false)
}
