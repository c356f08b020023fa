//! State of this process under one lock: the registry of classes, the session, what is armed, fork.

use core::sync::atomic::{AtomicU32, Ordering};
use std::collections::BTreeMap;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError, TryLockError};

use dormouse_abi::class::{Announcement, matches};
use dormouse_abi::message::{ClassInSession, ClassStatus, ProgramToTool, ToolToProgram};
use dormouse_abi::register::Register;
use dormouse_abi::rule::Rule;
use dormouse_abi::session::Reason;
use dormouse_abi::site::EventRecord;
use dormouse_imv::Change;
use dormouse_locks::{HeldLock, Rank};
use dormouse_transport::Deadline;

use crate::class::{Class, DeclaredClasses, InSession, read_records};
use crate::inherited;
use crate::join::{self, Joining, ask_for_memory};
use crate::plan::{self, Plans, Wanted};
use crate::readers;
use crate::rule::Bound;
#[cfg(test)]
use crate::session::SLOT_COUNT;
use crate::session::{Attached, in_slot, sessions};
use crate::tag_texts::TagTexts;

/// State that changes rarely.
#[derive(Debug)]
pub(crate) struct Control {
    declared: DeclaredClasses,
    plans: Plans,
    /// Rules of each session that the classes follow, and their version, by slot.
    rules: BTreeMap<usize, (u64, Vec<Rule>)>,
    pub(crate) tag_texts: TagTexts,
    pub(crate) joining: Joining,
}

static CONTROL: Mutex<Control> = Mutex::new(Control {
    declared: DeclaredClasses { classes: Vec::new(), unfit: Vec::new() },
    plans: Plans::new(),
    rules: BTreeMap::new(),
    tag_texts: TagTexts::new(),
    joining: Joining::new(),
});

/// Function to call when the lock is released, once a class has marks.
static AFTER_MARKING: OnceLock<fn()> = OnceLock::new();

/// The held lock. Its fields are dropped in this order.
pub(crate) struct Locked {
    control: MutexGuard<'static, Control>,
    held: HeldLock,
    _after_unlock: AfterUnlock,
}

/// Runs, when dropped, what must not run under the lock: it starts a thread.
struct AfterUnlock;

impl Drop for AfterUnlock {
    fn drop(&mut self) {
        if plan::has_marks()
            && let Some(function) = AFTER_MARKING.get()
        {
            function();
        }
    }
}

/// Takes the lock. Constructors wait for it while they hold the loader's lock, so nothing calls the loader while it
/// holds this one (`dormouse_locks`).
///
/// A panic under the lock leaves the registry usable: every step of a change is complete in itself.
pub(crate) fn lock() -> Locked {
    let held = Rank::Control.hold();
    Locked { control: CONTROL.lock().unwrap_or_else(PoisonError::into_inner), held, _after_unlock: AfterUnlock }
}

/// Takes the lock if no thread has it. Must not be called from within the tracer.
pub(crate) fn try_lock() -> Option<Locked> {
    let control = match CONTROL.try_lock() {
        Ok(control) => control,
        Err(TryLockError::Poisoned(error)) => error.into_inner(),
        Err(TryLockError::WouldBlock) => return None,
    };
    Some(Locked { control, held: Rank::Control.hold(), _after_unlock: AfterUnlock })
}

impl Locked {
    /// Renews the record of who holds the lock, in a forked child: the holding thread has another id there.
    pub(crate) fn hold_again(&mut self) {
        self.held = Rank::Control.hold();
    }
}

impl core::ops::Deref for Locked {
    type Target = Control;
    fn deref(&self) -> &Control {
        &self.control
    }
}

impl core::ops::DerefMut for Locked {
    fn deref_mut(&mut self) -> &mut Control {
        &mut self.control
    }
}

