//! x
mod bench;
mod blk;
mod device;
mod error;
mod front;
mod ring;
mod shared;

pub use bench::{BenchOptions, BenchReport, Latency, bench};
pub use blk::{Config, ID_BYTES, Operation, SECTOR_BYTES, Status};
pub use device::{BlockDevice, BlockQueue, Completed, DriverOptions, Negotiated, QueueCounters, Request};
pub use error::Error;
