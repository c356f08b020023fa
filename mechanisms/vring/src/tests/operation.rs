//! Operations on queues, in random order.

use std::fmt::Debug;
use std::vec::Vec;

use proptest::prelude::*;
use proptest::sample::Index;
use proptest::strategy::Union;

/// An operation. `A` is a buffer to add.
#[derive(Debug, Clone)]
pub enum Operation<A> {
    Add(A),
    Publish,
    Kick,
    /// Takes back up to `count` buffers.
    Take {
        count: usize,
    },
    /// Pops up to `count` buffers.
    Pop {
        count: usize,
    },
    /// Gives back the oldest buffer, or any other, completely written or not.
    Push {
        any: Option<Index>,
        written: Option<u32>,
    },
    PublishUsed,
    Interrupt,
    ArmNotification {
        is_wanted: bool,
    },
    ArmInterrupt {
        is_wanted: bool,
    },
}

/// Generates any operation. Publishing is included only for a driver or device that does not publish by itself.
pub fn operation<A: Debug + Clone + 'static>(
    buffer: impl Strategy<Value = A> + 'static,
    driver_publishes: bool,
    device_publishes: bool,
) -> BoxedStrategy<Operation<A>> {
    let any_index = || prop::option::of(any::<Index>());
    let mut all = Vec::from([
        (8, buffer.prop_map(Operation::Add).boxed()),
        (3, Just(Operation::Kick).boxed()),
        (5, (0..8_usize).prop_map(|count| Operation::Take { count }).boxed()),
        (5, (0..8_usize).prop_map(|count| Operation::Pop { count }).boxed()),
        (
            9,
            (any_index(), prop::option::of(any::<u32>()))
                .prop_map(|(any, written)| Operation::Push { any, written })
                .boxed(),
        ),
        (3, Just(Operation::Interrupt).boxed()),
        (2, any::<bool>().prop_map(|is_wanted| Operation::ArmNotification { is_wanted }).boxed()),
        (2, any::<bool>().prop_map(|is_wanted| Operation::ArmInterrupt { is_wanted }).boxed()),
    ]);
    all.extend(driver_publishes.then(|| (4, Just(Operation::Publish).boxed())));
    all.extend(device_publishes.then(|| (4, Just(Operation::PublishUsed).boxed())));
    Union::new_weighted(all).boxed()
}
