//! Deferred disabling of keys, for users that come and go.

use core::cell::Cell;

use crate::registry::{Change, Registry, elsewhere, with};
use crate::{Error, StaticKey};

/// The users of a key that is disabled only when it has had none for some time: a change costs system calls and disturbs every
/// thread, so a key should not follow users that come and go. Shared with C as `struct dormouse_static_key_deferred`.
///
/// ```text
///              enable: patches                disable
///   disabled ────────────────────▶ used ─────────────────────▶ idle
///      ▲                            ▲       enable: free         │
///      │                            └────────────────────────────┤
///      └─────────────────────────────────────────────────────────┘
///                 expire, after the period: patches
/// ```
///
/// While it is used or idle, it has enabled the key once; others may enable the key too. There is no thread and no clock:
/// the program calls [`expire`](DeferredKey::expire) from a loop or a timer of its own, and times are nanoseconds of a
/// clock of its choice that never goes back. If the program never calls it, the key stays enabled.
///
/// ```
/// use dormouse_imv::{DeferredKey, StaticKey};
///
/// static WATCHED: StaticKey = StaticKey::new();
/// static WATCHERS: DeferredKey = DeferredKey::new(&WATCHED, 1_000_000_000);
///
/// WATCHERS.enable().unwrap();
/// WATCHERS.disable(5_000_000_000).unwrap();
/// assert_eq!(WATCHERS.expire(5_200_000_000).unwrap(), Some(800_000_000));
/// assert!(WATCHED.is_enabled());
/// assert_eq!(WATCHERS.expire(6_000_000_000).unwrap(), None);
/// assert!(!WATCHED.is_enabled());
/// ```
#[repr(C)]
#[derive(Debug)]
pub struct DeferredKey {
    key: &'static StaticKey,
    /// Time that the key stays enabled without users, in nanoseconds.
    period_ns: u64,
    /// Time at which the last user left, in nanoseconds of the program's clock.
    idle_since_ns: Cell<u64>,
    /// Number of users.
    users: Cell<u32>,
    /// 1 while the key is enabled on behalf of the users, otherwise 0.
    is_holding: Cell<u32>,
}

// SAFETY: the cells are accessed only under the registry's lock.
unsafe impl Sync for DeferredKey {}

impl DeferredKey {
    /// Returns the deferral of a key, without users. `period_ns` is the time that the key stays enabled without users, in
    /// nanoseconds.
    pub const fn new(key: &'static StaticKey, period_ns: u64) -> DeferredKey {
        DeferredKey { key, period_ns, idle_since_ns: Cell::new(0), users: Cell::new(0), is_holding: Cell::new(0) }
    }

    /// Adds a user. Changes the key only if it is not still enabled on behalf of former users.
    ///
    /// Errors: [`Error::Reentered`], [`Error::Elsewhere`] (nothing was changed), [`Error::Unbalanced`] (a count would overflow;
    /// nothing was changed), [`Error::Unpatched`] (the user was added). Blocking; async-signal-safe.
    pub fn enable(&'static self) -> Result<(), Error> {
        self.change(|registry, is_holding| {
            let users = self.users.get().checked_add(1).ok_or(Error::Unbalanced)?;
            let answer = if is_holding { Ok(()) } else { self.hold(registry, true) };
            if answer != Err(Error::Unbalanced) {
                self.users.set(users);
            }
            answer
        })
    }

    /// Removes a user. If it was the last one, the period begins at `now_ns`. Never changes the key.
    ///
    /// Errors: [`Error::Reentered`], [`Error::Elsewhere`], [`Error::Unbalanced`] (there is no user). Blocking; async-signal-safe.
    pub fn disable(&'static self, now_ns: u64) -> Result<(), Error> {
        self.change(|_, _| {
            let users = self.users.get().checked_sub(1).ok_or(Error::Unbalanced)?;
            self.users.set(users);
            self.idle_since_ns.set(now_ns);
            Ok(())
        })
    }

    /// Disables the key if it has had no user for the whole period. Returns the time that the period still takes, in
    /// nanoseconds; `None` if it has not begun or is over. `u64::MAX` ends any period.
    ///
    /// Errors: [`Error::Reentered`], [`Error::Elsewhere`]; [`Error::Unpatched`] (the key is disabled nevertheless).
    /// Blocking; async-signal-safe.
    pub fn expire(&'static self, now_ns: u64) -> Result<Option<u64>, Error> {
        self.change(|registry, is_holding| {
            if !is_holding || self.users.get() > 0 {
                return Ok(None);
            }
            match self.period_ns.saturating_sub(now_ns.saturating_sub(self.idle_since_ns.get())) {
                left if left > 0 && now_ns != u64::MAX => Ok(Some(left)),
                _ => self.hold(registry, false).map(|()| None),
            }
        })
    }

    /// Enables or disables the key, unless its count would overflow.
    fn hold(&'static self, registry: &mut Registry, enable: bool) -> Result<(), Error> {
        let change = Change::key(self.key, enable);
        let answer = registry.update(|| core::iter::once(&change));
        if answer != Err(Error::Unbalanced) {
            self.is_holding.set(enable.into());
        }
        answer
    }

    /// Calls `work` under the registry's lock, with the registry and whether the key is enabled on behalf of the users.
    fn change<R>(&'static self, work: impl FnOnce(&mut Registry, bool) -> Result<R, Error>) -> Result<R, Error> {
        if elsewhere().is_some() {
            return Err(Error::Elsewhere);
        }
        with(|registry| work(registry, self.is_holding.get() != 0))?
    }
}
