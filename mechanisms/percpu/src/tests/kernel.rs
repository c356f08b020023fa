//! The kernel's part in rseq, played by a signal handler: the sections' own code runs and is aborted, also under
//! emulation.
//!
//! The words belong to one thread, so they need no protection from others. Sections are interrupted by a handler, which
//! begins with what the kernel would do:
//!
//! ```text
//!   handler:  if rseq_cs != null
//!                 if start_ip <= pc < start_ip + post_commit_offset:  pc = abort_ip
//!                 rseq_cs = null
//!             then applies these operations to these words
//! ```

use std::ptr::NonNull;

use dormouse_abi::rseq::{CriticalSection, OFFSET_RSEQ_CS};

use super::*;
use crate::{Node, PopOutcome};

const CPU: u32 = 3;

/// The words, and counts of the operations that thread and handler have done on them.
struct Words {
    rseq: Rseq,
    added: AtomicU64,
    compared: AtomicU64,
    copies: AtomicU64,
    committed: AtomicU64,
    head: AtomicU64,
    copied: [AtomicU64; 4],
    done: [AtomicU64; 4],
    /// Number of sections that the handler found running.
    interrupted: AtomicU64,
    handled: AtomicU64,
    /// Number of the thread's own steps.
    steps: AtomicU64,
}

static WORDS: std::sync::OnceLock<Words> = std::sync::OnceLock::new();

impl Words {
    fn new(rseq: Rseq) -> Words {
        let zero = || AtomicU64::new(0);
        let (copied, done) = (std::array::from_fn(|_| zero()), std::array::from_fn(|_| zero()));
        Words {
            rseq,
            added: zero(),
            compared: zero(),
            copies: zero(),
            committed: zero(),
            head: zero(),
            copied,
            done,
            interrupted: zero(),
            handled: zero(),
            steps: zero(),
        }
    }

    fn step(&self) {
        let count = |index: usize, is_done: bool| self.done[index].fetch_add(u64::from(is_done), Relaxed);
        let rseq = self.rseq;
        // SAFETY: a word of this value; only sections of this thread and its handlers change it.
        count(0, unsafe { rseq.add(CPU, self.added.as_ptr(), 1) });
        // SAFETY: a word of this value; only sections of this thread and its handlers change it.
        if let Some(before) = unsafe { rseq.load(CPU, self.compared.as_ptr()) } {
            // SAFETY: a word of this value; only sections of this thread and its handlers change it.
            let outcome = unsafe { rseq.compare_and_store(CPU, self.compared.as_ptr(), before, before + 1) };
            count(1, outcome == Commit::Done);
        }
        let before = self.copies.load(Relaxed);
        let from = [before as u8; 29];
        // SAFETY: words of this value, changed only by sections; 29 of 32 bytes are written.
        let outcome = unsafe {
            let copies = self.copies.as_ptr();
            let to = self.copied[0].as_ptr().cast();
            rseq.copy_and_store(CPU, copies, before, to, from.as_ptr(), from.len(), copies, before + 1)
        };
        count(2, outcome == Commit::Done);
        let before = self.committed.load(Relaxed);
        let target = self.committed.as_ptr();
        let mut txn = Txn::new(target, before, Store { target: target.cast(), value: before + 1, width: 8 });
        txn.store(self.copied[3].as_ptr().wrapping_byte_add(6).cast(), before, 2);
        // SAFETY: words of this value; only sections of this thread and its handlers change them.
        count(3, unsafe { rseq.commit(CPU, &txn) } == Commit::Done);
        let head = self.head.as_ptr().cast();
        // SAFETY: a list of this value, changed only by sections; the nodes are never freed.
        if let PopOutcome::Node(node) = unsafe { rseq.pop(CPU, head) } {
            // SAFETY: popped just now. The handler also returns each node that it pops.
            while !unsafe { rseq.push(CPU, head, node) } {}
        }
    }
}

