//! x
mod back;
mod bench;
mod blk;
mod device;
mod disk;
mod error;
mod front;
mod ring;
mod served;
mod shared;

pub use back::{BackEnd, BackEndCounters, BackEndOptions, Lie, Served};
pub use bench::{BenchOptions, BenchReport, Latency, bench};
pub use blk::{Config, ID_BYTES, Operation, SECTOR_BYTES, Status};
pub use device::{BlockDevice, BlockQueue, Completed, DriverOptions, Negotiated, QueueCounters, Request};
pub use disk::{Disk, FileStorage, MemoryStorage, Storage};
pub use error::Error;
pub use served::{Cursor, Memory, NotThere};
