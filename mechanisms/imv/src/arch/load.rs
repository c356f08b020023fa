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

/// The entry of a static call. Here it is a function that loads the address of another.
#[doc(hidden)]
#[macro_export]
macro_rules! __call_entry {
    ($target:path, ($($argument:ident: $type:ty),*) $(-> $result:ty)?) => {
        #[inline(always)]
        extern "C" fn entry($($argument: $type),*) $(-> $result)? {
            let function = $crate::Imv::read(&$target);
            // (F) pairs with (G): what was written before the update is visible to the function.
            ::core::sync::atomic::fence(::core::sync::atomic::Ordering::Acquire);
            function($($argument),*)
        }
    };
}
