use std::collections::VecDeque;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering::Relaxed};

use dormouse_abi::txn::Txn;
use dormouse_abi::vring::{DESC_F_NEXT, DESC_F_WRITE, RING_SIZE_MAX, RingLayout};
use proptest::collection::vec;
use proptest::prelude::*;

use crate::owned::{execute, execute_store};
use crate::{Buffer, Device, OwnedDriver, RingError, SplitDriver, init, need_event};

#[repr(align(64))]
struct Line([AtomicU8; 64]);

/// A ring's memory, all of it some byte before [`init`].
struct Memory(Vec<Line>);

impl Memory {
    fn new(size: u32, byte: u8) -> Memory {
        let lines = RingLayout { size }.size_bytes() / 64;
        let memory = Memory((0..lines).map(|_| Line([const { AtomicU8::new(0) }; 64])).collect());
        memory.bytes().for_each(|at| at.store(byte, Relaxed));
        // SAFETY: the vector has the layout's size, and its bytes are atomics.
        assert_eq!(unsafe { init(memory.base(), size) }, Ok(()));
        memory
    }

    fn base(&self) -> *mut u8 {
        self.0.as_ptr().cast_mut().cast()
    }

    fn bytes(&self) -> impl Iterator<Item = &AtomicU8> {
        self.0.iter().flat_map(|line| &line.0)
    }

    fn put(&self, offset: usize, bytes: &[u8]) {
        self.bytes().skip(offset).zip(bytes).for_each(|(at, byte)| at.store(*byte, Relaxed));
    }

    fn device(&self, size: u32) -> Device {
        // SAFETY: the vector outlives the device in every test, has the layout's size, and its bytes are atomics.
        unsafe { Device::new(self.base(), size) }.unwrap()
    }

    fn driver(&self, size: u32) -> OwnedDriver {
        // SAFETY: as in `device`.
        unsafe { OwnedDriver::new(self.base(), size) }.unwrap()
    }

    fn planner(&self, size: u32, published: &AtomicU64) -> SplitDriver {
        // SAFETY: as in `device`; so does the shadow.
        unsafe { SplitDriver::new(self.base(), size, published.as_ptr()) }.unwrap()
    }
}

/// Commits as an executor does, guard included.
fn commit(txn: &Txn, published: &AtomicU64) -> bool {
    let holds = published.load(Relaxed) == txn.expected;
    if holds {
        // SAFETY: planned by a driver whose memory the test keeps.
        unsafe { execute(txn) };
    }
    holds
}

#[derive(Debug, Clone)]
enum Operation {
    /// Write one descriptor.
    Add { addr: u64, len: u32 },
    /// Be aborted or killed after so many plain stores of one.
    AddAborted { addr: u64, len: u32, stores: usize },
    /// Publish as of so many descriptors ago: only the newest may succeed.
    Publish { behind: u64 },
    /// Take back what is used.
    TakeUsed,
    /// Pop up to so many.
    Pop { count: usize },
    /// Use the oldest or the newest popped one.
    Use { newest: bool },
    /// Show what is used.
    PublishUsed,
    /// Ask to be woken at so many buffers, less one, modulo the ring's size.
    Arm { count: u16 },
}

fn operation() -> impl Strategy<Value = Operation> {
    prop_oneof![
        6 => any::<(u64, u32)>().prop_map(|(addr, len)| Operation::Add { addr, len }),
        1 => (any::<(u64, u32)>(), 0..4_usize).prop_map(|((addr, len), stores)| Operation::AddAborted { addr, len, stores }),
        4 => prop_oneof![4 => Just(0), 1 => 1..4_u64].prop_map(|behind| Operation::Publish { behind }),
        3 => Just(Operation::TakeUsed),
        4 => (0..6_usize).prop_map(|count| Operation::Pop { count }),
        5 => any::<bool>().prop_map(|newest| Operation::Use { newest }),
        3 => Just(Operation::PublishUsed),
        2 => prop_oneof![Just(0), any::<u16>()].prop_map(|count| Operation::Arm { count }),
    ]
}

