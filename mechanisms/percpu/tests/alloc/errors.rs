//! Impossible requests are reported with cause and numbers.

use std::error::Error;

use dormouse_percpu::{
    AllocError, MemoryKind, OBJECT_SIZE_BYTES_MAX, Object, Pool, PoolOptions, Requirement, Shortage,
};
use rustix::process::{Resource, Rlimit, setrlimit};

use crate::{Backing, addresses, flip, free, in_child, layout, os_page_bytes};

fn options() -> PoolOptions {
    let stride_bytes = 2 * os_page_bytes();
    PoolOptions { cpu_count: 2, stride_bytes, limit_bytes: usize::MAX, is_robust: false, is_lazy: false }
}

fn robust() -> PoolOptions {
    PoolOptions { is_robust: true, ..options() }
}

fn text(error: impl Error) -> String {
    error.to_string()
}

#[test]
fn an_object_that_does_not_fit() {
    let pool = Pool::new(&options()).unwrap();
    assert!(pool.alloc(layout(OBJECT_SIZE_BYTES_MAX, 8)).is_ok());
    let error = pool.alloc(layout(OBJECT_SIZE_BYTES_MAX + 1, 8)).unwrap_err();
    assert_eq!(error, AllocError::TooBig { size_bytes: 4097, size_bytes_max: 4096 });
    assert_eq!(text(error), "an object of 4097 bytes does not fit: this pool's objects have at most 4096");

    // Red zones take part of the stride.
    let pool = Pool::new(&PoolOptions { stride_bytes: os_page_bytes(), ..robust() }).unwrap();
    let most = OBJECT_SIZE_BYTES_MAX.min(os_page_bytes() - 16);
    assert_eq!(pool.usage().size_bytes_max, most);
    assert!(pool.alloc(layout(most, 8)).is_ok());
    let error = pool.alloc(layout(most + 1, 8)).unwrap_err();
    assert_eq!(error, AllocError::TooBig { size_bytes: most + 1, size_bytes_max: most });
}

#[test]
fn an_alignment_that_cannot_be_met() {
    let pool = Pool::new(&PoolOptions { stride_bytes: 8 * os_page_bytes(), ..options() }).unwrap();
    assert!(pool.alloc(layout(1, 4096)).is_ok());
    let error = pool.alloc(layout(1, 8192)).unwrap_err();
    assert_eq!(error, AllocError::BadAlignment { align_bytes: 8192, align_bytes_max: 4096 });
    assert_eq!(text(error), "alignment to 8192 bytes cannot be met: this pool aligns to at most 4096");

    let backing = Backing::new(5 * os_page_bytes());
    let pool = Pool::in_region(backing.region(64), &options()).unwrap();
    assert!(pool.alloc(layout(8, 64)).is_ok());
    let error = pool.alloc(layout(8, 128)).unwrap_err();
    assert_eq!(error, AllocError::BadAlignment { align_bytes: 128, align_bytes_max: 64 });
}

fn fill(pool: &Pool) -> (Vec<Object>, AllocError) {
    let mut objects = Vec::new();
    loop {
        match pool.alloc(layout(1024, 8)) {
            Ok(object) => objects.push(object),
            Err(error) => return (objects, error),
        }
    }
}

#[test]
fn exhausted_by_its_limit() {
    let chunk_bytes = 4 * os_page_bytes();
    let limit_bytes = 3 * chunk_bytes + 1;
    let pool = Pool::new(&PoolOptions { limit_bytes, ..options() }).unwrap();
    let (objects, error) = fill(&pool);
    let shortage = Shortage::Limit { limit_bytes, mapped_bytes: 3 * chunk_bytes, chunk_bytes };
    assert_eq!(error, AllocError::Exhausted { size_bytes: 1024, align_bytes: 8, shortage });
    let cause =
        format!("{chunk_bytes} bytes more would pass the limit of {limit_bytes}, of which it has {}", 3 * chunk_bytes);
    assert_eq!(text(error), format!("no room for 1024 bytes per CPU, aligned to 8: {cause}"));
    // Freed memory can be allocated again.
    assert_eq!(free(&pool, objects[1]), Ok(()));
    assert!(pool.alloc(layout(1000, 4)).is_ok());
    assert_eq!(pool.alloc(layout(1024, 8)), Err(error));

    let error = Pool::new(&PoolOptions { limit_bytes: chunk_bytes - 1, ..options() }).unwrap_err();
    let shortage = Shortage::Limit { limit_bytes: chunk_bytes - 1, mapped_bytes: 0, chunk_bytes };
    assert_eq!(error, AllocError::Exhausted { size_bytes: 0, align_bytes: 0, shortage });
    let expected =
        format!("no memory for the pool: {chunk_bytes} bytes more would pass the limit of {}", chunk_bytes - 1);
    assert!(text(error).starts_with(&expected), "{error}");
}