impl Control {
    /// Adds an object's classes, and announces them to the sessions that the process is in.
    ///
    /// # Safety
    /// The conditions of [`read_records`].
    pub(crate) unsafe fn register(&mut self, start: *const EventRecord, stop: *const EventRecord) {
        // SAFETY: the caller guarantees that `start..stop` is an object's event section that stays mapped until it is
        // unregistered.
        let mut fresh = unsafe { read_records(start, stop, &self.declared) };
        for attached in sessions() {
            self.follow_rules_of(attached);
            self.enroll(attached, &mut fresh);
        }
        self.plan(&mut fresh.classes);
        self.declared.classes.append(&mut fresh.classes);
        self.declared.unfit.append(&mut fresh.unfit);
        self.follow();
    }

    /// Updates the gates that may be enabled when a tool calls.
    pub(crate) fn follow(&self) {
        #[cfg(feature = "listen")]
        crate::wake::follow(&self.declared.classes);
    }

    /// Forgets an object's classes, before their static memory is unmapped.
    pub(crate) fn unregister(&mut self, start: *const EventRecord) {
        self.declared.classes.retain(|class| class.object != start as usize);
        self.declared.unfit.retain(|unfit| unfit.object != start as usize);
        self.follow();
    }

    /// Joins a session.
    pub(crate) fn join(
        &mut self,
        join: impl FnOnce(&mut Joining) -> Result<&'static Attached, String>,
    ) -> Result<(), String> {
        self.leave_ended();
        let attached = join(&mut self.joining)?;
        let rules = attached.memory.register().map(Register::rules).unwrap_or_default();
        self.rules.insert(attached.slot, rules);
        self.tag_texts.tell(attached);
        let mut declared = core::mem::take(&mut self.declared);
        self.enroll(attached, &mut declared);
        self.plan(&mut declared.classes);
        self.declared = declared;
        Ok(())
    }

    /// Enters classes in a session's register. Those that its rules record come first, because small ids take fewer bytes
    /// in records without context. A class for which the register has no room keeps no id, and the register counts it.
    fn enroll(&mut self, attached: &Attached, declared: &mut DeclaredClasses) {
        let Some(register) = attached.memory.register() else { return };
        let (version, rules) = self.rules.entry(attached.slot).or_default();
        let wanted: Vec<bool> =
            declared.classes.iter().map(|class| Bound::new(rules, &class.decl) != Bound::Never).collect();
        for is_armed in [true, false] {
            for (class, _) in declared.classes.iter_mut().zip(&wanted).filter(|(_, wanted)| **wanted == is_armed) {
                if let Some(id) = register.class_id(attached.process, &announced(class)) {
                    class.sessions.insert(attached.slot, InSession { id: id.into(), is_armed });
                }
            }
        }
        for unfit in &declared.unfit {
            let _ = register.class_id(attached.process, &unfit.announcement.to_text());
        }
        self.plans.cpu_count = self.plans.cpu_count.max(attached.memory.geometry().cpu_count);
        register.follow_rules(attached.process, *version);
    }

    /// Disarms classes that no session wants any more, gives all the ids and plans that their sessions want now, and then
    /// arms them: an armed event is recorded.
    fn plan(&mut self, classes: &mut [Class]) {
        let is_wanted = |class: &Class| class.sessions.values().any(|of_class| of_class.is_armed);
        set_armed(classes, |class| class.armed && is_wanted(class));
        for class in classes.iter() {
            let of_session = |(slot, InSession { id, .. }): (&usize, &InSession)| {
                let rules = self.rules.get(slot).map(|(_, rules)| rules.as_slice()).unwrap_or_default();
                let tests = if let Bound::If(tests) = Bound::new(rules, &class.decl) { Some(tests) } else { None };
                Wanted { slot: *slot, id: AtomicU32::new(*id), tests }
            };
            let wanted = class.sessions.iter().filter(|(_, of_class)| of_class.is_armed).map(of_session).collect();
            let word = self.plans.word(&class.decl, || announced(class), wanted);
            class.id.store(word, Ordering::Relaxed);
        }
        self.plans.end_change();
        set_armed(classes, is_wanted);
    }

    /// Gives all classes the plans that sessions and triggers ask for now.
    fn plan_again(&mut self) {
        let mut classes = core::mem::take(&mut self.declared.classes);
        self.plan(&mut classes);
        self.declared.classes = classes;
    }

