//! A device's registers in memory (4.2, "Virtio Over MMIO", version 2): what a virtual machine monitor or an emulator
//! puts behind a page of its guest's address space.
//!
//! ```text
//!   guest ── load, store ──▶ monitor ── read, write ──▶ Registers ── Written::Notified(queue) ──▶ monitor serves the queue
//!     ▲                                                     │                                          │
//!     └────────────── interrupt line ◀── has_interrupt ◀────┴───────────── notify_used ◀───────────────┘
//! ```
//!
//! # States and their owners
//!
//! | status (2.1) | written by | then |
//! | --- | --- | --- |
//! | 0 | driver, or a new device | nothing is negotiated, no queue is ready |
//! | `ACKNOWLEDGE`, `DRIVER` | driver | it selects features |
//! | `FEATURES_OK` | driver; the device leaves the bit out if it cannot accept the features | it describes queues |
//! | `DRIVER_OK` | driver | queues are served |
//! | `FAILED` | driver | it has given up |
//! | `DEVICE_NEEDS_RESET` | device | the driver must write 0 |
//!
//! Registers that 4.2.2 does not allow a driver to write in the current state keep their values, and the attempt is counted.

use alloc::vec::Vec;

use crate::bus::{AreaLocation, Areas, Direct};
use crate::either;
use crate::error::RingError;
use crate::features::Features;
use crate::memory::AddressSpace;

/// Device status bits (2.1).
pub mod status {
    /// The driver has found the device.
    pub const ACKNOWLEDGE: u32 = 1;
    /// The driver knows how to drive it.
    pub const DRIVER: u32 = 2;
    /// The driver is set up.
    pub const DRIVER_OK: u32 = 4;
    /// Features are negotiated.
    pub const FEATURES_OK: u32 = 8;
    /// The device has an error from which only a reset recovers.
    pub const DEVICE_NEEDS_RESET: u32 = 64;
    /// The driver has given up.
    pub const FAILED: u32 = 128;
}
use status::{ACKNOWLEDGE, DEVICE_NEEDS_RESET, DRIVER, DRIVER_OK, FAILED, FEATURES_OK};

/// Offsets of registers (4.2.2, table 4.1).
pub mod register {
    /// "virt".
    pub const MAGIC_VALUE: u64 = 0x000;
    /// 2.
    pub const VERSION: u64 = 0x004;
    /// Type of the device (5).
    pub const DEVICE_ID: u64 = 0x008;
    /// Vendor of the device.
    pub const VENDOR_ID: u64 = 0x00C;
    /// Offered features, 32 of them.
    pub const DEVICE_FEATURES: u64 = 0x010;
    /// Which 32.
    pub const DEVICE_FEATURES_SEL: u64 = 0x014;
    /// Accepted features, 32 of them.
    pub const DRIVER_FEATURES: u64 = 0x020;
    /// Which 32.
    pub const DRIVER_FEATURES_SEL: u64 = 0x024;
    /// The queue that the following registers are about.
    pub const QUEUE_SEL: u64 = 0x030;
    /// Its maximum size; 0: there is no such queue.
    pub const QUEUE_NUM_MAX: u64 = 0x034;
    /// Its size.
    pub const QUEUE_NUM: u64 = 0x038;
    /// 1: the device may use it.
    pub const QUEUE_READY: u64 = 0x044;
    /// A queue that has new buffers.
    pub const QUEUE_NOTIFY: u64 = 0x050;
    /// Causes of interrupts: 1 for a used buffer, 2 for a change of the configuration.
    pub const INTERRUPT_STATUS: u64 = 0x060;
    /// Causes that are handled.
    pub const INTERRUPT_ACK: u64 = 0x064;
    /// Device status; 0 resets the device.
    pub const STATUS: u64 = 0x070;
    /// Address of the selected queue's descriptor area, the lower half; the upper half follows.
    pub const QUEUE_DESC_LOW: u64 = 0x080;
    /// Address of its driver area.
    pub const QUEUE_DRIVER_LOW: u64 = 0x090;
    /// Address of its device area.
    pub const QUEUE_DEVICE_LOW: u64 = 0x0A0;
    /// Length and base of the selected shared memory region, four words; all ones: there is none.
    pub const SHM_LEN_LOW: u64 = 0x0B0;
    /// Number that changes with the configuration.
    pub const CONFIG_GENERATION: u64 = 0x0FC;
    /// The configuration.
    pub const CONFIG: u64 = 0x100;
}

