//! A server with the interface of S3 on loopback, for tests: that of the crate `s3s-fs`, over a directory. It checks signatures, and keeps `If-None-Match`.
//!
//! It looks whether an object is there, and then writes it: of two that put at the same moment both can be told that they were first.

use std::path::{Path, PathBuf};
use std::process::Command;

use hyper_util::rt::{TokioExecutor, TokioIo};
use s3s::auth::SimpleAuth;
use s3s::service::S3ServiceBuilder;
use tokio::net::TcpListener;
use tokio::runtime::Runtime;

/// What its clients need to know.
pub const ACCESS_KEY: &str = "dormouse";
/// The secret of it.
pub const SECRET_KEY: &str = "a secret of tests";

/// A server, until it is dropped.
#[derive(Debug)]
pub struct Server {
    /// `http://127.0.0.1:PORT`.
    pub endpoint: String,
    dir: tempfile::TempDir,
    _runtime: Runtime,
}

impl Server {
    /// Begins to serve these buckets, which are empty.
    ///
    /// # Panics
    /// It cannot.
    pub fn new(buckets: &[&str]) -> Server {
        let dir = tempfile::tempdir().expect("a directory");
        for bucket in buckets {
            std::fs::create_dir(dir.path().join(bucket)).expect("a bucket");
        }
        let files = s3s_fs::FileSystem::new(dir.path()).expect("a directory is served");
        let mut builder = S3ServiceBuilder::new(files);
        builder.set_auth(SimpleAuth::from_single(ACCESS_KEY, SECRET_KEY));
        let service = builder.build();
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
        let runtime = runtime.expect("threads");
        let listener = runtime.block_on(TcpListener::bind("127.0.0.1:0")).expect("a port");
        let endpoint = format!("http://{}", listener.local_addr().expect("an address"));
        runtime.spawn(async move {
            let http = hyper_util::server::conn::auto::Builder::new(TokioExecutor::new());
            while let Ok((socket, _)) = listener.accept().await {
                let connection = http.serve_connection(TokioIo::new(socket), service.clone()).into_owned();
                // A client that goes away is its own affair.
                tokio::spawn(async move { drop(connection.await) });
            }
        });
        Server { endpoint, dir, _runtime: runtime }
    }

    /// Where the objects of a bucket lie as files, by their keys.
    pub fn bucket(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Where everything lies.
    pub fn dir(&self) -> &Path {
        self.dir.path()
    }

    /// Has a program find it.
    pub fn tell<'c>(&self, command: &'c mut Command) -> &'c mut Command {
        command
            .env("AWS_ENDPOINT_URL", &self.endpoint)
            .env("AWS_ACCESS_KEY_ID", ACCESS_KEY)
            .env("AWS_SECRET_ACCESS_KEY", SECRET_KEY)
            .env("AWS_REGION", "us-east-1")
    }
}
