//! Gates in other objects: a Rust shared library with a registry of its own, and C and C++ libraries registered here.
#![cfg(all(any(target_arch = "x86_64", target_arch = "aarch64"), target_os = "linux", not(feature = "generic")))]

mod sites;

use std::ffi::{CStr, CString, c_int, c_void};
use std::mem::{offset_of, size_of, transmute};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;

use dormouse_abi::site::{EVENTS_SECTION, EventRecord, SITES_SECTION, SiteRecord};
use dormouse_abi::site::{
    SITE_BRANCH, SITE_CALL, SITE_DIRECT_BRANCH, SITE_FORM_MASK, SITE_GATED_VALUE, SITE_INDIRECT, SITE_LIKELY,
    SITE_SIGNED, SITE_VALUE, SITE_WIDTH_SHIFT,
};
use dormouse_abi::site::{X86_BRANCH_LEN, X86_GATED_IMMEDIATE_OFFSET, X86_JMP, X86_NOP, X86_TEST, X86_VALUE_LEN};
use dormouse_imv::{
    Change, DeferredKey, StaticKey, disable, enable, key_sites, register_object, status, unregister_object,
    visit_key_sites,
};
use dormouse_testing::programs::build;
use dormouse_testing::{has_part, include_dirs};

/// Tests that compare the number of registered objects take turns.
static TURN: Mutex<()> = Mutex::new(());

struct Library(*mut c_void);

impl Library {
    fn open(path: &Path) -> Library {
        let name = CString::new(path.to_str().unwrap()).unwrap();
        // SAFETY: dlopen(3) of a library that this test built.
        let handle = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
        if handle.is_null() {
            // SAFETY: dlerror(3) after a failure.
            let error = unsafe { libc::dlerror() };
            // SAFETY: dlerror(3) returns a NUL-terminated text.
            panic!("{}", unsafe { CStr::from_ptr(error) }.to_string_lossy());
        }
        Library(handle)
    }

    fn symbol(&self, name: &CStr) -> *mut c_void {
        // SAFETY: dlsym(3) with an open handle.
        let address = unsafe { libc::dlsym(self.0, name.as_ptr()) };
        assert!(!address.is_null(), "{name:?}");
        address
    }

    fn call(&self, name: &CStr) -> c_int {
        // SAFETY: the functions that are called this way take no arguments and return an int.
        let function = unsafe { transmute::<*mut c_void, extern "C" fn() -> c_int>(self.symbol(name)) };
        function()
    }

    fn close(self) {
        // SAFETY: dlclose(3), once; nothing in the library is used afterwards.
        let answer = unsafe { libc::dlclose(self.0) };
        assert_eq!(answer, 0);
    }
}

fn child_can_fork() {
    // SAFETY: the child only exits.
    let pid = unsafe { libc::fork() };
    if pid == 0 {
        // SAFETY: _exit(2).
        unsafe { libc::_exit(0) };
    }
    let mut code = -1;
    // SAFETY: waitpid(2) into a live integer.
    unsafe { libc::waitpid(pid, &mut code, 0) };
    assert_eq!(code, 0);
}

/// Builds the plugin with this test's settings. `cargo test --test objects` alone would leave an old one, or none.
fn plugin() -> PathBuf {
    let profile = build(&["dormouse-imv", "--example", "dormouse_imv_plugin"]);
    profile.join("examples/libdormouse_imv_plugin.so")
}

#[test]
fn a_rust_library_brings_its_own_registry() {
    let _turn = TURN.lock().unwrap();
    let path = plugin();
    let objects = status().unwrap().objects;
    for _ in 0..3 {
        let plugin = Library::open(&path);
        assert_eq!(status().unwrap().objects, objects, "its sites are its own affair");
        // SAFETY: the plugin's `extern "C" fn(bool) -> bool`.
        let set = unsafe { transmute::<*mut c_void, extern "C" fn(bool) -> bool>(plugin.symbol(c"plugin_set")) };
        // SAFETY: the plugin's `extern "C" fn() -> bool`.
        let gate = unsafe { transmute::<*mut c_void, extern "C" fn() -> bool>(plugin.symbol(c"plugin_gate")) };
        assert!(plugin.call(c"plugin_sites_patched") > 0, "asleep since its constructor");
        assert!(!gate());
        assert!(set(true));
        assert!(gate());
        assert!(plugin.call(c"plugin_sites_patched") > 0);
        assert!(set(false));
        assert!(!gate());
        plugin.close();
        child_can_fork();
    }
}

