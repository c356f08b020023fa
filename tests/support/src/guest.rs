//! Linux guests in QEMU's emulation, whose first process is a shell script of the test.
//!
//! The kernel is Debian's for clouds: `apt-get download` fetches it once into cargo's target directory, and it is
//! unpacked there, not installed. It needs no privileges.

use std::ffi::OsStr;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;

use tempfile::TempDir;

use crate::programs::profile_dir;
use crate::{Lack, has, is_installed, skip};

/// Name of the program that emulates the guest's machine.
pub const QEMU: &str = "qemu-system-x86_64";
/// Package that names the package of the newest kernel.
const KERNEL: &str = "linux-image-cloud-amd64";
/// Path of a program without libraries that has a shell and the usual commands.
const BUSYBOX: &str = "/bin/busybox";

/// Number of seconds after which a guest counts as hanging, and is ended.
const WATCHDOG_SECONDS: &str = "900";

/// Modules for devices on PCI, in an order in which they can be loaded.
pub const VIRTIO_PCI: [&str; 5] =
    ["virtio_ring", "virtio", "virtio_pci_legacy_dev", "virtio_pci_modern_dev", "virtio_pci"];

/// A guest that was not started yet.
#[derive(Debug)]
pub struct Guest {
    dir: TempDir,
    kernel: PathBuf,
}

impl Guest {
    /// Makes a guest that loads modules of the kernel in this order, runs a script, and powers off. `files` are copied
    /// into its root directory. `None` counts the calling test as skipped.
    ///
    /// # Panics
    /// If a file cannot be read, or the kernel has no such module.
    #[track_caller]
    pub fn new(modules: &[&str], files: &[&Path], script: &str) -> Option<Guest> {
        let root = Guest::find_kernel()?;
        let kernel = find(&root.join("boot"), "vmlinuz").expect("the package has a kernel");
        let mut archive = Archive::default();
        let mut init = String::from(
            "#!/bin/busybox sh\n/bin/busybox --install -s /bin\nmount -t devtmpfs dev /dev\n\
             mount -t proc proc /proc\nmount -t sysfs sys /sys\n",
        );
        for directory in ["bin", "dev", "proc", "sys", "modules", "tmp"] {
            archive.add(directory, 0o040_755, &[]);
        }
        archive.add_file("bin/busybox", Path::new(BUSYBOX));
        for module in modules {
            let name = format!("modules/{module}.ko");
            let file = find(&root.join("lib/modules"), &format!("{module}.ko"));
            archive.add_file(&name, &file.unwrap_or_else(|| panic!("the kernel has no module {module}")));
            init += &format!("insmod /{name}\n");
        }
        for file in files {
            archive.add_file(file.file_name().and_then(OsStr::to_str).expect("a file has a name"), file);
        }
        init += &format!("{script}\npoweroff -f\n");
        archive.add("init", 0o100_755, init.as_bytes());
        let dir = tempfile::tempdir().expect("there is a place for temporary files");
        std::fs::write(dir.path().join("initramfs"), archive.finish()).expect("the guest's files are written");
        Some(Guest { dir, kernel })
    }

    /// Returns the directory of the unpacked kernel.
    #[track_caller]
    fn find_kernel() -> Option<PathBuf> {
        static ROOT: OnceLock<Option<PathBuf>> = OnceLock::new();
        if !has(QEMU) || !has("busybox") {
            return None;
        }
        let root = ROOT.get_or_init(|| {
            let root = profile_dir().with_file_name("tmp").join("guest");
            if !root.join("boot").is_dir() && is_installed("apt-get") && is_installed("dpkg") {
                fetch_kernel(&root);
            }
            root.join("boot").is_dir().then_some(root)
        });
        if root.is_none() {
            skip(Lack::machine("there is no kernel for guests", format!("`apt-get download {KERNEL}` must work")));
        }
        root.clone()
    }

    /// Returns the command that runs the guest with two CPUs and shared memory. Its standard output is the guest's
    /// console. Devices are still to be added.
    pub fn command(&self) -> Command {
        let mut command = Command::new("timeout");
        command.args([
            "--kill-after=10",
            WATCHDOG_SECONDS,
            QEMU,
            "-nodefaults",
            "-no-reboot",
            "-display",
            "none",
            "-serial",
            "stdio",
        ]);
        command.args(["-accel", "tcg", "-smp", "2", "-m", "256"]);
        command.args(["-object", "memory-backend-memfd,id=mem,size=256M,share=on", "-numa", "node,memdev=mem"]);
        command.args(["-append", "console=ttyS0 quiet panic=-1"]).arg("-kernel").arg(&self.kernel);
        command.arg("-initrd").arg(self.dir.path().join("initramfs"));
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }
}

/// A guest that runs. It is ended on drop.
#[derive(Debug)]
pub struct Running(Option<Child>);

impl Running {
    /// Starts a guest by its [`Guest::command`].
    ///
    /// # Panics
    /// If QEMU cannot be run.
    pub fn start(command: &mut Command) -> Running {
        Running(Some(command.spawn().expect("QEMU runs")))
    }

