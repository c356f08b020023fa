//! Static calls: functions that a program exchanges while it runs, called without an indirect branch.

/// Defines a module for a function that can be exchanged: `call` calls the current function, `update` sets it, and `sites`
/// says whether calls are direct.
///
/// ```text
///   handle::call(7)   ──▶  entry:  jmp function         one instruction that an update changes, by one store
///                                  jmp [variable]       before the constructors, where text cannot be written, and if
///                                                       the function is more than 2 GiB away (128 MiB on AArch64)
/// ```
///
/// A call is a direct call of the entry and a direct jump: no data is read, and no predictor of indirect branches is
/// needed. When `update` has returned `Ok`, every later call in every thread calls the new function, and sees what was
/// written before the update. Until then each call separately may call the old function or the new one, and a thread that
/// is in the old one stays in it. `sites` returns one site, which is counted as patched if calls are direct. On
/// architectures other than x86-64 and AArch64 a call loads the function's address.
///
/// The module stands outside of functions, and sees the names around it. The functions have C's calling convention, because
/// the entry is assembly. Errors of `update` are those of
/// [`Imv::set`](crate::Imv::set). A call is wait-free and async-signal-safe if the function is; `update` is blocking, and
/// async-signal-safe.
///
/// ```
/// extern "C" fn plain(number: u32) -> u32 { number }
/// extern "C" fn double(number: u32) -> u32 { 2 * number }
///
/// mod shop {
///     dormouse_imv::static_call! {
///         /// Prices an order.
///         pub mod price: extern "C" fn(number: u32) -> u32 = crate::plain;
///     }
/// }
/// # fn main() {
/// assert_eq!(shop::price::call(21), 21);
/// shop::price::update(double).unwrap();
/// assert_eq!(shop::price::call(21), 42);
/// # }
/// ```
#[macro_export]
macro_rules! static_call {
    ($($(#[$meta:meta])* $vis:vis mod $name:ident:
        extern "C" fn($($argument:ident: $type:ty),* $(,)?) $(-> $result:ty)? = $function:path;)*) => {$(
        $(#[$meta])*
        #[allow(dead_code, unused_imports, reason = "a program need not use all functions, nor its types names from outside")]
        $vis mod $name {
            use super::*;

            static TARGET: $crate::Imv<extern "C" fn($($type),*) $(-> $result)?> = $crate::Imv::new($function);

            $crate::__call_entry!(TARGET, ($($argument: $type),*) $(-> $result)?);

            /// Calls the current function.
            #[inline(always)]
            pub fn call($($argument: $type),*) $(-> $result)? {
                entry($($argument),*)
            }

            /// Makes `function` the current one.
            pub fn update(function: extern "C" fn($($type),*) $(-> $result)?) -> ::core::result::Result<(), $crate::Error> {
                $crate::update(&[TARGET.to_published(function)])
            }

            /// Counts its sites; one that is not patched loads the function's address.
            pub fn sites() -> ::core::result::Result<$crate::SiteCount, $crate::Error> {
                TARGET.sites()
            }
        }
    )*};
}