const MAGIC: u32 = u32::from_le_bytes(*b"virt");
/// Causes of interrupts (4.2.2).
const USED_BUFFER: u32 = 1;
const CONFIG_CHANGE: u32 = 2;

/// What a write has caused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Written {
    /// Nothing that the device must do.
    Stored,
    /// The device must end its use of all queues: everything is as it was at first.
    Reset,
    /// The driver is set up: the device may use the queues that are ready.
    Started,
    /// This queue became ready, or is no longer ready; in the latter case the device must end its use of the queue.
    QueueReady(u16, bool),
    /// This queue has new buffers.
    Notified(u16),
}

/// A queue as the driver has described it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Queue {
    /// Maximum size that the device offers.
    pub size_max: u16,
    /// Size that the driver has chosen, up to the maximum.
    pub size: u16,
    /// Whether the device may use the queue.
    pub is_ready: bool,
    /// Driver's addresses of the descriptor area, the driver area and the device area.
    pub addrs: [u64; 3],
}

/// The registers of a device, with the state that they show.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Registers {
    device_id: u32,
    vendor_id: u32,
    offered: u64,
    accepted: u64,
    device_features_sel: u32,
    driver_features_sel: u32,
    queue_sel: u32,
    queues: Vec<Queue>,
    interrupts: u32,
    status: u32,
    generation: u32,
    config: Vec<u8>,
    violations: u64,
}

impl Registers {
    /// Creates the registers of a device of this type (5) with these features; `VIRTIO_F_VERSION_1` is added. Each
    /// queue has a maximum size.
    pub fn new(device_id: u32, vendor_id: u32, offered: u64, queue_sizes_max: &[u16], config: Vec<u8>) -> Registers {
        let queues = queue_sizes_max.iter().map(|size_max| Queue { size_max: *size_max, ..Queue::default() }).collect();
        Registers {
            device_id,
            vendor_id,
            offered: offered | Features::VERSION_1,
            accepted: 0,
            device_features_sel: 0,
            driver_features_sel: 0,
            queue_sel: 0,
            queues,
            interrupts: 0,
            status: 0,
            generation: 0,
            config,
            violations: 0,
        }
    }

    /// Returns the features that the driver has accepted; 0 before `FEATURES_OK`.
    pub fn accepted(&self) -> u64 {
        if self.status & FEATURES_OK != 0 { self.accepted } else { 0 }
    }

    /// Whether queues may be used: the driver is set up, and the device works.
    pub fn is_live(&self) -> bool {
        self.status & (DRIVER_OK | DEVICE_NEEDS_RESET | FAILED) == DRIVER_OK
    }

    /// Returns the queues as the driver has described them.
    pub fn queues(&self) -> &[Queue] {
        &self.queues
    }

    /// Returns the number of accesses that 4.2 does not allow.
    pub fn violations(&self) -> u64 {
        self.violations
    }

    /// Whether the device's interrupt line is raised.
    pub fn has_interrupt(&self) -> bool {
        self.interrupts != 0
    }

    /// Raises an interrupt for used buffers. Call it if [`DeviceSide::needs_interrupt`](crate::DeviceSide::needs_interrupt)
    /// is true.
    pub fn notify_used(&mut self) {
        if self.is_live() {
            self.interrupts |= USED_BUFFER;
        }
    }

    /// Changes the configuration, and raises an interrupt for that.
    pub fn set_config(&mut self, config: Vec<u8>) {
        self.config = config;
        self.generation = self.generation.wrapping_add(1);
        self.notify_config();
    }

    /// Sets `DEVICE_NEEDS_RESET` (2.1.2): queues are not used until the driver has reset the device.
    pub fn need_reset(&mut self) {
        self.status |= DEVICE_NEEDS_RESET;
        self.notify_config();
    }

    fn notify_config(&mut self) {
        if self.status & DRIVER_OK != 0 {
            self.interrupts |= CONFIG_CHANGE;
        }
    }

