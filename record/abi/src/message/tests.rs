//! Tests of each direction of each edge with random messages: they are restored by decoding, and after a cut or change
//! they are malformed or another message.

use alloc::string::String;
use alloc::vec;
use alloc::vec::Vec;
use core::fmt::Debug;

use proptest::collection::vec as list;
use proptest::prelude::*;

use super::*;
use crate::class::{ClassDecl, FIELD_COUNT_MAX, FieldType, Labels, Level};
use crate::rule::{RULE_COUNT_MAX, RULES_SIZE_BYTES_MAX};
use crate::site::TunableType;
use crate::text::{is_printable, printable};
use crate::tunable::{TUNABLE_SET_COUNT_MAX, TunableRange, TunableValue};

/// Generates text of any characters, of which at most `len_max` bytes are sent.
fn text(len_max: usize) -> impl Strategy<Value = String> {
    list(prop_oneof![4 => any::<char>(), 1 => proptest::char::range('\0', '\u{a0}'), 1 => Just('\u{202e}')], 0..12)
        .prop_flat_map(move |chars| {
            let text: String = chars.into_iter().collect();
            // Periodically as long as the limit, or longer.
            let longer = "é".repeat(len_max) + &text;
            prop_oneof![8 => Just(text), 1 => Just(longer)]
        })
}

/// Generates text in the form in which it is received.
fn line(len_max: usize) -> impl Strategy<Value = String> {
    text(len_max).prop_map(move |text| {
        let mut line = printable(&text);
        line.truncate(line.floor_char_boundary(len_max));
        line
    })
}

fn path() -> impl Strategy<Value = String> {
    prop_oneof![Just(String::new()), "/[a-zA-Zß日 ._-]{0,40}"]
}

fn name() -> impl Strategy<Value = String> {
    "[a-zA-Z_][a-zA-Z0-9_]{0,20}"
}

fn decl() -> impl Strategy<Value = ClassDecl> {
    let types: Vec<FieldType> = (0..=u8::MAX).filter_map(FieldType::from_u8).collect();
    let fields = list((name(), proptest::sample::select(types)), 0..FIELD_COUNT_MAX);
    let level = proptest::option::of(proptest::sample::select(&Level::ALL[..]));
    (name(), name(), fields, level).prop_map(|(provider, name, fields, level)| ClassDecl {
        provider,
        name,
        fields,
        labels: Labels::new(),
        level,
    })
}

fn request() -> impl Strategy<Value = SnapshotRequest> {
    (path(), any::<u64>(), any::<u64>(), line(1024)).prop_map(|(dir, last_ns, bytes_max, trigger)| SnapshotRequest {
        dir,
        last_ns,
        bytes_max,
        trigger,
    })
}

fn snapshot() -> impl Strategy<Value = Snapshot> {
    (line(4096), any::<[u64; 5]>()).prop_map(|(dir, [events, bytes, span_ns, pages_missed, pages_refused])| Snapshot {
        dir,
        events,
        bytes,
        span_ns,
        pages_missed,
        pages_refused,
    })
}

fn program_to_owner() -> impl Strategy<Value = ProgramToOwner> {
    prop_oneof![
        (any::<u32>(), any::<u64>(), line(4096), line(4096)).prop_map(|(vpid, image, program, command_line)| {
            ProgramToOwner::Hello { vpid, image, program, command_line }
        }),
        request().prop_map(|request| ProgramToOwner::Snapshot { request }),
    ]
}

fn owner_to_program() -> impl Strategy<Value = OwnerToProgram> {
    prop_oneof![
        any::<u16>().prop_map(|process| OwnerToProgram::Welcome { process }),
        snapshot().prop_map(|snapshot| OwnerToProgram::Snapshotted { snapshot }),
        line(4096).prop_map(|text| OwnerToProgram::Error { text }),
    ]
}

fn tool_to_owner() -> impl Strategy<Value = ToolToOwner> {
    prop_oneof![
        any::<u32>().prop_map(|pid| ToolToOwner::Stop { pid }),
        Just(ToolToOwner::Status),
        request().prop_map(|request| ToolToOwner::Snapshot { request }),
        any::<u64>().prop_map(|bytes| ToolToOwner::Budget { bytes }),
        Just(ToolToOwner::Rules),
        list(line(300), 0..4).prop_map(|rules| ToolToOwner::SetRules { rules }),
    ]
}

