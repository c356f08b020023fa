//! Values on architectures where instructions with immediates cannot be patched: plain variables.

/// Reads the value of an immediate. Here it is a relaxed load of the variable.
///
/// ```text
///   imv_read!(BATCH_SIZE)
/// ```
///
/// The argument is the path of a `static` [`Imv`](crate::Imv). Wait-free; async-signal-safe.
#[macro_export]
macro_rules! imv_read {
    ($key:path $(,)?) => {
        $crate::Imv::read(&$key)
    };
}
