//! Addresses of copies, and the memory that is present.

use dormouse_percpu::{Pool, PoolOptions, possible_cpus};

use crate::{addresses, bytes, free, layout, os_page_bytes};

#[test]
fn addresses_follow_the_formula() {
    for cpu_count in [1, 2, 5, 64] {
        let options = PoolOptions { cpu_count, stride_bytes: 4 * os_page_bytes(), ..PoolOptions::default() };
        let pool = Pool::new(&options).unwrap();
        assert_eq!(pool.view().cpu_count(), cpu_count);
        let mut ranges = Vec::new();
        for size in [1, 8, 24, 64, 65, 200, 1000, 4096] {
            let object = pool.alloc(layout(size, 8)).unwrap();
            let at = addresses(&pool, object);
            for (cpu, copy) in at.iter().enumerate() {
                assert_eq!(copy.addr().wrapping_sub(at[0].addr()), cpu * 4 * os_page_bytes());
                ranges.push((copy.addr(), copy.addr() + size));
            }
        }
        ranges.sort_unstable();
        assert!(ranges.is_sorted_by(|former, next| former.1 <= next.0), "copies overlap");
    }
}

/// The purpose of the layout: small objects of one CPU share cache lines, and those of two CPUs never do.
#[test]
fn cache_lines_are_shared_only_by_objects_of_one_cpu() {
    let options = PoolOptions { cpu_count: 2, ..PoolOptions::default() };
    let pool = Pool::new(&options).unwrap();
    let objects: Vec<_> = (0..8).map(|_| addresses(&pool, pool.alloc_for::<u64>().unwrap())).collect();
    let lines = |cpu: usize| objects.iter().map(|at| at[cpu].addr() / 64).collect::<std::collections::BTreeSet<_>>();
    assert_eq!((lines(0).len(), lines(1).len()), (1, 1));
    assert!(lines(0).is_disjoint(&lines(1)));
    let pages = |cpu: usize| objects.iter().map(|at| at[cpu].addr() / os_page_bytes()).collect::<Vec<_>>();
    assert!(!pages(0).iter().any(|page| pages(1).contains(page)), "a page of two CPUs");
}

fn is_resident(at: *mut u8) -> bool {
    let page = at.map_addr(|address| address & !(os_page_bytes() - 1));
    let mut state = 0u8;
    // SAFETY: one mapped os_page; the kernel writes one byte.
    assert_eq!(unsafe { libc::mincore(page.cast(), os_page_bytes(), &raw mut state) }, 0);
    state & 1 == 1
}

#[test]
fn memory_is_there_before_the_first_object() {
    let pool = Pool::new(&PoolOptions { cpu_count: 3, ..PoolOptions::default() }).unwrap();
    for _ in 0..2 {
        let at = addresses(&pool, pool.alloc(layout(4096, 4096)).unwrap());
        assert!(at.into_iter().all(is_resident));
    }
}

/// Returns the resident bytes of the mapping that contains an address.
fn resident_bytes(at: *mut u8) -> usize {
    let maps = std::fs::read_to_string("/proc/self/smaps").unwrap();
    let mut is_inside = false;
    for line in maps.lines() {
        let mut words = line.split_whitespace();
        let first = words.next().unwrap_or("");
        if let Some((from, to)) = first.split_once('-').filter(|_| !first.ends_with(':')) {
            let [from, to] = [from, to].map(|address| usize::from_str_radix(address, 16).unwrap());
            is_inside = (from..to).contains(&at.addr());
        } else if is_inside && first == "Rss:" {
            return words.next().unwrap().parse::<usize>().unwrap() << 10;
        }
    }
    panic!("no such mapping");
}

/// Models a container with one CPU on a machine with many.
#[test]
fn unused_strides_of_a_lazy_pool_cost_no_memory() {
    let options = PoolOptions { cpu_count: 1024, is_lazy: true, ..PoolOptions::default() };
    let pool = Pool::new(&options).unwrap();
    let mut first = None;
    for round in 0..20 {
        let object = pool.alloc(layout(512, 8)).unwrap();
        let at = addresses(&pool, object);
        assert!(bytes(at[0], 512).iter().all(|byte| *byte == 0));
        bytes(at[0], 512).fill(round + 1);
        first.get_or_insert(at[0]);
        if round % 3 != 0 {
            free(&pool, object).unwrap();
        }
    }
    // The limit is 16 of 64 MiB, because other tests' pools may be in the same mapping.
    assert!(resident_bytes(first.unwrap()) < 16 << 20);
}

#[test]
fn pools_are_sized_by_possible_cpus() {
    assert_eq!(PoolOptions::default().cpu_count, possible_cpus());
    assert_eq!(Pool::new(&PoolOptions::default()).unwrap().view().cpu_count(), possible_cpus());
}