fn owner_to_tool() -> impl Strategy<Value = OwnerToTool> {
    let state = any::<([u32; 2], [u64; 7], bool)>().prop_map(|([page_size_bytes, streams], numbers, is_overwrite)| {
        let [bytes, bytes_max, room, free, drawn, queued, beyond] = numbers;
        BudgetState { page_size_bytes, streams, bytes, bytes_max, room, free, drawn, queued, beyond, is_overwrite }
    });
    let status = (line(4096), any::<([u32; 8], [u64; 15])>()).prop_map(|(dir, (counts, numbers))| {
        let [owner, processes, processes_max, clients, clients_max, classes, classes_max, classes_refused] = counts;
        let [
            owner_restarts,
            descriptors,
            descriptors_max,
            processes_joined,
            programs_refused,
            clients_dropped,
            taken,
            refused,
            disk,
            disk_max,
            disk_user,
            disk_user_max,
            events_rejected,
            events_sampled_out,
            events_not_kept,
        ] = numbers;
        Status {
            owner,
            owner_restarts,
            dir,
            descriptors,
            descriptors_max,
            processes,
            processes_max,
            processes_joined,
            programs_refused,
            clients,
            clients_max,
            clients_dropped,
            classes,
            classes_max,
            classes_refused,
            snapshots_taken: taken,
            snapshots_refused: refused,
            disk_bytes: disk,
            disk_bytes_max: disk_max,
            disk_bytes_user: disk_user,
            disk_bytes_user_max: disk_user_max,
            events_rejected,
            events_sampled_out,
            events_not_kept,
        }
    });
    let rules = (list(line(300), 0..4), list(any::<(u32, bool)>(), 0..4))
        .prop_map(|(rules, processes)| RulesState { rules, processes });
    prop_oneof![
        status.prop_map(|status| OwnerToTool::StatusIs { status }),
        rules.prop_map(|state| OwnerToTool::RulesAre { state }),
        list(line(300), 0..4).prop_map(|lines| OwnerToTool::Stopped { summary: lines.join("\n") }),
        snapshot().prop_map(|snapshot| OwnerToTool::Snapshotted { snapshot }),
        state.prop_map(|state| OwnerToTool::BudgetIs { state }),
        line(4096).prop_map(|text| OwnerToTool::Error { text }),
    ]
}

fn tool_to_program() -> impl Strategy<Value = ToolToProgram> {
    let patterns = || list(line(1024), 0..4);
    prop_oneof![
        Just(ToolToProgram::List),
        (path(), patterns()).prop_map(|(session, patterns)| ToolToProgram::Arm { session, patterns }),
        (path(), patterns()).prop_map(|(session, patterns)| ToolToProgram::Disarm { session, patterns }),
        path().prop_map(|session| ToolToProgram::Attach { session }),
        path().prop_map(|session| ToolToProgram::Detach { session }),
        Just(ToolToProgram::ListTunables),
        list((line(300), line(300)), 0..4).prop_map(|values| ToolToProgram::SetTunables { values }),
        (any::<[u8; 16]>(), any::<u64>(), 0..=MEMORY_PART_SIZE_BYTES_MAX)
            .prop_map(|(uuid, offset, size_bytes)| ToolToProgram::ReadMemory { uuid, offset, size_bytes }),
        Just(ToolToProgram::FollowRules),
    ]
}

fn value() -> impl Strategy<Value = TunableValue> {
    (proptest::sample::select(&TunableType::ALL[..]), any::<u64>())
        .prop_map(|(value_type, bits)| TunableValue { value_type, bits })
}

fn tunable() -> impl Strategy<Value = TunableStatus> {
    ("[!-~]{1,30}", line(512), line(4096), value(), any::<([u64; 2], [u32; 2])>()).prop_map(
        |(name, description, object, value, ([min, max], [site_count, patched_count]))| TunableStatus {
            name,
            description,
            object,
            value,
            range: TunableRange { value_type: value.value_type, min, max },
            site_count,
            patched_count,
        },
    )
}

