//! The modules that each module uses, and cycles among them.

use std::collections::BTreeMap;
use std::fmt::Write;

use crate::modules::{Crate, Import, Named, ROOT};

/// Maximum number of imports that are followed from one to the next, which ends cycles of imports.
const IMPORTS_MAX: usize = 32;
/// A glob counts as this many imports. If a module has several globs, a name is looked up through all of them
/// repeatedly.
const GLOB_IMPORTS: usize = 8;

/// The first place where one module uses another.
#[derive(Debug, Clone)]
struct Use {
    path: String,
    line: usize,
}

impl Crate {
    /// Returns the modules that a path in `module` refers to: none for names of other crates, several if `cfg` has
    /// alternatives.
    fn resolve(&self, module: usize, segments: &[String], imports: usize) -> Vec<usize> {
        let Some((first, rest)) = segments.split_first() else { return vec![module] };
        match first.as_str() {
            "crate" => self.descend(ROOT, rest, imports),
            "self" => self.descend(module, rest, imports),
            "super" => match self.modules[module].parent {
                // `super::super` continues upwards.
                Some(parent) if rest.first().is_some_and(|next| next == "super") => self.resolve(parent, rest, imports),
                Some(parent) => self.descend(parent, rest, imports),
                None => Vec::new(),
            },
            // If the module has no such name, the first name of the path is another crate, or from the prelude, or
            // local.
            name => self.step(module, name, rest, imports).unwrap_or_default(),
        }
    }

    /// Follows the names of a path from a module.
    fn descend(&self, module: usize, segments: &[String], imports: usize) -> Vec<usize> {
        let Some((name, rest)) = segments.split_first() else { return vec![module] };
        self.step(module, name, rest, imports).unwrap_or_else(|| vec![module])
    }

    /// Follows a path that continues with `name`. Returns `None` if the module has no such name.
    fn step(&self, module: usize, name: &str, rest: &[String], imports: usize) -> Option<Vec<usize>> {
        let here = &self.modules[module];
        if let Some(children) = here.children.get(name) {
            return Some(children.iter().flat_map(|child| self.descend(*child, rest, imports)).collect());
        }
        if here.items.contains(name) {
            return Some(vec![module]);
        }
        if imports > IMPORTS_MAX {
            return None;
        }
        if let Some(found) = here.imports.get(name) {
            let targets = found.iter().map(|import| [&import.target.segments, rest].concat());
            return Some(targets.flat_map(|target| self.resolve(module, &target, imports + 1)).collect());
        }
        let globs =
            here.globs.iter().flat_map(|glob| self.resolve(module, &glob.target.segments, imports + GLOB_IMPORTS));
        let mut others = globs.filter(|target| *target != module);
        others.find_map(|target| self.step(target, name, rest, imports + 1))
    }

    /// Whether `module` is nested in `ancestor`.
    fn is_inside(&self, module: usize, ancestor: usize) -> bool {
        let mut above = self.modules[module].parent;
        while let Some(at) = above {
            if at == ancestor {
                return true;
            }
            above = self.modules[at].parent;
        }
        false
    }

    /// Returns the modules that each module uses, with the first place. A module is part of the modules around it, and
    /// does not use them.
    fn uses(&self) -> Vec<BTreeMap<usize, Use>> {
        let all = (0..self.modules.len()).map(|index| {
            let module = &self.modules[index];
            let mut found = BTreeMap::new();
            let mut add = |named: &Named| {
                let targets = self.resolve(index, &named.segments, 0);
                for target in targets.into_iter().filter(|target| *target != index && !self.is_inside(index, *target)) {
                    found.entry(target).or_insert(Use { path: named.segments.join("::"), line: named.line });
                }
            };
            let is_named = |name: &str| module.paths.iter().any(|named| named.segments[0] == name);
            // A re-export of a module's own parts is not a use.
            let is_own = |import: &Import| {
                let targets = self.resolve(index, &import.target.segments, 0);
                targets.iter().all(|target| self.is_inside(*target, index))
            };
            let imports =
                module.imports.iter().flat_map(|(name, imports)| imports.iter().map(move |import| (name, import)));
            for (name, import) in imports {
                if !import.is_exported || is_named(name) || !is_own(import) {
                    add(&import.target);
                }
            }
            module
                .globs
                .iter()
                .filter(|import| !import.is_exported || !is_own(import))
                .for_each(|import| add(&import.target));
            module.paths.iter().for_each(&mut add);
            found
        });
        all.collect()
    }

    /// Returns the cycles: sets of modules in which each uses the others, directly or indirectly. Each is a text with
    /// the places.
    pub fn circles(&self) -> Vec<String> {
        let uses = self.uses();
        let reached: Vec<Vec<bool>> = (0..uses.len()).map(|start| reach(&uses, start)).collect();
        let mut circles = Vec::new();
        let mut is_told = vec![false; uses.len()];
        for first in 0..uses.len() {
            if is_told[first] || !reached[first][first] {
                continue;
            }
            let members: Vec<usize> =
                (0..uses.len()).filter(|other| reached[first][*other] && reached[*other][first]).collect();
            members.iter().for_each(|member| is_told[*member] = true);
            circles.push(self.explain(&members, &uses));
        }
        circles
    }

    fn explain(&self, members: &[usize], uses: &[BTreeMap<usize, Use>]) -> String {
        let name = |index: usize| match self.modules[index].path.as_str() {
            "" => "crate",
            path => path,
        };
        let names: Vec<&str> = members.iter().map(|member| name(*member)).collect();
        let mut text = format!("circle of {}: {}", members.len(), names.join(", "));
        for member in members {
            for (target, place) in uses[*member].iter().filter(|(target, _)| members.contains(target)) {
                let (file, Use { path, line }) = (self.modules[*member].file.display(), place);
                let (from, to) = (name(*member), name(*target));
                write!(text, "\n  {file}:{line}: {from} uses {to}: {path}").expect("a String takes all text");
            }
        }
        text
    }
}

/// Returns for each module whether `start` uses it, directly or indirectly.
fn reach(uses: &[BTreeMap<usize, Use>], start: usize) -> Vec<bool> {
    let mut reached = vec![false; uses.len()];
    let mut open: Vec<usize> = uses[start].keys().copied().collect();
    while let Some(next) = open.pop() {
        if !std::mem::replace(&mut reached[next], true) {
            open.extend(uses[next].keys());
        }
    }
    reached
}
