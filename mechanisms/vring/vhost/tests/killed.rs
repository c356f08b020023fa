//! A back end that is killed again and again while a Linux guest writes and reads: the next one continues from the record of
//! requests in flight.

use std::collections::HashMap;
use std::fs::File;
use std::io::Write;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;

use dormouse_testing::guest::{self, Guest, VIRTIO_PCI};
use dormouse_testing::{has, wait_until};
use dormouse_vring::Chain;
use dormouse_vring_vhost::{BackEnd, BackEndOptions, Cursor, Disk, FileStorage, InvalidBuffer, Memory, ServedDevice};

const KILLS: u64 = 20;
const SECTORS: usize = 4096;
/// Writes of each life before it is killed, at least.
const WRITES: u64 = 60;

/// Name of the environment variable that has the directory in which this program is to be a back end.
const ENV_PLACE: &str = "DORMOUSE_TEST_BACK_END";

/// A disk that appends each write to a file before it executes it: life, first sector, and the first sector's number and writer.
struct Recording {
    disk: Disk<FileStorage>,
    ledger: File,
    life: u64,
}

const ENTRY_BYTES: usize = 24;

impl ServedDevice for Recording {
    fn features(&self) -> u64 {
        self.disk.features()
    }

    fn queue_count(&self) -> u16 {
        self.disk.queue_count()
    }

    fn config(&self) -> Vec<u8> {
        self.disk.config()
    }

    fn serve(&self, queue: u16, chain: &Chain, memory: &Memory, scratch: &mut Vec<u8>) -> Result<u32, InvalidBuffer> {
        let mut bytes = [0; 24];
        let mut from = Cursor::readable(chain, memory);
        if from.load(&mut bytes).is_ok() && bytes[0] == 1 {
            let mut entry = self.life.to_le_bytes().to_vec();
            entry.extend_from_slice(&bytes[8..]);
            (&self.ledger).write_all(&entry).unwrap();
        }
        self.disk.serve(queue, chain, memory, scratch)
    }
}

/// Not a test: the back end, in a process that is killed. Without the environment variable it does nothing.
#[test]
fn back_end_process() {
    let Some(place) = std::env::var_os(ENV_PLACE) else { return };
    let place = Path::new(&place);
    let open =
        |name: &str| File::options().read(true).append(name == "ledger").write(true).open(place.join(name)).unwrap();
    let disk = Disk::new(FileStorage::new(open("disk.raw")).unwrap(), "killed", 2);
    let life = std::env::var("DORMOUSE_TEST_LIFE").unwrap().parse().unwrap();
    let device = Arc::new(Recording { disk, ledger: open("ledger"), life });
    let options = BackEndOptions { has_packed: true, ..BackEndOptions::default() };
    let _back_end = BackEnd::start(&place.join("vh.sock"), device, options).unwrap();
    loop {
        std::thread::park();
    }
}

/// A back end in a process of its own, which is killed on drop.
struct Life(Child);

impl Life {
    fn start(place: &Path, life: u64) -> Life {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", "back_end_process"]).env(ENV_PLACE, place);
        command.env("DORMOUSE_TEST_LIFE", life.to_string()).stdout(Stdio::null());
        Life(command.spawn().unwrap())
    }
}