    /// Makes the classes follow a session's rules, if these were replaced.
    fn follow_rules_of(&mut self, attached: &Attached) {
        let Some(register) = attached.memory.register() else { return };
        if self.rules.get(&attached.slot).is_some_and(|(version, _)| *version == register.rules_version()) {
            return;
        }
        let (version, rules) = register.rules();
        for class in &mut self.declared.classes {
            if let Some(of_class) = class.sessions.get_mut(&attached.slot) {
                of_class.is_armed = Bound::new(&rules, &class.decl) != Bound::Never;
            }
        }
        self.rules.insert(attached.slot, (version, rules));
        self.plan_again();
        register.follow_rules(attached.process, version);
    }

    /// Leaves the session in a slot.
    pub(crate) fn leave(&mut self, slot: usize) {
        self.joining.leave(slot);
        self.plans.leave(slot);
        self.rules.remove(&slot);
        for class in &mut self.declared.classes {
            class.sessions.remove(&slot);
        }
        self.plan_again();
    }

    /// Leaves all sessions.
    #[cfg(test)]
    pub(crate) fn leave_all(&mut self) {
        (0..SLOT_COUNT).filter(|slot| in_slot(*slot).is_some()).for_each(|slot| self.leave(slot));
    }

    /// Leaves the sessions that are over.
    fn leave_ended(&mut self) {
        // (P) pairs with (P').
        let is_over = |attached: &Attached| attached.memory.header().stopped.0.load(Ordering::Acquire) != 0;
        sessions().filter(|attached| is_over(attached)).for_each(|attached| self.leave(attached.slot));
    }

    /// Arms or disarms matching classes. Returns the change, and the number of matching classes that have no id because
    /// the session gave none.
    fn set_matching(&mut self, slots: &[usize], patterns: &[String], armed: bool) -> (ProgramToTool, u32) {
        let (mut matched, mut changed, mut without) = (0, 0, 0);
        for class in &mut self.declared.classes {
            let name = class.decl.full_name();
            if !patterns.iter().any(|pattern| matches(pattern, &name)) {
                continue;
            }
            matched += 1;
            let of_sessions: Vec<&mut InSession> =
                class.sessions.iter_mut().filter(|(slot, _)| slots.contains(slot)).map(|(_, it)| it).collect();
            without += u32::from(of_sessions.is_empty());
            changed += u32::from(of_sessions.iter().any(|of_class| of_class.is_armed != armed));
            of_sessions.into_iter().for_each(|of_class| of_class.is_armed = armed);
        }
        self.plan_again();
        (self.changed(matched, changed), without)
    }

