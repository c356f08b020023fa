//! A server with the interface of S3 on loopback, for tests: that of the crate `s3s-fs`, over a directory. It checks
//! signatures and honours `If-None-Match`.
//!
//! It checks whether an object exists and then writes it: if two clients put at the same moment, both may be told that
//! they were first.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};

use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use s3s::auth::SimpleAuth;
use s3s::service::S3ServiceBuilder;
use tokio::net::TcpListener;
use tokio::runtime::Runtime;

/// Access key that its clients must use.
pub const ACCESS_KEY: &str = "dormouse";
/// Secret key that belongs to it.
pub const SECRET_KEY: &str = "a secret of tests";

/// A request that is not answered.
#[derive(Debug, Default)]
struct Held {
    /// Number of requests received.
    count: AtomicU64,
    /// The number of the request, whether it is held after it is done, and the channel that is told.
    at: Mutex<Option<(u64, bool, Sender<()>)>>,
}

impl Held {
    /// Whether a request with this number is held at this point, before or after it is done.
    fn holds(&self, number: u64, is_done: bool) -> bool {
        let at = self.at.lock().unwrap_or_else(PoisonError::into_inner);
        let Some((_, _, told)) = at.as_ref().filter(|(at, when, _)| (*at, *when) == (number, is_done)) else {
            return false;
        };
        // The receiver may have been dropped.
        let _ = told.send(());
        true
    }
}

/// A server that runs until it is dropped.
#[derive(Debug)]
pub struct Server {
    /// `http://127.0.0.1:PORT`.
    pub endpoint: String,
    dir: tempfile::TempDir,
    held: Arc<Held>,
    _runtime: Runtime,
}

impl Server {
    /// Starts to serve these buckets, which are empty.
    ///
    /// # Panics
    /// If it cannot be started.
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
        let held = Arc::new(Held::default());
        let holding = Arc::clone(&held);
        runtime.spawn(async move {
            let http = hyper_util::server::conn::auto::Builder::new(TokioExecutor::new());
            while let Ok((socket, _)) = listener.accept().await {
                let (service, held) = (service.clone(), Arc::clone(&holding));
                let serve = service_fn(move |request: hyper::Request<Incoming>| {
                    let (service, held) = (service.clone(), Arc::clone(&held));
                    async move {
                        // Only the order of the requests matters.
                        let number = held.count.fetch_add(1, Ordering::Relaxed) + 1;
                        if held.holds(number, false) {
                            std::future::pending::<()>().await;
                        }
                        let response = service.call(request.map(s3s::Body::from)).await;
                        if held.holds(number, true) {
                            std::future::pending::<()>().await;
                        }
                        response
                    }
                });
                let connection = http.serve_connection(TokioIo::new(socket), serve).into_owned();
                // Errors of a connection concern only its client.
                tokio::spawn(async move { drop(connection.await) });
            }
        });
        Server { endpoint, dir, held, _runtime: runtime }
    }

    /// Returns the directory with a bucket's objects as files, by their keys.
    pub fn bucket(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Returns the directory with everything.
    pub fn dir(&self) -> &Path {
        self.dir.path()
    }

    /// Makes the request with this number, counted from 1 from now on, stay unanswered. The receiver is told when it
    /// has arrived or, if `is_done`, when it is done.
    pub fn hold(&self, number: u64, is_done: bool) -> Receiver<()> {
        let (told, receiver) = channel();
        let mut at = self.held.at.lock().unwrap_or_else(PoisonError::into_inner);
        *at = Some((self.requests() + number, is_done, told));
        receiver
    }

    /// Answers all requests again.
    pub fn release(&self) {
        *self.held.at.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }

    /// Returns the number of requests received.
    pub fn requests(&self) -> u64 {
        self.held.count.load(Ordering::Relaxed)
    }

    /// Sets the environment variables by which a program finds the server.
    pub fn tell<'c>(&self, command: &'c mut Command) -> &'c mut Command {
        command
            .env("AWS_ENDPOINT_URL", &self.endpoint)
            .env("AWS_ACCESS_KEY_ID", ACCESS_KEY)
            .env("AWS_SECRET_ACCESS_KEY", SECRET_KEY)
            .env("AWS_REGION", "us-east-1")
    }
}