fn program_to_tool() -> impl Strategy<Value = ProgramToTool> {
    let in_session = any::<(bool, [u64; 2])>().prop_map(|(is_armed, [rejected, sampled_out])| ClassInSession {
        is_armed,
        rejected,
        sampled_out,
    });
    let class = (decl(), any::<[u32; 2]>(), list(in_session, 0..4)).prop_map(
        |(decl, [site_count, patched_count], sessions)| ClassStatus { decl, site_count, patched_count, sessions },
    );
    let tracer = (line(300), line(1024), any::<[u32; 2]>(), list(tunable(), 0..4)).prop_map(
        |(writer, reason, [site_count, patched_count], tunables)| Tunables {
            writer,
            reason,
            site_count,
            patched_count,
            tunables,
        },
    );
    let change = ("[!-~]{1,30}", value(), any::<u64>()).prop_map(|(name, former, bits)| TunableChange {
        name,
        former,
        value: TunableValue { bits, ..former },
    });
    prop_oneof![
        (list(path(), 0..4), list(class, 0..4), line(4096))
            .prop_map(|(sessions, classes, patching)| ProgramToTool::Classes { sessions, classes, patching }),
        (any::<[u32; 3]>(), list((path(), any::<u32>()), 0..4)).prop_map(|([matched, changed, armed], sessions)| {
            ProgramToTool::Changed { matched, changed, armed, sessions }
        }),
        tracer.prop_map(|tracer| ProgramToTool::Tunables { tracer }),
        list(change, 0..4).prop_map(|changes| ProgramToTool::TunablesSet { changes }),
        (any::<u64>(), list(any::<u8>(), 0..300))
            .prop_map(|(memory_size_bytes, bytes)| ProgramToTool::MemoryPart { memory_size_bytes, bytes }),
        line(4096).prop_map(|text| ProgramToTool::Error { text }),
    ]
}

/// Checks that a message is restored; that no part of its frame is a message; and that with a bit changed it is
/// malformed, or a message that is restored.
fn check<M: Message + Debug + PartialEq>(message: &M, bit: usize, cut: usize) {
    let frame = message.encode();
    let head = frame.first_chunk().expect("a head");
    assert_eq!(M::frame_size_bytes(head), Ok(frame.len()));
    assert_eq!(M::decode(&frame).as_ref(), Ok(message));
    assert!(M::decode(&frame[..cut % frame.len()]).is_err());
    // Nor with a head that gives the shorter size.
    let mut short = frame[..HEAD_SIZE_BYTES + cut % (frame.len() - HEAD_SIZE_BYTES).max(1)].to_vec();
    if short.len() < frame.len() {
        let size_bytes = (short.len() - HEAD_SIZE_BYTES) as u32;
        short[1..HEAD_SIZE_BYTES].copy_from_slice(&size_bytes.to_le_bytes());
        assert!(M::decode(&short).is_err(), "{message:?} cut to {}", short.len());
    }
    let mut changed = frame.clone();
    changed[bit / 8 % frame.len()] ^= 1 << (bit % 8);
    check_bytes::<M>(&changed);
    let longer = [&frame[..], &[0]].concat();
    assert!(M::decode(&longer).is_err());
}

/// Checks that a decoded message is restored from its own frame.
fn check_bytes<M: Message + Debug + PartialEq>(bytes: &[u8]) {
    if let Ok(message) = M::decode(bytes) {
        assert_eq!(M::decode(&message.encode()).as_ref(), Ok(&message));
    }
}