    fn child(&mut self) -> &mut Child {
        self.0.as_mut().expect("a guest runs until its console is taken")
    }

    /// Whether it has ended.
    ///
    /// # Panics
    /// If the kernel does not say.
    pub fn has_ended(&mut self) -> bool {
        self.child().try_wait().expect("the kernel knows its children").is_some()
    }

    /// Writes a line to the guest's console. Its standard input must be a pipe.
    ///
    /// # Panics
    /// If it is not.
    pub fn write_line(&mut self) {
        let input = self.child().stdin.as_mut().expect("the guest's input is a pipe");
        input.write_all(b"\n").expect("the guest's console takes a line");
    }

    /// Waits for the guest's end, and returns what it printed.
    ///
    /// # Panics
    /// If QEMU fails, or the guest hangs.
    #[track_caller]
    pub fn console(mut self) -> String {
        let guest = self.0.take().expect("a guest runs until its console is taken");
        let output = guest.wait_with_output().expect("the guest's console is read");
        let text = String::from_utf8_lossy(&output.stdout).replace('\r', "");
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success() && text.contains("Power down"), "{}\n{text}\n{errors}", output.status);
        text
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if let Some(mut guest) = self.0.take() {
            // `timeout` passes the signal to QEMU.
            let _ =
                rustix::process::kill_process(rustix::process::Pid::from_child(&guest), rustix::process::Signal::TERM);
            let _ = guest.wait();
        }
    }
}

/// Returns the words of the console's line that begins with `name`.
///
/// # Panics
/// If there is no such line.
#[track_caller]
pub fn line<'a>(console: &'a str, name: &str) -> Vec<&'a str> {
    let found = console.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
    let mut found = found.filter(|words| words.first() == Some(&name));
    found.next().unwrap_or_else(|| panic!("the guest does not print {name}: {console}"))
}

/// Downloads and unpacks the kernel. If that fails, there is no directory.
fn fetch_kernel(root: &Path) {
    let Ok(place) = tempfile::tempdir() else { return };
    let run = |command: &mut Command| command.current_dir(&place).stdin(Stdio::null()).output().ok();
    let depends = run(Command::new("apt-cache").args(["depends", KERNEL])).map(|output| output.stdout);
    let depends = String::from_utf8(depends.unwrap_or_default()).unwrap_or_default();
    // The first word is the package itself.
    let Some(package) = depends.split_whitespace().skip(1).find(|word| word.starts_with("linux-image-")) else {
        return;
    };
    run(Command::new("apt-get").args(["download", package]));
    let Some(file) = find(place.path(), "linux-image-") else { return };
    let unpacked = place.path().join("root");
    run(Command::new("dpkg").arg("-x").arg(file).arg(&unpacked));
    // Copied under another name first, so that a directory of that name is whole.
    let copied = root.with_extension(std::process::id().to_string());
    let _ = std::fs::create_dir_all(root.parent().unwrap_or(root));
    run(Command::new("cp").arg("-r").arg(&unpacked).arg(&copied));
    if std::fs::rename(&copied, root).is_err() {
        let _ = std::fs::remove_dir_all(&copied);
    }
}

/// Returns the first file below a directory whose name begins with `prefix`.
fn find(dir: &Path, prefix: &str) -> Option<PathBuf> {
    let entries = std::fs::read_dir(dir).ok()?;
    entries.filter_map(Result::ok).find_map(|entry| match entry.file_type().ok()?.is_dir() {
        true => find(&entry.path(), prefix),
        false => entry.file_name().to_str()?.starts_with(prefix).then(|| entry.path()),
    })
}

/// An archive of files in the format in which Linux takes its first file system (`buffer-format.rst`, "newc").
#[derive(Debug, Default)]
struct Archive {
    bytes: Vec<u8>,
    count: u32,
}

impl Archive {
    fn add_file(&mut self, name: &str, path: &Path) {
        let bytes = std::fs::read(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        self.add(name, 0o100_755, &bytes);
    }

    fn add(&mut self, name: &str, mode: u32, content: &[u8]) {
        self.count += 1;
        let sizes = [content.len() as u32, 0, 0, 0, 0, name.len() as u32 + 1, 0];
        self.bytes.extend_from_slice(b"070701");
        for field in [self.count, mode, 0, 0, 1, 0].into_iter().chain(sizes) {
            self.bytes.extend_from_slice(format!("{field:08X}").as_bytes());
        }
        self.bytes.extend_from_slice(name.as_bytes());
        self.bytes.push(0);
        self.align();
        self.bytes.extend_from_slice(content);
        self.align();
    }

    fn align(&mut self) {
        self.bytes.resize(self.bytes.len().next_multiple_of(4), 0);
    }

    fn finish(mut self) -> Vec<u8> {
        self.add("TRAILER!!!", 0, &[]);
        self.bytes
    }
}