impl Drop for Life {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn entries(place: &Path) -> u64 {
    std::fs::metadata(place.join("ledger")).unwrap().len() / ENTRY_BYTES as u64
}

/// Program in the guest: four threads write numbered blocks, each in a quarter of the disk, and read some back. It prints how many
/// writes there were, and how many blocks were read back wrong.
const WRITER: &str = r#"
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
enum { THREADS = 4, SECTORS = 4096, QUARTER = SECTORS / THREADS, WORDS = 64 };
static int disk;
static volatile int is_over;
static uint64_t last[SECTORS], writes[THREADS], wrong[THREADS];
static void fill(uint64_t *words, uint64_t sector, uint64_t number) {
    for (int index = 0; index < WORDS; index++)
        words[index] = index == 0 ? number : number * 0x9E3779B97F4A7C15 + sector * WORDS + index;
}
static void *run(void *argument) {
    uint64_t thread = (uintptr_t)argument, number = 0, state = thread + 1, expected[WORDS], *words;
    if (posix_memalign((void **)&words, 4096, 4096)) exit(1);
    while (!is_over) {
        state = state * 6364136223846793005 + 1442695040888963407;
        uint64_t sector = thread * QUARTER + (state >> 33) % QUARTER;
        if (state >> 62) {
            fill(words, sector, ++number);
            if (pwrite(disk, words, 512, sector * 512) != 512) exit(2);
            last[sector] = number;
            writes[thread]++;
        } else if (last[sector]) {
            if (pread(disk, words, 512, sector * 512) != 512) exit(3);
            fill(expected, sector, last[sector]);
            wrong[thread] += memcmp(words, expected, 512) != 0;
        }
    }
    return NULL;
}
int main(void) {
    pthread_t threads[THREADS];
    static uint64_t words[WORDS], expected[WORDS];
    uint64_t all = 0, bad = 0;
    char stop;
    disk = open("/dev/vda", O_RDWR | O_DIRECT);
    if (disk < 0) return 4;
    for (uintptr_t thread = 0; thread < THREADS; thread++)
        pthread_create(&threads[thread], NULL, run, (void *)thread);
    if (read(0, &stop, 1) != 1) return 5;
    is_over = 1;
    for (int thread = 0; thread < THREADS; thread++) {
        pthread_join(threads[thread], NULL);
        all += writes[thread];
        bad += wrong[thread];
    }
    close(disk);
    disk = open("/dev/vda", O_RDONLY);
    for (uint64_t sector = 0; sector < SECTORS; sector++) {
        if (!last[sector]) continue;
        if (pread(disk, words, 512, sector * 512) != 512) return 6;
        fill(expected, sector, last[sector]);
        bad += memcmp(words, expected, 512) != 0;
    }
    printf("counts %llu %llu\n", (unsigned long long)all, (unsigned long long)bad);
    return 0;
}
"#;

/// Guest's script. The writer ends when the console has a line.
const SCRIPT: &str = "
/writer < /dev/ttyS0
echo disk $(sha256sum < /dev/vda)
";

/// Checks the ledger: within a life, each write is executed once; a later life repeats a write only if no newer one
/// to the sector was executed. Returns the numbers of writes, and of those that were repeated.
fn check_ledger(bytes: &[u8]) -> (u64, u64) {
    let mut newest: HashMap<u64, (u64, u64)> = HashMap::new();
    let (mut writes, mut repeated) = (0, 0);
    for entry in bytes.chunks_exact(ENTRY_BYTES) {
        let word = |at: usize| u64::from_le_bytes(entry[at..at + 8].try_into().unwrap());
        let (life, sector, number) = (word(0), word(8), word(16));
        match newest.insert(sector, (life, number)) {
            Some((old_life, old)) if old == number => {
                assert!(life > old_life, "write {number} of sector {sector} is executed twice in life {life}");
                repeated += 1;
            }
            Some((_, old)) => {
                assert!(old < number, "write {number} of sector {sector} is executed after {old}");
                writes += 1;
            }
            None => writes += 1,
        }
    }
    (writes, repeated)
}

/// No write is lost, and none is executed again once the guest can have written the sector again. QEMU reconnects; the
/// guest notices nothing.
#[test]
fn a_guest_notices_no_kill() {
    if !has("gcc") {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let place = dir.path();
    std::fs::write(place.join("writer.c"), WRITER).unwrap();
    let mut compile = Command::new("gcc");
    compile.args(["-O2", "-static", "-pthread", "-o"]).arg(place.join("writer")).arg(place.join("writer.c"));
    assert!(compile.status().unwrap().success());
    let modules = [&VIRTIO_PCI[..], &["virtio_blk"]].concat();
    let Some(guest) = Guest::new(&modules, &[&place.join("writer")], SCRIPT) else { return };
    for packed in ["off", "on"] {
        let disk =
            File::options().read(true).write(true).create(true).truncate(true).open(place.join("disk.raw")).unwrap();
        disk.set_len(512 * SECTORS as u64).unwrap();
        File::create(place.join("ledger")).unwrap();
        let _ = std::fs::remove_file(place.join("vh.sock"));
        let mut life = Life::start(place, 0);
        wait_until("the back end listens", || place.join("vh.sock").exists());
        let mut command = guest.command();
        command.arg("-chardev").arg(format!("socket,id=c0,path={},reconnect=1", place.join("vh.sock").display()));
        command.arg("-device").arg(format!("vhost-user-blk-pci,chardev=c0,num-queues=2,packed={packed}"));
        let mut running = guest::Running::start(command.stdin(Stdio::piped()));
        for kill in 1..=KILLS {
            let end = entries(place) + WRITES;
            wait_until("the guest writes", || entries(place) >= end || running.has_ended());
            if running.has_ended() {
                panic!("the guest has ended before kill {kill}: {}", running.console());
            }
            drop(life);
            life = Life::start(place, kill);
        }
        let end = entries(place) + WRITES;
        wait_until("the guest writes", || entries(place) >= end);
        running.write_line();
        let console = running.console();
        let counts = guest::line(&console, "counts");
        let (writes, repeated) = check_ledger(&std::fs::read(place.join("ledger")).unwrap());
        assert_eq!(counts[1..], [writes.to_string(), "0".into()], "packed {packed}, {repeated} repeated: {console}");
        // The host's sum over the file is the guest's over the disk.
        let sum = Command::new("sha256sum").arg(place.join("disk.raw")).output().unwrap();
        let sum = String::from_utf8(sum.stdout).unwrap();
        assert_eq!(guest::line(&console, "disk")[1], sum.split_whitespace().next().unwrap(), "packed {packed}");
        assert!(writes >= KILLS * WRITES / 2 && repeated <= KILLS * 8, "{writes} writes, {repeated} repeated");
        println!("packed {packed}: {writes} writes, {repeated} repeated after {KILLS} kills");
        drop(life);
    }
}