    /// Replaces the marks of classes: `patterns` are pairs of a mark and the pattern of its events. Once a class has a
    /// mark, `attend` is called each time the lock is released. The `attend` of the first call is kept.
    pub(crate) fn mark<'a>(&mut self, patterns: impl Iterator<Item = (usize, &'a str)>, attend: fn()) {
        let _ = AFTER_MARKING.set(attend);
        patterns.for_each(|(mark, pattern)| self.plans.set_mark(mark, pattern));
        self.plan_again();
    }

    fn armed_count(&self) -> u32 {
        self.declared.classes.iter().filter(|class| class.armed).count() as u32
    }

    fn changed(&self, matched: u32, changed: u32) -> ProgramToTool {
        let armed_in = |slot: usize| {
            let is_armed = |class: &&Class| class.sessions.get(&slot).is_some_and(|of_class| of_class.is_armed);
            self.declared.classes.iter().filter(is_armed).count() as u32
        };
        let sessions = sessions().map(|attached| (name_of(attached), armed_in(attached.slot))).collect();
        ProgramToTool::Changed { matched, changed, armed: self.armed_count(), sessions }
    }

    fn list(&self) -> ProgramToTool {
        // A thread that notices a session's end leaves it at any time.
        let listed: Vec<&Attached> = sessions().collect();
        ProgramToTool::Classes {
            sessions: listed.iter().map(|attached| name_of(attached)).collect(),
            classes: self.statuses(&listed),
            patching: dormouse_imv_control::patching(),
        }
    }

    /// Returns the state of each class in these sessions.
    fn statuses(&self, listed: &[&Attached]) -> Vec<ClassStatus> {
        // The memory stays mapped: it is unmapped under the tracer's lock only.
        let unrecorded: Vec<_> = listed.iter().map(|attached| attached.memory.unrecorded_by_class()).collect();
        let status = |class: &Class| {
            let count = dormouse_imv::key_sites(class.gate).unwrap_or_default();
            let in_session = |index: usize| {
                let of_class = class.sessions.get(&listed[index].slot);
                let unrecorded_for = |reason: Reason| {
                    // The last counter is that of several classes.
                    let (_, counts) = unrecorded[index].as_ref()?[reason as usize].split_last()?;
                    counts.get(of_class?.id as usize).copied()
                };
                ClassInSession {
                    is_armed: of_class.is_some_and(|of_class| of_class.is_armed),
                    rejected: unrecorded_for(Reason::Rejected).unwrap_or(0),
                    sampled_out: unrecorded_for(Reason::SampledOut).unwrap_or(0),
                }
            };
            ClassStatus {
                decl: class.decl.clone(),
                site_count: count.sites as u32,
                patched_count: count.patched as u32,
                sessions: (0..listed.len()).map(in_session).collect(),
            }
        };
        self.declared.classes.iter().map(status).collect()
    }

    fn arm(&mut self, session: &str, patterns: &[String]) -> ProgramToTool {
        let slots = match slots_of(session) {
            Ok(slots) => slots,
            Err(text) => return ProgramToTool::Error { text },
        };
        let (changed, without) = self.set_matching(&slots, patterns, true);
        if without > 0 {
            let text =
                format!("the session has no room for {without} of the event classes that match; the others are armed");
            return ProgramToTool::Error { text };
        }
        changed
    }

    fn disarm(&mut self, session: &str, patterns: &[String]) -> ProgramToTool {
        // A program in no session has nothing armed.
        let slots = slots_of(session).unwrap_or_default();
        self.set_matching(&slots, patterns, false).0
    }

    fn follow_rules(&mut self) -> ProgramToTool {
        if let Err(text) = slots_of("") {
            return ProgramToTool::Error { text };
        }
        let armed_before = self.armed_count();
        sessions().for_each(|attached| self.follow_rules_of(attached));
        self.changed(self.armed_count(), self.armed_count().abs_diff(armed_before))
    }

    fn detach(&mut self, session: &str) -> ProgramToTool {
        let armed = self.armed_count();
        slots_of(session).unwrap_or_default().into_iter().for_each(|slot| self.leave(slot));
        self.changed(armed, armed - self.armed_count())
    }

    /// Joins the sessions as a process of its own, in a forked child.
    pub(crate) fn after_fork(&mut self, parent: u32) {
        // The child has its parent's ids with their plans, and its parent's armed gates.
        readers::after_fork();
        self.joining.after_fork(parent);
        for former in sessions() {
            if self.joining.join_after_fork(former).is_err() {
                self.leave(former.slot);
            } else if let Some(attached) = in_slot(former.slot) {
                self.follow_rules_of(attached);
                if let (Some(register), Some((version, _))) = (attached.memory.register(), self.rules.get(&former.slot))
                {
                    register.follow_rules(attached.process, *version);
                }
            }
        }
        if sessions().next().is_none() {
            plan::forget_marks();
        }
    }
}

/// Returns the slot of the session with this socket, or, without one, those of all sessions.
///
/// # Errors
/// A message of one line.
fn slots_of(session: &str) -> Result<Vec<usize>, String> {
    let is_it = |attached: &&Attached| session.is_empty() || attached.socket == Path::new(session);
    let slots: Vec<usize> = sessions().filter(is_it).map(|attached| attached.slot).collect();
    match slots.is_empty() {
        true if session.is_empty() => Err("the program is in no session".into()),
        true => Err(format!("the program is not in the session {session}")),
        false => Ok(slots),
    }
}