macro_rules! directions {
    ($($test:ident: $messages:ident, $type:ty;)*) => {
        proptest! {
            $(
                #[test]
                fn $test(message in $messages(), bit: usize, cut: usize) {
                    check::<$type>(&message, bit, cut);
                }
            )*

            #[test]
            fn any_bytes_decode_or_are_malformed(number in 0u8..12, body in list(any::<u8>(), 0..200), bytes in list(any::<u8>(), 0..40)) {
                let size_bytes = (body.len() as u32).to_le_bytes();
                let frame = [&[number], &size_bytes[..], &body].concat();
                $(
                    check_bytes::<$type>(&frame);
                    check_bytes::<$type>(&bytes);
                )*
                let _ = Preamble::decode(&bytes);
            }
        }
    };
}
directions! {
    what_a_program_asks_an_owner: program_to_owner, ProgramToOwner;
    what_an_owner_answers_a_program: owner_to_program, OwnerToProgram;
    what_a_tool_asks_an_owner: tool_to_owner, ToolToOwner;
    what_an_owner_answers_a_tool: owner_to_tool, OwnerToTool;
    what_a_tool_asks_a_program: tool_to_program, ToolToProgram;
    what_a_program_answers_a_tool: program_to_tool, ProgramToTool;
}

proptest! {
    #[test]
    fn decoded_text_is_printable_and_bounded(text in text(4096)) {
        let Ok(OwnerToProgram::Error { text: arrived }) =
            OwnerToProgram::decode(&OwnerToProgram::Error { text: text.clone() }.encode())
        else { panic!("{text:?}") };
        prop_assert!(arrived.chars().all(is_printable));
        if printable(&text).len() <= 4096 {
            prop_assert_eq!(arrived, printable(&text));
        } else {
            let kept = arrived.strip_suffix('…').expect("a mark");
            prop_assert!(printable(&text).starts_with(kept) && (4090..=4096).contains(&arrived.len()));
        }
        let Ok(OwnerToTool::Stopped { summary }) =
            OwnerToTool::decode(&OwnerToTool::Stopped { summary: text.clone() }.encode())
        else { panic!("{text:?}") };
        prop_assert!(summary.split('\n').all(|line| line.chars().all(is_printable)));
        prop_assert_eq!(summary.matches('\n').count(), text.matches('\n').count());
        // A path is unchanged, or malformed.
        let attached = ToolToProgram::decode(&ToolToProgram::Attach { session: text.clone() }.encode());
        match attached {
            Ok(ToolToProgram::Attach { session }) => {
                prop_assert!(session.chars().all(is_printable) && (session == text || session.len() > 4096));
            }
            Ok(other) => panic!("{other:?}"),
            Err(_) => prop_assert!(!text.chars().all(is_printable)),
        }
    }
}

fn tunables(tunable: TunableStatus) -> Result<ProgramToTool, Malformed> {
    let (writer, reason) = ("none".into(), "forced".into());
    let tracer = Tunables { writer, reason, site_count: 0, patched_count: 0, tunables: vec![tunable] };
    ProgramToTool::decode(&ProgramToTool::Tunables { tracer }.encode())
}

fn batch_size() -> TunableStatus {
    TunableStatus {
        name: "server.batch_size".into(),
        description: "requests handled at once".into(),
        object: "/usr/bin/server".into(),
        value: TunableValue { value_type: TunableType::U32, bits: 16 },
        range: TunableRange { value_type: TunableType::U32, min: 1, max: 1024 },
        site_count: 2,
        patched_count: 2,
    }
}

#[test]
fn hostile_tunables_are_malformed_or_made_printable() {
    assert!(tunables(batch_size()).is_ok());
    for name in ["a b", "", "größe", "\x1b[2J", &"n".repeat(256)] {
        assert!(tunables(TunableStatus { name: name.into(), ..batch_size() }).is_err(), "{name:?}");
    }
    let hostile = TunableStatus { description: "\x1b[2J".into(), object: "a\nb".into(), ..batch_size() };
    let Ok(ProgramToTool::Tunables { tracer }) = tunables(hostile) else { panic!("no tunables") };
    assert_eq!(
        (tracer.tunables[0].description.as_str(), tracer.tunables[0].object.as_str()),
        ("\u{fffd}[2J", "a\u{fffd}b")
    );

    let set = |count| ToolToProgram::SetTunables { values: vec![("a".into(), "1".into()); count] };
    assert!(ToolToProgram::decode(&set(TUNABLE_SET_COUNT_MAX).encode()).is_ok());
    assert_eq!(ToolToProgram::decode(&set(TUNABLE_SET_COUNT_MAX + 1).encode()), Err(Malformed("a list is too long")));
}