/// Runs the operations on a ring that has come to `start`, with plain queues as the oracle.
fn run(size_log2: u32, start: u64, operations: Vec<Operation>) {
    let size = 1 << size_log2;
    let memory = Memory::new(size, 0xA5);
    let published = AtomicU64::new(start);
    let driver = memory.planner(size, &published);
    let layout = RingLayout { size };
    for offset in [layout.avail_idx(), layout.used_idx(), layout.avail_event()] {
        memory.put(offset, &(start as u16).to_le_bytes());
    }
    // SAFETY: as in `Memory::device`.
    let mut device = unsafe { Device::with_base(memory.base(), size, start as u16) }.unwrap();

    let (mut written, mut available, mut popped) = (VecDeque::new(), VecDeque::new(), VecDeque::new());
    let (mut pushed, mut used) = (VecDeque::new(), VecDeque::new());
    let mut free = vec![true; size as usize];
    let (mut taken, mut shown, mut event) = (start, start, start);
    for operation in operations {
        let k = published.load(Relaxed);
        let id = (k % u64::from(size)) as u16;
        match operation {
            Operation::Add { addr, len } => {
                if free[id as usize] {
                    assert!(commit(&driver.plan_descriptor(k, addr, len), &published));
                    assert!(!commit(&driver.plan_descriptor(k, addr, len), &published));
                    free[id as usize] = false;
                    written.push_back(Buffer { id, addr, len });
                }
            }
            Operation::AddAborted { addr, len, stores } => {
                if free[id as usize] {
                    for store in driver.plan_descriptor(k, addr, len).stores.iter().take(stores.min(3)) {
                        // SAFETY: as in `commit`.
                        unsafe { execute_store(store) };
                    }
                }
            }
            Operation::Publish { behind } => {
                let k1 = k.saturating_sub(behind);
                let done = commit(&driver.plan_publish(k1), &published);
                assert_eq!(done, k1 == k);
                if done {
                    available.append(&mut written);
                    // The oracle of notification: the step passes the event, counted without wrapping.
                    assert_eq!(driver.needs_kick(shown as u16, k as u16), shown <= event && event < k);
                    shown = k;
                }
            }
            Operation::TakeUsed => {
                for elem in driver.used(taken) {
                    let elem = elem.unwrap();
                    assert_eq!(Some((elem.id as u16, elem.len)), used.pop_front());
                    free[elem.id as usize] = true;
                    taken += 1;
                }
                assert!(used.is_empty());
            }
            Operation::Pop { count } => {
                for _ in 0..count {
                    let buffer = device.pop().unwrap();
                    assert_eq!(buffer, available.pop_front());
                    popped.extend(buffer);
                }
            }
            Operation::Use { newest } => {
                if let Some(buffer) = if newest { popped.pop_back() } else { popped.pop_front() } {
                    device.push_used(buffer.id, buffer.len ^ 1);
                    pushed.push_back((buffer.id, buffer.len ^ 1));
                }
            }
            Operation::PublishUsed => {
                device.publish_used();
                used.append(&mut pushed);
            }
            Operation::Arm { count } => {
                let count = count % size as u16 + 1;
                event = shown - available.len() as u64 + u64::from(count) - 1;
                assert_eq!(device.arm_notification_after(count), available.len() >= count.into());
            }
        }
    }
    assert_eq!(device.lie(), None);
}

