//! Access to a store: a local directory, or a prefix of a bucket.

use std::path::{Component, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use futures::{StreamExt, TryStreamExt};
use object_store::aws::AmazonS3Builder;
use object_store::local::LocalFileSystem;
use object_store::path::Path;
use object_store::{
    BackoffConfig, ClientOptions, ObjectStore, ObjectStoreExt, PutMode, PutOptions, PutPayload, RetryConfig,
};
use url::Url;

use crate::error::{Error, Failed, Result, of_store};
use crate::manifest::{MANIFESTS, Manifest};

/// Retries of a failed request: number, total time, and longest pause between two.
const RETRIES_MAX: usize = 5;
const RETRYING_MAX: Duration = Duration::from_secs(60);
const PAUSE_MAX: Duration = Duration::from_secs(8);
/// Timeouts of connecting, and of a whole request. The second is long because objects can be large.
const CONNECTING_MAX: Duration = Duration::from_secs(10);
const REQUEST_MAX: Duration = Duration::from_secs(300);

/// Number of manifests that are read concurrently.
const AT_A_TIME: usize = 16;

/// Environment variables that name the server, in order of precedence. Other tools use these names.
const ENDPOINTS: [&str; 3] = ["AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT"];
/// Environment variables of credentials. If none is set, `object_store` asks the cloud's metadata service for a
/// credential.
const CREDENTIALS: [&str; 4] = [
    "AWS_ACCESS_KEY_ID",
    "AWS_WEB_IDENTITY_TOKEN_FILE",
    "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
    "AWS_CONTAINER_CREDENTIALS_FULL_URI",
];

/// A store: objects whose keys begin with a prefix.
#[derive(Debug, Clone)]
pub struct Store {
    /// `file:///DIR/` or `s3://BUCKET/PREFIX/`.
    pub url: Url,
    /// Access to the whole bucket, or to the local file system.
    pub objects: Arc<dyn ObjectStore>,
    /// Prefix of the store's keys in `objects`.
    pub prefix: Path,
    /// Name of the store, from the user.
    place: String,
    /// Directory of a local store, and whether files are synced to disk.
    local: Option<(PathBuf, bool)>,
}

/// Whether `place` names a store rather than a trace: a URL of a server, or a local directory with manifests.
pub fn is_store(place: &str) -> bool {
    match local_path(place) {
        Some(path) => path.join(MANIFESTS).is_dir(),
        None => place.contains("://"),
    }
}

/// Returns the path that `place` names, if it is local.
fn local_path(place: &str) -> Option<PathBuf> {
    match place.split_once("://") {
        None => Some(place.into()),
        Some(("file", _)) => Url::parse(place).ok()?.to_file_path().ok(),
        Some(_) => None,
    }
}

impl Store {
    /// Opens `PATH`, `file:///PATH` or `s3://BUCKET/PREFIX`. Does not contact a server yet.
    ///
    /// # Errors
    /// `place` is none of these, or the environment lacks settings of the server.
    pub fn open(place: &str) -> Result<Store> {
        if let Some(path) = local_path(place) {
            return Store::of_dir(path, place);
        }
        match place.strip_prefix("s3://") {
            Some(rest) => Store::of_bucket(rest, place),
            None => Err(format!("{place} is no store: it is a path, file:///PATH or s3://BUCKET/PREFIX").into()),
        }
    }

    fn of_dir(path: PathBuf, place: &str) -> Result<Store> {
        let absolute = std::path::absolute(&path).failed(|| format!("{place} is no path"))?;
        // Object keys cannot contain `..`.
        let mut plain = PathBuf::new();
        for component in absolute.components() {
            match component {
                Component::ParentDir => drop(plain.pop()),
                other => plain.push(other),
            }
        }
        let url = Url::from_directory_path(&plain).map_err(|()| Error(format!("{place} is no path")))?;
        let prefix = Path::from_absolute_path(&plain).failed(|| format!("{place} cannot be a store"))?;
        let (objects, local) = (Arc::new(LocalFileSystem::new()), Some((plain, true)));
        Ok(Store { url, objects, prefix, place: place.into(), local })
    }

    fn of_bucket(rest: &str, place: &str) -> Result<Store> {
        let (bucket, prefix) = rest.split_once('/').unwrap_or((rest, ""));
        let is_set = |name: &&str| std::env::var(name).is_ok_and(|value| !value.is_empty());
        if bucket.is_empty() {
            return Err(format!("{place} names no bucket: s3://BUCKET/PREFIX").into());
        }
        let endpoint = ENDPOINTS.iter().find(|name| is_set(name)).and_then(|name| std::env::var(name).ok());
        if endpoint.is_some() && !CREDENTIALS.iter().any(is_set) {
            return Err(format!("{place}: AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY are not set").into());
        }
        let is_plain = endpoint.as_ref().is_some_and(|endpoint| endpoint.starts_with("http://"));
        let backoff = BackoffConfig { max_backoff: PAUSE_MAX, ..BackoffConfig::default() };
        let retry = RetryConfig { backoff, max_retries: RETRIES_MAX, retry_timeout: RETRYING_MAX };
        let client = ClientOptions::new().with_connect_timeout(CONNECTING_MAX).with_timeout(REQUEST_MAX);
        let mut builder = AmazonS3Builder::from_env().with_client_options(client).with_retry(retry);
        if let Some(endpoint) = endpoint {
            builder = builder.with_endpoint(endpoint);
        }
        let objects = builder.with_bucket_name(bucket).with_allow_http(is_plain).build();
        let objects = objects.map_err(|error| Error(format!("{place}: {}", of_store(&error))))?;
        let prefix = Path::parse(prefix).failed(|| place.to_string())?;
        let below = if prefix.is_root() { String::new() } else { format!("{prefix}/") };
        let url = Url::parse(&format!("s3://{bucket}/{below}")).failed(|| place.to_string())?;
        Ok(Store { url, objects: Arc::new(objects), prefix, place: place.into(), local: None })
    }

    /// Does not sync files of a local store to disk, so that they may be lost if the machine crashes. No effect on a
    /// bucket.
    #[must_use]
    pub fn without_sync(mut self) -> Store {
        self.local.iter_mut().for_each(|(_, is_synced)| *is_synced = false);
        self
    }

    /// Returns the name of the store as the user has given it.
    pub fn place(&self) -> &str {
        &self.place
    }

    /// Returns the directory of a local store.
    pub fn dir(&self) -> Option<&std::path::Path> {
        self.local.as_ref().map(|(dir, _)| dir.as_path())
    }

    /// Returns the object key of a path in the store.
    pub fn key(&self, below: &str) -> Path {
        let key = if self.prefix.is_root() { below.to_owned() } else { format!("{}/{below}", self.prefix) };
        Path::parse(&key).unwrap_or_else(|_| Path::from(key))
    }

    /// Returns all manifests, sorted by host and chunk.
    ///
    /// # Errors
    /// The store cannot be read, or an object among the manifests is not one.
    pub async fn manifests(&self) -> Result<Vec<Manifest>> {
        let failed = |error: object_store::Error| Error(format!("cannot read {}: {}", self.place, of_store(&error)));
        let below = self.key(MANIFESTS);
        let found: Vec<_> = self.objects.list(Some(&below)).try_collect().await.map_err(failed)?;
        let keys = found.into_iter().map(|object| object.location);
        let keys: Vec<Path> = keys.filter(|key| key.extension() == Some("json")).collect();
        let read = keys.into_iter().map(|key| async move {
            let bytes = self.objects.get(&key).await?.bytes().await?;
            Ok::<_, object_store::Error>((key, bytes))
        });
        let read: Vec<_> = futures::stream::iter(read).buffered(AT_A_TIME).try_collect().await.map_err(failed)?;
        let decode = |(key, bytes): (Path, _)| Manifest::decode(bytes, &key);
        let mut manifests = read.into_iter().map(decode).collect::<Result<Vec<_>>>()?;
        manifests.sort_by(|a, b| (&a.host, &a.chunk).cmp(&(&b.host, &b.chunk)));
        Ok(manifests)
    }

    /// Checks that the bucket exists and may be listed.
    ///
    /// # Errors
    /// It does not exist, or may not be listed.
    pub async fn check(&self) -> Result<()> {
        let below = self.key(MANIFESTS);
        match self.objects.list(Some(&below)).next().await {
            Some(Err(error)) => Err(Error(format!("cannot read {}: {}", self.place, of_store(&error)))),
            _ => Ok(()),
        }
    }

    /// Reads the object at this path. `None` if it does not exist.
    ///
    /// # Errors
    /// The store cannot be read.
    pub async fn get(&self, below: &str) -> Result<Option<bytes::Bytes>> {
        let read = async { self.objects.get(&self.key(below)).await?.bytes().await };
        match read.await {
            Ok(bytes) => Ok(Some(bytes)),
            Err(error @ object_store::Error::NotFound { .. }) if !error.to_string().contains("NoSuchBucket") => {
                Ok(None)
            }
            Err(error) => Err(Error(format!("cannot read {}: {}", self.place, of_store(&error)))),
        }
    }

    /// Writes an object unless it exists. Returns false if it exists; the existing object is left as it is. Readers see
    /// the whole object or none.
    ///
    /// # Errors
    /// The store cannot be written.
    pub async fn put_new(&self, below: &str, bytes: bytes::Bytes) -> Result<bool> {
        let key = self.key(below);
        let options = PutOptions { mode: PutMode::Create, ..PutOptions::default() };
        match self.objects.put_opts(&key, PutPayload::from_bytes(bytes), options).await {
            Ok(_) => {}
            Err(object_store::Error::AlreadyExists { .. }) => return Ok(false),
            Err(error) => return Err(Error(format!("cannot write to {}: {}", self.place, of_store(&error)))),
        }
        if let Some((dir, true)) = &self.local {
            sync(&dir.join(below)).failed(|| format!("cannot write to {}", self.place))?;
        }
        Ok(true)
    }
}

/// Syncs a file, and its name in its directory, to disk.
fn sync(path: &std::path::Path) -> std::io::Result<()> {
    std::fs::File::open(path)?.sync_all()?;
    path.parent().map_or(Ok(()), |dir| std::fs::File::open(dir)?.sync_all())
}
