//! `cargo xtask cross`: builds for other machines, and runs the tests in emulation.
//!
//! ```text
//!   cache/build-ARCH   root directory of Debian with compilers for ARCH     bwrap runs cargo in it, and emulated programs
//!   cache/machine-ARCH root directory of ARCH with a kernel                 the emulated machine's file system
//! ```
//! The caches are outside the checkout. Both roots come from Debian's `sid`, through the registry that apt uses here.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fmt::Write as _;
use std::fs::{self, File};
use std::io::Write as _;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};
use clap::{Args, ValueEnum};
use dormouse_testing::machines::{self, ENV_KEEP};
use dormouse_testing::{ENV_RUNNER, ENV_SKIPS};

use crate::lua;
use crate::programs::{BUILD, Built, Failed, Program, build as build_all, skips, sources};
use crate::run::{cargo, quote, root, succeed, target_dir};
use crate::system::{BUBBLEWRAP, Tool, ensure, is_root};
use crate::tally::{Job, SKIP_PREFIX, Tally, show};

/// Another machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Target {
    /// AArch64, in an emulated machine with a kernel of its own
    Aarch64,
    /// AArch64 with pages of 16 KiB, in an emulated machine
    #[value(name = "aarch64-16k")]
    Aarch64Pages16,
    /// 32-bit Arm, by user-mode emulation
    Armv7,
    /// 32-bit x86, whose programs this kernel runs itself
    I686,
    /// RISC-V, by user-mode emulation
    Riscv64,
    /// Big-endian, by user-mode emulation
    S390x,
}

/// How a target is built and run.
struct Machine {
    /// Name in the cache.
    name: &'static str,
    /// Rust's name of the target.
    triple: &'static str,
    /// Debian's name of the architecture.
    debian: &'static str,
    /// Prefix of the cross compiler's programs; its package is `gcc-` and this name.
    gcc: &'static str,
    emulation: Emulation,
}