proptest! {
    #[test]
    fn operations_match_the_oracle(
        size_log2 in 0..6_u32,
        start in prop_oneof![Just(0_u64), 65_500..65_536_u64, (1_u64 << 32) - 40..(1 << 32)],
        operations in vec(operation(), 0..400),
    ) {
        run(size_log2, start, operations);
    }

    /// Against counters that do not wrap: the step from `old` to `new` passes an event that is not too far away.
    #[test]
    fn need_event_passes_the_event(old in 0..200_000_u64, step in 0..=32_768_u64, event in -32_767..32_767_i64) {
        let event = old.saturating_add_signed(event);
        let new = old + step;
        prop_assert_eq!(need_event(event as u16, new as u16, old as u16), old <= event && event < new);
    }

    /// Whatever a driver writes anywhere, the device ends each pop, and what it yields is inside the ring.
    #[test]
    fn a_hostile_driver_is_survived(
        size_log2 in 0..5_u32,
        writes in vec((any::<prop::sample::Index>(), vec(any::<u8>(), 1..24)), 1..40),
        index_steps in vec(prop_oneof![3 => 0..40_u16, 1 => any::<u16>()], 1..40),
    ) {
        let size = 1 << size_log2;
        let memory = Memory::new(size, 0xFF);
        let layout = RingLayout { size };
        let mut device = memory.device(size);
        let mut errors = 0;
        for ((at, bytes), step) in writes.iter().zip(&index_steps) {
            memory.put(at.index(layout.size_bytes()), bytes);
            memory.put(layout.avail_idx(), &device.last_avail().wrapping_add(*step).to_le_bytes());
            let mut results = 0;
            loop {
                match device.pop() {
                    Ok(None) => break,
                    Ok(Some(buffer)) => {
                        prop_assert!(u32::from(buffer.id) < size);
                        device.push_used(buffer.id, 0);
                    }
                    Err(error) => {
                        errors += 1;
                        prop_assert!(device.lie().is_some());
                        if matches!(error, RingError::AvailIndex { .. }) {
                            prop_assert!(u32::from(*step) > size);
                            break;
                        }
                    }
                }
                results += 1;
                prop_assert!(results <= size);
            }
            device.publish_used();
            device.arm_notification();
        }
        prop_assert_eq!(errors == 0, device.lie().is_none());
    }

    /// Whatever a device writes anywhere, the driver yields at most `size` elements, all inside the ring.
    #[test]
    fn a_hostile_device_is_survived(
        size_log2 in 0..5_u32,
        writes in vec((any::<prop::sample::Index>(), vec(any::<u8>(), 1..24)), 1..40),
    ) {
        let size = 1 << size_log2;
        let memory = Memory::new(size, 0xFF);
        let layout = RingLayout { size };
        let mut driver = memory.driver(size);
        let published = AtomicU64::new(0);
        for (at, bytes) in writes {
            memory.put(at.index(layout.size_bytes()), &bytes);
            let found: Vec<_> = memory.planner(size, &published).used(0).collect();
            prop_assert!(found.len() <= size as usize);
            prop_assert!(found.iter().flatten().all(|elem| elem.id < size));
            while driver.add(0, 0).is_ok() {}
            driver.publish();
            let mut freed = 0;
            for _ in 0..=size {
                freed += u32::from(matches!(driver.take_used(), Ok(Some(_))));
            }
            prop_assert!(freed <= size);
        }
    }
}

#[test]
fn errors_name_index_and_value() {
    let memory = Memory::new(4, 0);
    let layout = RingLayout { size: 4 };
    let mut driver = memory.driver(4);
    let mut device = memory.device(4);
    assert_eq!((0..4).map(|n| driver.add(n, 0).unwrap()).collect::<Vec<_>>(), [0, 1, 2, 3]);
    assert_eq!(driver.add(4, 0), Err(RingError::Full { index: 0 }));
    memory.put(layout.desc() + 12, &DESC_F_NEXT.to_le_bytes());
    memory.put(layout.desc() + 16 + 12, &DESC_F_WRITE.to_le_bytes());
    memory.put(layout.avail_ring() + 2 * 2, &4_u16.to_le_bytes());
    assert_eq!(device.pop(), Ok(None));
    driver.publish();
    assert_eq!(device.pop(), Err(RingError::DescriptorFlags { index: 0, value: 1 }));
    assert_eq!(device.pop(), Err(RingError::DescriptorFlags { index: 1, value: 2 }));
    assert_eq!(device.pop(), Err(RingError::AvailId { index: 2, value: 4 }));
    assert_eq!(device.pop(), Ok(Some(Buffer { id: 3, addr: 3, len: 0 })));
    memory.put(layout.avail_idx(), &9_u16.to_le_bytes());
    assert_eq!(device.pop(), Err(RingError::AvailIndex { index: 4, value: 9 }));
    memory.put(layout.avail_idx(), &4_u16.to_le_bytes());
    assert_eq!(device.pop(), Ok(None));
    assert_eq!(device.lie(), Some(RingError::DescriptorFlags { index: 0, value: 1 }));

    // The device says that it used what it has, and then again.
    device.push_used(3, 0);
    device.push_used(3, 0);
    device.publish_used();
    assert_eq!(driver.take_used().map(|elem| elem.map(|elem| elem.id)), Ok(Some(3)));
    assert_eq!(driver.take_used().map(|_| ()), Err(RingError::UsedId { index: 1, value: 3 }));
    assert_eq!(driver.take_used().map(|elem| elem.is_none()), Ok(true));
    memory.put(layout.used_idx(), &7_u16.to_le_bytes());
    assert_eq!(driver.take_used().map(|_| ()), Err(RingError::UsedIndex { index: 2, value: 7 }));
}

