//! The modules of one crate, and the paths that each of them names.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use proc_macro2::{Span, TokenStream, TokenTree};
use syn::visit::{self, Visit};
use syn::{Attribute, Item, Meta, UseTree, Visibility};

/// Index of the crate's root, which is read first.
pub const ROOT: usize = 0;

/// A path as written in a module: its segments and its line.
#[derive(Debug, Clone)]
pub struct Named {
    pub segments: Vec<String>,
    pub line: usize,
}

/// A name that a module gets from `use`, and whether other modules can reach it.
#[derive(Debug, Clone)]
pub struct Import {
    pub target: Named,
    pub is_exported: bool,
}

/// A module, with or without its own file.
#[derive(Debug)]
pub struct Module {
    /// Path like `a::b`; empty for the root.
    pub path: String,
    pub file: PathBuf,
    pub parent: Option<usize>,
    /// Child modules by name. Several with one name are alternatives, of which one is compiled.
    pub children: BTreeMap<String, Vec<usize>>,
    /// Names of its own items, except for modules.
    pub items: BTreeSet<String>,
    /// Names from `use`, without globs.
    pub imports: BTreeMap<String, Vec<Import>>,
    pub globs: Vec<Import>,
    /// Paths in its items, without `use` declarations.
    pub paths: Vec<Named>,
}

/// The modules of a crate, [`ROOT`] first, without modules and items under `cfg(test)`.
#[derive(Debug)]
pub struct Crate {
    pub modules: Vec<Module>,
}

impl Crate {
    /// Reads the crate with this root file.
    ///
    /// # Errors
    /// A file is missing or is not Rust.
    pub fn read(root: &Path) -> Result<Crate, String> {
        let mut modules = Crate { modules: Vec::new() };
        let dir = root.parent().unwrap_or(Path::new("."));
        modules.read_file(root, dir, None, String::new())?;
        Ok(modules)
    }

    /// Reads a module from its file. `dir` is the directory of its children's files.
    fn read_file(&mut self, file: &Path, dir: &Path, parent: Option<usize>, path: String) -> Result<usize, String> {
        let text = std::fs::read_to_string(file).map_err(|error| format!("{}: {error}", file.display()))?;
        let parsed = syn::parse_file(&text).map_err(|error| format!("{}: {error}", file.display()))?;
        self.add(file, dir, parent, path, &parsed.items)
    }

    fn add(
        &mut self,
        file: &Path,
        dir: &Path,
        parent: Option<usize>,
        path: String,
        items: &[Item],
    ) -> Result<usize, String> {
        let index = self.modules.len();
        self.modules.push(Module {
            path: path.clone(),
            file: file.to_path_buf(),
            parent,
            children: BTreeMap::new(),
            items: BTreeSet::new(),
            imports: BTreeMap::new(),
            globs: Vec::new(),
            paths: Vec::new(),
        });
        for item in items.iter().filter(|item| !is_of_tests(attributes(item))) {
            if let Item::Mod(child) = item {
                let name = plain(&child.ident.to_string());
                let child_path = if path.is_empty() { name.clone() } else { format!("{path}::{name}") };
                let child_index = match &child.content {
                    Some((_, items)) => self.add(file, &dir.join(&name), Some(index), child_path, items)?,
                    None => {
                        let (file, dir) = file_of(&name, file, dir, &child.attrs);
                        self.read_file(&file, &dir, Some(index), child_path)?
                    }
                };
                self.modules[index].children.entry(name).or_default().push(child_index);
                continue;
            }
            if let Item::Macro(definition) = item
                && let Some(name) = &definition.ident
                && definition.attrs.iter().any(|attribute| attribute.path().is_ident("macro_export"))
            {
                // An exported macro's path is in the crate's root, wherever the macro is defined.
                let segments = std::iter::once("crate").chain(path.split("::").filter(|part| !part.is_empty()));
                let segments = segments.map(String::from).chain([plain(&name.to_string())]).collect();
                let target = Named { segments, line: line(name.span()) };
                if index != ROOT {
                    let import = Import { target, is_exported: true };
                    self.modules[ROOT].imports.entry(plain(&name.to_string())).or_default().push(import);
                }
            }
            let module = &mut self.modules[index];
            module.items.extend(name_of(item));
            let mut reader = Reader { module, depth: 0 };
            reader.visit_item(item);
        }
        Ok(index)
    }
}