enum Emulation {
    /// This kernel runs programs of that machine beside its own.
    None,
    /// Emulates programs. System calls are those of this kernel, but for some: there is no rseq(2).
    User { program: &'static str, format: Format },
    /// Emulates a machine, which runs the kernel in files of this package.
    System { kernel: &'static str },
}

/// The part of an ELF file's header by which the kernel chooses an emulator.
struct Format {
    /// `EI_CLASS`: 1 for 32 bits, 2 for 64.
    class: u8,
    /// `EI_DATA`: 1 for little endian, 2 for big.
    data: u8,
    /// `e_machine`.
    machine: u16,
}

impl Format {
    /// Returns the rule of binfmt_misc that has this emulator run programs of the format.
    fn rule(&self, emulator: &str) -> String {
        let &Format { class, data, machine } = self;
        let is_big = data == 2;
        // Executable files and shared objects, whose types are 2 and 3.
        let (kind, kinds) = (2_u16, 0xFFFE_u16);
        let half = |half: u16| if is_big { half.to_be_bytes() } else { half.to_le_bytes() };
        let identity = [0x7F, b'E', b'L', b'F', class, data, 1];
        let magic = identity.into_iter().chain([0; 9]).chain(half(kind)).chain(half(machine));
        let mask = [0xFF; 7].into_iter().chain([0; 9]).chain(half(kinds)).chain([0xFF; 2]);
        let text = |bytes: &mut dyn Iterator<Item = u8>| bytes.map(|byte| format!("\\x{byte:02x}")).collect::<String>();
        // P: the emulator is told the program's own argv[0]. F: the emulator is found even from another root directory.
        format!(":cross:M::{}:{}:{emulator}:PF", text(&mut magic.into_iter()), text(&mut mask.into_iter()))
    }
}

impl Target {
    fn machine(self) -> Machine {
        let user = |name, triple, debian, gcc, program, (class, data, machine)| Machine {
            name,
            triple,
            debian,
            gcc,
            emulation: Emulation::User { program, format: Format { class, data, machine } },
        };
        let arm64 = |name, kernel| Machine {
            name,
            triple: "aarch64-unknown-linux-gnu",
            debian: "arm64",
            gcc: "aarch64-linux-gnu",
            emulation: Emulation::System { kernel },
        };
        match self {
            Target::Aarch64 => arm64("aarch64", "linux-image-cloud-arm64"),
            Target::Aarch64Pages16 => arm64("aarch64-16k", "linux-image-arm64-16k"),
            Target::Armv7 => user(
                "armv7",
                "armv7-unknown-linux-gnueabihf",
                "armhf",
                "arm-linux-gnueabihf",
                "/usr/bin/qemu-arm",
                (1, 1, 40),
            ),
            Target::I686 => Machine {
                name: "i686",
                triple: "i686-unknown-linux-gnu",
                debian: "i386",
                gcc: "i686-linux-gnu",
                emulation: Emulation::None,
            },
            Target::Riscv64 => user(
                "riscv64",
                "riscv64gc-unknown-linux-gnu",
                "riscv64",
                "riscv64-linux-gnu",
                "/usr/bin/qemu-riscv64",
                (2, 1, 243),
            ),
            Target::S390x => {
                user("s390x", "s390x-unknown-linux-gnu", "s390x", "s390x-linux-gnu", "/usr/bin/qemu-s390x", (2, 2, 22))
            }
        }
    }
}

/// Makes root directories of Debian.
const MMDEBSTRAP: Tool = Tool { program: "mmdebstrap", others: &[], package: "mmdebstrap", is_required: true };
/// Packs initial file systems of emulated machines.
const CPIO: Tool = Tool { program: "cpio", others: &[], package: "cpio", is_required: true };

/// Compilers for the other machine, in the root directory that builds.
const BUILD_PACKAGES: &str = "rustc cargo gcc libc6-dev make pkgconf";
/// Programs that tests run beside those of the other machine, and the emulator, in the root directory that builds.
const USER_PACKAGES: &str = "qemu-user babeltrace2 python3-minimal";
/// Emulator of a whole machine. Versions before 8.2 execute instructions that another CPU has replaced.
const EMULATOR: &str = "qemu-system-arm";
/// Packages of an emulated machine: the programs that tests run there.
const MACHINE_PACKAGES: &str = "base-files bash binutils libc-bin dash coreutils diffutils findutils g++ gcc grep libc6-dev make mawk \
                                mount pkgconf procps python3-minimal sed util-linux babeltrace2 iproute2 kmod";

/// Tests of code of one machine, which the short form runs: packages, and files of their `tests/` beside their libraries.
/// None of them runs a compiler. `stress` of dormouse-imv takes too long in emulation.
const SHORT: [(&str, &[&str]); 5] = [
    ("dormouse-abi", &[]),
    ("dormouse-imv", &["answers", "gate", "update", "values"]),
    ("dormouse-percpu", &["count", "ops_sections"]),
    ("dormouse-relay", &["compact", "words"]),
    ("dormouse", &[]),
];
/// Parts of the names of tests that the short form leaves out: models try every interleaving, by code that is equal on
/// all machines, and the others run tests again in processes of their own.
const SHORT_WITHOUT: [&str; 2] = ["model::", "alone::"];
/// Packages that are of no use on another machine: those that run the project's tasks here.
const WITHOUT: [&str; 4] = ["xtask", "xtask-cache", "xtask-lua", "dormouse-install"];
/// Packages whose programs and libraries the tests of a package run.
const RUN_BY: [(&str, &[&str]); 11] = [
    ("dormouse-backing-capi", &LIBRARIES),
    ("dormouse-capi", &LIBRARIES),
    ("dormouse-cli", &["dormouse-e2e"]),
    ("dormouse-imv", &COMMAND),
    ("dormouse-imv-capi", &LIBRARIES),
    ("dormouse-imv-control", &COMMAND),
    ("dormouse-percpu", &LIBRARIES),
    ("dormouse-preload", &COMMAND),
    ("dormouse-relay-capi", &LIBRARIES),
    ("dormouse-vring-capi", &LIBRARIES),
    (
        "dormouse-e2e",
        &[
            "dormouse",
            "dormouse-capi",
            "dormouse-census",
            "dormouse-cli",
            "dormouse-e2e-plugin",
            "dormouse-preload",
            "dormouse-vring-vhost",
        ],
    ),
];
/// Package of the command, which tests of programs whose code is patched run.
const COMMAND: [&str; 1] = ["dormouse-cli"];
/// Packages of the C libraries, which tests install, and of the command. The tests of C programs are for the machines whose
/// code is patched.
const LIBRARIES: [&str; 7] = [
    "dormouse-backing-capi",
    "dormouse-capi",
    "dormouse-cli",
    "dormouse-imv-capi",
    "dormouse-percpu-capi",
    "dormouse-relay-capi",
    "dormouse-vring-capi",
];
/// Updates in stress tests of gates and values: few, because emulation is slow.
const STRESS_UPDATES: &str = "20000";
/// Number of times that a gate is toggled in the test of that.
const TOGGLES: &str = "2000";
/// Number of snapshots of each flight recorder: one takes eight seconds in an emulated machine, whose CPUs the writers share.
const SNAPSHOTS: &str = "4";
/// Number of CPUs of an emulated machine, unless it is given.
const CPUS: u32 = 2;
/// Names under which tests find the compilers of the other machine, and the programs of those compilers' package.
const COMPILER_NAMES: [(&str, &str); 8] = [
    ("cc", "gcc"),
    ("gcc", "gcc"),
    ("c++", "g++"),
    ("g++", "g++"),
    ("ld", "ld"),
    ("nm", "nm"),
    ("objdump", "objdump"),
    ("readelf", "readelf"),
];
/// Directory of these names, which is only there while tests run.
const COMPILER_DIR: &str = "/opt/cross";
/// Mutated traces in each test of them, where programs are emulated.
const EMULATED_MUTATIONS: u32 = 30;
/// Maximum duration of a test program in emulation. It only ends those that hang.
const LIMIT_S: u32 = 1800;
/// Maximum size of what is built for an emulated machine. The emulator cannot load a file system of more than 2 GiB, and the
/// machine's own files take some 0.6 GiB.
const FILES_BYTES_MAX: u64 = 5 << 28;
/// Name of the file in a finished root directory, which holds the packages of which it was made.
const READY: &str = ".dormouse-ready";

/// Which machine, and which tests.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  cargo xtask cross                              all tests on AArch64, in an emulated machine: an hour
  cargo xtask cross --short                      the code of that machine alone: minutes
  cargo xtask cross --target s390x -p dormouse-reader
  cargo xtask cross -p dormouse-e2e --test e2e -- snapshot

Needs Debian's registry, from which it makes root directories with compilers, QEMU and a kernel in ~/.cache/dormouse/cross, once; and
mmdebstrap, bubblewrap and cpio, which it installs as root. The last line is `N passed, N failed, N skipped`.")]
pub(crate) struct Cross {
    /// Machine to build for and to emulate
    #[arg(long, value_enum, default_value = "aarch64")]
    target: Target,
    /// Only run the tests of code that is of this machine, without those that try every interleaving or run a compiler
    #[arg(long)]
    short: bool,
    /// Only run the tests of this package; may be given several times
    #[arg(short, long = "package", value_name = "PACKAGE")]
    packages: Vec<String>,
    /// Only run this file of `tests/`; may be given several times
    #[arg(long = "test", value_name = "NAME")]
    targets: Vec<String>,
    /// Set a variable for the tests; may be given several times
    #[arg(long = "env", value_name = "NAME=VALUE")]
    variables: Vec<String>,
    /// Number of CPUs of an emulated machine
    #[arg(long, value_name = "N", default_value_t = CPUS)]
    cpus: u32,
    /// Arguments of test programs: parts of the names of tests, and options such as --exact
    #[arg(last = true, value_name = "FILTER")]
    filters: Vec<String>,
}

/// Returns the directory of the caches.
fn cache() -> Result<PathBuf> {
    let of_user = std::env::var_os("XDG_CACHE_HOME").filter(|dir| !dir.is_empty()).map(PathBuf::from);
    let dir = of_user.or_else(|| std::env::home_dir().map(|home| home.join(".cache")));
    Ok(dir.context("there is no home directory; set XDG_CACHE_HOME")?.join("dormouse/cross"))
}

/// Returns the address of Debian's registry that apt uses here.
fn registry() -> Result<String> {
    let lists = fs::read_dir("/etc/apt/sources.list.d").into_iter().flatten().flatten().map(|entry| entry.path());
    let lists: Vec<PathBuf> = [PathBuf::from("/etc/apt/sources.list")].into_iter().chain(lists).collect();
    let texts: Vec<String> = lists.iter().filter_map(|list| fs::read_to_string(list).ok()).collect();
    let words = texts.iter().flat_map(|text| text.lines()).filter_map(|line| {
        let mut words = line.split_whitespace().filter(|word| !word.starts_with('['));
        matches!(words.next()?, "deb" | "URIs:").then(|| words.next()).flatten()
    });
    let found = words.map(|uri| uri.trim_end_matches('/')).find(|uri| uri.ends_with("/debian"));
    Ok(found.context("apt has no source of Debian packages here, from which root directories are made")?.to_owned())
}

/// Unpacks a package in a root directory that mmdebstrap makes, without its dependencies.
const UNPACK: &str = r#"cd "$1/tmp" && APT_CONFIG="$MMDEBSTRAP_APT_CONFIG" apt-get -q download PACKAGE && dpkg -x ./*.deb "$1" && rm ./*.deb"#;

/// Returns a root directory of Debian, which is made unless it is there. `variant`: `minbase` installs, `extract` only
/// unpacks, which runs nothing of the other architecture. `unpacked`: a package that is unpacked without those that it
/// depends on.
fn debian(name: &str, variant: &str, architectures: &str, packages: &str, unpacked: &str) -> Result<PathBuf> {
    let dir = cache()?.join(name);
    let packages = packages.split_whitespace().collect::<Vec<_>>().join(",");
    let made_of =
        packages.split(',').chain(Some(unpacked)).filter(|name| !name.is_empty()).collect::<Vec<_>>().join(",");
    if fs::read_to_string(dir.join(READY)).is_ok_and(|found| found == made_of) {
        return Ok(dir);
    }
    show(&format!("making {} once", dir.display()));
    if dir.exists() {
        fs::remove_dir_all(&dir).with_context(|| format!("cannot remove {}", dir.display()))?;
    }
    fs::create_dir_all(dir.parent().context("the cache is a directory")?).context("cannot make the cache")?;
    let mut make = Command::new(MMDEBSTRAP.program);
    make.args(["--quiet", &format!("--variant={variant}"), &format!("--architectures={architectures}")]);
    make.arg(format!("--include={packages}"));
    if !unpacked.is_empty() {
        make.arg(format!("--customize-hook={}", UNPACK.replace("PACKAGE", unpacked)));
    }
    // A mirror may keep a list of this suite for longer than it is valid.
    make.args(["--aptopt=Acquire::Check-Valid-Until \"false\"", "sid"]).arg(&dir);
    // The keys that are installed here may be older than the suite's.
    succeed(make.arg(format!("deb [trusted=yes] {} sid main", registry()?)))?;
    fs::write(dir.join(READY), made_of).context("cannot finish the root directory")?;
    Ok(dir)
}

/// Returns cargo's directory, with the registry's crates.
fn cargo_home() -> Result<PathBuf> {
    let home = std::env::var_os("CARGO_HOME").map(PathBuf::from);
    home.or_else(|| std::env::home_dir().map(|home| home.join(".cargo"))).context("there is no home directory")
}

impl Machine {
    /// Returns the target directory of this machine's builds.
    fn target_dir(&self) -> Result<PathBuf> {
        Ok(target_dir()?.join("cross"))
    }

    /// Returns a command that runs `program` in the root directory that builds. The checkout is where it is here.
    fn in_build_root(&self, program: &str) -> Result<Command> {
        let Machine { gcc, debian: of, .. } = self;
        let others = match self.emulation {
            Emulation::System { .. } => EMULATOR.to_owned(),
            Emulation::User { .. } | Emulation::None => format!("{USER_PACKAGES} g++-{gcc}"),
        };
        let packages = format!("{BUILD_PACKAGES} {others} gcc-{gcc} libc6-dev:{of}");
        // It depends on a compiler of the other machine, which is not needed, and cannot be installed beside this one's if
        // Debian has another revision of it at the moment.
        let library = format!("libstd-rust-dev:{of}");
        let dir = debian(&format!("build-{of}"), "minbase", &format!("amd64,{of}"), &packages, &library)?;
        let home = cargo_home()?;
        let registry = home.join("registry");
        fs::create_dir_all(self.target_dir()?).context("cannot make the target directory")?;
        let mut command = Command::new(BUBBLEWRAP.program);
        command.arg("--bind").arg(dir).arg("/").args([
            "--dev-bind",
            "/dev",
            "/dev",
            "--proc",
            "/proc",
            "--tmpfs",
            "/tmp",
            "--tmpfs",
            "/opt",
        ]);
        for bound in [root(), &registry, &target_dir()?, &cache()?] {
            command.arg("--bind").arg(bound).arg(bound);
        }
        for (name, program) in COMPILER_NAMES {
            command.args(["--symlink", &format!("/usr/bin/{gcc}-{program}"), &format!("{COMPILER_DIR}/{name}")]);
        }
        let upper = self.triple.replace('-', "_").to_uppercase();
        let variables = [
            ("PATH", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin".into()),
            ("CARGO_HOME", home.into_os_string()),
            ("CARGO_TARGET_DIR", self.target_dir()?.into_os_string()),
            // Programs with debug information would make the machine's file system ten times as large.
            ("CARGO_PROFILE_DEV_DEBUG", "line-tables-only".into()),
            (&format!("CARGO_TARGET_{upper}_LINKER"), format!("{}-gcc", self.gcc).into()),
            (&format!("CC_{}", self.triple.replace('-', "_")), format!("{}-gcc", self.gcc).into()),
        ];
        for (name, value) in variables {
            command.args(["--setenv", name]).arg(value);
        }
        ["RUSTUP_HOME", "RUSTUP_TOOLCHAIN", "CARGO", "RUSTC"].iter().for_each(|name| {
            command.args(["--unsetenv", name]);
        });
        command.arg("--chdir").arg(root()).arg(program);
        Ok(command)
    }

    /// Returns the root directory of the emulated machine, with the kernel's file.
    fn machine_root(&self, kernel: &str) -> Result<(PathBuf, PathBuf)> {
        let packages = format!("{MACHINE_PACKAGES} {kernel}");
        let dir = debian(&format!("machine-{}", self.name), "extract", self.debian, &packages, "")?;
        let in_modules = fs::read_dir(dir.join("usr/lib/modules")).into_iter().flatten().flatten();
        let in_boot = fs::read_dir(dir.join("boot")).into_iter().flatten().flatten().map(|entry| entry.path());
        let found = in_modules
            .map(|entry| entry.path().join("vmlinuz"))
            .chain(in_boot.filter(|path| path.to_string_lossy().contains("vmlinuz")))
            .find(|path| path.is_file());
        let kernel = found.with_context(|| format!("{kernel} has no kernel's file in {}", dir.display()))?;
        Ok((dir, kernel))
    }
}

/// Has the kernel run programs of another machine by an emulator, in this user namespace alone, and executes a command.
const REGISTER: &str = r#"mount -t binfmt_misc none /proc/sys/fs/binfmt_misc
printf %s "$1" > /proc/sys/fs/binfmt_misc/register
shift
exec "$@""#;

/// First program of the emulated machine: mounts what programs expect, runs the tests and switches the machine off.
const INIT: &str = r#"#!/bin/sh
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root
mount -t proc proc /proc
mount -t sysfs sysfs /sys
mount -t devtmpfs devtmpfs /dev
mkdir -p /dev/pts /dev/shm
mount -t devpts devpts /dev/pts
mount -t tmpfs tmpfs /dev/shm
mount -t tmpfs tmpfs /tmp
mount -t tmpfs tmpfs /run
mount -t tracefs tracefs /sys/kernel/tracing 2>/dev/null
mount -t cgroup2 cgroup2 /sys/fs/cgroup 2>/dev/null
ln -s /proc/self/fd /dev/fd
chmod 1777 /tmp /dev/shm
ip link set lo up
stty -opost < /dev/console
sh /cross/run < /dev/null > /dev/console 2>&1
echo o > /proc/sysrq-trigger
sleep 60
"#;

/// Users of the emulated machine. Packages that are only unpacked make none.
const USERS: &str = "root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin\n";
const GROUPS: &str = "root:x:0:\nnogroup:x:65534:\n";

/// Directories that the machine does not need.
const UNUSED: [&str; 4] = ["./boot", "./usr/lib/modules", "./usr/share/locale", "./usr/share/doc"];
/// Directories that only compilers need. Without them the machine starts in half the time.
const COMPILERS: [&str; 3] = ["./usr/lib/gcc", "./usr/libexec", "./usr/include"];

/// Names that packages install when they are set up: link and target.
const LINKS: [(&str, &str); 4] =
    [("usr/bin/cc", "gcc"), ("usr/bin/c++", "g++"), ("usr/bin/awk", "mawk"), ("etc/mtab", "/proc/mounts")];

/// Appends the named files, relative to `dir`, to an initial file system.
fn pack(dir: &Path, names: &[String], archive: &File) -> Result<()> {
    let mut cpio = Command::new(CPIO.program);
    cpio.args(["--create", "--quiet", "--format=newc", "--null"]).current_dir(dir).stdin(Stdio::piped());
    let mut child = cpio.stdout(archive.try_clone()?).spawn().context("cannot run cpio")?;
    let mut input = child.stdin.take().context("cpio has no input")?;
    names.iter().try_for_each(|name| write!(input, "{name}\0")).context("cannot write to cpio")?;
    drop(input);
    if !child.wait().context("cannot wait for cpio")?.success() {
        bail!("cpio cannot pack the files of {}", dir.display());
    }
    Ok(())
}

/// Returns the names of files of the root directory, each after the directories that contain it.
fn with_parents(files: impl IntoIterator<Item = PathBuf>) -> Vec<String> {
    let mut names = BTreeSet::new();
    for file in files {
        let inside = file.strip_prefix("/").unwrap_or(&file);
        names.extend(inside.ancestors().filter(|name| *name != Path::new("")).map(Path::to_path_buf));
    }
    // In this order a directory precedes what it contains.
    names.into_iter().map(|name| name.to_string_lossy().into_owned()).collect()
}

/// Returns the files of the checkout.
fn checkout() -> Result<Vec<PathBuf>> {
    let mut list = Command::new("git");
    let output = list.args(["ls-files", "-z"]).current_dir(root()).output().context("cannot run git")?;
    let names = output.stdout.split(|byte| *byte == 0).filter(|name| !name.is_empty());
    let files = names.map(|name| root().join(OsStr::from_bytes(name)));
    Ok(files.filter(|file| !file.starts_with(root().join("lab/results")) && file.exists()).collect())
}

/// Returns what each of several emulated machines gets, which run one after another: all other files, and as many test
/// programs as there is room for.
fn parts(built: &Built) -> Vec<Built> {
    let size = |file: &PathBuf| fs::metadata(file).map_or(0, |metadata| metadata.len());
    let is_test = |file: &PathBuf| built.programs.iter().any(|program| program.file == *file);
    let files: Vec<PathBuf> = built.files.iter().filter(|file| !is_test(file)).cloned().collect();
    let room = FILES_BYTES_MAX.saturating_sub(files.iter().map(size).sum());
    let mut parts: Vec<Built> = Vec::new();
    let mut used = 0;
    for program in &built.programs {
        used += size(&program.file);
        if parts.is_empty() || used > room {
            parts.push(Built { programs: Vec::new(), files: files.clone() });
            used = size(&program.file);
        }
        if let Some(part) = parts.last_mut() {
            part.files.push(program.file.clone());
            part.programs.push(program.clone());
        }
    }
    parts
}

impl Cross {
    /// Returns the run of CI: short, on the first machine.
    pub(crate) fn ci() -> Cross {
        Cross {
            target: Target::Aarch64,
            short: true,
            packages: Vec::new(),
            targets: Vec::new(),
            variables: Vec::new(),
            cpus: CPUS,
            filters: Vec::new(),
        }
    }

    /// Builds the tests, runs them and counts. The last line has the counts.
    ///
    /// # Errors
    /// Something cannot be installed, fetched or built. [`Failed`]: a test failed, or there was none.
    pub(crate) fn run(&self) -> Result<()> {
        let machine = self.target.machine();
        let tools: &[Tool] = match machine.emulation {
            Emulation::User { .. } | Emulation::None => &[MMDEBSTRAP, BUBBLEWRAP],
            Emulation::System { .. } => &[MMDEBSTRAP, BUBBLEWRAP, CPIO],
        };
        ensure(tools)?;
        succeed(&mut cargo(["fetch", "--quiet", "--locked", "--target", machine.triple]))?;
        let built = self.build(&machine)?;
        let mut tally = Tally::new(skips()?, sources(&built.programs), show);
        self.count(&machine, &built, &mut tally)?;
        let (counts, text, faults) = tally.finish()?;
        show(&format!("{text}{faults}\n{counts}"));
        if counts.failed > 0 || counts.all() == 0 {
            bail!(Failed(faults));
        }
        Ok(())
    }

    fn count(&self, machine: &Machine, built: &Built, tally: &mut Tally) -> Result<()> {
        match machine.emulation {
            Emulation::User { .. } | Emulation::None => {
                built.programs.iter().try_for_each(|test| tally.run(self.user_job(machine, test)?))
            }
            Emulation::System { kernel } => {
                parts(built).iter().try_for_each(|part| tally.run(self.system_job(machine, kernel, part)?))
            }
        }
    }

    /// Runs the tests and counts them, if the root directories are there; otherwise counts them as skipped.
    ///
    /// # Errors
    /// See [`Cross::run`].
    pub(crate) fn count_if_ready(&self, tally: &mut Tally) -> Result<()> {
        let machine = self.target.machine();
        let cache = cache()?;
        let roots = [format!("build-{}", machine.debian), format!("machine-{}", machine.name)];
        let is_ready = roots.iter().all(|root| cache.join(root).join(READY).exists());
        if !is_ready || ![BUBBLEWRAP, CPIO].iter().all(Tool::is_installed) {
            let reason = "there is no root directory of that machine";
            tally.leave_out("tests on AArch64", reason, "`cargo xtask cross --short` makes it and runs them");
            return Ok(());
        }
        let built = self.build(&machine)?;
        tally.add_sources(sources(&built.programs));
        self.count(&machine, &built, tally)
    }

    /// Whether only the tests of the short form are built and run.
    fn is_brief(&self) -> bool {
        self.short && self.packages.is_empty()
    }

    fn build(&self, machine: &Machine) -> Result<Built> {
        let mut build = machine.in_build_root("cargo")?;
        if self.is_brief() {
            build.args(["test", "--no-run", "--lib"]);
            for (package, targets) in SHORT {
                build.args(["--package", package]).args(targets.iter().flat_map(|target| ["--test", *target]));
            }
        } else {
            let is_built = |option: &&&str| self.targets.is_empty() || **option != "--tests";
            build.args(BUILD.iter().filter(is_built));
            build
                .args(self.targets.iter().flat_map(|target| ["--test", target]))
                .args(self.packages.iter().flat_map(|package| ["--package", package]));
            let is_of_patched = |others: &[&str]| others == LIBRARIES || others == COMMAND;
            let is_run =
                |others: &[&str]| !is_of_patched(others) || matches!(machine.emulation, Emulation::System { .. });
            let run = RUN_BY
                .iter()
                .filter(|(package, others)| self.packages.iter().any(|given| given == package) && is_run(others));
            build.args(run.flat_map(|(_, others)| *others).flat_map(|package| ["--package", *package]));
            if self.packages.is_empty() {
                build.arg("--workspace").args(WITHOUT.iter().flat_map(|package| ["--exclude", *package]));
            }
        }
        build.args(["--offline", "--locked", "--target", machine.triple]);
        let mut built = build_all([build])?;
        let is_chosen = |Program { name, package, .. }: &Program| {
            (self.targets.is_empty() || self.targets.contains(name))
                && (self.packages.is_empty() || self.packages.contains(package))
        };
        let (chosen, others): (Vec<Program>, _) = built.programs.into_iter().partition(is_chosen);
        built.programs = chosen;
        // See FILES_BYTES_MAX.
        built.files.retain(|file| !others.iter().any(|other| other.file == *file));
        Ok(built)
    }

    /// Returns the arguments of each test program.
    fn arguments(&self) -> Vec<String> {
        let skipped = if self.short { &SHORT_WITHOUT[..] } else { &[] };
        let skipped = skipped.iter().flat_map(|part| ["--skip".to_owned(), (*part).to_owned()]);
        self.filters.iter().cloned().chain(skipped).collect()
    }

    /// Returns the variables of test programs.
    fn variables(&self) -> Vec<(String, String)> {
        let given = self.variables.iter().filter_map(|variable| variable.split_once('='));
        let own = [
            ("DORMOUSE_BUILT", "1"),
            ("DORMOUSE_SNAPSHOTS", SNAPSHOTS),
            ("DORMOUSE_TOGGLES", TOGGLES),
            ("DORMOUSE_STRESS_UPDATES", STRESS_UPDATES),
            ("RUST_BACKTRACE", "0"),
        ];
        own.into_iter().chain(given).map(|(name, value)| (name.into(), value.into())).collect()
    }

    /// Returns the directory of Lua's sources, which end-to-end tests compile.
    fn lua_dir(machine: &Machine) -> Result<PathBuf> {
        Ok(machine.target_dir()?.join("lua"))
    }

    /// Returns the files of Lua's sources, which are fetched here; none if only the code of one machine is tested.
    fn lua(&self, machine: &Machine) -> Result<Vec<PathBuf>> {
        if self.is_brief() {
            return Ok(Vec::new());
        }
        let dir = Cross::lua_dir(machine)?;
        lua::fetch(&dir)?;
        fs::read_dir(&dir)?.map(|entry| Ok(entry?.path())).collect()
    }

    /// Returns the job that runs a test program on this kernel, with the compilers of its machine.
    fn user_job(&self, machine: &Machine, program: &Program) -> Result<Job> {
        let mut command = machine.in_build_root("env")?;
        command.arg("--chdir").arg(&program.dir);
        command.args(self.variables().iter().map(|(name, value)| format!("{name}={value}")));
        command.arg(format!("PATH={COMPILER_DIR}:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"));
        if let Emulation::User { program: emulator, format } = &machine.emulation {
            let given = |name: &str| self.variables.iter().any(|variable| variable.split('=').next() == Some(name));
            if !given("DORMOUSE_MUTATIONS") {
                command.arg(format!("DORMOUSE_MUTATIONS={EMULATED_MUTATIONS}"));
            }
            command.arg(format!("{ENV_RUNNER}={emulator}"));
            let map = if is_root() { &["--map-users=all", "--map-groups=all"][..] } else { &["--map-root-user"] };
            command.args(["unshare", "--user", "--mount"]).args(map);
            command.args(["sh", "-ec", REGISTER, "sh", &format.rule(emulator)]);
        }
        command.args(["timeout", "-k", "5", &LIMIT_S.to_string()]).arg(&program.file).args(self.arguments());
        Ok(Job { command, source: Some(program.source.clone()) })
    }

    /// Returns the job that starts an emulated machine, which runs all test programs, one after another.
    fn system_job(&self, machine: &Machine, kernel: &str, built: &Built) -> Result<Job> {
        let (dir, kernel) = machine.machine_root(kernel)?;
        let image = machine.target_dir()?.join(format!("{}.initrd", machine.name));
        let archive = File::create(&image).with_context(|| format!("cannot make {}", image.display()))?;
        let mut find = Command::new("find");
        find.args([".", "-mindepth", "1"]);
        let left_out = UNUSED.iter().chain(if self.is_brief() { &COMPILERS[..] } else { &[] });
        find.args(left_out.flat_map(|dir| ["-path", *dir, "-prune", "-o"])).args(["-printf", "%P\\0"]);
        let output = find.current_dir(&dir).output().context("cannot run find")?;
        let names: Vec<String> =
            String::from_utf8_lossy(&output.stdout).split_terminator('\0').map(Into::into).collect();
        pack(&dir, &names, &archive)?;
        let lua = self.lua(machine)?;
        let files = checkout()?.into_iter().chain(built.files.iter().cloned()).chain(lua);
        pack(Path::new("/"), &with_parents(files), &archive)?;
        let own = machine.target_dir()?.join("own");
        if own.exists() {
            fs::remove_dir_all(&own).context("cannot remove the machine's own files")?;
        }
        for dir in ["cross", "etc", "usr/bin", "root", "tmp", "run", "proc", "sys", "dev"] {
            fs::create_dir_all(own.join(dir)).context("cannot make the machine's own files")?;
        }
        let files = [
            ("init", INIT),
            ("etc/passwd", USERS),
            ("etc/group", GROUPS),
            ("cross/run", &self.script(built, &Cross::lua_dir(machine)?)),
        ];
        for (name, text) in files {
            fs::write(own.join(name), text).with_context(|| format!("cannot write {name}"))?;
        }
        fs::set_permissions(own.join("init"), fs::Permissions::from_mode(0o755)).context("cannot change /init")?;
        for (name, target) in LINKS {
            symlink(target, own.join(name)).with_context(|| format!("cannot link {name}"))?;
        }
        let links = LINKS.map(|(name, _)| name);
        let names = with_parents(
            files
                .map(|(name, _)| name)
                .iter()
                .chain(&links)
                .map(PathBuf::from)
                .chain(["root", "tmp", "run", "proc", "sys", "dev"].map(PathBuf::from)),
        );
        pack(&own, &names, &archive)?;
        let mut qemu = machine.in_build_root("qemu-system-aarch64")?;
        // The architecture's own algorithm of pointer authentication takes most of the time in emulation.
        qemu.args([
            "-M",
            "virt",
            "-cpu",
            "max,pauth-impdef=on",
            "-accel",
            "tcg,thread=multi",
            "-smp",
            &self.cpus.to_string(),
            "-m",
            "8192",
        ]);
        qemu.args([
            "-display",
            "none",
            "-monitor",
            "none",
            "-serial",
            "stdio",
            "-nic",
            "none",
            "-no-reboot",
            "-kernel",
        ]);
        qemu.arg(kernel).arg("-initrd").arg(image);
        qemu.args(["-append", "console=ttyAMA0 quiet loglevel=1 panic=-1 rdinit=/init"]);
        Ok(qemu.into())
    }

    /// Returns the script that runs the test programs in the emulated machine, as `cargo test` would.
    fn script(&self, built: &Built, lua: &Path) -> String {
        let mut script = String::new();
        for (name, value) in self.variables() {
            let _ = writeln!(script, "export {name}='{value}'");
        }
        let _ = writeln!(script, "export {ENV_SKIPS}=/tmp/skips");
        let _ = writeln!(script, "export DORMOUSE_LUA={}", quote(&lua.to_string_lossy()));
        // What cargo calls CARGO_TARGET_TMPDIR.
        if let Some(dir) = built.programs.first().and_then(|program| program.file.ancestors().nth(3)) {
            let _ = writeln!(script, "mkdir -p {}", quote(&dir.join("tmp").to_string_lossy()));
        }
        let arguments: Vec<String> = self.arguments().iter().map(|argument| quote(argument)).collect();
        let arguments = arguments.join(" ");
        for Program { file, source, dir, .. } in &built.programs {
            let (file, dir) = (quote(&file.to_string_lossy()), quote(&dir.to_string_lossy()));
            let _ = writeln!(script, "echo '     Running {source} ('{file}')'");
            let _ = writeln!(script, "cd {dir} && timeout -k 5 {LIMIT_S} {file} {arguments}");
        }
        if let Some(tool) = built.files.iter().find(|file| file.ends_with("debug/dormouse")) {
            let _ = writeln!(script, "{} doctor", quote(&tool.to_string_lossy()));
        }
        // What a test keeps for the checkout is in the machine's own memory, so it is printed.
        if self.variables.iter().any(|variable| variable.split('=').next() == Some(ENV_KEEP)) {
            let dir = quote(&machines::dir().to_string_lossy());
            let _ = writeln!(script, "cd {dir} && for kept in $(find . -newer /cross/run -name '*.tar.gz'); do");
            let _ = writeln!(script, "echo \"in {dir}: base64 -d > $kept << END\" && base64 $kept && echo END; done");
        }
        let _ = writeln!(script, "[ ! -e /tmp/skips ] || sed 's/^/{SKIP_PREFIX}/' /tmp/skips");
        script
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn test_programs_are_shared_out_among_machines_that_can_load_them() {
        let place = tempfile::tempdir().unwrap();
        let file = |name: &str, len: u64| {
            let path = place.path().join(name);
            File::create(&path).unwrap().set_len(len).unwrap();
            path
        };
        let program = |name: &str, len| {
            let (source, dir) = (name.into(), place.path().into());
            Program { file: file(name, len), source, dir, name: name.into(), package: name.into() }
        };
        let third = FILES_BYTES_MAX / 3;
        let library = file("library", third);
        let programs = [("a", third), ("b", third), ("c", 1), ("d", FILES_BYTES_MAX), ("e", 1), ("f", 1)];
        let programs = programs.map(|(name, len)| program(name, len));
        let files = programs.iter().map(|program| program.file.clone()).chain([library.clone()]).collect();
        let parts = parts(&Built { programs: programs.into(), files });
        let names = |part: &Built| part.programs.iter().map(|program| program.name.as_str()).collect::<String>();
        assert_eq!(parts.iter().map(names).collect::<Vec<_>>(), ["abc", "d", "ef"]);
        for Built { programs, files } in &parts {
            let own = programs.iter().map(|program| &program.file);
            assert!(files.iter().eq([&library].into_iter().chain(own)));
        }
    }
}