#[test]
fn exhausted_because_memory_is_the_caller_s() {
    let backing = Backing::new(5 * os_page_bytes());
    let pool = Pool::in_region(backing.region(0), &options()).unwrap();
    let (_, error) = fill(&pool);
    let size_bytes = 4 * os_page_bytes();
    let shortage = Shortage::Fixed { size_bytes };
    assert_eq!(error, AllocError::Exhausted { size_bytes: 1024, align_bytes: 8, shortage });
    assert!(text(error).ends_with(&format!("the pool's {size_bytes} bytes are fixed")));
}

#[test]
fn exhausted_because_the_kernel_refuses() {
    // More memory than there are addresses.
    let huge = PoolOptions { cpu_count: 1 << 10, stride_bytes: 1 << 40, is_lazy: true, ..options() };
    let error = Pool::new(&huge).unwrap_err();
    // ENOMEM from Linux, EINVAL from valgrind.
    let AllocError::Exhausted { size_bytes: 0, align_bytes: 0, shortage } = error else { panic!("{error}") };
    let Shortage::Refused { size_bytes, errno } = shortage else { panic!("{error}") };
    assert_eq!(size_bytes, 1 << 50);
    let expected = format!("no memory for the pool: the kernel refuses 1125899906842624 bytes more (errno {errno})");
    assert_eq!(text(error), expected);

    // The kernel refuses memory while the pool grows. There is room left, but not for another chunk: valgrind's own
    // memory counts too, and valgrind exits if it gets none.
    let chunk_bytes = 256 << 20;
    let options = PoolOptions { cpu_count: 1 << 12, stride_bytes: chunk_bytes >> 12, is_lazy: true, ..options() };
    let pool = Pool::new(&options).unwrap();
    let limit = Some((mapped_bytes() + chunk_bytes / 2) as u64);
    let is_refused = in_child(|| {
        setrlimit(Resource::As, Rlimit { current: limit, maximum: limit }).unwrap();
        for _ in 0..1000 {
            match pool.alloc(layout(4096, 8)) {
                Ok(_) => {}
                Err(AllocError::Exhausted { size_bytes: 4096, align_bytes: 8, shortage }) => {
                    return matches!(shortage, Shortage::Refused { .. });
                }
                Err(_) => return false,
            }
        }
        false
    });
    assert!(is_refused);
}

/// Returns the bytes that this process has mapped, including valgrind's.
fn mapped_bytes() -> usize {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
    statm.split(' ').next().unwrap().parse::<usize>().unwrap() * os_page_bytes()
}

#[test]
fn a_double_free() {
    for options in [options(), robust()] {
        let pool = Pool::new(&options).unwrap();
        let [first, second] = [16, 24].map(|size| pool.alloc(layout(size, 8)).unwrap());
        assert_eq!(free(&pool, first), Ok(()));
        let error = free(&pool, first).unwrap_err();
        assert!(matches!(error, AllocError::DoubleFree { .. }));
        assert!(text(error).contains("has been freed before"));
        assert_eq!(pool.usage().object_count, 1);
        assert_eq!(free(&pool, second), Ok(()));
        assert!(matches!(free(&pool, second), Err(AllocError::DoubleFree { .. })));
    }
}

#[test]
fn a_pointer_from_another_pool() {
    let backing = Backing::new(4 * os_page_bytes());
    let pools = [
        Pool::new(&options()).unwrap(),
        Pool::new(&robust()).unwrap(),
        Pool::in_region(backing.region(0), &options()).unwrap(),
    ];
    let objects: Vec<_> = pools.iter().map(|pool| pool.alloc(layout(64, 8)).unwrap()).collect();
    for (mine, pool) in pools.iter().enumerate() {
        for (index, object) in objects.iter().enumerate().filter(|(index, _)| *index != mine) {
            let error = free(pool, *object).unwrap_err();
            assert!(matches!(error, AllocError::Foreign { .. }), "pool {mine}, object {index}: {error}");
            assert!(text(error).starts_with("no object of this pool starts at 0x"));
            assert_eq!((pool.size_of(*object), pool.offset_of(*object)), (None, None));
        }
        // Inside an object, or where no object has ever been.
        for beyond in [1, 8, 64, 128, 1 << 12, 1 << 45] {
            // SAFETY: a handle is one word. It is only freed, which is refused.
            let word = unsafe { std::mem::transmute_copy::<Object, usize>(&objects[mine]) };
            // SAFETY: a handle is one word, and not 0. It is only freed, which is refused.
            let inside = unsafe { std::mem::transmute_copy::<usize, Object>(&(word + beyond)) };
            assert!(matches!(free(pool, inside), Err(AllocError::Foreign { .. })), "{beyond} bytes on");
        }
        assert_eq!(free(pool, objects[mine]), Ok(()));
    }
}

