//! Tests in a model checker: programs enter themselves and their classes while the session owner reads, and one of them
//! dies at any step.

use std::sync::Arc;

use loom::thread;

use super::*;
use crate::atomic::{Fault, check, dies_before};

/// Preemptions in an execution. More find nothing else here, and take minutes.
const PREEMPTIONS: Option<usize> = Some(2);

/// Process ids whose search for an entry begins at the same place.
const VPIDS: [u32; 2] = [1, PROCESS_COUNT as u32];

/// Text of the class that all programs have.
const TEXT: &[u8] = b"ab";

/// Returns the memory of an empty register. Models leave it as it is, so all executions use the same.
fn register() -> Arc<Register> {
    // SAFETY: all zeroes is an empty register.
    unsafe { Arc::<Register>::new_zeroed().assume_init() }
}

fn entrant(vpid: u32) -> Entrant<'static> {
    Entrant {
        vpid,
        joined_ns: 1,
        joined_at: 2,
        namespace: 3,
        image: 4,
        pid: 5,
        name: *b"nnnnnnnnnnnnnnnn",
        is_forked: true,
        program: b"p",
        command_line: b"c",
    }
}

/// Takes an entry, fills it, and adds a class to it. Returns the process's number and the class's id.
fn join(register: &Register, vpid: u32) -> (u16, u16) {
    let number = register.claim_process(vpid).expect("a free entry");
    assert!(register.enter(number, &entrant(vpid)), "nobody takes it for dead");
    (number, register.class_id(number, TEXT).expect("room for a class"))
}

/// Reads as the session owner does: entries of processes that are in the session, and classes, are complete.
fn check_read(register: &Register) {
    for number in 2..4 {
        // The fields of an entry that is not ready mean nothing, and are not read: each could be old or new.
        if register.processes[number].state.load(Ordering::Relaxed) >> 32 != READY {
            continue;
        }
        let process = register.process(number as u16).expect("a process that is not freed");
        assert!(VPIDS.contains(&process.vpid));
        let Process { joined_ns, joined_at, namespace, image, pid, is_forked, .. } = process;
        assert_eq!((joined_ns, joined_at, namespace, image, pid, is_forked), (1, 2, 3, 4, 5, true), "fields");
        assert_eq!(
            (&*process.name, &*process.program, &*process.command_line),
            ("nnnnnnnnnnnnnnnn", "p", "c"),
            "texts"
        );
    }
    for id in 0..2 {
        assert!(
            register.class(id).is_none_or(|class| class.text == TEXT && class.process >= 2),
            "a class that is not complete"
        );
    }
}

/// A program joins while the owner reads once.
fn one_joins(fault: Fault) {
    let register = register();
    check(PREEMPTIONS, fault, move || {
        let program = {
            let register = Arc::clone(&register);
            thread::spawn(move || join(&register, VPIDS[0]))
        };
        check_read(&register);
        program.join().unwrap();
        assert_eq!(register.changes(), 2, "a process and a class");
        check_read(&register);
    });
}

#[test]
fn programs_that_join_at_once_have_their_own_entries_and_share_their_classes() {
    let register = register();
    check(PREEMPTIONS, Fault::None, move || {
        let program = {
            let register = Arc::clone(&register);
            thread::spawn(move || join(&register, VPIDS[0]))
        };
        let (first, id) = join(&register, VPIDS[1]);
        let (second, same) = program.join().unwrap();
        assert_ne!(first, second, "one entry has two processes");
        assert_eq!(id, same, "one class has two ids");
        assert_eq!(register.changes(), 3, "two processes and a class");
        let phases = [first, second].map(|number| register.process(number).map(|process| process.phase));
        assert_eq!(phases, [Some(Phase::Ready); 2]);
        check_read(&register);
        // The id that the slower program has taken for the class is unused.
        let known = (0..register.class_count() as u16).filter(|id| register.class(*id).is_some());
        assert_eq!(known.collect::<Vec<_>>(), [id]);
    });
}

#[test]
fn a_program_that_joins_is_read_whole() {
    one_joins(Fault::None);
}

#[test]
#[should_panic(expected = "a class that is not complete")]
fn what_is_not_released_is_read_in_parts() {
    one_joins(Fault::Releases);
}

#[test]
#[should_panic(expected = "a class that is not complete")]
fn what_is_not_acquired_is_read_in_parts() {
    one_joins(Fault::Acquires);
}

/// A program dies before each of its accesses in turn: another one joins all the same, and the owner takes the entry
/// back.
#[test]
fn a_program_that_dies_stops_nobody() {
    let register = register();
    let mut count = 0;
    loop {
        let register = Arc::clone(&register);
        let has_died = Arc::new(core::sync::atomic::AtomicBool::new(false));
        let ends = Arc::clone(&has_died);
        check(Some(1), Fault::None, move || {
            let dying = {
                let register = Arc::clone(&register);
                thread::spawn(move || dies_before(count, || _ = join(&register, VPIDS[0])))
            };
            let (number, id) = join(&register, VPIDS[1]);
            let is_dead = dying.join().unwrap();
            ends.fetch_or(is_dead, Ordering::Relaxed);
            check_read(&register);
            assert_eq!(register.class(id).map(|class| class.text), Some(TEXT.to_vec()));
            // The owner frees an entry of whatever phase once its process is dead.
            let other = 5 - number;
            register.free(other);
            assert_eq!(register.claim_process(VPIDS[0]), Some(other));
        });
        if !has_died.load(Ordering::Relaxed) {
            break;
        }
        count += 1;
    }
    assert!(count > 40, "{count} accesses");
}