/// Returns the file of `mod name;`, and the directory of its children's files.
fn file_of(name: &str, parent_file: &Path, dir: &Path, attributes: &[Attribute]) -> (PathBuf, PathBuf) {
    let stated = attributes.iter().find_map(|attribute| match &attribute.meta {
        Meta::NameValue(pair) if pair.path.is_ident("path") => match &pair.value {
            syn::Expr::Lit(syn::ExprLit { lit: syn::Lit::Str(text), .. }) => Some(text.value()),
            _ => None,
        },
        _ => None,
    });
    if let Some(stated) = stated {
        let file = parent_file.parent().unwrap_or(Path::new(".")).join(stated);
        let dir = file.parent().unwrap_or(Path::new(".")).to_path_buf();
        return (file, dir);
    }
    let beside = dir.join(format!("{name}.rs"));
    let file = if beside.exists() { beside } else { dir.join(name).join("mod.rs") };
    (file, dir.join(name))
}

/// Whether an item is only compiled for tests.
fn is_of_tests(attributes: &[Attribute]) -> bool {
    attributes.iter().any(|attribute| {
        let Meta::List(list) = &attribute.meta else { return false };
        if !list.path.is_ident("cfg") {
            return false;
        }
        let text: String = list.tokens.to_string().split_whitespace().collect();
        text == "test" || text.starts_with("all(test,")
    })
}

fn attributes(item: &Item) -> &[Attribute] {
    match item {
        Item::Const(item) => &item.attrs,
        Item::Enum(item) => &item.attrs,
        Item::ExternCrate(item) => &item.attrs,
        Item::Fn(item) => &item.attrs,
        Item::ForeignMod(item) => &item.attrs,
        Item::Impl(item) => &item.attrs,
        Item::Macro(item) => &item.attrs,
        Item::Mod(item) => &item.attrs,
        Item::Static(item) => &item.attrs,
        Item::Struct(item) => &item.attrs,
        Item::Trait(item) => &item.attrs,
        Item::TraitAlias(item) => &item.attrs,
        Item::Type(item) => &item.attrs,
        Item::Union(item) => &item.attrs,
        Item::Use(item) => &item.attrs,
        _ => &[],
    }
}

fn name_of(item: &Item) -> Option<String> {
    let name = match item {
        Item::Const(item) => &item.ident,
        Item::Enum(item) => &item.ident,
        Item::Fn(item) => &item.sig.ident,
        Item::Macro(item) => item.ident.as_ref()?,
        Item::Static(item) => &item.ident,
        Item::Struct(item) => &item.ident,
        Item::Trait(item) => &item.ident,
        Item::TraitAlias(item) => &item.ident,
        Item::Type(item) => &item.ident,
        Item::Union(item) => &item.ident,
        _ => return None,
    };
    Some(plain(&name.to_string()))
}

/// Removes the `r#` of a raw identifier.
fn plain(name: &str) -> String {
    name.trim_start_matches("r#").into()
}

fn line(span: Span) -> usize {
    span.start().line
}

/// Collects the paths of an item. `depth` counts the enclosing blocks, whose `use` declarations add no names to the
/// module.
struct Reader<'a> {
    module: &'a mut Module,
    depth: usize,
}

