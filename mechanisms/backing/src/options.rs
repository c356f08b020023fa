/// Options for making memory: a [`crate::Pool`], which other processes may map, or a [`crate::PrivatePool`].
///
/// ```
/// use dormouse_backing::{Huge, MemoryOptions, PrivatePool};
///
/// let options = MemoryOptions::new().huge(Huge::Prefer).guard(true).near_cpu(0);
/// let pool = PrivatePool::new(8 << 20, options)?;
/// let obtained = pool.obtained()?;
/// assert_eq!(obtained.missing_bytes, 0);
/// println!("{obtained}");
/// # Ok::<(), dormouse_backing::BackingError>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MemoryOptions {
    pub(crate) prefault: bool,
    pub(crate) huge: Huge,
    pub(crate) lock: bool,
    pub(crate) guard: bool,
    pub(crate) numa: NumaPolicy,
    pub(crate) capacity_bytes: usize,
}

/// Kinds of pages that memory may consist of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Huge {
    /// Pages that the system's settings give (`/sys/kernel/mm/transparent_hugepage`).
    #[default]
    AsConfigured,
    /// Small pages, independent of these settings: each can be given back by itself.
    Never,
    /// The highest possible rung of the ladder: huge pages that the system has set aside (hugetlb; of 1 GiB or 2 MiB,
    /// for memory that is a whole number of them), otherwise huge pages that the kernel puts together (THP), otherwise
    /// small pages. [`Obtained`] tells the result.
    Prefer,
    /// Like `Prefer`, but rounded up to whole huge pages; small pages in any part are an error.
    Require,
}

/// The NUMA nodes that memory may come from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum NumaPolicy {
    #[default]
    Anywhere,
    /// The node of a CPU, or another if that one is full.
    Near(u32),
    /// The node of a CPU only.
    At(u32),
}

impl Default for MemoryOptions {
    fn default() -> MemoryOptions {
        MemoryOptions::new()
    }
}

impl MemoryOptions {
    /// Returns the default options: prefaulted, not locked, without guard pages, with pages and nodes as the system's
    /// settings say.
    pub const fn new() -> MemoryOptions {
        MemoryOptions {
            prefault: true,
            huge: Huge::AsConfigured,
            lock: false,
            guard: false,
            numa: NumaPolicy::Anywhere,
            capacity_bytes: 0,
        }
    }

    /// Sets whether all of it is present before the call that makes it returns (the default). Otherwise a part must be
    /// prefaulted before it is used. Memory in required huge pages, and locked memory, is prefaulted in any case.
    pub const fn prefault(self, prefault: bool) -> MemoryOptions {
        MemoryOptions { prefault, ..self }
    }

    /// Sets the kind of pages.
    pub const fn huge(self, huge: Huge) -> MemoryOptions {
        MemoryOptions { huge, ..self }
    }

    /// Sets whether it is never swapped out. For a memory file, that holds as long as this process maps it. Locked
    /// memory counts towards `RLIMIT_MEMLOCK`.
    pub const fn lock(self, lock: bool) -> MemoryOptions {
        MemoryOptions { lock, ..self }
    }

    /// Sets whether there is an inaccessible `os_page` before and after it, in this process. An overrun of the last
    /// `os_page` is then a `SIGSEGV`, instead of an access to other memory.
    pub const fn guard(self, guard: bool) -> MemoryOptions {
        MemoryOptions { guard, ..self }
    }

    /// Takes it from the NUMA node of a CPU, or from another node if that one is full.
    pub const fn near_cpu(self, cpu: u32) -> MemoryOptions {
        MemoryOptions { numa: NumaPolicy::Near(cpu), ..self }
    }

    /// Takes it from the NUMA node of a CPU, and from no other node.
    pub const fn at_cpu(self, cpu: u32) -> MemoryOptions {
        MemoryOptions { numa: NumaPolicy::At(cpu), ..self }
    }

    /// Sets the number of bytes to which it may grow: that many addresses are set aside, and a memory file is that long.
    /// An access in this process beyond the current size is a `SIGSEGV`.
    pub const fn capacity_bytes(self, capacity_bytes: usize) -> MemoryOptions {
        MemoryOptions { capacity_bytes, ..self }
    }

    pub(crate) fn is_prefaulted(&self) -> bool {
        self.prefault || self.lock || self.huge == Huge::Require
    }
}

/// Kinds of pages that memory really consists of, in bytes, read from the page table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Obtained {
    /// Number of bytes that were checked, in whole `os_page`s.
    pub size_bytes: usize,
    /// Bytes in huge pages that the system has set aside.
    pub hugetlb_bytes: usize,
    /// Bytes in huge pages that the kernel has put together, each with one entry of the page table.
    pub thp_bytes: usize,
    /// Bytes in small pages. If [`Obtained::is_huge_told`] is false, this includes `thp_bytes`.
    pub small_bytes: usize,
    /// Bytes that are not in this process's page table, or on the zero page.
    pub missing_bytes: usize,
    /// Whether the kernel distinguishes huge pages from small ones: Linux 6.7 or later, or root.
    pub is_huge_told: bool,
    /// Result of the check of the requested NUMA node.
    pub nodes: Nodes,
}

/// Result of the check whether memory is on the requested NUMA node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Nodes {
    /// No node was requested.
    #[default]
    NotAsked,
    /// The machine has only one node, so nothing must be checked.
    OnlyOne,
    /// The kernel, or a sandbox, does not tell (`move_pages`).
    NotTold,
    /// The node of each page was read.
    Checked {
        /// The node that was requested.
        node: u32,
        /// Number of bytes that are on other nodes.
        away_bytes: usize,
    },
}

impl Obtained {
    /// Returns the number of bytes in huge pages of either kind.
    pub fn huge_bytes(&self) -> usize {
        self.hugetlb_bytes + self.thp_bytes
    }
}

impl std::fmt::Display for Obtained {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let small =
            if self.is_huge_told { "in small pages" } else { "in pages of a size that this kernel does not tell" };
        let parts = [
            (self.hugetlb_bytes, "in hugetlb pages"),
            (self.thp_bytes, "in transparent huge pages"),
            (self.small_bytes, small),
            (self.missing_bytes, "not there"),
        ];
        write!(f, "{} bytes", self.size_bytes)?;
        let mut separator = ": ";
        for (bytes, name) in parts.into_iter().filter(|(bytes, _)| *bytes > 0) {
            write!(f, "{separator}{bytes} {name}")?;
            separator = ", ";
        }
        match self.nodes {
            Nodes::NotAsked => Ok(()),
            Nodes::OnlyOne => write!(f, "; the machine has one NUMA node"),
            Nodes::NotTold => write!(f, "; the kernel does not tell its NUMA node"),
            Nodes::Checked { node, away_bytes: 0 } => write!(f, "; all on NUMA node {node}"),
            Nodes::Checked { node, away_bytes } => write!(f, "; {away_bytes} bytes not on NUMA node {node}"),
        }
    }
}
