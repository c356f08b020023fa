//! The words of a session, and the places of its pages.

use dormouse_abi::session::{Geometry, Owner, State, Unrecorded, spare};

#[test]
fn words_come_back() {
    let state = State { seq: 0xBEEF, unit: 0xABCDEF, offset: 0x123456 };
    assert_eq!(State::from_word(state.to_word()), state);
    // Zeroes are a stream without a page, whose first page is number 0.
    let empty = State::from_word(0);
    assert_eq!((empty.unit, empty.seq.wrapping_add(1)), (0, 0));
    for owner in [
        Owner::Free,
        Owner::Drawn { process: 65_535, stream: 16_383 },
        Owner::Queued { stream: 7, seq: (1 << 40) - 1 },
        Owner::Withheld,
    ] {
        assert_eq!(Owner::from_word(owner.to_word()), Some(owner));
    }
    assert_eq!(Owner::from_word(1), None);
    assert_eq!(spare::unit_for(spare::to_word(3, 9), 3), Some(9));
    assert_eq!(spare::unit_for(spare::to_word(3, 9), 4), None);
    assert_eq!(spare::unit_for(0, 0), None);
}

#[test]
fn every_page_has_one_unit() {
    let geometry =
        Geometry { page_size_bytes: 8192, page_count: 100, cpu_count: 4, stream_count: 12, has_register: false };
    assert!(geometry.is_valid());
    for index in 0..100 {
        assert_eq!(geometry.page_of_unit(geometry.unit_of_page(index)), Some(index));
    }
    assert_eq!(geometry.page_of_unit(geometry.unit_of_page(0) - 1), None);
    assert_eq!(geometry.page_of_unit(geometry.unit_of_page(0) + 1), None);
    assert_eq!(geometry.page_of_unit(geometry.unit_of_page(100)), None);
}

#[test]
fn the_tables_of_events_that_are_not_recorded_lie_between_the_pages_and_the_register() {
    for (page_size_bytes, has_register) in [(4096, false), (4096, true), (1 << 20, true)] {
        let geometry = Geometry { page_size_bytes, page_count: 100, cpu_count: 4, stream_count: 12, has_register };
        let (begin, end) = (geometry.unrecorded_offset(), geometry.unrecorded_end());
        assert!(begin >= geometry.pages_end() && begin.is_multiple_of(align_of::<Unrecorded>()));
        assert_eq!(end, begin + 12 * size_of::<Unrecorded>());
        match geometry.register_offset() {
            Some(offset) => assert!(end <= offset && offset < geometry.size_bytes()),
            None => assert_eq!(end, geometry.size_bytes()),
        }
    }
}