#[test]
fn impossible_rings_are_refused() {
    let memory = Memory::new(4, 0);
    for size in [0, 3, 2 * RING_SIZE_MAX] {
        // SAFETY: refused before anything is accessed.
        assert_eq!(unsafe { init(memory.base(), size) }, Err(RingError::Size { size }));
    }
    let address = memory.base().addr() + 8;
    // SAFETY: refused before anything is accessed.
    assert_eq!(unsafe { init(memory.base().wrapping_add(8), 4) }, Err(RingError::Alignment { address }));
}

#[test]
fn the_largest_ring_is_filled_and_drained() {
    let memory = Memory::new(RING_SIZE_MAX, 0xFF);
    let (mut driver, mut device) = (memory.driver(RING_SIZE_MAX), memory.device(RING_SIZE_MAX));
    for round in 0..3_u64 {
        for n in 0..RING_SIZE_MAX {
            assert_eq!(driver.add(round << 32 | u64::from(n), n), Ok(n as u16));
        }
        assert!(driver.add(0, 0).is_err());
        driver.publish();
        for n in 0..RING_SIZE_MAX {
            assert_eq!(device.pop(), Ok(Some(Buffer { id: n as u16, addr: round << 32 | u64::from(n), len: n })));
            device.push_used(n as u16, 0);
        }
        device.publish_used();
        for n in 0..RING_SIZE_MAX {
            assert_eq!(driver.take_used().unwrap().unwrap().id, n);
        }
    }
}

#[test]
fn two_threads_hand_over_in_order_and_lose_no_kick() {
    const COUNT: u64 = 300_000;
    let memory = Memory::new(16, 0);
    let (mut driver, mut device) = (memory.driver(16), memory.device(16));
    let (kick, kicked) = std::sync::mpsc::channel();
    std::thread::scope(|scope| {
        let device = scope.spawn(move || {
            let mut next = 0;
            while next < COUNT {
                match device.pop().unwrap() {
                    Some(buffer) => {
                        assert_eq!((buffer.addr, buffer.len), (next, next as u32));
                        next += 1;
                        device.push_used(buffer.id, 0);
                    }
                    None => {
                        device.publish_used();
                        // Asleep until kicked: a lost kick would be a hang, since the driver waits for used buffers.
                        if !device.arm_notification() {
                            kicked.recv_timeout(std::time::Duration::from_secs(30)).expect("a kick was lost");
                        }
                    }
                }
            }
            device.publish_used();
        });
        let mut freed = 0;
        for n in 0..COUNT {
            while driver.add(n, n as u32).is_err() {
                if driver.publish() {
                    // The other side has ended only when it had everything.
                    kick.send(()).unwrap();
                }
                while driver.take_used().unwrap().is_some() {
                    freed += 1;
                }
                assert!(!device.is_finished(), "the device failed");
                std::thread::yield_now();
            }
            if n % 7 == 0 && driver.publish() {
                // Nobody listens any more when the other side took the last one without being woken.
                _ = kick.send(());
            }
        }
        if driver.publish() {
            _ = kick.send(());
        }
        while freed < COUNT {
            let failed = device.is_finished();
            match driver.take_used().unwrap() {
                Some(_) => freed += 1,
                None => assert!(!failed, "the device failed"),
            }
        }
    });
}
