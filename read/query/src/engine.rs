//! The environment that plans need, here and in the programs of a cluster: functions, operators, object stores, and
//! DataFusion's settings.

use std::collections::HashMap;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use ballista_core::extension::SessionConfigExt;
use datafusion::error::{DataFusionError, Result};
use datafusion::execution::SessionStateBuilder;
use datafusion::execution::context::{SessionConfig, SessionContext, SessionState};
use datafusion::execution::object_store::ObjectStoreRegistry;
use datafusion::execution::runtime_env::{RuntimeEnv, RuntimeEnvBuilder};
use dormouse_store::Store;
use object_store::ObjectStore;
use object_store::local::LocalFileSystem;
use url::Url;

pub use crate::codec::Codec;
use crate::{exact, functions};

/// Object stores by address, each opened once and configured by environment variables (AWS_ACCESS_KEY_ID and others).
#[derive(Debug, Default)]
pub struct Objects {
    opened: Mutex<HashMap<String, Arc<dyn ObjectStore>>>,
}

fn key(url: &Url) -> String {
    format!("{}://{}", url.scheme(), &url[url::Position::BeforeHost..url::Position::AfterPort])
}

impl ObjectStoreRegistry for Objects {
    fn register_store(&self, url: &Url, store: Arc<dyn ObjectStore>) -> Option<Arc<dyn ObjectStore>> {
        self.opened.lock().unwrap_or_else(PoisonError::into_inner).insert(key(url), store)
    }

    fn get_store(&self, url: &Url) -> Result<Arc<dyn ObjectStore>> {
        let mut opened = self.opened.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(store) = opened.get(&key(url)) {
            return Ok(Arc::clone(store));
        }
        let store: Arc<dyn ObjectStore> = match url.scheme() {
            "file" => Arc::new(LocalFileSystem::new()),
            _ => Store::open(url.as_str()).map_err(|error| DataFusionError::External(error.into()))?.objects,
        };
        opened.insert(key(url), Arc::clone(&store));
        Ok(store)
    }
}

/// Returns the DataFusion settings for plans that run on a cluster, and for connections between its programs.
pub fn cluster_config() -> SessionConfig {
    let settings = [
        // A lost executor is noticed within a second, not ten.
        ("ballista.client.io_retries_times", "3"),
        ("ballista.client.io_retry_wait_time_ms", "300"),
        ("ballista.client.grpc_connect_timeout_seconds", "3"),
        // With more than one partition a task, the scheduler cannot tell the tasks of a union with different branches
        // apart: it accepts no result of them, and the query never ends.
        ("ballista.scheduler.max_partitions_per_task", "1"),
        // A plan names all files that it reads, so messages can be large.
        ("ballista.client.grpc_max_message_size", "268435456"),
    ];
    let config = SessionConfig::new_with_ballista().with_ballista_physical_extension_codec(Arc::new(Codec::default()));
    settings.iter().fold(config, |config, (name, value)| config.set_str(name, value))
}

/// Creates the runtime environment of tasks. Data that does not fit in memory goes to `temporary`.
///
/// # Errors
/// That directory cannot be used.
pub fn runtime(temporary: &Path) -> Result<Arc<RuntimeEnv>> {
    let objects: Arc<dyn ObjectStoreRegistry> = Arc::new(Objects::default());
    RuntimeEnvBuilder::new().with_object_store_registry(objects).with_temp_file_path(temporary).build_arc()
}

/// Returns a session state with the functions of queries.
pub fn state(config: SessionConfig, runtime: Arc<RuntimeEnv>) -> SessionState {
    let state =
        SessionStateBuilder::new().with_default_features().with_config(config).with_runtime_env(runtime).build();
    let context = SessionContext::new_with_state(state);
    functions::register(&context);
    exact::register(&context);
    context.state()
}