#[test]
fn no_listing_has_classes_that_no_trace_can_hold() {
    let encoded = |name: &str| {
        let (provider, level) = ("p".into(), Some(Level::Debug));
        let decl = ClassDecl { provider, name: name.into(), fields: Vec::new(), labels: Labels::new(), level };
        let classes = vec![ClassStatus { decl, site_count: 0, patched_count: 0, sessions: Vec::new() }];
        ProgramToTool::Classes { sessions: Vec::new(), classes, patching: "".into() }.encode()
    };
    let mut frame = encoded("e");
    assert!(ProgramToTool::decode(&frame).is_ok());
    assert!(ProgramToTool::decode(&encoded("größe")).is_err());
    // The level is followed by two counts, the number of sessions, and an empty text.
    let level = frame.len() - (2 + 4 + 4 + 4) - 1;
    assert_eq!(frame[level], Level::byte_of(Some(Level::Debug)));
    frame[level] += 1;
    assert_eq!(ProgramToTool::decode(&frame), Err(Malformed("a level is unknown")));
}

#[test]
fn as_many_rules_as_a_session_may_have_are_sent_and_no_more() {
    let set = |rules| ToolToOwner::decode(&ToolToOwner::SetRules { rules }.encode());
    let each = RULES_SIZE_BYTES_MAX / RULE_COUNT_MAX;
    let rules = vec!["x".repeat(each); RULE_COUNT_MAX];
    assert_eq!(set(rules.clone()), Ok(ToolToOwner::SetRules { rules: rules.clone() }));
    let state = RulesState { rules, processes: vec![(u32::MAX, true); 4095] };
    let answer = OwnerToTool::RulesAre { state };
    assert_eq!(OwnerToTool::decode(&answer.encode()), Ok(answer));
    assert_eq!(set(vec!["x".into(); RULE_COUNT_MAX + 1]), Err(Malformed("a list is too long")));
    assert_eq!(set(vec!["x".repeat(each + 1); RULE_COUNT_MAX]), Err(Malformed("it is longer than it may be")));
    assert_eq!(set(vec!["\x1b[2J".into()]), Ok(ToolToOwner::SetRules { rules: vec!["\u{fffd}[2J".into()] }));
}

#[test]
fn each_message_has_its_own_bound() {
    let head = |number: u8, size_bytes: u32| {
        let mut head = [number; HEAD_SIZE_BYTES];
        head[1..].copy_from_slice(&size_bytes.to_le_bytes());
        head
    };
    // A join is small, a list of classes may be long.
    assert!(ProgramToOwner::frame_size_bytes(&head(1, 16 << 10)).is_ok());
    assert!(ProgramToOwner::frame_size_bytes(&head(1, (16 << 10) + 1)).is_err());
    assert!(ProgramToTool::frame_size_bytes(&head(1, 16 << 20)).is_ok());
    assert!(ToolToOwner::frame_size_bytes(&head(4, 1)).is_err());
    assert!(ToolToOwner::frame_size_bytes(&head(77, 0)).is_err());
    let question = ToolToProgram::ReadMemory { uuid: [0; 16], offset: 0, size_bytes: MEMORY_PART_SIZE_BYTES_MAX + 1 };
    assert!(ToolToProgram::decode(&question.encode()).is_err(), "no program is asked for more than it has room for");
    let part = ProgramToTool::MemoryPart { memory_size_bytes: 1, bytes: vec![0; MEMORY_PART_SIZE_BYTES_MAX as usize] };
    assert!(ProgramToTool::decode(&part.encode()).is_ok());
}

#[test]
fn a_count_beyond_the_frame_is_malformed() {
    let frame = [2, 6, 0, 0, 0, 0, 0, 255, 255, 0, 0];
    assert_eq!(ToolToProgram::decode(&frame), Err(Malformed("a list is too long")));
    let frame = [5, 12, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 255, 255, 255, 255];
    assert_eq!(ProgramToTool::decode(&frame), Err(Malformed("it ends too early")));
}
