mod adaptive;
mod oracle;

use std::sync::atomic::AtomicU8;

use dormouse_vring::{Direct, DriverSide, Features, packed, split};

use crate::{PlainDevice, PlainDriver, ReadBack};

#[repr(align(64))]
struct Line(#[expect(dead_code, reason = "reached by address")] [AtomicU8; 64]);

/// Memory that both sides share, none of it zero at first.
struct Memory(Vec<Line>);

impl Memory {
    fn new(len: usize) -> Memory {
        Memory((0..len.div_ceil(64)).map(|_| Line([const { AtomicU8::new(0xA5) }; 64])).collect())
    }

    fn base(&self) -> *mut u8 {
        self.0.as_ptr().cast_mut().cast()
    }

    /// Returns a bus to the memory of a split ring.
    fn bus(&self, size: u32) -> Direct {
        // SAFETY: the vector outlives the bus in every test, has the layout's size, and its bytes are atomics.
        unsafe { Direct::new(split::contiguous(self.base(), size).unwrap()) }
    }

    /// Returns a bus to an empty split ring.
    fn split_bus(&self, size: u32) -> Direct {
        let bus = self.bus(size);
        split::init(&bus, size).unwrap();
        bus
    }

    /// Returns a bus to an empty packed ring.
    fn packed_bus(&self, size: u32) -> Direct {
        // SAFETY: the vector outlives the bus in every test, has the layout's size, and its bytes are atomics.
        let bus = unsafe { Direct::new(packed::contiguous(self.base(), size).unwrap()) };
        packed::init(&bus, size).unwrap();
        bus
    }
}

#[test]
fn a_plain_device_sees_whether_its_driver_wants_to_be_notified() {
    let memory = Memory::new(split::size_bytes(4).unwrap());
    let bus = memory.split_bus(4);
    let device = PlainDevice::<_, false>::new(bus, 4).unwrap();
    let mut driver = PlainDriver::<_, false>::new(ReadBack::driver(bus, 4), 4, Features::default()).unwrap();
    for _ in 0..2 {
        assert!(device.needs_interrupt());
        driver.disarm_interrupt();
        assert!(!device.needs_interrupt());
        assert!(!driver.arm_interrupt(), "nothing has come");
    }
}
