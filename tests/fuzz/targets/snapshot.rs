//! Snapshots between the operations of writers. Until there is noise in the memory, a snapshot must match the oracle;
//! after that, each of its packets must be whole.
#![no_main]

use std::path::PathBuf;
use std::rc::Rc;
use std::time::Duration;

use arbitrary::Arbitrary;
use dormouse_abi::record::RecordKind;
use dormouse_abi::session::MODE_OVERWRITE;
use dormouse_control::Take;
use dormouse_ctf::{Metadata, Problem, RecordError};
use dormouse_fuzz::session::{Bench, GEOMETRY, Noise, Operation};
use dormouse_fuzz::trace;
use dormouse_owner::fuzzing::Owner;
use libfuzzer_sys::fuzz_target;

#[derive(Debug, Arbitrary)]
enum Step {
    Operation(Operation),
    Snapshot,
    /// Limited to a maximum age in ticks and a maximum size in bytes.
    Limited {
        last_ns: u64,
        bytes_max: u16,
    },
    Noise(Noise),
}

struct Place {
    owner: Owner,
    dir: PathBuf,
    metadata: Rc<Metadata>,
}

thread_local! {
    static PLACES: [Place; 2] = [RecordKind::Ids, RecordKind::Compact].map(place);
}

fn place(kind: RecordKind) -> Place {
    let dir = dormouse_fuzz::session::scratch_dir("snapshot").join(format!("{kind:?}"));
    let owner = Owner::new(&dir.join("trace"), GEOMETRY, kind);
    assert_eq!(owner.declare(&trace::class()), 0);
    Place { owner, dir: dir.join("taken"), metadata: trace::metadata_of_class(kind) }
}

fn take(place: &Place, bench: &Bench, wanted: Take) {
    let is_whole = wanted.last.is_none() && wanted.bytes_max.is_none();
    let taken = place.owner.snapshot(&Take { dir: Some(place.dir.clone()), ..wanted });
    let taken = taken.expect("a directory for a snapshot, and room");
    assert!(place.dir.join("metadata").exists());
    let mut events = 0;
    for (stream, oracle) in bench.oracles().iter().enumerate() {
        let bytes = std::fs::read(place.dir.join(format!("claimed_{stream}"))).unwrap_or_default();
        let read = trace::read(&place.metadata, &bytes);
        events += read.records.len() as u64;
        let (records, lost) = oracle.retained();
        if !bench.is_honest() {
            // Noise can change numbers and times, which are written by writers.
            let is_damage = |problem: &&Problem| {
                !matches!(
                    problem,
                    Problem::SequenceGap { .. }
                        | Problem::DiscardedDecreases
                        | Problem::Overlap
                        | Problem::Record { error: RecordError::Younger, .. }
                )
            };
            assert_eq!(read.problems.iter().find(is_damage), None, "a packet is not whole");
            continue;
        }
        assert_eq!(read.problems, []);
        let held: Vec<_> = read.records.iter().collect();
        if is_whole {
            assert_eq!((held, read.lost), (records, lost));
        } else {
            assert!(records.ends_with(&held), "what is left out is the oldest");
        }
    }
    if bench.is_honest() {
        assert_eq!((taken.events, taken.pages_missed, taken.pages_refused), (events, 0, 0));
    }
    std::fs::remove_dir_all(&place.dir).expect("a snapshot can be removed");
}

fuzz_target!(|input: (bool, Vec<Step>)| {
    let (is_compact, steps) = input;
    PLACES.with(|places| {
        let place = &places[usize::from(is_compact)];
        place.owner.reset(MODE_OVERWRITE);
        let mut bench = Bench::new(place.owner.memory());
        let mut snapshots = 0;
        for step in &steps {
            match step {
                // The session's clock is the machine's, so events are older than a snapshot.
                Step::Operation(Operation::Wait { .. }) => {}
                Step::Operation(operation) => bench.apply(operation),
                Step::Noise(noise) => bench.disturb(noise),
                _ if snapshots == 8 => {}
                Step::Snapshot => {
                    take(place, &bench, Take::default());
                    snapshots += 1;
                }
                Step::Limited { last_ns, bytes_max } => {
                    let last = Some(Duration::from_nanos(*last_ns)).filter(|last| !last.is_zero());
                    take(place, &bench, Take { last, bytes_max: Some(u64::from(*bytes_max)), ..Take::default() });
                    snapshots += 1;
                }
            }
            // Noise in the header has turned it into a session that retains nothing.
            if !place.owner.memory().is_overwrite() {
                return;
            }
        }
        take(place, &bench, Take::default());
        bench.check();
    });
});