impl Reader<'_> {
    fn import(&mut self, tree: &UseTree, prefix: &[String], is_exported: bool) {
        let with = |name: &syn::Ident| [prefix, &[plain(&name.to_string())]].concat();
        let named = |segments: Vec<String>, span| Named { segments, line: line(span) };
        let (name, target) = match tree {
            UseTree::Path(path) => return self.import(&path.tree, &with(&path.ident), is_exported),
            UseTree::Group(group) => {
                return group.items.iter().for_each(|tree| self.import(tree, prefix, is_exported));
            }
            UseTree::Name(name) if name.ident == "self" => {
                (prefix.last().cloned().unwrap_or_default(), named(prefix.to_vec(), name.ident.span()))
            }
            UseTree::Name(name) => (plain(&name.ident.to_string()), named(with(&name.ident), name.ident.span())),
            UseTree::Rename(rename) if rename.ident == "self" => {
                (plain(&rename.rename.to_string()), named(prefix.to_vec(), rename.ident.span()))
            }
            UseTree::Rename(rename) => {
                (plain(&rename.rename.to_string()), named(with(&rename.ident), rename.ident.span()))
            }
            UseTree::Glob(glob) => {
                let target = named(prefix.to_vec(), glob.star_token.spans[0]);
                if self.depth > 0 {
                    self.module.paths.push(target);
                } else {
                    self.module.globs.push(Import { target, is_exported });
                }
                return;
            }
        };
        if self.depth > 0 {
            self.module.paths.push(target);
        } else if name == "_" {
            // A trait that is only brought into scope.
            self.module.paths.push(target);
        } else {
            self.module.imports.entry(name).or_default().push(Import { target, is_exported });
        }
    }

    /// Collects the paths in the tokens of a macro: identifiers with `::` between them. A path from `$crate` on, in the
    /// definition of a macro, is a use by the module that calls the macro.
    fn tokens(&mut self, tokens: TokenStream) {
        let mut path: Option<Named> = None;
        let mut is_variable = false;
        // Number of colons after the path.
        let mut colons = 0;
        for token in tokens {
            match token {
                TokenTree::Ident(ident) => {
                    let name = plain(&ident.to_string());
                    match &mut path {
                        Some(path) if colons == 2 => path.segments.push(name),
                        _ => {
                            self.module.paths.extend(path.take());
                            let first = if is_variable { format!("${name}") } else { name };
                            path = Some(Named { segments: vec![first], line: line(ident.span()) });
                        }
                    }
                    (colons, is_variable) = (0, false);
                }
                TokenTree::Punct(punct) if punct.as_char() == ':' && path.is_some() && colons < 2 => colons += 1,
                TokenTree::Group(group) => {
                    self.module.paths.extend(path.take());
                    self.tokens(group.stream());
                }
                token => {
                    self.module.paths.extend(path.take());
                    is_variable = matches!(token, TokenTree::Punct(punct) if punct.as_char() == '$');
                }
            }
        }
        self.module.paths.extend(path);
    }
}

impl<'ast> Visit<'ast> for Reader<'_> {
    fn visit_item(&mut self, item: &'ast Item) {
        if !is_of_tests(attributes(item)) && !matches!(item, Item::Mod(_)) {
            visit::visit_item(self, item);
        }
    }

    fn visit_impl_item_fn(&mut self, function: &'ast syn::ImplItemFn) {
        if !is_of_tests(&function.attrs) {
            visit::visit_impl_item_fn(self, function);
        }
    }

    fn visit_local(&mut self, local: &'ast syn::Local) {
        if !is_of_tests(&local.attrs) {
            visit::visit_local(self, local);
        }
    }

    fn visit_block(&mut self, block: &'ast syn::Block) {
        self.depth += 1;
        visit::visit_block(self, block);
        self.depth -= 1;
    }

    fn visit_item_use(&mut self, item: &'ast syn::ItemUse) {
        if item.leading_colon.is_none() {
            self.import(&item.tree, &[], !matches!(item.vis, Visibility::Inherited));
        }
    }

    fn visit_path(&mut self, path: &'ast syn::Path) {
        if let (None, Some(first)) = (path.leading_colon, path.segments.first()) {
            let segments = path.segments.iter().map(|segment| plain(&segment.ident.to_string())).collect();
            self.module.paths.push(Named { segments, line: line(first.ident.span()) });
        }
        visit::visit_path(self, path);
    }

    fn visit_macro(&mut self, invocation: &'ast syn::Macro) {
        self.visit_path(&invocation.path);
        self.tokens(invocation.tokens.clone());
    }

    // `pub(crate)`, `pub(super)`: a visibility is not a use.
    fn visit_vis_restricted(&mut self, _: &'ast syn::VisRestricted) {}

    // Attributes name derive macros and documentation.
    fn visit_attribute(&mut self, _: &'ast Attribute) {}
}