fn source(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/c").join(name)
}

/// Runs a compiler with the warnings that a user may have enabled.
fn compile(compiler: &[&str], arguments: &[&str], inputs: &[PathBuf], output: &Path) {
    let answer = Command::new(compiler[0])
        .args(&compiler[1..])
        .args(["-Wall", "-Wextra", "-Wpedantic", "-Wshadow", "-Werror"])
        .args(include_dirs().flat_map(|dir| ["-I".into(), dir]))
        .args(arguments)
        .arg("-o")
        .arg(output)
        .args(inputs)
        .output()
        .unwrap();
    assert!(answer.status.success(), "{compiler:?} {arguments:?}: {}", String::from_utf8_lossy(&answer.stderr));
}

fn scratch(name: &str) -> PathBuf {
    let directory = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    std::fs::create_dir_all(&directory).unwrap();
    directory
}

const COMPILERS: [&[&str]; 6] = [
    &["gcc", "-std=c11"],
    &["gcc", "-std=gnu17", "-ffunction-sections", "-fdata-sections"],
    &["clang", "-std=c11"],
    &["g++", "-x", "c++", "-std=c++11"],
    &["g++", "-x", "c++", "-std=c++17", "-ffunction-sections"],
    &["clang++", "-x", "c++", "-std=c++17"],
];

#[test]
fn sites_of_c_and_cpp_libraries_are_armed_disarmed_and_unloaded() {
    let _turn = TURN.lock().unwrap();
    let directory = scratch("libraries");
    for (index, compiler) in COMPILERS.iter().enumerate().filter(|(_, compiler)| has_part(compiler[0])) {
        for level in ["-O0", "-O2"] {
            for linker in ["bfd", "lld"] {
                if linker == "lld" && !has_part("ld.lld") {
                    continue;
                }
                let path = directory.join(format!("libunits{index}{level}{linker}.so"));
                let linker = format!("-fuse-ld={linker}");
                let arguments = [level, "-fPIC", "-shared", "-Wl,--gc-sections", "-Wl,-z,text", &linker];
                compile(compiler, &arguments, &[source("first.c"), source("second.c")], &path);
                exercise(&path);
            }
        }
    }
}

/// Does for a library what `libdormouse` does when the library's constructor calls it.
fn exercise(path: &Path) {
    let library = Library::open(path);
    let pointer = |name: &CStr| {
        // SAFETY: the library's variables of pointer type.
        unsafe { *library.symbol(name).cast::<*const SiteRecord>() }
    };
    // SAFETY: the library's `int`.
    let registered_count = unsafe { *library.symbol(c"registered_count").cast::<c_int>() };
    assert_eq!(registered_count, 1, "two units, one object: {}", path.display());
    let (start, stop) = (pointer(c"registered_start"), pointer(c"registered_stop"));
    let objects = status().unwrap().objects;

    // SAFETY: the function returns the address of a static key of the library.
    let address =
        unsafe { transmute::<*mut c_void, extern "C" fn() -> *const StaticKey>(library.symbol(c"shared_key_address")) };
    // SAFETY: a `struct dormouse_static_key` is a `StaticKey`, and lives until the library is closed.
    let key = unsafe { &*address() };

    assert_eq!((library.call(c"first_gates"), library.call(c"second_gates")), (0, 0), "born");
    for _ in 0..2 {
        // SAFETY: the library's own bounds; it is unregistered before it is closed.
        unsafe { register_object(start, stop) }.unwrap();
    }
    assert_eq!(status().unwrap().objects, objects + 1);
    assert_eq!((library.call(c"first_gates"), library.call(c"second_gates")), (0, 0), "asleep");
    let mut site_count = 0;
    visit_key_sites(key, |_, bytes| {
        assert!(sites::is_nop(bytes));
        site_count += 1;
    })
    .unwrap();
    assert!(site_count >= 2, "one in each unit: {site_count}");

    enable(key).unwrap();
    assert_eq!((library.call(c"first_gates"), library.call(c"second_gates")), (100, 100), "awake: {}", path.display());
    visit_key_sites(key, |_, bytes| assert!(sites::is_jump(bytes))).unwrap();
    disable(key).unwrap();
    assert_eq!((library.call(c"first_gates"), library.call(c"second_gates")), (0, 0), "asleep again");
    assert_eq!(key_sites(key).unwrap().patched, site_count);

    unregister_object(start).unwrap();
    unregister_object(start).unwrap();
    assert_eq!(status().unwrap().objects, objects);
    library.close();
}

