//! Tests of the arena that serves `dlsym`.

#[path = "../src/arena.rs"]
mod arena;

#[test]
fn blocks_are_disjoint_aligned_and_bounded() {
    let mut blocks: Vec<(usize, usize)> = vec![];
    for size in (0..).map(|step| step * 7 % 300) {
        let block = arena::allocate(size);
        if block.is_null() {
            break;
        }
        assert!(arena::contains(block) && (block as usize).is_multiple_of(16));
        // SAFETY: a block of the arena.
        assert!(unsafe { arena::size_of_block(block) } >= size);
        assert!(blocks.iter().all(|(start, end)| block as usize >= *end || (block as usize + size) <= *start));
        blocks.push((block as usize, block as usize + size));
    }
    assert!(blocks.len() > 50);
    assert!(arena::allocate(usize::MAX).is_null() && arena::allocate(1 << 20).is_null());
    assert!(!arena::contains(core::ptr::null_mut()));
}