/// Does what the kernel does before it delivers a signal.
fn play_the_kernel(words: &Words, context: &mut libc::ucontext_t) {
    let descriptor = words.rseq.descriptor() as usize;
    if descriptor == 0 {
        return;
    }
    // SAFETY: a section of this program has stored the address of its descriptor.
    let section: &CriticalSection = unsafe { &*std::ptr::with_exposed_provenance(descriptor) };
    #[cfg(target_arch = "x86_64")]
    let pc = context.uc_mcontext.gregs[libc::REG_RIP as usize].cast_unsigned();
    #[cfg(target_arch = "aarch64")]
    let pc = context.uc_mcontext.pc;
    if pc.wrapping_sub(section.start_ip) < section.post_commit_offset {
        #[cfg(target_arch = "x86_64")]
        (context.uc_mcontext.gregs[libc::REG_RIP as usize] = section.abort_ip.cast_signed());
        #[cfg(target_arch = "aarch64")]
        (context.uc_mcontext.pc = section.abort_ip);
        words.interrupted.fetch_add(1, Relaxed);
    }
    let field = crate::arch::thread_pointer().wrapping_offset(words.rseq.offset()).wrapping_add(OFFSET_RSEQ_CS);
    // SAFETY: the thread's own rseq structure, which is not registered with a kernel.
    unsafe { field.cast::<u64>().write_volatile(0) };
}

extern "C" fn handler(_: libc::c_int, _: *mut libc::siginfo_t, context: *mut libc::c_void) {
    let Some(words) = WORDS.get() else { return };
    // SAFETY: the third argument of an SA_SIGINFO handler is a valid context.
    play_the_kernel(words, unsafe { &mut *context.cast() });
    words.step();
    words.handled.fetch_add(1, Relaxed);
}

#[test]
fn sections_abort_correctly_with_a_signal_handler_as_kernel() {
    let _lock = TestLock::take([0; 6]);
    let Some(rseq) = Rseq::pretend(Some(CPU)) else {
        return skip(Lack::machine("the area is the kernel's", "run the tests where libc or the kernel has no rseq"));
    };
    if rseq.cpu_id_start() != CPU {
        // The structure's other CPU field; `assert_ends` reads the CPU from it.
        let field = crate::arch::thread_pointer().wrapping_offset(rseq.offset()).cast::<u32>();
        // SAFETY: the thread's own rseq structure, which is not registered with a kernel.
        unsafe { field.write_volatile(CPU) };
    }
    operations::assert_ends(rseq);

    let words = WORDS.get_or_init(|| Words::new(rseq));
    let nodes: &'static [Node] = (0..8).map(|_| Node::new()).collect::<Vec<_>>().leak();
    for node in nodes {
        // SAFETY: the node is on no list, and no handler interrupts yet.
        assert!(unsafe { rseq.push(CPU, words.head.as_ptr().cast(), NonNull::from(node)) });
    }
    // SAFETY: all zeroes is a valid `sigaction`, plain data.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    let signal = libc::SIGUSR2;
    action.sa_sigaction = handler as extern "C" fn(_, _, _) as *const () as usize;
    action.sa_flags = libc::SA_RESTART | libc::SA_SIGINFO;
    // SAFETY: the handler calls only async-signal-safe functions.
    assert_eq!(unsafe { libc::sigaction(signal, &action, null_mut()) }, 0);
    // SAFETY: the call has no arguments.
    let thread = unsafe { libc::pthread_self() } as usize;
    let (stop, begin) = (AtomicBool::new(false), Instant::now());
    set_delays([0, 200, 200, 200, 200, 200]);
    std::thread::scope(|scope| {
        let _stop = StopAtEnd(&stop);
        scope.spawn(|| {
            for sent in 0.. {
                // One signal at a time, with a step of the thread's own in between.
                while words.handled.load(Relaxed) < sent || words.steps.load(Relaxed) < sent {
                    if stop.load(Relaxed) {
                        return;
                    }
                    std::thread::yield_now();
                }
                // SAFETY: the signalled thread waits for this one's end, so it is alive.
                unsafe { libc::pthread_kill(thread as libc::pthread_t, signal) };
            }
        });
        while words.interrupted.load(Relaxed) < 500 {
            words.step();
            words.steps.fetch_add(1, Relaxed);
            assert!(begin.elapsed() < PATIENCE, "only {} aborts", words.interrupted.load(Relaxed));
        }
    });
    set_delays([0; 6]);

    let all = [&words.added, &words.compared, &words.copies, &words.committed];
    for (word, done) in all.iter().zip(&words.done) {
        assert_eq!(word.load(Relaxed), done.load(Relaxed));
        assert!(done.load(Relaxed) > 0);
    }
    let mut left = Vec::new();
    // SAFETY: no handler interrupts any more.
    while let PopOutcome::Node(node) = unsafe { rseq.pop(CPU, words.head.as_ptr().cast()) } {
        left.push(node);
    }
    left.sort_unstable();
    left.dedup();
    assert_eq!(left.len(), nodes.len());
    Rseq::pretend(None);
}
