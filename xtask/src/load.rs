//! Processes that keep CPUs busy during tests.

use std::io::Read;
use std::process::{Child, Command, Stdio};

use anyhow::{Context, Result};

/// Busy processes, killed on drop. Each also ends when its standard input is closed. This program holds the other end
/// of that pipe, so no process outlives it, even if it is killed.
pub(crate) struct Load(Vec<Child>);

impl Load {
    /// Starts `count` processes.
    pub(crate) fn start(count: u32) -> Result<Load> {
        let mut load = Load(Vec::new());
        for _ in 0..count {
            // The running program: cargo may have replaced its file.
            let mut command = Command::new("/proc/self/exe");
            command.arg("busy").stdin(Stdio::piped()).stdout(Stdio::null());
            load.0.push(command.spawn().context("cannot start a busy process")?);
        }
        Ok(load)
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        for child in &mut self.0 {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// Keeps a CPU busy until standard input ends.
pub(crate) fn busy() -> ! {
    std::thread::spawn(|| {
        let _ = std::io::stdin().read_to_end(&mut Vec::new());
        std::process::exit(0);
    });
    loop {
        std::hint::spin_loop();
    }
}
