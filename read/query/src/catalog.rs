//! The tables of a source by name, and the context in which queries run.

use std::collections::HashMap;
use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use async_trait::async_trait;
use datafusion::catalog::{CatalogProvider, MemoryCatalogProvider, SchemaProvider, TableProvider};
use datafusion::dataframe::DataFrame;
use datafusion::error::Result;
use datafusion::execution::SessionStateBuilder;
use datafusion::execution::context::{SQLOptions, SessionConfig, SessionContext};
use datafusion::execution::disk_manager::{DiskManagerBuilder, DiskManagerMode};
use datafusion::execution::memory_pool::{FairSpillPool, TrackConsumersPool};
use datafusion::execution::runtime_env::RuntimeEnvBuilder;

use crate::engine::{self, Objects};
use crate::exact;
use crate::functions;
use crate::rules;
use crate::source::Source;
use crate::traces::{CATALOG, SCHEMA};

/// Resources that a query may use.
#[derive(Debug, Clone)]
pub(crate) struct Limits {
    pub memory_bytes: usize,
    pub threads: usize,
    /// Directory for temporary files.
    pub temporary: PathBuf,
    /// Whether plans are made for a cluster.
    pub is_cluster: bool,
}

/// The tables. A table is made when it is first asked for, because there can be tens of thousands of classes.
#[derive(Debug)]
struct Tables {
    source: Source,
    names: Vec<String>,
    made: Mutex<HashMap<String, Arc<dyn TableProvider>>>,
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
        if !self.table_exist(name) {
            return Ok(None);
        }
        let table = self.source.table(name)?;
        made.insert(name.to_string(), Arc::clone(&table));
        Ok(Some(table))
    }

    fn table_exist(&self, name: &str) -> bool {
        self.names.iter().any(|known| known == name)
    }
}

/// Creates a context in which queries read this source.
///
/// # Errors
/// The directory for temporary files cannot be used.
pub(crate) fn context(source: Source, limits: &Limits) -> Result<SessionContext> {
    let config = if limits.is_cluster { engine::cluster_config() } else { SessionConfig::new() };
    let mut config = config
        .with_target_partitions(limits.threads)
        .with_information_schema(true)
        .with_default_catalog_and_schema(CATALOG, SCHEMA)
        .with_create_default_catalog_and_schema(false);
    let options = config.options_mut();
    options.sql_parser.collect_spans = true;
    // Text columns must have the same type in all sources.
    options.execution.parquet.schema_force_view_types = false;
    // With a small limit, part of the memory must remain for the rows that are sorted.
    options.execution.sort_spill_reservation_bytes = (limits.memory_bytes / 16).min(10 << 20);
    let shown = NonZeroUsize::new(3).unwrap_or(NonZeroUsize::MIN);
    let pool = TrackConsumersPool::new(FairSpillPool::new(limits.memory_bytes), shown);
    let disk = DiskManagerBuilder::default().with_mode(DiskManagerMode::Directories(vec![limits.temporary.clone()]));
    let runtime = RuntimeEnvBuilder::new().with_memory_pool(Arc::new(pool)).with_disk_manager_builder(disk);
    let runtime = runtime.with_object_store_registry(Arc::new(Objects::default())).build_arc()?;
    let state = SessionStateBuilder::new().with_default_features().with_config(config).with_runtime_env(runtime);
    let state = state.with_analyzer_rules(exact::analyzer_rules());
    let state = state.with_physical_optimizer_rules(rules::all()).build();
    let context = SessionContext::new_with_state(state);
    let tables = Tables { source, names: source.names(), made: Mutex::default() };
    let catalog = MemoryCatalogProvider::new();
    catalog.register_schema(SCHEMA, Arc::new(tables))?;
    context.register_catalog(CATALOG, Arc::new(catalog));
    functions::register(&context);
    exact::register(&context);
    source.register(&context);
    Ok(context)
}

/// Plans a query. A query only reads the source: statements that read or write files are refused.
///
/// # Errors
/// The query is wrong.
pub(crate) async fn frame(context: &SessionContext, sql: &str) -> Result<DataFrame> {
    let state = context.state();
    let mut statement = state.sql_to_statement(sql, &state.config_options().sql_parser.dialect)?;
    exact::with_decimals(&mut statement);
    let plan = state.statement_to_plan(statement).await?;
    SQLOptions::new().with_allow_ddl(false).with_allow_dml(false).with_allow_statements(false).verify_plan(&plan)?;
    context.execute_logical_plan(plan).await
}