/// Joins a session: by the inherited memory, or else by asking for it at the socket, until the
/// deadline.
///
/// # Errors
/// A message of one line.
pub(crate) fn join(socket: &Path, inherited: Option<(i32, [u8; 16])>, deadline: Deadline<'_>) -> Result<(), String> {
    if let Some(memory) = inherited {
        let mut control = lock();
        let joined = control.join(|joining| joining.join_inherited(memory, socket));
        let has_told = core::mem::take(&mut control.joining.has_told);
        let is_of_session = joined.is_ok() || control.joining.is_mapped(memory.1) || has_told;
        if is_of_session {
            inherited::remember(memory.0);
        }
        // If this is the session's memory and its register is full, the owner has no room either. A process that cannot
        // map it need not ask.
        if is_of_session {
            return joined;
        }
    }
    if dormouse_imv::is_filtered() {
        return Err("a filter of system calls may kill for asking the session's owner".into());
    }
    // Not under the lock, because this may wait.
    let answer = ask_for_memory(socket, deadline)?;
    lock().join(|joining| joining.join_answered(answer, socket))
}

fn attach(session: &Path, memory: Option<OwnedFd>) -> ProgramToTool {
    for attached in sessions() {
        // (P) pairs with (P').
        let is_over = attached.memory.header().stopped.0.load(Ordering::Acquire) != 0
            // A session whose owner was killed is over as well: no process drains it.
            || !dormouse_transport::is_answered(&attached.socket);
        if is_over {
            lock().leave(attached.slot);
        } else if attached.socket == session {
            let text = format!("the program is already in the session {}", attached.socket.display());
            return ProgramToTool::Error { text };
        }
    }
    let joined = match memory {
        Some(memory) => lock().join(|joining| joining.join_brought(memory.as_fd(), session)),
        None => join(session, None, join::deadline()),
    };
    match joined {
        Ok(()) => {
            let control = lock();
            control.changed(control.armed_count(), control.armed_count())
        }
        Err(text) => ProgramToTool::Error { text },
    }
}

/// Returns the answer to a tool, which may have sent a session's memory.
pub(crate) fn answer(question: ToolToProgram, memory: Option<OwnedFd>) -> ProgramToTool {
    match question {
        ToolToProgram::List => lock().list(),
        ToolToProgram::Arm { session, patterns } => lock().arm(&session, &patterns),
        ToolToProgram::Disarm { session, patterns } => lock().disarm(&session, &patterns),
        ToolToProgram::Attach { session } => attach(Path::new(&session), memory),
        ToolToProgram::Detach { session } => lock().detach(&session),
        ToolToProgram::FollowRules => lock().follow_rules(),
        // The registry of tunables has a lock of its own, and finding tunables calls the loader.
        ToolToProgram::ListTunables => dormouse_imv_control::list(),
        ToolToProgram::SetTunables { values } => dormouse_imv_control::set(&values),
        ToolToProgram::ReadMemory { uuid, offset, size_bytes } => {
            let part = lock().joining.read_memory(uuid, offset, size_bytes);
            part.unwrap_or_else(|text| ProgramToTool::Error { text })
        }
    }
}

/// Returns the announcement of a class, which tells it from all others.
fn announced(class: &Class) -> Vec<u8> {
    Announcement::from(&class.decl).to_text()
}

fn name_of(attached: &Attached) -> String {
    attached.socket.to_string_lossy().into_owned()
}

/// Arms and disarms many classes with one change of the text's protection and one synchronisation of the CPUs.
fn set_armed(classes: &mut [Class], is_wanted: impl Fn(&Class) -> bool) {
    let changes: Vec<(usize, bool)> = classes
        .iter()
        .enumerate()
        .map(|(index, class)| (index, is_wanted(class)))
        .filter(|(index, armed)| classes[*index].armed != *armed)
        .collect();
    let keys: Vec<_> = changes.iter().map(|(index, armed)| Change::key(classes[*index].gate, *armed)).collect();
    // Refused only if this thread is already inside an update, in a signal handler. Sites that can no longer be written
    // do not affect the key's value.
    if !keys.is_empty() && dormouse_imv::update(&keys) != Err(dormouse_imv::Error::Reentered) {
        for (index, armed) in changes {
            classes[index].armed = armed;
        }
    }
}
