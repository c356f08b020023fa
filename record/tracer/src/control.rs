//! State of this process under one lock: the registry of classes, the session, what is armed, fork.

use core::sync::atomic::Ordering;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError, TryLockError};

use dormouse_abi::class::{Announcement, CLASS_ID_NONE, matches};
use dormouse_abi::message::{ClassStatus, ProgramToTool, ToolToProgram};
use dormouse_abi::register::Register;
use dormouse_abi::rule::Rule;
use dormouse_abi::session::Reason;
use dormouse_abi::site::EventRecord;
use dormouse_imv::Change;
use dormouse_locks::{HeldLock, Rank};
use dormouse_transport::Deadline;

use crate::class::{Class, DeclaredClasses, read_records};
use crate::inherited;
use crate::join::{self, Joining, ask_for_memory};
use crate::plan::{self, Plans};
use crate::readers;
use crate::rule::Bound;
use crate::session::{Attached, current};

/// State that changes rarely.
#[derive(Debug)]
pub(crate) struct Control {
    declared: DeclaredClasses,
    plans: Plans,
    /// The session's rules that the classes follow, and their version.
    rules: (u64, Vec<Rule>),
    pub(crate) joining: Joining,
}

static CONTROL: Mutex<Control> = Mutex::new(Control {
    declared: DeclaredClasses { classes: Vec::new(), unfit: Vec::new() },
    plans: Plans::new(),
    rules: (0, Vec::new()),
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
    /// Adds an object's classes, and announces them to the session that the process is in.
    ///
    /// # Safety
    /// The conditions of [`read_records`].
    pub(crate) unsafe fn register(&mut self, start: *const EventRecord, stop: *const EventRecord) {
        // SAFETY: the caller guarantees that `start..stop` is an object's event section that stays mapped until it is
        // unregistered.
        let mut fresh = unsafe { read_records(start, stop, &self.declared) };
        if let Some(attached) = current() {
            self.follow_rules_of(attached);
            self.enroll(attached, &mut fresh);
        }
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

    /// Joins a session in place of any other.
    pub(crate) fn join(
        &mut self,
        join: impl FnOnce(&mut Joining) -> Result<&'static Attached, String>,
    ) -> Result<(), String> {
        self.leave();
        let attached = join(&mut self.joining)?;
        self.rules = attached.memory.register().map(Register::rules).unwrap_or_default();
        let mut declared = core::mem::take(&mut self.declared);
        self.enroll(attached, &mut declared);
        self.declared = declared;
        Ok(())
    }

    /// Enters classes in the session's register, and arms those that its rules record. These are entered first, because
    /// small ids take fewer bytes in records without context. A class for which the register has no room keeps no id, and
    /// the register counts it.
    fn enroll(&mut self, attached: &Attached, declared: &mut DeclaredClasses) {
        let Some(register) = attached.memory.register() else { return };
        let bounds: Vec<Bound> = declared.classes.iter().map(|class| Bound::new(&self.rules.1, &class.decl)).collect();
        let mut granted = vec![CLASS_ID_NONE; bounds.len()];
        for is_wanted in [true, false] {
            for index in (0..bounds.len()).filter(|index| (bounds[*index] != Bound::Never) == is_wanted) {
                let text = announced(&declared.classes[index]);
                granted[index] = register.class_id(attached.process, &text).map_or(CLASS_ID_NONE, u32::from);
            }
        }
        for unfit in &declared.unfit {
            let _ = register.class_id(attached.process, &unfit.announcement.to_text());
        }
        self.plans.cpu_count = attached.memory.geometry().cpu_count;
        let wanted = self.plan(&declared.classes, &granted, bounds);
        set_armed(&mut declared.classes, |index, _| wanted[index]);
        register.follow_rules(attached.process, self.rules.0);
    }

    /// Gives classes their ids, and the plans that rules and triggers ask for. Returns whether each is to be armed. This
    /// comes before gates change, so that no event is written with an id of another session.
    fn plan(&mut self, classes: &[Class], ids: &[u32], bounds: Vec<Bound>) -> Vec<bool> {
        let each = classes.iter().zip(ids).zip(bounds).map(|((class, id), bound)| {
            let is_wanted = bound != Bound::Never && *id != CLASS_ID_NONE;
            let tests = if let Bound::If(tests) = bound { Some(tests) } else { None };
            let word = self.plans.id_word(*id, &class.decl, || announced(class), tests);
            class.id.store(word, Ordering::Relaxed);
            is_wanted
        });
        let wanted = each.collect();
        self.plans.end_change();
        wanted
    }

    /// Makes the classes follow the session's rules, if these were replaced.
    fn follow_rules_of(&mut self, attached: &Attached) {
        let Some(register) = attached.memory.register() else { return };
        if register.rules_version() == self.rules.0 {
            return;
        }
        self.rules = register.rules();
        let wanted = self.plan_again();
        set_armed(&mut self.declared.classes, |index, _| wanted[index]);
        register.follow_rules(attached.process, self.rules.0);
    }

    /// Gives all classes the plans that rules and triggers ask for now. Returns whether the rules want each to be armed.
    fn plan_again(&mut self) -> Vec<bool> {
        let classes = core::mem::take(&mut self.declared.classes);
        let ids: Vec<u32> = classes.iter().map(|class| plan::id_of(class.id.load(Ordering::Relaxed))).collect();
        let bounds = classes.iter().map(|class| Bound::new(&self.rules.1, &class.decl)).collect();
        let wanted = self.plan(&classes, &ids, bounds);
        self.declared.classes = classes;
        wanted
    }

    /// Disarms everything and leaves the session.
    pub(crate) fn leave(&mut self) {
        set_armed(&mut self.declared.classes, |_, _| false);
        self.joining.leave();
        for class in &self.declared.classes {
            class.id.store(CLASS_ID_NONE, Ordering::Relaxed);
        }
        self.plans.leave();
        self.rules = (0, Vec::new());
    }

    /// Arms or disarms matching classes. Returns the change, and the number of matching classes that have no id because
    /// the session gave none.
    fn set_matching(&mut self, patterns: &[String], armed: bool) -> (ProgramToTool, u32) {
        let armed_before = self.armed_count();
        let mut matching = (0, 0);
        let mut is_changed = |class: &Class| {
            let name = class.decl.full_name();
            let is_match = patterns.iter().any(|pattern| matches(pattern, &name));
            let has_id = class.id.load(Ordering::Relaxed) != CLASS_ID_NONE;
            matching.0 += u32::from(is_match);
            matching.1 += u32::from(is_match && !has_id);
            is_match && (has_id || !armed)
        };
        let is_changed: Vec<bool> = self.declared.classes.iter().map(&mut is_changed).collect();
        set_armed(&mut self.declared.classes, |index, class| if is_changed[index] { armed } else { class.armed });
        (self.changed(matching.0, self.armed_count().abs_diff(armed_before)), matching.1)
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
        ProgramToTool::Changed { matched, changed, armed: self.armed_count(), session: session_name() }
    }

    fn list(&self) -> ProgramToTool {
        ProgramToTool::Classes {
            session: session_name(),
            classes: self.statuses(),
            patching: dormouse_imv_control::patching(),
        }
    }

    fn statuses(&self) -> Vec<ClassStatus> {
        // The memory stays mapped: it is unmapped under the tracer's lock only.
        let unrecorded = current().and_then(|attached| attached.memory.unrecorded_by_class());
        let status = |class: &Class| {
            let count = dormouse_imv::key_sites(class.gate).unwrap_or_default();
            // The last counter is that of several classes, and a class without an id has none.
            let id = plan::id_of(class.id.load(Ordering::Relaxed)) as usize;
            let unrecorded_for = |reason: Reason| {
                let (_, counts) = unrecorded.as_ref()?[reason as usize].split_last()?;
                counts.get(id).copied()
            };
            ClassStatus {
                decl: class.decl.clone(),
                armed: class.armed,
                site_count: count.sites as u32,
                patched_count: count.patched as u32,
                rejected: unrecorded_for(Reason::Rejected).unwrap_or(0),
                sampled_out: unrecorded_for(Reason::SampledOut).unwrap_or(0),
            }
        };
        self.declared.classes.iter().map(status).collect()
    }

    fn arm(&mut self, patterns: &[String]) -> ProgramToTool {
        if current().is_none() {
            return ProgramToTool::Error { text: "the program is in no session".into() };
        }
        let (changed, without) = self.set_matching(patterns, true);
        if without > 0 {
            let text =
                format!("the session has no room for {without} of the event classes that match; the others are armed");
            return ProgramToTool::Error { text };
        }
        changed
    }

    fn follow_rules(&mut self) -> ProgramToTool {
        let Some(attached) = current() else {
            return ProgramToTool::Error { text: "the program is in no session".into() };
        };
        let armed_before = self.armed_count();
        self.follow_rules_of(attached);
        self.changed(self.armed_count(), self.armed_count().abs_diff(armed_before))
    }

    fn detach(&mut self) -> ProgramToTool {
        let armed = self.armed_count();
        self.leave();
        self.changed(armed, armed)
    }

    /// Joins the session as a process of its own, in a forked child.
    pub(crate) fn after_fork(&mut self, parent: u32) {
        // The child has its parent's ids with their plans, and its parent's armed gates.
        readers::after_fork();
        let is_joined = current().is_some_and(|former| self.joining.join_after_fork(former, parent).is_ok());
        match current().filter(|_| is_joined) {
            Some(attached) => {
                self.follow_rules_of(attached);
                if let Some(register) = attached.memory.register() {
                    register.follow_rules(attached.process, self.rules.0);
                }
            }
            None => {
                self.leave();
                plan::forget_marks();
            }
        }
    }
}

/// Joins a session in place of any other: by the inherited memory, or else by asking for it at the socket, until the
/// deadline.
///
/// # Errors
/// A message of one line.
pub(crate) fn join(socket: &Path, inherited: Option<(i32, [u8; 16])>, deadline: Deadline<'_>) -> Result<(), String> {
    if let Some(memory) = inherited {
        let mut control = lock();
        let joined = control.join(|joining| joining.join_inherited(memory, socket));
        let is_of_session = joined.is_ok() || control.joining.is_mapped(memory.1) || control.joining.has_told;
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
    if let Some(attached) = current()
        // (P) pairs with (P').
        && attached.memory.header().stopped.0.load(Ordering::Acquire) == 0
        // A session whose owner was killed is over as well: no process drains it.
        && dormouse_transport::is_answered(&attached.socket)
    {
        let text = format!("the program is already in the session {}", attached.socket.display());
        return ProgramToTool::Error { text };
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
        ToolToProgram::Arm { patterns } => lock().arm(&patterns),
        ToolToProgram::Disarm { patterns } => lock().set_matching(&patterns, false).0,
        ToolToProgram::Attach { session } => attach(Path::new(&session), memory),
        ToolToProgram::Detach => lock().detach(),
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

fn session_name() -> String {
    current().map(|attached| attached.socket.to_string_lossy().into_owned()).unwrap_or_default()
}

/// Arms and disarms many classes with one change of the text's protection and one synchronisation of the CPUs.
fn set_armed(classes: &mut [Class], wanted: impl Fn(usize, &Class) -> bool) {
    let changes: Vec<(usize, bool)> = classes
        .iter()
        .enumerate()
        .map(|(index, class)| (index, wanted(index, class)))
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
