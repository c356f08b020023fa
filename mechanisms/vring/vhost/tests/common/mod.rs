//! Random requests, with checks of their results.

use std::collections::HashMap;
use std::time::Duration;

use dormouse_vring_vhost::{BlockQueue, Error, Operation, SECTOR_BYTES, Status};
use rand::rngs::SmallRng;
use rand::{Rng, RngExt, SeedableRng};

/// Time after which a test counts an operation as hanging.
pub const LONG: Duration = Duration::from_secs(600);

const NOISE_BYTES: usize = 2 << 20;

/// Expected contents of a disk, or of a queue's own part of one, as plain bytes.
pub struct Oracle {
    first_sector: u64,
    pub bytes: Vec<u8>,
    is_busy: Vec<bool>,
    pub in_flight: HashMap<u64, (Operation, std::ops::Range<usize>)>,
    rng: SmallRng,
    seed: u64,
    /// Random bytes. Each write uses a part of them, which is cheaper than generating new ones.
    noise: Vec<u8>,
    buffer: Vec<u8>,
    token: u64,
    /// Number of bytes that were read or written correctly.
    pub moved: u64,
}

impl Oracle {
    pub fn new(first_sector: u64, bytes: Vec<u8>, seed: u64) -> Oracle {
        let is_busy = vec![false; bytes.len() / SECTOR_BYTES as usize];
        let mut rng = SmallRng::seed_from_u64(seed);
        let mut noise = vec![0; NOISE_BYTES];
        rng.fill_bytes(&mut noise);
        let (in_flight, buffer) = (HashMap::new(), Vec::new());
        Oracle { first_sector, bytes, is_busy, in_flight, rng, seed, noise, buffer, token: 0, moved: 0 }
    }

    /// Makes a request of at most `sectors_max` sectors that overlaps none in flight.
    fn submit(&mut self, queue: &mut BlockQueue, sectors_max: usize) -> Result<(), Error> {
        let sectors = loop {
            // Small requests as often as large ones.
            let count = (1 << self.rng.random_range(0..=sectors_max.ilog2())) - self.rng.random_range(0..2);
            let start = self.rng.random_range(0..=self.is_busy.len() - sectors_max);
            let sectors = start..start + count.max(1);
            if !self.is_busy[sectors.clone()].contains(&true) {
                break sectors;
            }
        };
        let bytes = sectors.start * 512..sectors.end * 512;
        let operation = if self.rng.random() { Operation::Read } else { Operation::Write };
        let sector = self.first_sector + sectors.start as u64;
        match operation {
            Operation::Read => queue.read(sector, bytes.len() as u32, self.token)?,
            _ => {
                let start = self.rng.random_range(0..=NOISE_BYTES - bytes.len());
                let data = &self.noise[start..start + bytes.len()];
                queue.write(sector, data, self.token)?;
                self.bytes[bytes.clone()].copy_from_slice(data);
            }
        }
        self.is_busy[sectors].fill(true);
        self.in_flight.insert(self.token, (operation, bytes));
        self.token += 1;
        Ok(())
    }

    /// Checks all completed requests, and returns their number.
    pub fn complete(&mut self, queue: &mut BlockQueue) -> usize {
        let mut count = 0;
        while let Some(completed) = queue.complete().unwrap() {
            let (operation, bytes) = self.in_flight.remove(&completed.token).expect("each comes back once");
            assert_eq!((completed.status, completed.request.operation), (Status::Ok, operation), "seed {}", self.seed);
            if operation == Operation::Read {
                self.buffer.resize(bytes.len(), 0);
                completed.copy_to(&mut self.buffer);
                assert!(self.buffer == self.bytes[bytes.clone()], "bytes {bytes:?} are others, seed {}", self.seed);
            }
            self.is_busy[bytes.start / 512..bytes.end / 512].fill(false);
            self.moved += bytes.len() as u64;
            count += 1;
        }
        count
    }

    /// Moves at least `bytes` bytes, with as many requests in flight as the queue takes.
    pub fn run(&mut self, queue: &mut BlockQueue, bytes: u64, sectors_max: usize) -> Result<(), Error> {
        let end = self.moved + bytes;
        while self.moved < end {
            self.fill(queue, sectors_max)?;
            if self.complete(queue) == 0 {
                assert!(queue.wait(LONG)?, "the device does not answer");
            }
        }
        self.drain(queue)
    }

    pub fn fill(&mut self, queue: &mut BlockQueue, sectors_max: usize) -> Result<(), Error> {
        loop {
            match self.submit(queue, sectors_max) {
                Ok(()) => {}
                Err(Error::Full) => return queue.submit(),
                Err(error) => return Err(error),
            }
        }
    }

    pub fn drain(&mut self, queue: &mut BlockQueue) -> Result<(), Error> {
        queue.submit()?;
        while !self.in_flight.is_empty() {
            if self.complete(queue) == 0 {
                assert!(queue.wait(LONG)?, "the device does not answer");
            }
        }
        assert_eq!((queue.in_flight(), queue.counters().violations), (0, 0));
        Ok(())
    }
}