#[test]
fn a_corrupted_red_zone() {
    let pool = Pool::new(&robust()).unwrap();
    for cpu in 0..2 {
        let object = pool.alloc(layout(21, 1)).unwrap();
        let withdrawn = pool.usage().withdrawn_bytes;
        let end = addresses(&pool, object)[cpu].wrapping_add(21);
        let found = flip(end);
        let error = free(&pool, object).unwrap_err();
        let AllocError::Corrupted(corruption) = error else { panic!("{error}") };
        assert_eq!(
            (corruption.kind, corruption.cpu, corruption.address),
            (MemoryKind::RedZone, cpu as u32, end.addr())
        );
        let expected = format!(
            "the red zone behind an object of CPU {cpu} was written to: {end:p} holds {found:#04x} instead of {:#04x}",
            !found
        );
        assert_eq!(text(error), expected);
        assert_eq!(pool.usage().object_count, 0);
        assert!(pool.usage().withdrawn_bytes > withdrawn);
        // Those bytes are not allocated again.
        let next = pool.alloc(layout(21, 1)).unwrap();
        assert!(!addresses(&pool, next).contains(&end.wrapping_sub(21)));
        assert_eq!(free(&pool, next), Ok(()));
    }
}

#[test]
fn corrupted_poison() {
    let pool = Pool::new(&robust()).unwrap();
    let object = pool.alloc(layout(40, 8)).unwrap();
    let at = addresses(&pool, object);
    assert_eq!(free(&pool, object), Ok(()));
    let found = flip(at[1].wrapping_add(39));
    let error = pool.alloc(layout(40, 8)).unwrap_err();
    let AllocError::Corrupted(corruption) = error else { panic!("{error}") };
    assert_eq!((corruption.kind, corruption.address), (MemoryKind::Free, at[1].addr() + 39));
    assert_eq!((corruption.found, corruption.expected), (found, 0x5a));
    assert_eq!(corruption.cpu, 1);
    assert!(text(error).starts_with("free memory of CPU 1"));
    // The corruption is reported once. The bytes are not allocated from now on.
    let next = pool.alloc(layout(40, 8)).unwrap();
    assert!(addresses(&pool, next).iter().all(|copy| *copy != at[1]));
    assert!(pool.usage().withdrawn_bytes > 0);
    assert_eq!(pool.audit(), Ok(()));
}

#[test]
fn writes_to_memory_that_was_never_allocated() {
    let pool = Pool::new(&robust()).unwrap();
    let object = pool.alloc(layout(64, 8)).unwrap();
    let far = addresses(&pool, object)[1].wrapping_add(1000);
    flip(far);
    let Err(AllocError::Corrupted(corruption)) = pool.audit() else { panic!("not noticed") };
    assert_eq!((corruption.kind, corruption.address, corruption.expected), (MemoryKind::Free, far.addr(), 0));
    let (_, error) = fill(&pool);
    assert_eq!(error, AllocError::Corrupted(corruption));
}

#[test]
fn options_that_cannot_be_met() {
    let refused = |options: PoolOptions| match Pool::new(&options) {
        Err(AllocError::BadOption { option, value, need }) => (option, value, need),
        other => panic!("{other:?}"),
    };
    let cpus = Requirement::Between { least: 1, most: 1 << 16 };
    assert_eq!(refused(PoolOptions { cpu_count: 0, ..options() }), ("cpu_count", 0, cpus));
    assert_eq!(refused(PoolOptions { cpu_count: u32::MAX, ..options() }), ("cpu_count", u32::MAX as usize, cpus));
    let strides = Requirement::Between { least: os_page_bytes(), most: 1 << 40 };
    for stride_bytes in [0, os_page_bytes() - 1, (1 << 40) + 1, usize::MAX] {
        assert_eq!(refused(PoolOptions { stride_bytes, ..options() }), ("stride_bytes", stride_bytes, strides));
    }
    for stride_bytes in [os_page_bytes() + 904, 3 * os_page_bytes()] {
        let uneven = PoolOptions { stride_bytes, ..options() };
        assert_eq!(refused(uneven), ("stride_bytes", stride_bytes, Requirement::PowerOfTwo));
        let expected = format!("stride_bytes is {stride_bytes}, but must be a power of two");
        assert_eq!(text(Pool::new(&uneven).unwrap_err()), expected);
    }

    let backing = Backing::new(4 * os_page_bytes());
    let in_region = |offset| Pool::in_region(backing.region(offset), &options()).map(drop);
    assert_eq!(in_region(0), Ok(()));
    let Err(AllocError::BadOption { option, value, .. }) = in_region(64) else { panic!() };
    assert_eq!((option, value), ("region.size_bytes", 4 * os_page_bytes() - 64));
    let Err(AllocError::BadOption { option, need: Requirement::MultipleOf(_), .. }) = in_region(4) else { panic!() };
    assert_eq!(option, "region.base");
}

#[test]
fn a_handler_that_interrupts_the_pool() {
    let pool = Pool::new(&options()).unwrap();
    let object = pool.alloc(layout(8, 8)).unwrap();
    let inside = pool.hold(|| (pool.alloc(layout(8, 8)), free(&pool, object), pool.audit(), pool.hold(|| ())));
    let refused = AllocError::Reentered;
    assert_eq!(inside, Ok((Err(refused), Err(AllocError::Reentered), Err(refused), Err(refused))));
    assert!(text(refused).contains("signal handler"));
    assert_eq!(free(&pool, object), Ok(()));
}
