//! Deferred disabling of a key, against a model with a clock of its own.
#![cfg(target_os = "linux")]

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;

use dormouse_imv::{DeferredKey, Error, StaticKey, disable, enable, static_branch};
use dormouse_testing::random;

const PERIOD_NS: u64 = 1_000;

#[test]
fn the_key_stays_enabled_until_it_has_had_no_user_for_the_period() {
    static KEY: StaticKey = StaticKey::new();
    static USERS: DeferredKey = DeferredKey::new(&KEY, PERIOD_NS);
    let gate = || static_branch!(KEY);
    assert_eq!(USERS.disable(0), Err(Error::Unbalanced));
    assert_eq!(USERS.expire(u64::MAX), Ok(None));
    USERS.enable().unwrap();
    USERS.enable().unwrap();
    assert_eq!((gate(), KEY.count()), (true, 1));
    USERS.disable(100).unwrap();
    assert_eq!((USERS.expire(u64::MAX), gate()), (Ok(None), true), "there is a user");
    USERS.disable(200).unwrap();
    assert_eq!(USERS.disable(200), Err(Error::Unbalanced));
    assert_eq!((USERS.expire(1_199), gate()), (Ok(Some(1)), true));
    // A user begins the period anew, without a change of the key.
    USERS.enable().unwrap();
    assert_eq!(USERS.expire(5_000), Ok(None));
    USERS.disable(5_000).unwrap();
    assert_eq!((USERS.expire(5_999), gate()), (Ok(Some(1)), true));
    assert_eq!((USERS.expire(6_000), gate()), (Ok(None), false));
    // Any period can be ended at once; other users of the key keep theirs.
    USERS.enable().unwrap();
    enable(&KEY).unwrap();
    USERS.disable(7_000).unwrap();
    assert_eq!((USERS.expire(u64::MAX), gate(), KEY.count()), (Ok(None), true, 1));
    disable(&KEY).unwrap();
    assert!(!gate());
    // A clock that goes back lengthens the period, and no more.
    USERS.enable().unwrap();
    USERS.disable(9_000).unwrap();
    assert_eq!(USERS.expire(8_000), Ok(Some(PERIOD_NS)));
    assert_eq!((USERS.expire(10_000), gate()), (Ok(None), false));
}

#[test]
fn random_users_agree_with_a_model() {
    static KEY: StaticKey = StaticKey::new();
    static USERS: DeferredKey = DeferredKey::new(&KEY, PERIOD_NS);
    let gate = || static_branch!(KEY);
    for seed in 1..=20 {
        let mut random = random(seed);
        let (mut now_ns, mut users, mut is_on, mut left_ns) = (0, 0_u32, false, 0);
        for _ in 0..500 {
            now_ns += random(500) as u64;
            match random(3) {
                0 => {
                    USERS.enable().unwrap();
                    (users, is_on) = (users + 1, true);
                }
                1 => {
                    assert_eq!(USERS.disable(now_ns).is_ok(), users > 0, "seed {seed}");
                    if users > 0 {
                        (users, left_ns) = (users - 1, now_ns);
                    }
                }
                _ => {
                    let due_ns = left_ns + PERIOD_NS;
                    let is_idle = is_on && users == 0;
                    is_on &= !(is_idle && now_ns >= due_ns);
                    let expected = (is_idle && is_on).then(|| due_ns - now_ns);
                    assert_eq!(USERS.expire(now_ns), Ok(expected), "seed {seed}");
                }
            }
            assert_eq!((gate(), KEY.count()), (is_on, is_on.into()), "seed {seed}");
        }
        (0..users).for_each(|_| USERS.disable(now_ns).unwrap());
        USERS.expire(u64::MAX).unwrap();
        assert!(!gate());
    }
}

#[test]
fn a_user_never_finds_its_key_disabled() {
    static KEY: StaticKey = StaticKey::new();
    static USERS: DeferredKey = DeferredKey::new(&KEY, 0);
    static STOP: AtomicBool = AtomicBool::new(false);
    static CLOSED: AtomicU64 = AtomicU64::new(0);
    thread::scope(|scope| {
        scope.spawn(|| {
            while !STOP.load(Ordering::SeqCst) {
                USERS.expire(u64::MAX).unwrap();
            }
        });
        let use_it = || {
            for _ in 0..500 {
                USERS.enable().unwrap();
                CLOSED.fetch_add(u64::from(!static_branch!(KEY)), Ordering::SeqCst);
                USERS.disable(0).unwrap();
            }
        };
        let users = [scope.spawn(use_it), scope.spawn(use_it)];
        let answers = users.map(|user| user.join());
        STOP.store(true, Ordering::SeqCst);
        assert!(answers.iter().all(Result::is_ok), "{answers:?}");
    });
    USERS.expire(u64::MAX).unwrap();
    assert_eq!((CLOSED.load(Ordering::SeqCst), KEY.count()), (0, 0));
}