    /// Creates the device side of a queue that is ready.
    ///
    /// # Errors
    /// [`RingError::Area`] for a queue that is not ready, or is outside of the driver's memory, and those of
    /// [`either::Device::new`].
    ///
    /// # Safety
    /// What `space` translates stays mapped as long as the result is used, and Rust code accesses it only atomically.
    pub unsafe fn connect(&self, queue: u16, space: &impl AddressSpace) -> Result<either::Device<Direct>, RingError> {
        let is_packed = self.accepted & Features::PACKED != 0;
        let found = self.queues.get(usize::from(queue)).filter(|queue| queue.is_ready);
        let Queue { size, addrs, .. } = found.copied().unwrap_or_default();
        let count = usize::from(size);
        let lens = if is_packed { [16 * count, 4, 4] } else { [16 * count, 6 + 2 * count, 6 + 8 * count] };
        let location = |index: usize| match space.translate(addrs[index], lens[index] as u64) {
            Some(at) => AreaLocation(at, lens[index]),
            None => AreaLocation(core::ptr::null_mut(), 0),
        };
        let areas = Areas { descriptor: location(0), driver: location(1), device: location(2) };
        // SAFETY: areas of the driver's memory, which the caller keeps mapped and accesses only atomically, or areas
        // without a byte, which `either::Device::new` refuses.
        let bus = unsafe { Direct::new(areas) };
        either::Device::new(is_packed, bus, size.into(), Features::from_bits(self.accepted))
    }

    fn selected(&self) -> Option<usize> {
        usize::try_from(self.queue_sel).ok().filter(|index| *index < self.queues.len())
    }

    /// Executes a load of `to.len()` bytes at `offset`. What no register has reads as zeroes.
    pub fn read(&mut self, offset: u64, to: &mut [u8]) {
        to.fill(0);
        if let Some(start) = offset.checked_sub(register::CONFIG) {
            let start = usize::try_from(start).unwrap_or(usize::MAX);
            let bytes = self.config.get(start..).unwrap_or_default();
            to.iter_mut().zip(bytes).for_each(|(to, byte)| *to = *byte);
            return;
        }
        // Registers are read and written by words (4.2.2.2).
        if to.len() != 4 || !offset.is_multiple_of(4) {
            self.violations += 1;
            return;
        }
        let queue = self.selected().map(|index| self.queues[index]).unwrap_or_default();
        let value = match offset {
            register::MAGIC_VALUE => MAGIC,
            register::VERSION => 2,
            register::DEVICE_ID => self.device_id,
            register::VENDOR_ID => self.vendor_id,
            register::DEVICE_FEATURES => match self.device_features_sel {
                0 => self.offered as u32,
                1 => (self.offered >> 32) as u32,
                _ => 0,
            },
            register::QUEUE_NUM_MAX => queue.size_max.into(),
            register::QUEUE_READY => queue.is_ready.into(),
            register::INTERRUPT_STATUS => self.interrupts,
            register::STATUS => self.status,
            // There are no shared memory regions (4.2.2): length and base are all ones.
            register::SHM_LEN_LOW..0x0C0 => u32::MAX,
            register::CONFIG_GENERATION => self.generation,
            _ => 0,
        };
        to.copy_from_slice(&value.to_le_bytes());
    }

    /// Executes a store at `offset`, and returns what it has caused. The configuration cannot be written.
    pub fn write(&mut self, offset: u64, from: &[u8]) -> Written {
        let value = match <[u8; 4]>::try_from(from) {
            Ok(bytes) if offset.is_multiple_of(4) && offset < register::CONFIG => u32::from_le_bytes(bytes),
            _ => return self.refuse(),
        };
        let is_negotiating = self.status & (DRIVER | FEATURES_OK) == DRIVER;
        match offset {
            register::DEVICE_FEATURES_SEL => self.device_features_sel = value,
            register::DRIVER_FEATURES_SEL => self.driver_features_sel = value,
            register::DRIVER_FEATURES if is_negotiating => match self.driver_features_sel {
                0 => self.accepted = self.accepted >> 32 << 32 | u64::from(value),
                1 => self.accepted = u64::from(value) << 32 | self.accepted & u64::from(u32::MAX),
                // The device has no such feature.
                _ if value != 0 => return self.refuse(),
                _ => {}
            },
            register::QUEUE_SEL => self.queue_sel = value,
            register::QUEUE_NOTIFY => return self.notified(value),
            register::INTERRUPT_ACK => self.interrupts &= !value,
            register::STATUS => return self.set_status(value),
            register::QUEUE_NUM | register::QUEUE_READY | register::QUEUE_DESC_LOW..0x0A8 => {
                return self.describe_queue(offset, value);
            }
            // The selector of shared memory regions, of which there are none.
            0x0AC => {}
            _ => return self.refuse(),
        }
        Written::Stored
    }