#[test]
fn a_library_without_gates_finds_no_sites_of_other_objects() {
    let directory = scratch("none");
    for compiler in ["gcc", "clang"].into_iter().filter(|compiler| has_part(compiler)) {
        for linker in ["bfd", "lld"] {
            if linker == "lld" && !has_part("ld.lld") {
                continue;
            }
            let path = directory.join(format!("libnone-{compiler}-{linker}.so"));
            let linker = format!("-fuse-ld={linker}");
            compile(
                &[compiler],
                &["-O2", "-fPIC", "-shared", "-Wl,--gc-sections", &linker],
                &[source("none.c")],
                &path,
            );
            let library = Library::open(&path);
            // SAFETY: the library's variables of pointer type.
            let start = unsafe { *library.symbol(c"registered_start").cast::<usize>() };
            // SAFETY: the library's variable of pointer type.
            let stop = unsafe { *library.symbol(c"registered_stop").cast::<usize>() };
            assert_eq!(start, stop, "{}", path.display());
            library.close();
        }
    }
}

/// Compiles objects for every code model; they are not linked.
#[test]
fn the_header_compiles_for_every_code_model() {
    let directory = scratch("compile");
    for compiler in COMPILERS.into_iter().filter(|compiler| has_part(compiler[0])) {
        for model in ["-fPIC", "-fPIE", "-fno-pic", "-DDORMOUSE_GENERIC"] {
            for level in ["-O0", "-O2", "-Os"] {
                let output = directory.join("unit.o");
                compile(compiler, &[level, model, "-c"], &[source("first.c")], &output);
                let sections = Command::new("readelf").args(["-SW"]).arg(&output).output();
                let text = String::from_utf8_lossy(&sections.unwrap().stdout).into_owned();
                assert_eq!(text.contains("dormouse_sites"), model != "-DDORMOUSE_GENERIC", "{text}");
            }
        }
    }
}

#[test]
fn the_c_header_is_the_twin_of_the_rust_layout() {
    let program = scratch("layout").join("layout");
    compile(&["cc", "-std=c11"], &["-O1"], &[source("layout.c")], &program);
    let output = Command::new(&program).output().unwrap();
    let expected = format!(
        "dormouse_site_record {}\ndormouse_site_record.site {}\ndormouse_site_record.kind {}\n\
         dormouse_site_record.key {}\ndormouse_site_record.target {}\ndormouse_event_record {}\ndormouse_event_record.key {}\n\
         dormouse_event_record.describe {}\ndormouse_static_key {}\n\
         dormouse_static_key_import 8\ndormouse_imv_change {}\ndormouse_static_key_deferred {}\n\
         jmp {X86_JMP}\ntest {X86_TEST}\nnop {X86_NOP:?}\nbranch_len {X86_BRANCH_LEN}\n\
         value_len {X86_VALUE_LEN}\ngated {X86_GATED_IMMEDIATE_OFFSET}\n\
         forms {SITE_FORM_MASK} {SITE_BRANCH} {SITE_VALUE} {SITE_GATED_VALUE} {SITE_DIRECT_BRANCH}\n\
         bits {SITE_WIDTH_SHIFT} {SITE_SIGNED} {SITE_INDIRECT} {SITE_LIKELY}\ncall {SITE_CALL}\n\
         sites {SITES_SECTION}\nevents {EVENTS_SECTION}\n",
        size_of::<SiteRecord>(),
        offset_of!(SiteRecord, site),
        offset_of!(SiteRecord, kind),
        offset_of!(SiteRecord, key),
        offset_of!(SiteRecord, target),
        size_of::<EventRecord>(),
        offset_of!(EventRecord, key),
        offset_of!(EventRecord, describe),
        size_of::<StaticKey>(),
        size_of::<Change>(),
        size_of::<DeferredKey>(),
    );
    assert_eq!(String::from_utf8(output.stdout).unwrap(), expected);
}
