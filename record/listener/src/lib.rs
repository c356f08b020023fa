//! How a program lets tools reach it: its thread, its environment, and the object that contains both.

mod environment;
mod object;
mod spawn;

pub use environment::{is_secure, variable};
pub use object::{keep_loaded, object_of};
pub use spawn::{is_last, spawn};