    fn refuse(&mut self) -> Written {
        self.violations += 1;
        Written::Stored
    }

    fn notified(&mut self, value: u32) -> Written {
        match u16::try_from(value) {
            Ok(index) if self.is_live() && self.queues.get(usize::from(index)).is_some_and(|queue| queue.is_ready) => {
                Written::Notified(index)
            }
            _ => self.refuse(),
        }
    }

    fn describe_queue(&mut self, offset: u64, value: u32) -> Written {
        // Queues are described once features are negotiated, and by a driver that did not give up (3.1.1).
        let may = self.status & (FEATURES_OK | FAILED) == FEATURES_OK;
        let is_packed = self.accepted & Features::PACKED != 0;
        let Some(index) = self.selected().filter(|_| may) else { return self.refuse() };
        let queue = &mut self.queues[index];
        if offset == register::QUEUE_READY {
            // A queue without a size cannot be used.
            if value > 1 || (value == 1 && queue.size == 0) {
                return self.refuse();
            }
            let (is_ready, was_ready) = (value == 1, queue.is_ready);
            queue.is_ready = is_ready;
            return if is_ready == was_ready { Written::Stored } else { Written::QueueReady(index as u16, is_ready) };
        }
        if queue.is_ready {
            return self.refuse();
        }
        if offset == register::QUEUE_NUM {
            // A split queue's size is a power of two (2.7).
            let size = u16::try_from(value).ok().filter(|size| (1..=queue.size_max).contains(size));
            let Some(size) = size.filter(|size| is_packed || size.is_power_of_two()) else { return self.refuse() };
            queue.size = size;
            return Written::Stored;
        }
        let (area, half) = ((offset - register::QUEUE_DESC_LOW) / 16, offset % 16);
        let addr = &mut queue.addrs[area as usize];
        match half {
            0 => *addr = *addr >> 32 << 32 | u64::from(value),
            4 => *addr = u64::from(value) << 32 | *addr & u64::from(u32::MAX),
            _ => return self.refuse(),
        }
        Written::Stored
    }

    fn set_status(&mut self, value: u32) -> Written {
        if value == 0 {
            self.reset();
            return Written::Reset;
        }
        let own = DEVICE_NEEDS_RESET;
        let all = ACKNOWLEDGE | DRIVER | FEATURES_OK | DRIVER_OK | FAILED;
        let (old, new) = (self.status & !own, value & !own);
        // A driver sets further bits, in their order (2.1.1, 3.1.1), and never clears one.
        let follows = |bit: u32, needed: u32| new & bit == 0 || new & needed == needed;
        let is_ordered = follows(DRIVER, ACKNOWLEDGE)
            && follows(FEATURES_OK, ACKNOWLEDGE | DRIVER)
            && follows(DRIVER_OK, ACKNOWLEDGE | DRIVER | FEATURES_OK);
        if new & !all != 0 || old & !new != 0 || !is_ordered {
            return self.refuse();
        }
        let mut new = new;
        // The device does not set FEATURES_OK if it cannot accept the features (2.2.2, 6.1).
        let is_acceptable = self.accepted & !self.offered == 0 && self.accepted & Features::VERSION_1 != 0;
        if old & FEATURES_OK == 0 && new & FEATURES_OK != 0 && !is_acceptable {
            new &= !(FEATURES_OK | DRIVER_OK);
        }
        self.status = self.status & own | new;
        if old & DRIVER_OK == 0 && new & DRIVER_OK != 0 { Written::Started } else { Written::Stored }
    }

    /// Makes everything as it was at first, but for the configuration and the number of violations (2.4.1).
    fn reset(&mut self) {
        let sizes: Vec<u16> = self.queues.iter().map(|queue| queue.size_max).collect();
        let config = core::mem::take(&mut self.config);
        let (generation, violations) = (self.generation, self.violations);
        *self = Registers::new(self.device_id, self.vendor_id, self.offered, &sizes, config);
        (self.generation, self.violations) = (generation, violations);
    }
}
