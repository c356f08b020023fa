//! Rows for slices that overlap: each owner has a stack of its own, in which only its slices are nested.
//!
//! ```text
//!   slices that began on one CPU      stacks
//!   thread 7  ├─────────────────┤     0   ├─────────────────┤
//!   thread 7     ├───┤                       ├───┤
//!   thread 8       ├──────┤           1        ├──────┤
//!   thread 9                  ├──┤    1                   ├──┤   thread 8 has none open any more
//! ```

/// Maximum number of stacks of a CPU. Slices of further threads are counted.
pub(crate) const STACKS_OF_CPU: usize = 32;
/// Maximum depth of a stack of a CPU. Slices that are nested deeper are counted.
pub(crate) const DEPTH_OF_CPU: usize = 32;

/// Thread and lane that a slice belongs to.
pub(crate) type Owner = (u32, u32);

/// A stack, and the end of the slice at each depth: of the last one, if none is open.
#[derive(Debug, Clone, Default)]
struct Stack {
    owner: Owner,
    ends: Vec<i64>,
}

/// Stack and depth of a slice.
pub(crate) type Level = (u32, u32);

/// The stacks of a CPU, or the only one of a thread.
#[derive(Debug, Clone, Default)]
pub(crate) struct Stacks(Vec<Stack>);

impl Stacks {
    /// Places a slice; `None` if there are too many stacks, or it is too deep. Slices must come in the order of begins,
    /// longer ones first. `end`: `i64::MAX` if it is not known yet; then [`Stacks::end`] must be called.
    pub(crate) fn begin(&mut self, owner: Owner, begin: i64, end: i64, maxima: (usize, usize)) -> Option<Level> {
        let is_open = |stack: &Stack| stack.ends.iter().any(|until| *until > begin);
        let own = self.0.iter().position(|stack| stack.owner == owner && is_open(stack));
        let index = own.or_else(|| self.0.iter().position(|stack| !is_open(stack))).unwrap_or(self.0.len());
        if index >= maxima.0 {
            return None;
        }
        if index == self.0.len() {
            self.0.push(Stack::default());
        }
        let stack = &mut self.0[index];
        stack.owner = owner;
        let depth = stack.ends.iter().position(|until| *until <= begin).unwrap_or(stack.ends.len());
        if depth >= maxima.1 {
            return None;
        }
        // A slice without duration still occupies its place.
        let end = end.max(begin.saturating_add(1));
        match stack.ends.get_mut(depth) {
            Some(until) => *until = end,
            None => stack.ends.push(end),
        }
        Some((index as u32, depth as u32))
    }

    /// Ends a slice whose end was not known. Calls that have ended come late, with an earlier begin: they get no place that was
    /// occupied then.
    pub(crate) fn end(&mut self, (stack, depth): Level, end: i64) {
        let until = self.0.get_mut(stack as usize).and_then(|stack| stack.ends.get_mut(depth as usize));
        until.into_iter().for_each(|until| *until = end);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nested_slices_of_an_owner_are_deeper() {
        let mut stacks = Stacks::default();
        let intervals = [(0, 100), (0, 50), (10, 20), (30, 30), (50, 90), (100, 101), (100, 200)];
        let found = intervals.map(|(begin, end)| stacks.begin((7, 0), begin, end, (1, 3)));
        assert_eq!(found.map(|level| level.unwrap().1), [0, 1, 2, 2, 1, 0, 1]);
        let mut stacks = Stacks::default();
        let found = [(0, 9), (0, 8), (1, 3)].map(|(begin, end)| stacks.begin((7, 0), begin, end, (1, 2)));
        assert_eq!(found, [Some((0, 0)), Some((0, 1)), None]);
        assert_eq!([(); 2].map(|()| Stacks::default().begin((7, 0), i64::MAX, i64::MAX, (1, 2))), [Some((0, 0)); 2]);
    }

    /// Random begins and ends of several owners: at each begin, a stack has open slices of one owner only, and the
    /// depth is the number of slices of the owner that are open. Whether ends are known makes no difference.
    #[test]
    fn no_slice_is_in_the_stack_of_another_owner() {
        let mut random = dormouse_testing::random(11);
        for maximum in [64, 3] {
            let (mut known, mut unknown) = (Stacks::default(), Stacks::default());
            // Owner, end, and level of each open slice. Those of an owner are nested.
            let mut open: Vec<(Owner, i64, Level)> = Vec::new();
            let mut refused = 0;
            for begin in 0..5000 {
                open.retain(|(_, end, level)| {
                    if *end <= begin {
                        unknown.end(*level, *end);
                    }
                    *end > begin
                });
                let owner = (random(5) as u32, random(2) as u32);
                let around = open.iter().filter(|(other, ..)| *other == owner).map(|(_, end, _)| *end).min();
                let end = (begin + 1 + random(60) as i64).min(around.unwrap_or(i64::MAX));
                let level = known.begin(owner, begin, end, (maximum, 64));
                assert_eq!(level, unknown.begin(owner, begin, i64::MAX, (maximum, 64)));
                let Some(level) = level else {
                    refused += 1;
                    continue;
                };
                let own = open.iter().filter(|(other, ..)| *other == owner);
                assert_eq!(own.clone().count(), level.1 as usize);
                assert!(own.clone().all(|(.., other)| other.0 == level.0));
                assert!(open.iter().all(|(other, _, (stack, _))| *other == owner || *stack != level.0));
                open.push((owner, end, level));
            }
            assert_eq!(refused > 0, maximum == 3);
        }
    }
}
